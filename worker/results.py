"""What a script can read of the steps that were applied: averages, values of each virtual worker, rates, the gradient's norm.

A script may decide by it, so it is the same on all workers at each point of the script. It is a part of the state, and joiners
get it. In a loop body it is that of the step before, also behind `optimizer.step()`: there some bodies run before the update is
made, and others, on the same worker or on another, behind it.

A worker that joins in an epoch, or that has missed the last step of one, comes to code between two epochs that the others are
past. So the results with which an epoch has begun are kept, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .sharing import Shared

EPOCHS_KEPT = 2  # whoever has missed an epoch's last step still has to begin the next, which may have had one step


@dataclass(frozen=True)
class Result:
    """Of a job, after so many steps."""

    steps: int = 0
    means: Mapping[str, float] = field(default_factory=dict)  # by name: known last
    shared: Mapping[str, Shared] = field(default_factory=dict)  # of the last step
    rates: tuple[float, ...] = ()  # with which it was made: of each group of each optimizer
    norm: float | torch.Tensor | None = None  # of its gradient, before clipping; a tensor as long as nobody has read it

    def plain(self) -> dict[str, Any]:
        """For a header."""
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
        """What `plain` has given."""
        shared = {name: Shared(*(tuple(part) for part in each)) for name, each in plain["shared"].items()}
        return cls(int(plain["steps"]), dict(plain["means"]), shared, tuple(plain["rates"]), plain["norm"])


class Results:
    """Of the steps of one job, as far as anybody can still come to read them. For the training thread."""

    def __init__(self) -> None:
        self.last = Result()  # in an update: of the step that is being applied, as far as it is known
        self.before = self.last  # when the step in progress began
        self._begun = {0: self.last}  # by epoch: with which it has begun

    def begun_with(self, epoch: int) -> Result:
        """Those with which an epoch has begun. The newest where it has not, as the job was over before."""
        return self._begun.get(epoch, self.last)

    def step_begins(self) -> None:
        """A step begins, or begins again."""
        self.before = self.last

    def told(self, step: int, shared: Mapping[str, Shared]) -> None:
        """What bodies have told in this step, which is about to be applied."""
        means = {**self.last.means, **{name: each.mean for name, each in shared.items()}} if shared else self.last.means
        self.last = Result(step + 1, means, dict(shared), self.last.rates, None)

    def measured(self, norm: torch.Tensor) -> None:
        """The norm of its gradient. Where nothing is told, it is not known."""
        self.last = replace(self.last, norm=norm)

    def updated(self, rates: tuple[float, ...]) -> None:
        """It has been made with these rates."""
        if rates != self.last.rates:
            self.last = replace(self.last, rates=rates)

    def epoch_begins(self, epoch: int) -> None:
        """The next step is the first of this epoch."""
        self._begun[epoch] = self.last
        self._begun = {each: self._begun[each] for each in sorted(self._begun)[-EPOCHS_KEPT:]}

    # -- as they travel with the state

    def plain(self) -> dict[str, Any]:
        """For a header."""
        return {"last": self.last.plain(), "begun": [[epoch, each.plain()] for epoch, each in self._begun.items()]}

    def take(self, plain: Mapping[str, Any]) -> None:
        """A state has come, with these."""
        self.last = self.before = Result.of_plain(plain["last"])
        self._begun = {int(epoch): Result.of_plain(each) for epoch, each in plain["begun"]}
