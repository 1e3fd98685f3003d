"""Optimizers that evaluate the loss of the whole step several times before they update (torch.optim.LBFGS).

`optimizer.step(closure)` of such an optimizer needs the loss and its gradient at one point after another, each time over all
virtual workers' micro-batches. So a step has several *evaluations*: in each of them all loop bodies of the step run once more,
their gradients are reduced, and their losses are exchanged. Then every worker does the same computation on the same bits
(`suspended`), and so knows the next point, or that none follows. Only then come the step's word and the update.

The parameters have the values of the point only within the closure: everywhere else a script sees the values with which the step
began. Buffers pass from one evaluation to the next, as in a script for one GPU. The generators are seeded anew for each
evaluation: for number e > 0 from (seed, step, virtual worker, e).

All workers have to go on, or to end, alike: otherwise they would wait for each other in different operations. So after each
evaluation they compare their decisions by two integers. A joiner, which hosts no virtual worker and has no parameters yet, learns
from these integers whether another evaluation follows. It keeps the losses and gradients, and computes the update from them when
its state has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from ...protocol.errors import UserError
from ..communication.communicator import Communicator
from ..inband import NOTHING
from .layout import Gradient
from .suspended import SuspendedStep, parameters_of

DISAGREE = (
    "the workers do not agree whether LBFGS evaluates the loss of step {step} once more, so their parameters, its state or "
    "the values in its param_groups differ: what sets them must not depend on the worker, and all GPUs must be of one kind"
)


class Evaluations:
    """The single evaluation of the loss in a step, for nearly all optimizers."""

    refuses = ""  # reason to refuse calls in a body that would differ between evaluations; "": there is only one
    number = 0  # of the evaluation in progress
    goes_on = False  # whether another evaluation follows in the step

    @staticmethod
    def of(optimizers: Sequence[torch.optim.Optimizer], virtual_workers: int) -> Evaluations:
        """Return the evaluations that these optimizers of a script need."""
        several = len(optimizers) == 1 and isinstance(optimizers[0], torch.optim.LBFGS)
        return SeveralEvaluations(optimizers[0], virtual_workers) if several else Evaluations()

    def begin(self) -> None:
        """Begin a step, or begin it again."""

    def as_begun(self) -> AbstractContextManager[None]:
        """Give the parameters, within the context, the values with which the step began; also within a closure."""
        return nullcontext()

    def catch_up(self) -> None:
        """Repeat the step's evaluations on a joiner, which has its state now, from the kept losses and gradients."""


