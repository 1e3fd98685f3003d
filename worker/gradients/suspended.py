"""A step of an optimizer that evaluates the loss several times, suspended until the workers have computed each
evaluation.

Such an optimizer calls a closure from within its `step`. Here the step runs over *copies* of the parameters, in a
thread of its own. The thread blocks in the closure: the copies are then the point at which the loss is wanted. `answer`
provides the loss and the gradient there. The job's parameters and the optimizer's state stay unchanged until `install`
is called, so a step that cannot be completed has changed nothing.

Only torch.optim.LBFGS is such an optimizer here. Its state that is changed in place is copied; the lists of its history
are copied, but not the tensors in them, which are most of its memory (`torch.optim.lbfgs` of torch 2.13).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import torch


class _Dropped(BaseException):
    """Raised in the step's thread when the step is abandoned."""


class SuspendedStep:
    """One step of `optimizer`, which begins at once. For one thread, beside the step's own."""

    def __init__(self, optimizer: torch.optim.Optimizer, kind: type[torch.optim.Optimizer]) -> None:
        """kind: the optimizer's class, without one inserted by the runtime."""
        self._optimizer = optimizer
        self._own = parameters_of(optimizer)
        self.point = [
            parameter.detach().clone().requires_grad_() for parameter in self._own
        ]  # the point at which the loss is wanted
        self._shadow = self._copy(kind)
        self._step: Callable[..., Any] = kind.step
        self._threads = torch.get_num_threads()
        self._stream = torch.cuda.current_stream(self._own[0].device) if self._own[0].is_cuda else None
        self._questions: SimpleQueue[bool] = SimpleQueue()  # True: an evaluation is wanted; False: the step has ended
        self._answers: SimpleQueue[float | None] = SimpleQueue()  # the loss; None: the step is abandoned
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="elasticd-evaluations", daemon=True).start()
        self._wait()

    def _copy(self, kind: type[torch.optim.Optimizer]) -> Any:
        shadow: Any = kind.__new__(kind)
        vars(shadow).update(vars(self._optimizer))
        copies = {id(own): point for own, point in zip(self._own, self.point, strict=True)}
        shadow.param_groups = [
            {**group, "params": [copies[id(parameter)] for parameter in group["params"]]}
            for group in self._optimizer.param_groups
        ]
        shadow._params = shadow.param_groups[0]["params"]
        shadow.state = defaultdict(dict)
        for own, point in zip(self._own, self.point, strict=True):
            if own in self._optimizer.state:
                shadow.state[point] = _copied(self._optimizer.state[own])
        # The script's hooks are called with the real update.
        shadow._optimizer_step_pre_hooks = OrderedDict()
        shadow._optimizer_step_post_hooks = OrderedDict()
        return shadow

    def answer(self, loss: float, gradients: Mapping[int, torch.Tensor]) -> bool:
        """Provide the loss at `point`, and its gradient by the id of the optimizer's parameter; both may be reused
        afterwards.

        Returns whether the loss is wanted at another point. Raises the errors of the step.
        """
        for own, point in zip(self._own, self.point, strict=True):
            point.grad = gradients.get(id(own))
        self._answers.put(loss)
        return self._wait()

    def _wait(self) -> bool:
        goes_on = self._questions.get()
        if self._error is not None:
            raise self._error
        return goes_on

    def drop(self) -> None:
        """Abandon the step. Does nothing if the step has ended."""
        self._answers.put(None)

    def install(self) -> None:
        """Copy the parameters and state of the ended step to the optimizer."""
        with torch.no_grad():
            for own, point in zip(self._own, self.point, strict=True):
                own.copy_(point)
        for own, point in zip(self._own, self.point, strict=True):
            if point in self._shadow.state:
                self._optimizer.state[own] = self._shadow.state[point]

    # -- its own thread

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                if self._stream is not None:
                    stack.enter_context(torch.cuda.device(self._stream.device))
                    stack.enter_context(torch.cuda.stream(self._stream))
                torch.set_num_threads(self._threads)  # a setting of the thread, on which the order of sums depends
                self._step(self._shadow, self._closure)
        except _Dropped:
            return
        except BaseException as error:
            self._error = error
        self._questions.put(False)

    def _closure(self) -> float:
        self._questions.put(True)
        loss = self._answers.get()
        if loss is None:
            raise _Dropped
        return loss


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """Return the parameters that an optimizer trains."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, list) else value
        for key, value in state.items()
    }
