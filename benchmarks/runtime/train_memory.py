"""`train_elastic` with each worker's peak memory per step, recorded beside the steps."""

from __future__ import annotations

import sys
from pathlib import Path

import elasticd as elastic

from .meter import Meter
from .record import Recorder
from .workloads import build, sgd

ENDLESS = 1_000_000


def memory_of(record: Path, pid: int) -> list[int]:
    """Return a worker's peaks (bytes), step by step."""
    return [int(line) for line in _beside(record, pid).read_text().split()]


def _beside(record: Path, pid: int) -> Path:
    return record.with_name(f"{record.name}.memory.{pid}")


def main(name: str, record: str) -> None:
    run = elastic.join()
    meter = Meter(name)
    workload = build(name)
    recorder = Recorder(record)
    path = _beside(Path(record), recorder.pid)

    def applied() -> None:
        with path.open("a") as file:
            file.write(f"{meter.peak()}\n")
        meter.reset()
        recorder.applied(run.steps_done, run.rank, run.world_size)

    model, optimizer, batches = run.prepare(
        workload.model, sgd(workload.model), workload.data, workload.batch_size, after_update=applied
    )
    for _ in run.epochs(ENDLESS):
        for x, y in batches:
            workload.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
