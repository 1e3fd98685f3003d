"""Stands for `gradients.lanes` in a job whose parameters are divided by `fully_shard`: there is one update, of this
worker's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..communication.communicator import Communicator
from ..gradients.layout import Gradient
from .fully import FullySharded
from .rounds import Rounds


class _Rows:
    """Stands for the layout, and for the accumulation, whose work `Rounds` does as gradients come."""

    keeps_norms = False

    def __init__(self, sharded: FullySharded, rounds: Rounds) -> None:
        self._sharded = sharded
        self._rounds = rounds

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """This worker's rows of the trained parameters."""
        return self._sharded.shadows

    def part_stepped(self) -> None:
        """Do nothing: a body's gradient is compared at its end."""

    def expect(self, virtual_worker: int, weight: float, last: Any, observed: bool = False) -> None:
        """Do nothing: `Rounds.body_begins` follows."""

    def probe(self) -> None:
        """Do nothing: `Rounds.begin` knows that the results of the bodies do not count."""

    def completed(self) -> None:
        """Do nothing: `Rounds.body_ends` follows."""

    def reduce(self, reducer: Any, beside: Callable[[], None]) -> Gradient:
        """Return this worker's rows of the step's gradient, by the parameters. beside: as in `Reducer.finish`."""
        beside()
        gradients = self._rounds.total()
        self._sharded.take_gradient(gradients)
        return Gradient([], gradients)

    def applied(self) -> None:
        """Do nothing: `FullySharded.committed` frees the gradient."""


class RowLane:
    """The lane of the only update."""

    def __init__(self, sharded: FullySharded, rounds: Rounds) -> None:
        self.accumulation: Any = _Rows(sharded, rounds)
        self.layout: Any = self.accumulation
        self.reducer: Any = rounds

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """This worker's rows of the trained parameters."""
        return self.layout.parameters  # type: ignore[no-any-return]


class RowLanes:
    """The lanes of a job with one update. For the training thread."""

    def __init__(self, sharded: FullySharded, rounds: Rounds) -> None:
        self._rounds = rounds
        self._sharded = sharded
        self.present: Any = RowLane(sharded, rounds)

    def owned(self, step: int, parameters: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Return `parameters`: the update trains all."""
        return parameters

    def keep_norms(self) -> None:
        """Do nothing: the norm of a micro-batch's gradient is refused."""

    def prepare(self) -> None:
        """Do nothing: memory follows from the workers, which are not known yet."""

    def enter(self, world_size: int) -> None:
        """Do nothing."""

    def rearrange(self, micro_batches: int) -> None:
        """Do nothing: the rows follow from the workers."""

    def begin(
        self, step: int, parameters: list[torch.nn.Parameter], communicator: Communicator, ranges: Sequence[range]
    ) -> RowLane:
        """Begin a step."""
        self._rounds.enter(communicator)
        self._rounds.begin()
        lane: RowLane = self.present
        return lane

    def show(self, step: int, parameters: list[torch.nn.Parameter]) -> RowLane:
        """Begin loop bodies of which the results do not count."""
        self._rounds.begin(shows=True)
        lane: RowLane = self.present
        return lane

    def forget_others(self) -> None:
        """Do nothing: there is no other update."""

    def give_up(self) -> None:
        """Discard the gradients of the step in progress."""
        self._rounds.begin()
