"""Lanes: for each of the updates from a batch, its parameters and the memory in which its gradient is summed.

The gradient of a step is collected (`accumulation`) and reduced (`reduction`) in the lane of the update that the step makes.
Gradients that the script computes for the parameters of other updates are discarded.
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
    """Parameters of one update, with the layout, accumulation and reduction of their gradient."""

    parameters: list[torch.nn.Parameter]
    layout: Layout
    accumulation: Accumulation
    reducer: Reducer | None = None


class Lanes:
    """The lanes of all updates from a batch. For the training thread."""

    def __init__(
        self,
        updates: Updates,
        optimizers: Sequence[torch.optim.Optimizer],
        trained: list[torch.nn.Parameter],
        virtual_workers: int,
        canonical: bool,
        overlap: bool,
    ) -> None:
        """trained: parameters that any of the optimizers trains. canonical, overlap: as in `stepping.Recipe`."""
        self._updates = updates
        self._optimizers = optimizers
        self._virtual_workers = self._micro_batches = virtual_workers
        self._canonical = canonical
        self._overlap = overlap
        self._world_size = 1
        self._keeps_norms = False
        owned = [self.owned(number, trained) for number in range(len(updates))]
        self._lanes = [self._lay_out(parameters) for parameters in owned]
        self.present = self._lanes[0]  # of the step in progress

    def owned(self, step: int, parameters: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Return those of `parameters` that a step trains."""
        return self._updates.owned(step, parameters, self._optimizers)

    def keep_norms(self) -> None:
        """Keep the norm of each micro-batch's gradient, from now on (`Accumulation.norms`)."""
        self._keeps_norms = True
        for lane in self._lanes:
            lane.accumulation.keeps_norms = True

    def prepare(self) -> None:
        """Allocate the memory of the first steps in advance."""
        for lane in self._lanes:
            lane.accumulation.prepare()

    def enter(self, world_size: int) -> None:
        """Run the next steps in another generation, with this number of workers."""
        self._world_size = world_size

    def rearrange(self, micro_batches: int) -> None:
        """Prepare for another hosting, communicator, or number of micro-batches in a step, which is `micro_batches`."""
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
        """Begin a step that trains these parameters. Returns its lane."""
        lane = self.show(step, parameters)
        if lane.reducer is None:
            lane.reducer = self._new_reducer(communicator, ranges, lane.layout)
        return lane

    def show(self, step: int, parameters: list[torch.nn.Parameter]) -> Lane:
        """Begin loop bodies of a step without a reduction, as for gradients that are not used. Returns the step's lane."""
        number = self._updates.number(step)
        lane = self._lanes[number]
        if not same(parameters, lane.parameters) or self._world_size > lane.layout.padding:
            lane.accumulation.close()
            lane = self._lanes[number] = self._lay_out(parameters)
        lane.accumulation.begin()
        self.present = lane
        return lane

    def forget_others(self) -> None:
        """Discard gradients of parameters that only other updates train."""
        for lane in self._lanes:
            if lane is not self.present:
                for parameter in lane.parameters:
                    parameter.grad = None

    def give_up(self) -> None:
        """Discard the gradients of the step in progress, also of parameters that are frozen before the next one."""
        for lane in self._lanes:
            lane.accumulation.forget()
            for parameter in lane.parameters:
                parameter.grad = None

    def _lay_out(self, parameters: list[torch.nn.Parameter]) -> Lane:
        # There may be more workers than virtual workers: while a whole roster is replaced, it contains old and new workers.
        layout = Layout(parameters, padding=max(self._virtual_workers, self._world_size))
        accumulation = Accumulation(layout, self._micro_batches, self._canonical, self._overlap)
        accumulation.keeps_norms = self._keeps_norms
        return Lane(parameters, layout, accumulation)

    def _new_reducer(self, communicator: Communicator, ranges: Sequence[range], layout: Layout) -> Reducer:
        if self._canonical:
            return CanonicalReducer(communicator, ranges, self._micro_batches, layout)
        return PlainReducer(communicator, layout, self._micro_batches)
