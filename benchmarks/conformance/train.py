"""Script of all jobs: `python -m benchmarks.conformance.train DELIVERY_S UPDATE_S NAME`, until the last step (see `kinds`).

The name only makes the jobs' commands differ, so that the cluster does not apply one job's measurements to another.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import elasticd as elastic

SAMPLES = 4096
FEATURES = 16
BATCH_SIZE = 2
ENDLESS = 1_000_000  # epochs: the job's max_steps ends the training


class SlowStorage(Dataset[tuple[Tensor, Tensor]]):
    """Points labelled by the side of a plane; a batch takes `delivery_s` to arrive."""

    def __init__(self, delivery_s: float) -> None:
        generator = torch.Generator().manual_seed(1)
        self._points = torch.randn(SAMPLES, FEATURES, generator=generator)
        self._labels = (self._points.sum(dim=1) > 0).long()
        self._delivery_s = delivery_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._points[index], self._labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        time.sleep(self._delivery_s)
        return [self[index] for index in indices]


def main(delivery_s: float, update_s: float) -> None:
    """Train until the job's last step."""
    run = elastic.join()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(
        model,
        optimizer,
        SlowStorage(delivery_s),
        BATCH_SIZE,
        before_update=(lambda: time.sleep(update_s)) if update_s else None,
    )
    for _ in run.epochs(ENDLESS):
        for points, labels in batches:
            F.cross_entropy(model(points), labels).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
