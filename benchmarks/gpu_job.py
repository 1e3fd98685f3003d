"""The job of `benchmarks.gpu_cluster`: `python -m benchmarks.gpu_job MODEL DIRECTORY [EPOCHS]`.

It trains for EPOCHS epochs, or, without that, until the file DIRECTORY/stop exists, on which the workers agree between two
epochs. Each worker appends its applied steps to DIRECTORY/record, and leaves DIRECTORY/ended-PID with epochs and digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch

import elasticd as elastic

from .runtime.record import Recorder
from .runtime.workloads import build, sgd

VIRTUAL_WORKERS = 8
ENDLESS = 1_000_000


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of all bits of the model's state and of the optimizer's momentum."""
    found = hashlib.sha256()
    momentum = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    for tensor in [*model.state_dict().values(), *momentum]:
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main(name: str, directory: Path, epochs: int | None) -> None:
    run = elastic.join(virtual_workers=VIRTUAL_WORKERS)
    workload = build(name)
    recorder = Recorder(str(directory / "record"))

    def applied() -> None:
        recorder.applied(run.steps_done, run.rank, run.world_size)

    plain = sgd(workload.model)
    model, optimizer, batches = run.prepare(
        workload.model, plain, workload.data, workload.batch_size, after_update=applied
    )
    done = 0
    for epoch in run.epochs(epochs or ENDLESS):
        for x, y in batches:
            workload.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        done = epoch + 1
        if epochs is None and run.agree((directory / "stop").exists(), any):
            break
    ended = directory / f"ended-{os.getpid()}"
    ended.write_text(json.dumps({"epochs": done, "digest": digest(model, plain), "device": str(run.device)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