class SeveralEvaluations(Evaluations):
    """The evaluations of each step, for a script's only optimizer. For the training thread."""

    refuses = "the optimizer is LBFGS"

    def __init__(self, optimizer: torch.optim.Optimizer, virtual_workers: int) -> None:
        self._optimizer = optimizer
        self._kind = type(optimizer)  # torch's class: the runtime has not inserted its own yet
        self._n = virtual_workers
        self._begun: list[torch.Tensor] = []  # the step's first parameters, from the second evaluation on
        self._at_other = False  # whether the parameters have the values of another point
        self._suspended: SuspendedStep | None = None
        self._work: dist.Work | None = None
        self.begin()

    # -- a step

    def begin(self) -> None:
        self.drop()
        self.number, self.goes_on = 0, False
        self._losses: dict[
            int, tuple[float, float]
        ] = {}  # of this worker's bodies in this evaluation, with their weights
        self._first: dict[int, Any] = {}  # results of the closures in the step's first evaluation, by virtual worker
        self._answers: list[tuple[float, dict[int, torch.Tensor]]] = []  # losses and gradients that a joiner keeps

    def drop(self) -> None:
        """Discard the evaluations so far."""
        self._begun = []
        if self._suspended is not None:
            self._suspended.drop()
            self._suspended = None

    def evaluate(self, virtual_worker: int, weight: float, closure: Callable[[], Any]) -> Any:
        """Compute a body's loss at the present point. Returns the closure's result in the first evaluation, as LBFGS's `step`.

        Raises UserError if the closure's result is not a number."""
        with self._at_point():
            loss = closure()
        try:
            number = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(
                f"the closure that optimizer.step() was given has returned a {type(loss).__name__}: it must return the loss, one "
                "number"
            ) from None
        self._losses[virtual_worker] = number, weight
        if self.number == 0:
            self._first[virtual_worker] = loss.detach() if isinstance(loss, torch.Tensor) else loss
        return self._first[virtual_worker]

    @contextmanager
    def _at_point(self) -> Iterator[None]:
        """Give the parameters, within the context, the values of the point at which the loss is wanted."""
        if self._suspended is None:  # the first evaluation: the parameters' own values
            yield
            return
        own = parameters_of(self._optimizer)
        self._begun = self._begun or [parameter.detach().clone() for parameter in own]
        _put(own, self._suspended.point)
        self._at_other = True
        try:
            yield
        finally:
            self._at_other = False
            _put(own, self._begun)

    @contextmanager
    def as_begun(self) -> Iterator[None]:
        if not self._at_other:
            yield
            return
        assert self._suspended is not None
        own = parameters_of(self._optimizer)
        _put(own, self._begun)
        try:
            yield
        finally:
            _put(own, self._suspended.point)

    # -- the end of an evaluation

    def told(self, hosted: Sequence[int]) -> torch.Tensor:
        """Return the weighted losses of this worker's bodies in the evaluation: float64 [N], 0 for other virtual workers."""
        self.goes_on = False
        losses = torch.zeros(self._n, dtype=torch.float64)
        for virtual_worker in hosted:
            loss, weight = self._losses[virtual_worker]
            losses[virtual_worker] = weight * loss
        self._losses = {}
        return losses

    def exchange(self, communicator: Communicator, losses: torch.Tensor) -> None:
        """Begin to add up the losses over all workers, in place. Raises CommunicatorBroken."""
        self._work = communicator.all_reduce(losses)

    def wait(self, communicator: Communicator) -> None:
        """Wait until `losses` of `exchange` are those of all virtual workers. Raises CommunicatorBroken."""
        work, self._work = self._work, None
        communicator.wait(work)

    def decide(
        self, communicator: Communicator, losses: torch.Tensor, gradient: Gradient, parameters: Sequence[torch.Tensor]
    ) -> bool:
        """Decide, with the other workers, whether the step has another evaluation. Returns whether all workers agree.

        losses: of all virtual workers. gradient: the reduced one of `parameters`. Raises CommunicatorBroken."""
        views = {id(parameter): view for parameter, view in zip(parameters, gradient.views, strict=True)}
        if self._suspended is None:
            self._suspended = SuspendedStep(self._optimizer, self._kind)
        wanted = int(self._suspended.answer(self._mean(losses), views))
        return self._agree(communicator, wanted, -wanted)

    def decide_joining(
        self, communicator: Communicator, losses: torch.Tensor, gradient: Gradient, parameters: Sequence[torch.Tensor]
    ) -> bool:
        """Take part in `decide` on a joiner, whose state has not arrived yet."""
        views = {id(parameter): view.clone() for parameter, view in zip(parameters, gradient.views, strict=True)}
        self._answers.append((self._mean(losses), views))
        return self._agree(communicator, NOTHING, NOTHING)

    def _mean(self, losses: torch.Tensor) -> float:
        total = 0.0
        for loss in losses.tolist():  # their order is the same everywhere
            total += loss
        return total / self._n

    def _agree(self, communicator: Communicator, wanted: int, least: int) -> bool:
        both = torch.tensor([wanted, least], dtype=torch.int64)
        communicator.wait(communicator.all_reduce_max(both))
        greatest, negative = both.tolist()
        self.goes_on = greatest > 0 and greatest == -negative
        self.number += self.goes_on
        return bool(greatest == -negative)

    # -- the update

    def catch_up(self) -> None:
        if self._suspended is not None:
            return
        self._suspended = suspended = SuspendedStep(self._optimizer, self._kind)
        wanted = [suspended.answer(loss, gradient) for loss, gradient in self._answers]
        assert wanted == [True] * (len(wanted) - 1) + [False], "the same answers lead to the same questions"
        self._answers = []

    def install(self, optimizer: torch.optim.Optimizer) -> None:
        """Install the computed parameters and optimizer state. It replaces the optimizer's `step`, between its hooks."""
        assert optimizer is self._optimizer
        assert self._suspended is not None
        self._suspended.install()
        self._suspended, self._begun = None, []


def _put(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values to parameters without a change of their version counters: the script has not changed them."""
    with torch.no_grad():
        torch._foreach_copy_([parameter.data for parameter in parameters], [value.detach() for value in values])
