"""Trainings that clip the gradient in their loop bodies. Each returns its final state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from training_cases import EPOCHS, Points, network

from elasticd.worker.run import Run

WIDTH = 600  # with which the gradient has several segments, some of which leave `grad` during the backward pass


def _bound(run: Run) -> float:
    return 0.1 * (1 + run.steps_done % 3)


def _train(run: Run, clip: Callable[[nn.Module], None], before_update: Callable[[], None] | None = None) -> list[Any]:
    model = network(WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, prepared, batches = run.prepare(model, optimizer, Points(), batch_size=5, before_update=before_update)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            prepared.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            clip(model)
            prepared.step()
    return [model.state_dict(), optimizer.state_dict()]


def by_the_runtime(run: Run) -> list[Any]:
    def clip(model: nn.Module) -> None:
        run.clip(_bound(run))

    return _train(run, clip)


def _ignore(norm: torch.Tensor) -> None:
    assert norm > 0


def by_torch(run: Run) -> list[Any]:
    """The state must be that of `by_the_runtime`."""
    return _train(run, lambda model: _ignore(clip_grad_norm_(model.parameters(), _bound(run))))


def with_norms(run: Run) -> list[Any]:
    """The norms that the calls return for all micro-batches are in the state. Some bounds change nothing."""
    found: list[Any] = []
    run.register("found", lambda: list(found), lambda values: found.__setitem__(slice(None), values))

    def clip(model: nn.Module) -> None:
        run.share(norm=clip_grad_norm_(model.parameters(), math.inf if run.steps_done < 3 else _bound(run)))

    return [*_train(run, clip, lambda: found.append(list(run.shared["norm"].values))), found]


def scaled(run: Run) -> list[Any]:
    """The recipe of PyTorch's documentation for mixed precision: unscale, clip, step."""
    model = network()
    raw = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=5)
    scaler = run.scaler(raw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, prepared, batches = run.prepare(model, optimizer, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = 64 * functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(prepared)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(prepared)
            scaler.update()
            prepared.zero_grad()
    run.finish()
    assert raw.get_scale() < 2.0**127, "no step was skipped"
    return [model.state_dict(), optimizer.state_dict(), raw.state_dict()]


def from_a_later_step(run: Run) -> list[Any]:
    """The clipping begins in the middle of an epoch. Norms are in the state."""
    found: list[Any] = []
    run.register("found", lambda: list(found), lambda values: found.__setitem__(slice(None), values))

    def clip(model: nn.Module) -> None:
        if run.steps_done >= 8:
            run.share(norm=clip_grad_norm_(model.parameters(), _bound(run)))

    def note() -> None:
        found.extend(run.shared["norm"].values if "norm" in run.shared else ())

    return [*_train(run, clip, note), found]


def gathered(run: Run) -> list[Any]:
    """Loop bodies run three times in a step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options: Any = {"batch_size": 5, "drop_last": True, "gathers": True}
    model, prepared, batches = run.prepare(model, optimizer, Points(), **options)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            scores = model(x)
            (functional.cross_entropy(scores, y) + run.gather(scores).square().mean()).backward()
            clip_grad_norm_(model.parameters(), 0.1)
            prepared.step()
            prepared.zero_grad()
    return [model.state_dict(), optimizer.state_dict()]
