"""`optimizer.zero_grad()` between two backward passes of a loop body behaves as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run

BATCH = 8
DATA = torch.randn(32, 4, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 2
Optimizers = Sequence[torch.optim.Optimizer]
Body = Callable[[nn.Module, Optimizers, torch.Tensor, torch.Tensor], None]


def made() -> tuple[nn.Sequential, list[torch.optim.Optimizer]]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    return model, [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9) for part in model]


def plain(body: Body) -> list[torch.Tensor]:
    """The same training without the runtime."""
    model, optimizers = made()
    for _ in range(2):
        for x, y in zip(*(part.split(BATCH) for part in DATA), strict=True):
            for optimizer in optimizers:
                optimizer.zero_grad()
            body(model, optimizers, x, y)
    return list(model.parameters())


def elastic(body: Body, virtual_workers: int = 1, **options: Any) -> list[torch.Tensor]:
    model, optimizers = made()
    run = Run(LocalControl.alone(virtual_workers), None, virtual_workers, seed=1)
    size = BATCH // virtual_workers
    model, elastics, batches = run.prepare(model, optimizers, DATA, batch_size=size, shuffle=False, **options)
    for _ in run.epochs(2):
        for x, y in batches:
            body(model, elastics, x, y)
    run.finish()
    return list(model.parameters())


def zero(optimizers: Optimizers) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()


def adversarial(model: nn.Module, optimizers: Optimizers, x: torch.Tensor, y: torch.Tensor) -> None:
    """The first pass computes the inputs' gradient, as in the fast gradient sign method."""
    x = x.clone().requires_grad_()
    functional.cross_entropy(model(x), y).backward()
    assert x.grad is not None
    x = (x + 0.1 * x.grad.sign()).detach()
    zero(optimizers)
    functional.cross_entropy(model(x), y).backward()
    for optimizer in optimizers:
        optimizer.step()


def halves(model: nn.Module, optimizers: Optimizers, x: torch.Tensor, y: torch.Tensor) -> None:
    """Two losses, each for the parameters of one optimizer; both are stepped in the end."""
    first, second = optimizers
    model(x).square().mean().backward()
    second.zero_grad()
    functional.cross_entropy(model[1](model[0](x).detach()), y).backward()  # type: ignore[index]
    second.step()
    first.step()
    first.zero_grad()


def everywhere(model: nn.Module, optimizers: Optimizers, x: torch.Tensor, y: torch.Tensor) -> None:
    """At the beginning, between the steps and after them it has no effect."""
    zero(optimizers)
    functional.cross_entropy(model(x), y).backward()
    optimizers[0].step()
    optimizers[0].zero_grad()
    optimizers[1].step()
    zero(optimizers)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("body", [adversarial, halves, everywhere])
def test_it_forgets_what_this_batch_has_computed_so_far_and_nothing_else(body: Body, overlap: bool) -> None:
    for mine, expected in zip(elastic(body, overlap=overlap), plain(body), strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("body", [halves, everywhere])  # of a mean over the batch: the same for any number
def test_it_leaves_other_virtual_workers_gradients_alone(body: Body) -> None:
    for mine, expected in zip(elastic(body, virtual_workers=4), plain(body), strict=True):
        torch.testing.assert_close(mine, expected)


def begins_late(passes: Iterator[int]) -> Body:
    """From the fourth batch on it has two passes; by then gradients are sent during the computation."""

    def body(model: nn.Module, optimizers: Optimizers, x: torch.Tensor, y: torch.Tensor) -> None:
        functional.cross_entropy(model(x), y).backward()
        if next(passes) > 3:
            zero(optimizers)
        for optimizer in optimizers:
            optimizer.step()

    return body


def test_what_has_been_sent_is_not_forgotten_unnoticed() -> None:
    with pytest.raises(UserError, match="a gradient was changed between backward"):
        elastic(begins_late(iter(range(99))))
