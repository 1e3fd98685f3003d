"""Job that trains until a file exists, or for so many steps: train.py MODEL STEPS PACE STOP

PACE is the duration of a micro-batch (s), of which each virtual worker has one per step; it changes no bit.
"""

import os
import sys
import time

import torch
from torch import nn

import elasticd as elastic

EVERY = 10  # steps between two checks for the file


class Points(torch.utils.data.Dataset):
    """Points in the plane, labelled by their distance from the origin."""

    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, 8, generator=torch.Generator().manual_seed(7))
        self.y = (self.x.norm(dim=1) > 2.7).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] + 0.01 * torch.randn(8), self.y[index]


def main() -> None:
    path, steps, pace_s, stop = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    run = elastic.join()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, Points(4096), batch_size=4)

    @run.every(steps=EVERY)
    def look() -> None:
        if run.agree(os.path.exists(stop)) or run.steps_done >= steps:
            run.stop()

    for _ in run.epochs(1_000_000):
        for x, y in batches:
            time.sleep(pace_s)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    run.save(model, path)


if __name__ == "__main__":
    main()
