"""The measured job without this project: stock DistributedDataParallel, checkpoints, and a loop that resumes from them.

    python -m benchmarks.runtime.train_ddp WORKLOAD RECORD CHECKPOINT EVERY PACE_S [STOP]

EVERY: steps from one checkpoint to the next; 0: one checkpoint when the file STOP requests a stop. Started by torchrun, or by any
launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The global batch is that of the elastic job: four micro-batches,
divided among the workers.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from .record import Recorder
from .workloads import build, sgd

MICRO_BATCHES = 4


def main(name: str, record: str, checkpoint: Path, every: int, pace_s: float, stop: Path | None) -> None:
    """Train until ended or requested to stop."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    formation = os.environ["MASTER_PORT"] + "/" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    recorder = Recorder(record)
    workload = build(name)
    optimizer = sgd(workload.model)
    step = _resume(checkpoint, workload.model, optimizer)
    model = torch.nn.parallel.DistributedDataParallel(workload.model)
    x, y = workload.data
    share = MICRO_BATCHES * workload.batch_size // world
    generator = torch.Generator().manual_seed(rank)
    asked = torch.zeros(1)
    while not asked.item():
        rows = torch.randint(len(x), (share,), generator=generator)
        if pace_s:
            time.sleep(pace_s * MICRO_BATCHES / world)
        workload.loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.applied(step, rank, world, formation)
        step += 1
        if every and rank == 0 and step % every == 0:
            _save(checkpoint, workload.model, optimizer, step)
        if stop is not None:
            asked[0] = float(stop.exists())
            dist.all_reduce(asked)
    if rank == 0:
        _save(checkpoint, workload.model, optimizer, step)
    dist.barrier()


def _resume(checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not checkpoint.exists():
        return 0
    document = torch.load(checkpoint, weights_only=True, mmap=True)
    model.load_state_dict(document["model"])
    optimizer.load_state_dict(document["optimizer"])
    return int(document["step"])


def _save(checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    temporary = checkpoint.with_suffix(".new")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, temporary)
    os.replace(temporary, checkpoint)


def from_arguments(arguments: list[str]) -> None:
    """Run with the arguments of the command line."""
    name, record, checkpoint, every, pace_s, *stop = arguments
    main(name, record, Path(checkpoint), int(every), float(pace_s), Path(stop[0]) if stop else None)


if __name__ == "__main__":
    from_arguments(sys.argv[1:])
    os._exit(0)
