"""What each of the updates from a batch trains, and what its gradient takes on its way: a lane for each.

The gradient of a step is collected (`accumulation`) and reduced (`reduction`) in the lane of the update that the step makes. Of
what the script computes for the parameters of other updates nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..communication.communicator import Communicator
from .accumulation import Accumulation, same
from .layout import Layout
from .reduction import CanonicalReducer, PlainReducer, Reducer
from .updates import Updates


@dataclass
class Lane:
    """What one of the updates trains, and what its gradient takes on its way."""

    parameters: list[torch.nn.Parameter]
    layout: Layout
    accumulation: Accumulation
    reducer: Reducer | None = None


class Lanes:
    """Those of all updates from a batch. For the training thread."""

    def __init__(
        self,
        updates: Updates,
        optimizers: Sequence[torch.optim.Optimizer],
        trained: list[torch.nn.Parameter],
        virtual_workers: int,
        canonical: bool,
        overlap: bool,
    ) -> None:
        """trained: by any of the optimizers. canonical, overlap: as `stepping.Recipe` has them."""
        self._updates = updates
        self._optimizers = optimizers
        self._virtual_workers = self._micro_batches = virtual_workers
        self._canonical = canonical
        self._overlap = overlap
        self._world_size = 1
        owned = [self.owned(number, trained) for number in range(len(updates))]
        self._lanes = [self._lay_out(parameters) for parameters in owned]
        self.present = self._lanes[0]  # of the step in progress

    def owned(self, step: int, parameters: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Those of `parameters` that a step trains."""
        return self._updates.owned(step, parameters, self._optimizers)

    def prepare(self) -> None:
        """Take the memory of the first steps."""
        for lane in self._lanes:
            lane.accumulation.prepare()

    def enter(self, world_size: int) -> None:
        """The next steps are another generation's, with so many workers."""
        self._world_size = world_size

    def rearrange(self, micro_batches: int) -> None:
        """Virtual workers are hosted elsewhere, or reached otherwise, or have more micro-batches, together so many."""
        self._micro_batches = micro_batches
        for lane in self._lanes:
            lane.reducer = None
            lane.accumulation.leaves = micro_batches

    def begin(
        self,
        step: int,
        parameters: list[torch.nn.Parameter],
        communicator: Communicator,
        ranges: Sequence[range],
    ) -> Lane:
        """A step begins, which trains these parameters. Returns its lane."""
        lane = self.show(step, parameters)
        if lane.reducer is None:
            lane.reducer = self._new_reducer(communicator, ranges, lane.layout)
        return lane

    def show(self, step: int, parameters: list[torch.nn.Parameter]) -> Lane:
        """Loop bodies of a step begin, whose gradients may count for nothing. Returns the step's lane."""
        number = self._updates.number(step)
        lane = self._lanes[number]
        if not same(parameters, lane.parameters) or self._world_size > lane.layout.padding:
            lane.accumulation.close()
            lane = self._lanes[number] = self._lay_out(parameters)
        lane.accumulation.begin()
        self.present = lane
        return lane

    def forget_others(self) -> None:
        """What the script has computed for the parameters of other updates is no part of this one."""
        for lane in self._lanes:
            if lane is not self.present:
                for parameter in lane.parameters:
                    parameter.grad = None

    def give_up(self) -> None:
        """Nothing of the step in progress is left."""
        for lane in self._lanes:
            lane.accumulation.forget()

    def _lay_out(self, parameters: list[torch.nn.Parameter]) -> Lane:
        # There may be more workers than virtual workers: while a whole roster is being replaced, old and new are there.
        layout = Layout(parameters, padding=max(self._virtual_workers, self._world_size))
        accumulation = Accumulation(layout, self._micro_batches, self._canonical, self._overlap)
        return Lane(parameters, layout, accumulation)

    def _new_reducer(self, communicator: Communicator, ranges: Sequence[range], layout: Layout) -> Reducer:
        if self._canonical:
            return CanonicalReducer(communicator, ranges, self._micro_batches, layout)
        return PlainReducer(communicator, layout, self._micro_batches)
