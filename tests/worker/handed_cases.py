"""Training loops with objects that the script hands to the runtime or to torch, and to which none of its variables refers."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training_cases import EPOCHS, Points
from unlike_cases import ended, prepared

from elasticd.worker.run import Run


class Counting:
    """A function with a state: of gradients, samples, or an order."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: Any = None) -> Any:
        self.calls += 1
        return given if isinstance(given, list) else given * (1.0 + 0.01 * (self.calls % 5))


class Scaled(Counting):
    """A hook of all modules, which changes their outputs."""

    def __call__(self, module: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        scaled: torch.Tensor = super().__call__(output)
        return scaled


class Scaling(Counting):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __call__(self, given: Any = None) -> Any:
        self.calls += 1
        for each in self.model.parameters():
            if each.grad is not None:
                each.grad.mul_(1.0 + 0.01 * (self.calls % 5))


class Mixing(Counting):
    def __call__(self, given: Any = None) -> Any:
        x, y = torch.utils.data.default_collate(given)
        return super().__call__(x), y


class Passes(torch.utils.data.Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length, self.passes = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        self.passes += 1
        order = list(range(self.length))
        random.Random(self.passes).shuffle(order)
        return iter(order)


def objects_that_prepare_gets(run: Run) -> list[Any]:
    """No variable of the script refers to an object with a state."""
    model, points = nn.Linear(12, 4), Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(
        *(model, optimizer, points),
        batch_size=5,
        sampler=Passes(len(points)),
        collate_fn=Mixing(),
        before_update=Scaling(model),
    )
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return ended(run, model)


def hook_of_all_modules(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    torch.nn.modules.module.register_module_forward_hook(Scaled())
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def hooks_with_a_state(run: Run) -> list[Any]:
    """Hooks of a parameter and an optimizer, and one of the latter from an epoch on."""
    model, optimizer, batches = prepared(run)
    parameter = next(model.parameters())
    parameter.register_hook(Counting())
    for epoch in run.epochs(EPOCHS):
        if epoch == 1:
            optimizer.register_step_pre_hook(lambda *_: [parameter.grad.mul_(0.5), None][1])
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)
