"""Values of the last applied step, read at each point of a script.

Each case returns its state, and the values by point.

A worker that joins, or that has missed a step, passes fewer points. There it must read the same as a single worker.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional
from training_cases import EPOCHS, Points, network

from elasticd.worker.run import Run


class Seen(dict[str, str]):
    """By point. A second reading at a point, in another loop body, must be the same."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def note(self, point: str) -> None:
        """Record the readings at this point."""
        run = self._run
        shared = {name: (each.values, each.mean) for name, each in run.shared.items()}
        found = repr([run.last_lr, run.grad_norm, sorted(run.means.items()), sorted(shared.items())])
        assert self.setdefault(point, found) == found, f"{point}: {self[point]} and {found}"


class Job:
    """A script that reads all values, and decides by none."""

    def __init__(self, run: Run, epochs: int = EPOCHS) -> None:
        self.run, self.seen, self.epochs = run, Seen(run), epochs
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        _, self.prepared, self.batches = run.prepare(
            self.model,
            self.optimizer,
            Points(),
            batch_size=5,
            max_grad_norm=math.inf,
            scheduler=self.scheduler,
            before_update=lambda: self.seen.note(f"before update {self.step}"),
            after_update=lambda: self.seen.note(f"after update {self.step}"),
        )
        run.every(steps=1)(lambda: self.seen.note(f"after {run.steps_done} steps"))

    @property
    def step(self) -> int:
        return self.scheduler.last_epoch if self.scheduler.last_epoch else 0

    def body(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        self.seen.note(f"step {step}")
        loss = functional.cross_entropy(self.model(x), y)
        if step % 5 != 2:
            self.run.share(loss=loss)
        if step % 2:
            self.run.share(count=len(y))
        loss.backward()
        self.prepared.step()
        self.seen.note(f"step {step}")

    def train(self) -> list[Any]:
        for epoch in self.run.epochs(self.epochs):
            self.seen.note(f"begin {epoch}")
            for x, y in self.batches:
                self.body(x, y, self.run.steps_done)
            self.seen.note(f"end {epoch}")
        self.seen.note("over")
        return self.state()

    def host(self) -> list[Any]:
        position = self.run.begin(self.epochs)
        for epoch in range(position.epoch, self.epochs):
            self.seen.note(f"begin {epoch}")
            for step in self.run.steps():
                for x, y in step:
                    self.body(x, y, step.number)
                self.seen.note(f"end {epoch}" if self.run.is_behind else f"behind {self.run.steps_done}")
            self.seen.note(f"end {epoch}")
        self.run.finish()
        self.seen.note("over")
        return self.state()

    def state(self) -> list[Any]:
        return [self.model.state_dict(), self.optimizer.state_dict(), dict(self.seen)]


def ordinary(run: Run) -> list[Any]:
    return Job(run).train()


def deciding(run: Run) -> list[Any]:
    """The script evaluates, agrees and changes registered values at epoch edges and after some steps, and ends by a condition on
    its readings.
    """
    job, data = Job(run, epochs=50), Points()
    found: list[Any] = []

    def evaluated(point: str) -> float:
        def score(batch: Any) -> torch.Tensor:
            return functional.cross_entropy(job.model(batch[0]), batch[1], reduction="sum")

        total = float(run.evaluate(score, (data.x, data.y), batch_size=8))
        job.seen[point] = repr([total, run.agree(run.world_size > 0, all), float(torch.rand(()))])
        return total

    @run.every(steps=4)
    def after() -> None:
        found.append(["after", run.steps_done, evaluated(f"evaluated after {run.steps_done}")])
        job.optimizer.param_groups[0]["weight_decay"] += 0.001

    for epoch in run.epochs(50):
        evaluated(f"evaluated begin {epoch}")
        for x, y in job.batches:
            job.body(x, y, run.steps_done)
        evaluated(f"evaluated end {epoch}")
        job.optimizer.param_groups[0]["dampening"] += 0.01
        if run.steps_done > 19 or run.last_lr[0] < 0.05 * 0.9**22 or run.means["loss"] < 0:
            break
    run.finish()
    return job.state()


def host(run: Run) -> list[Any]:
    return Job(run).host()
