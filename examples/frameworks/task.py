"""The common task of the scripts in this folder: a small network with batch normalization and dropout, on generated
rows.

A batch is a dict, so that `model(**batch)` is a call that every framework makes. It returns a dict with the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

BATCH_SIZE = 8  # samples of one micro-batch
EPOCHS = 12
LEARNING_RATE = 0.01
MAX_NORM = 0.5  # of the gradient
SEED = 7
STEPS = 120  # of a cosine's descent

on_samples: Callable[[list[int]], None] = lambda indices: None  # noqa: E731  told of the samples of each training pass


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random rows with two classes. Each read adds a little noise, drawn again each time."""

    def __init__(self, size: int, seed: int = 3, noise: float = 0.05) -> None:
        self._noise = noise
        generator = torch.Generator().manual_seed(seed)
        self._rows = torch.randn(size, 8, generator=generator)
        self._labels = (self._rows[:, :2].sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noisy = self._rows[index] + self._noise * torch.randn(8)
        return {"x": noisy, "labels": self._labels[index], "index": torch.tensor(index)}


class Net(nn.Module):
    """Network with two numbers in each channel, so that batch normalization can train on a single sample, as in a short
    last step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            on_samples(index.tolist())
        hidden = functional.relu(self.norm(self.inner(x).view(-1, 16, 2)))
        logits = self.out(self.drop(hidden.flatten(1)))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def build() -> Net:
    """Return the network in its initial state."""
    torch.manual_seed(SEED)
    return Net()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def cosine(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def train_rows(virtual_workers: int = 4) -> Rows:
    """Return rows for nine full steps and one of only two samples, in which some virtual workers have none."""
    return Rows(9 * virtual_workers * BATCH_SIZE + 2)


def test_rows() -> Rows:
    return Rows(60, seed=4, noise=0.0)


def evaluate(model: nn.Module, batches: Iterable[dict[str, torch.Tensor]]) -> float:
    """Return the mean loss over all rows."""
    model.eval()
    total, rows = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            total += float(model(**batch)["loss"]) * len(batch["labels"])
            rows += len(batch["labels"])
    model.train()
    return total / rows


def document(model: nn.Module, optimizer: Any, log: list[Any], steps: int, samples: int) -> dict[str, Any]:
    """Return the result of a training for comparison: parameters and buffers, the optimizer's state, the logged values,
    the number of steps, and the samples of an epoch.
    """
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**states, "log": log, "steps": steps, "epoch": list(range(samples))}
