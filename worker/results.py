"""Results of applied steps that a script can read: averages, values of each virtual worker, rates, the gradient's norm.

A script may decide by them, so they are the same on all workers at each point of the script. They are a part of the
state, which joining workers get. In a loop body they are those of the step before, also after `optimizer.step()`: there
some bodies run before the update is made, and others, on the same worker or on another, after it.

A worker that joins in an epoch, or that has missed the last step of one, comes to code between two epochs that the
others have completed. So the results with which an epoch has begun are kept, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .sharing import Shared

# a worker that has missed an epoch's last step still has to begin the next, which may have had one step
EPOCHS_KEPT = 2


@dataclass(frozen=True)
class Result:
    """Results of a job after `steps` steps."""

    steps: int = 0
    means: Mapping[str, float] = field(default_factory=dict)  # last known averages, by name
    shared: Mapping[str, Shared] = field(default_factory=dict)  # of the last step, by name
    rates: tuple[float, ...] = ()  # learning rates of the last step, of each group of each optimizer
    norm: float | torch.Tensor | None = None  # of the last step's gradient before clipping; a tensor until it is read

    def plain(self) -> dict[str, Any]:
        """Return plain values for a header."""
        shared = {
            name: [list(each.virtual_workers), list(each.values), list(each.weights)]
            for name, each in self.shared.items()
        }
        norm = None if self.norm is None else float(self.norm)
        return {
            "steps": self.steps,
            "means": dict(self.means),
            "shared": shared,
            "rates": list(self.rates),
            "norm": norm,
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Result:
        """Return the Result of `plain` values."""
        shared = {name: Shared(*(tuple(part) for part in each)) for name, each in plain["shared"].items()}
        return cls(int(plain["steps"]), dict(plain["means"]), shared, tuple(plain["rates"]), plain["norm"])


class Results:
    """Results of the steps of one job that the script may still read. For the training thread."""

    def __init__(self) -> None:
        self.last = Result()  # during an update: of the step that is being applied, as far as known
        self.before = self.last  # results when the step in progress began
        self._begun = {0: self.last}  # by epoch: results with which it began

    def begun_with(self, epoch: int) -> Result:
        """Return the results with which an epoch began; the newest if it did not begin because the job was over."""
        return self._begun.get(epoch, self.last)

    def step_begins(self) -> None:
        """Begin a step, or begin it again."""
        self.before = self.last

    def told(self, step: int, shared: Mapping[str, Shared]) -> None:
        """Record the values that bodies have shared in this step, which is about to be applied."""
        means = {**self.last.means, **{name: each.mean for name, each in shared.items()}} if shared else self.last.means
        self.last = Result(step + 1, means, dict(shared), self.last.rates, None)

    def measured(self, norm: torch.Tensor) -> None:
        """Record the norm of the step's gradient; without this call the norm is None."""
        self.last = replace(self.last, norm=norm)

    def updated(self, rates: tuple[float, ...]) -> None:
        """Record the learning rates of the step."""
        if rates != self.last.rates:
            self.last = replace(self.last, rates=rates)

    def epoch_begins(self, epoch: int) -> None:
        """Record that the next step is the first of this epoch."""
        self._begun[epoch] = self.last
        self._begun = {each: self._begun[each] for each in sorted(self._begun)[-EPOCHS_KEPT:]}

    # -- as they travel with the state

    def plain(self) -> dict[str, Any]:
        """Return plain values for a header."""
        return {"last": self.last.plain(), "begun": [[epoch, each.plain()] for epoch, each in self._begun.items()]}

    def take(self, plain: Mapping[str, Any]) -> None:
        """Take over the results of a received state."""
        self.last = self.before = Result.of_plain(plain["last"])
        self._begun = {int(epoch): Result.of_plain(each) for epoch, each in plain["begun"]}
