"""Training loops whose batch grows, for `training_ranks`. Each returns its final state."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from training_cases import EPOCHS, Points, network

from elasticd.worker.run import Run

GROWTH = {3: 2, 9: 4}  # applied steps -> factor for which the cluster asks from then on


def train(run: Run, *, mode: str = "manual", before_epoch: Any = lambda epoch: None, **options: Any) -> list[Any]:
    """Dropout, batch normalization, momentum, a schedule by steps and one by epochs, a value that grows with each step."""
    if mode and (run._env is None or run._env.scaling is None):
        run.scaling(mode, max_factor=4, ramp_steps=5)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=20)
    state = run.state(steps=0, factors=[])
    model, optimizer, batches = run.prepare(model, optimizer, Points(), 5, scheduler=warmup, **options)
    for epoch in run.epochs(EPOCHS):
        before_epoch(epoch)
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            state.steps = run.steps_done
            state.factors = [*state.factors, run.batch_factor]
            optimizer.zero_grad()
    run.finish()
    growing = run._require_trainer()._growing
    changes = growing.plain_changes() if growing is not None else []
    return [model.state_dict(), optimizer.state_dict(), warmup.state_dict(), changes, state.factors]


def asked_by_the_cluster(run: Run) -> list[Any]:
    def ask(epoch: int = 0) -> None:
        training = run._control.machine._training  # type: ignore[attr-defined]
        training.batch_factor = max([factor for step, factor in GROWTH.items() if step <= run.steps_done], default=0)

    run.every(steps=1)(ask)
    return train(run, mode="hybrid")


def adabatch(run: Run) -> list[Any]:
    def schedule(epoch: int) -> None:
        if epoch in (1, 2):
            run.set_batch(2**epoch)
        elif epoch == 3:
            run.set_batch(3, rate=1.5)

    return train(run, before_epoch=schedule)


def adabatch_with_data_workers(run: Run) -> list[Any]:
    def schedule(epoch: int) -> None:
        if epoch in (1, 2):
            run.set_batch(2**epoch)
        elif epoch == 3:
            run.set_batch(3, rate=1.5)

    return train(run, before_epoch=schedule, num_workers=2, prefetch_factor=3)


def within_an_epoch(run: Run) -> list[Any]:
    """The script changes the batch in a function between two steps, twice within one ramp."""

    def change() -> None:
        if run.steps_done == 4:
            run.set_batch(2)
        if run.steps_done == 6:
            run.set_batch(4)

    run.every(steps=2)(change)
    return train(run)


def unchanged(run: Run) -> list[Any]:
    return train(run)[:3]


def without_scaling(run: Run) -> list[Any]:
    return train(run, mode="")[:3]
