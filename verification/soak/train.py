"""Training job that records which samples its applied steps have visited, and when each step was applied.

    train.py OUTPUT [--epochs E] [--size S] [--pace SECONDS] [--steps FILE] [--calm FILE]

The record of samples is a parameter with one number per sample, which each visit increases by one: a visit's gradient is one over
the number of virtual workers, and that number is the learning rate. So the record is part of the state: a step that is lost or
applied twice shows in it, while a step that was begun and abandoned does not. After each epoch the script records the number of
samples that were not visited exactly once. `--steps` collects a line ``TIME STEPS-DONE`` per step, of all workers. While the file
`--calm` exists, a micro-batch lasts a second.
"""

import argparse
import os
import time
from typing import Any

import torch
from torch import nn

import elasticd as elastic

BATCH = 4  # per virtual worker
CALM_S = 1.0


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Points in the plane, labelled by their distance from the origin, with noise. Each comes with its number."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(size, 8, generator=generator)
        self.y = (self.x.norm(dim=1) > 2.7).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index] + 0.01 * torch.randn(8), self.y[index], index


class Net(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
        self.visits = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers(x), -self.visits[index].sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=512, help="samples: a multiple of a step's")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that one micro-batch lasts at least")
    parser.add_argument("--steps")
    parser.add_argument("--calm")
    options = parser.parse_args()

    run = elastic.join()
    torch.manual_seed(0)
    model = Net(options.size)
    groups: list[dict[str, Any]] = [
        {"params": model.layers.parameters()},
        {"params": [model.visits], "lr": float(run.virtual_workers), "momentum": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    missed: list[int] = []
    run.register("missed", lambda: list(missed), lambda values: missed.__setitem__(slice(None), values))
    model, optimizer, batches = run.prepare(model, optimizer, Points(options.size), batch_size=BATCH)
    steps = os.open(options.steps, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if options.steps else None
    told = -1
    for epoch in run.epochs(options.epochs):
        for x, y, index in batches:
            if pace_s := CALM_S if options.calm and os.path.exists(options.calm) else options.pace:
                time.sleep(pace_s)
            answer, visited = model(x, index)
            loss = nn.functional.cross_entropy(answer, y) + visited
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if steps is not None and run.steps_done > told:
                told = run.steps_done
                os.write(steps, f"{time.time():.3f} {told}\n".encode())
        missed.append(int((model.visits.detach() != epoch + 1).sum()))
    run.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "missed": missed}, options.output)


if __name__ == "__main__":
    main()
