"""A job with constant parameters and gradients, so that a network capture recognizes them.

    train_pattern.py GO [--plain]

It trains until the file `GO` exists. `--plain`: with torch.distributed alone, as in tutorials; an error if its processes do not
connect within 15 s.
"""

import os
import sys
import time
from datetime import timedelta

import torch
from torch import nn

PARAMETER, GRADIENT, SIZE = 1234.5678, 4321.125, 20_000


class Constant(nn.Module):
    """Its gradient is `GRADIENT` wherever inputs are one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((SIZE,), PARAMETER))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * GRADIENT).sum() * x.mean()


def elastic_job(go: str) -> None:
    import elasticd as elastic

    run = elastic.join()
    dataset = torch.utils.data.TensorDataset(torch.ones(64, 1))
    model = Constant()
    model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0), dataset, batch_size=1)
    for _ in run.epochs(100_000):
        for (x,) in batches:
            time.sleep(0.05)
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
        if os.path.exists(go):
            break


def plain_job(go: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    while not os.path.exists(go):
        dist.all_reduce(torch.full((SIZE,), GRADIENT))
        time.sleep(0.05)
    os._exit(0)  # the other process may wait for this one: it ends with an error


if __name__ == "__main__":
    (plain_job if "--plain" in sys.argv else elastic_job)(sys.argv[1])
