"""The measured job with this runtime: `python -m benchmarks.runtime.train_elastic WORKLOAD RECORD [PACE_S]`, until it is
ended."""

from __future__ import annotations

import sys
import time

import elasticd as elastic

from .record import Recorder
from .workloads import build, sgd

ENDLESS = 1_000_000


def main(name: str, record: str, pace_s: float) -> None:
    """Train. pace_s: simulated compute time of an accelerator per micro-batch, in addition to the computation here."""
    run = elastic.join()
    workload = build(name)
    recorder = Recorder(record)

    def applied() -> None:
        recorder.applied(run.steps_done, run.rank, run.world_size)

    model, optimizer, batches = run.prepare(
        workload.model, sgd(workload.model), workload.data, workload.batch_size, after_update=applied
    )
    for _ in run.epochs(ENDLESS):
        for x, y in batches:
            if pace_s:
                time.sleep(pace_s)
            workload.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
