"""Training in a framework's loop, with one item per global step. Each returns its final state.

They log the values of their steps: after any history the log must equal that of a single worker.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training_cases import EPOCHS, Points, network

from elasticd.worker.run import Run


def _log(run: Run) -> list[Any]:
    log: list[Any] = []
    run.register("log", lambda: list(log), lambda values: log.__setitem__(slice(None), values))
    return log


def host(run: Run) -> list[Any]:
    """The model of `training_cases.plain`, and a framework's log of each step."""
    model, log = network(), _log(run)
    has_led, told = False, list[int]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, prepared, _ = run.prepare(model, optimizer, Points(), batch_size=5)
    run.on_leader(lambda: told.append(run.steps_done))
    position = run.begin(EPOCHS)
    for epoch in range(position.epoch, EPOCHS):
        for step in run.steps():
            for x, y in step:
                loss = functional.cross_entropy(model(x), y)
                run.share(loss=loss, count=len(y))
                loss.backward()
                prepared.step()
                prepared.zero_grad()
            loss_of_all, count = run.shared["loss"], run.shared["count"]
            log.append([epoch, step.number, run.steps_done, loss_of_all.mean, loss_of_all.values, count.total])
            log.append(torch.randn(1).item())
            has_led |= run.is_leader
        log.append(torch.randn(1).item())
    assert run.finished
    assert len(told) == has_led
    run.finish()
    return [model.state_dict(), optimizer.state_dict(), log]


def host_within_epochs(run: Run) -> list[Any]:
    """The result must be that of `host`."""
    model, log = network(), _log(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run.prepare(model, optimizer, Points(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        for step in run.steps():
            for x, y in step:
                loss = functional.cross_entropy(model(x), y)
                run.share(loss=loss, count=len(y))
                loss.backward()
            loss_of_all, count = run.shared["loss"], run.shared["count"]
            log.append([epoch, step.number, run.steps_done, loss_of_all.mean, loss_of_all.values, count.total])
            log.append(torch.randn(1).item())
        log.append(torch.randn(1).item())
    return [model.state_dict(), optimizer.state_dict(), log]


def host_until(run: Run) -> list[Any]:
    """The training ends in the middle of an epoch."""
    model, log = network(), _log(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    run.prepare(
        model,
        optimizer,
        Points(),
        batch_size=5,
        scheduler=scheduler,
        scheduler_frequency=3,
        max_grad_norm=math.inf,
        before_update=lambda: log.append(run.shared["loss"].mean),
    )
    position = run.begin(EPOCHS, max_steps=20)
    for _ in range(position.epoch, EPOCHS):
        for step in run.steps():
            for x, y in step:
                loss = functional.cross_entropy(model(x), y)
                run.share(loss=loss)
                loss.backward()
            log.append([step.number, *run.last_lr, scheduler.get_last_lr(), run.grad_norm])
        if run.finished:
            break
    run.finish()
    assert run.steps_done == 20
    return [model.state_dict(), optimizer.state_dict(), log]


def items(run: Run) -> list[Any]:
    """The loss is a sum over some of the samples, whose number only the body knows."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, prepared, batches = run.prepare(model, optimizer, Points(), batch_size=5, normalize="items")
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            kept = y != 1
            run.share(items=int(kept.sum()))
            functional.cross_entropy(model(x)[kept], y[kept], reduction="sum").backward()
            prepared.step()
            prepared.zero_grad()
    return [model.state_dict(), optimizer.state_dict()]


def clipped(run: Run) -> list[Any]:
    """The body sets the clipping, which differs between steps. The result must be that of `clipped_by_hook`."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, prepared, batches = run.prepare(model, optimizer, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            if run.steps_done % 3:
                run.clip(0.1 * (run.steps_done % 3))
            prepared.step()
            prepared.zero_grad()
    return [model.state_dict(), optimizer.state_dict()]


def clipped_by_hook(run: Run) -> list[Any]:
    """The same as `clipped`, in a hook."""
    model: nn.Module = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def clip() -> None:
        if run.steps_done % 3:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1 * (run.steps_done % 3))

    model, prepared, batches = run.prepare(model, optimizer, Points(), batch_size=5, before_update=clip)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            prepared.step()
            prepared.zero_grad()
    return [model.state_dict(), optimizer.state_dict()]
