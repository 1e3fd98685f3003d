"""Small trainings on generated data, alone in this process, with a batch that grows or does not.

A convolutional network tells ten shifted patterns apart under noise; a transformer predicts the next word of a language in
which the last two words decide it. Both train a fixed number of epochs, with a rate that falls as a cosine over them: the
script's own schedule, which `run.scaling` multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import elasticd

VIRTUAL_WORKERS = 1
EPOCHS = 6
RAMP_STEPS = 10
SIDE, CLASSES = 10, 10
WORDS, LENGTH, WIDTH = 8, 12, 24
DATA_SEED = 11

Data = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """Growth of the batch. factors: by third of the training. follows: the learning rate follows (the rule of Elan III)."""

    factors: tuple[int, int, int]
    follows: bool = True


@dataclass(frozen=True)
class Task:
    """A model with its data."""

    build: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    data: Callable[[int, int], Data]  # so many samples, drawn with a seed
    batch_size: int  # of one virtual worker
    samples: int
    tests: int = 1000


def images(count: int, seed: int) -> Data:
    """Patterns of one class, shifted, under noise."""
    patterns = torch.randn(CLASSES, SIDE, SIDE, generator=torch.Generator().manual_seed(DATA_SEED))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    shifts = torch.randint(0, 3, (count, 2), generator=generator).tolist()
    shifted = torch.stack(
        [torch.roll(patterns[k], (a, b), (0, 1)) for k, (a, b) in zip(labels.tolist(), shifts, strict=True)]
    )
    noise = torch.randn(count, SIDE, SIDE, generator=generator)
    return (shifted + 1.2 * noise)[:, None], labels


def sentences(count: int, seed: int) -> Data:
    """Sequences in which a table gives the next word after the last two, but for one word in eight, which is drawn."""
    table = torch.randint(0, WORDS, (WORDS, WORDS), generator=torch.Generator().manual_seed(DATA_SEED))
    generator = torch.Generator().manual_seed(seed)
    words = [torch.randint(0, WORDS, (count,), generator=generator) for _ in range(2)]
    for _ in range(LENGTH - 1):
        drawn = torch.randint(0, WORDS, (count,), generator=generator)
        rare = torch.rand(count, generator=generator) < 1 / 8
        words.append(torch.where(rare, drawn, table[words[-2], words[-1]]))
    tokens = torch.stack(words, dim=1)
    return tokens[:, :-1], tokens[:, 1:]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 2) ** 2, CLASSES),
    )


class Transformer(nn.Module):
    """Predicts each next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        found: torch.Tensor = self.out(self.layers(self.words(tokens) + self.places, mask=mask, is_causal=True))
        return found.transpose(1, 2)


TASKS = {
    "CNN, SGD": Task(
        network, lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), images, 16, 1024
    ),
    "transformer, Adam": Task(
        Transformer, lambda model: torch.optim.Adam(model.parameters(), lr=3e-3), sentences, 16, 768
    ),
}


def accuracy(model: nn.Module, tests: Data) -> float:
    """Return the part of the answers that are right."""
    model.eval()
    with torch.no_grad():
        found = float((model(tests[0]).argmax(1) == tests[1]).float().mean())
    model.train()
    return found


def train(name: str, setting: Setting, seed: int) -> list[float]:
    """Train. Returns the accuracy after each epoch."""
    task = TASKS[name]
    run = elasticd.join(virtual_workers=VIRTUAL_WORKERS, seed=seed)
    run.scaling("manual", max_factor=max(setting.factors), ramp_steps=RAMP_STEPS)
    torch.manual_seed(seed)
    model = task.build()
    optimizer = task.optimizer(model)
    units = EPOCHS * -(-task.samples // (VIRTUAL_WORKERS * task.batch_size))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, units)
    data, tests = task.data(task.samples, seed), task.data(task.tests, 10_000 + seed)
    model, optimizer, batches = run.prepare(model, optimizer, data, task.batch_size, scheduler=cosine)
    found: list[float] = []
    for epoch in run.epochs(EPOCHS):
        factor = setting.factors[3 * epoch // EPOCHS]
        run.set_batch(factor, rate=None if setting.follows else 1.0)
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append(accuracy(model, tests))
    return found


Key = tuple[str, Setting, int]  # a task's name, a setting, a seed


def name_of(task: str, setting: Setting, seed: int) -> str:
    """Return the name of a training."""
    return f"{task} {'-'.join(map(str, setting.factors))} {'rule' if setting.follows else 'default'} {seed}"


def trained(key: Key) -> tuple[str, list[float]]:
    """Train in a process of a pool. Returns the training's name, and the accuracy after each epoch."""
    return name_of(*key), train(*key)
