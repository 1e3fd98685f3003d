"""Optimizers that evaluate the loss of the whole step several times before they update (torch.optim.LBFGS).

`optimizer.step(closure)` of such an optimizer asks for the loss and its gradient at one point after another. Each time all
virtual workers' micro-batches are needed. So a step has several *evaluations*: in each of them all loop bodies of the step run
once more, their gradients are reduced, and their losses are exchanged. Then every worker does the same computation on the same
bits (`suspended`), and so knows the next point, or that there is none. Only then comes the step's word, and the update.

The parameters have the values of the point within the closure alone: everywhere else a script sees those that the step began
with. Buffers go from one evaluation to the next, as in a script for one GPU. Random numbers of evaluation e > 0 are drawn from
(seed, step, virtual worker, e).

That all workers go on alike, or end, is compared after each evaluation by two integers: they would wait for each other in
different operations otherwise. A joiner, which hosts nothing and has no parameters yet, learns from them whether another
evaluation follows. It keeps the answers, and computes the update from them when its state has come.
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
    """Those of a step whose loss is evaluated once, as nearly all optimizers want it."""

    refuses = ""  # why a step's bodies may not do what does not hold for all evaluations; "": there is one
    number = 0  # of the evaluation in progress
    goes_on = False  # another one follows this one in the step

    @staticmethod
    def of(optimizers: Sequence[torch.optim.Optimizer], virtual_workers: int) -> Evaluations:
        """As these optimizers of a script want it."""
        several = len(optimizers) == 1 and isinstance(optimizers[0], torch.optim.LBFGS)
        return SeveralEvaluations(optimizers[0], virtual_workers) if several else Evaluations()

    def begin(self) -> None:
        """A step begins, or begins again."""

    def as_begun(self) -> AbstractContextManager[None]:
        """Meanwhile, also within a closure, the parameters are those with which the step began."""
        return nullcontext()

    def catch_up(self) -> None:
        """A joiner has its state: let it come to the end of the evaluations, too."""


class SeveralEvaluations(Evaluations):
    """Those of one step after the other, of a script's only optimizer. For the training thread."""

    refuses = "the optimizer is LBFGS"

    def __init__(self, optimizer: torch.optim.Optimizer, virtual_workers: int) -> None:
        self._optimizer = optimizer
        self._kind = type(optimizer)  # that of torch: the runtime has put none between yet
        self._n = virtual_workers
        self._begun: list[torch.Tensor] = []  # what the parameters contain, from the first other point on
        self._at_other = False  # they contain such a point
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
        self._first: dict[int, Any] = {}  # what closures have returned in the step's first
        self._answers: list[tuple[float, dict[int, torch.Tensor]]] = []  # of a joiner, which cannot use them yet

    def drop(self) -> None:
        """Nothing comes of what has been evaluated."""
        self._begun = []
        if self._suspended is not None:
            self._suspended.drop()
            self._suspended = None

    def evaluate(self, virtual_worker: int, weight: float, closure: Callable[[], Any]) -> Any:
        """Have a body compute its loss at the present point. Returns what its closure has returned in the first evaluation, as
        `step` does. Raises UserError if that is no loss."""
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
        """Meanwhile the parameters are those for which the loss is wanted."""
        if self._suspended is None:  # those of now
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
        """The losses that this worker's bodies have had in the evaluation, weighted, by virtual worker; 0 for all others."""
        self.goes_on = False
        losses = torch.zeros(self._n, dtype=torch.float64)
        for virtual_worker in hosted:
            loss, weight = self._losses[virtual_worker]
            losses[virtual_worker] = weight * loss
        self._losses = {}
        return losses

    def exchange(self, communicator: Communicator, losses: torch.Tensor) -> None:
        """Begin to make them those of all workers. Raises CommunicatorBroken."""
        self._work = communicator.all_reduce(losses)

    def wait(self, communicator: Communicator) -> None:
        """They are. Raises CommunicatorBroken."""
        work, self._work = self._work, None
        communicator.wait(work)

    def decide(
        self, communicator: Communicator, losses: torch.Tensor, gradient: Gradient, parameters: Sequence[torch.Tensor]
    ) -> bool:
        """The losses of all virtual workers have come, and the gradient, of these parameters. Decide with the others whether the
        step has another evaluation. Returns whether all agree. Raises CommunicatorBroken."""
        views = {id(parameter): view for parameter, view in zip(parameters, gradient.views, strict=True)}
        if self._suspended is None:
            self._suspended = SuspendedStep(self._optimizer, self._kind)
        wanted = int(self._suspended.answer(self._mean(losses), views))
        return self._agree(communicator, wanted, -wanted)

    def decide_joining(
        self, communicator: Communicator, losses: torch.Tensor, gradient: Gradient, parameters: Sequence[torch.Tensor]
    ) -> bool:
        """As `decide`, on a worker whose state is on its way."""
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
        """The step of the optimizer, as far as its hooks see it: all is computed, and becomes the parameters' and its state."""
        assert optimizer is self._optimizer
        assert self._suspended is not None
        self._suspended.install()
        self._suspended, self._begun = None, []


def _put(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Let parameters contain this for a while. Their versions stay: nobody has changed them."""
    with torch.no_grad():
        torch._foreach_copy_([parameter.data for parameter in parameters], [value.detach() for value in values])
