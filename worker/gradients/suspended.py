"""A step of an optimizer that asks for the loss several times, and waits each time until the workers have computed it.

Such an optimizer calls a closure from within its `step`. Here the step runs over *copies* of the parameters, in a thread of its
own. The thread stands still in the closure: the copies are then the point at which the loss is wanted. `answer` gives it the loss
and the gradient there. The job's parameters and the optimizer's state are what they were until `install` is called, so a step
that cannot be completed has changed nothing.

Only torch.optim.LBFGS is such an optimizer here. What of its state it changes in place is copied; the lists of its history are
copied, but not the tensors in them, which are most of its memory (`torch.optim.lbfgs` of torch 2.13).
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
    """The step is not wanted any more."""


class SuspendedStep:
    """One step of `optimizer`, which begins at once. For one thread, beside its own."""

    def __init__(self, optimizer: torch.optim.Optimizer, kind: type[torch.optim.Optimizer]) -> None:
        """kind: the optimizer's class, without one of ours between."""
        self._optimizer = optimizer
        self._own = parameters_of(optimizer)
        self.point = [
            parameter.detach().clone().requires_grad_() for parameter in self._own
        ]  # where the loss is wanted
        self._shadow = self._copy(kind)
        self._step: Callable[..., Any] = kind.step
        self._threads = torch.get_num_threads()
        self._stream = torch.cuda.current_stream(self._own[0].device) if self._own[0].is_cuda else None
        self._questions: SimpleQueue[bool] = SimpleQueue()  # False: there are none left
        self._answers: SimpleQueue[float | None] = SimpleQueue()  # None: nobody wants to know
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
        # The script's hooks are called when the update is made.
        shadow._optimizer_step_pre_hooks = OrderedDict()
        shadow._optimizer_step_post_hooks = OrderedDict()
        return shadow

    def answer(self, loss: float, gradients: Mapping[int, torch.Tensor]) -> bool:
        """The loss at `point`, and its gradient by the id of the optimizer's parameter, which may be used again afterwards.

        Returns whether the loss is wanted at another point. Raises what the step has raised."""
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
        """Nothing comes of it. Does nothing if it has come to its end."""
        self._answers.put(None)

    def install(self) -> None:
        """It has come to its end: let what it has made of parameters and state be the optimizer's."""
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
                torch.set_num_threads(self._threads)  # of this thread: the order of sums depends on it
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
    """Those that it trains."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, list) else value
        for key, value in state.items()
    }
