"""Schedulers and averaged models that a script has made: found when its loop begins, and followed from then on.

A script written for one GPU calls `scheduler.step()` and `averaged.update_parameters(model)` in its loop, or between
epochs. The loop body runs once for each virtual worker, so each call in the body counts once for a global step, after
the update: the call of the last body on each worker acts, and calls of other bodies are only compared with it. A
joining worker, which runs no body in its first step, receives the list of calls (`replay`). Calls between epochs act at
once.

A joining worker's script runs the beginning of an epoch, which the received state already includes. Its calls there do
nothing.

The objects stay the script's; each gets a class between it and its own class, with a method of the runtime.
"""

from __future__ import annotations

import enum
import gc
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import msgspec
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from ..protocol.errors import UserError
from .gradients.hyperparameters import HASH_BITS, REMEDY
from .inband import NOTHING, Part, never
from .interposed import put_between
from .plain import pack


class Where(enum.Enum):
    """Position of the script when it calls a followed object."""

    OUTSIDE = "before the loop or behind it"
    AGAIN = "in code whose effects the state already has"
    BETWEEN = "between epochs"
    BEFORE_STEP = "in the loop body before optimizer.step()"
    BEHIND_STEP = "in the loop body behind it, and another body follows here"
    LAST = "in the last loop body here, the update being made"
    UPDATING = "in the update"


METRIC = (
    "the loss of the training is run.means['loss'], after run.mean(loss=loss) in each loop body before optimizer.step(); that of "
    "a validation is what run.evaluate returns"
)


class Following:
    """The followed objects of one script, and the calls to them. Takes part in the step's word."""

    name = "calls"
    slots = 2
    compares = True

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        stepped_here: Sequence[LRScheduler],
        where: Callable[[], Where],
        by_host: Callable[[], bool],
        has_stepped: Callable[[torch.optim.Optimizer], bool],
    ) -> None:
        """stepped_here: schedulers that the runtime steps. by_host: whether a host loop makes the call. has_stepped:
        whether the present body has called this optimizer's `step`.
        """
        self._model = model
        self._optimizers = list(optimizers)
        self._stepped_here = list(stepped_here)
        self._where = where
        self._by_host = by_host
        self._has_stepped = has_stepped
        self.schedulers: list[LRScheduler] = []
        self.averages: list[AveragedModel] = []
        self.beside: list[tuple[str, torch.nn.Module]] = []  # modules with parameters that only an optimizer contains
        self._bodies: list[list[Any]] = []  # calls of each body in this step
        self._waiting: list[Callable[[], None]] = []  # calls of the present body before its last `optimizer.step()`
        self._since: list[Any] = []  # calls that have acted since the last update
        self._plateaus: set[str] = set()  # calls that take a metric
        for each in self._stepped_here:
            _intercept(each, "step", self._stepped_by_us)

    def find(self, frame: FrameType | None) -> None:
        """Find all schedulers and averages. frame: of the script's loop, for their names."""
        gc.collect()
        inner = {id(part) for each in self._stepped_here for part in _parts(each)}
        found: list[Any] = []
        modules: list[torch.nn.Module] = []
        for each in gc.get_objects():
            kind = type(each)
            if issubclass(kind, torch.nn.Module):
                modules.append(each)
            if issubclass(kind, LRScheduler):
                if any(getattr(each, "optimizer", None) is own for own in self._optimizers):
                    inner.update(id(part) for part in _parts(each))
                    found.append(each)
            elif issubclass(kind, AveragedModel):
                found.append(each)
        names = names_of(frame, found)
        own = {id(each) for each in self._stepped_here}
        found = [each for each in found if id(each) not in inner | own]
        found.sort(key=lambda each: names.get(id(each), ""))  # unnamed ones keep the order of their creation
        self.schedulers = [each for each in found if isinstance(each, LRScheduler)]
        self.beside = self._find_beside(modules)
        averages = [each for each in found if isinstance(each, AveragedModel)]
        self.averages = self._of_this_script(averages) if averages else []
        for scheduler in self.schedulers:
            name = names.get(id(scheduler), type(scheduler).__name__)
            _intercept(scheduler, "step", partial(self._scheduler_stepped, f"{name}.step()"))
        for number, average in enumerate(self.averages):
            name = names.get(id(average), "averaged_model")
            _intercept(average, "update_parameters", partial(self._average_updated, name, number))

    def _of_this_script(self, averages: list[AveragedModel]) -> list[AveragedModel]:
        """Return the averages of the model, of a part of it, or of a module that is trained beside it."""
        roots = [self._model, *(module for _, module in self.beside)]
        forms = {_form(module) for root in roots for module in root.modules()}
        return [each for each in averages if _form(each.module) in forms]

    def _find_beside(self, modules: Sequence[torch.nn.Module]) -> list[tuple[str, torch.nn.Module]]:
        """Return the outermost modules with a parameter that only an optimizer contains."""
        in_model = {id(parameter) for parameter in self._model.parameters()}
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        own = [id(parameter) for group in groups for parameter in group["params"] if id(parameter) not in in_model]
        place = {parameter: position for position, parameter in enumerate(own)}
        if not place:
            return []
        found: list[tuple[int, torch.nn.Module]] = []
        for module in modules:
            places = [place[id(parameter)] for parameter in module.parameters() if id(parameter) in place]
            if places:
                found.append((min(places), module))
        inner = {id(part) for _, module in found for part in module.modules() if part is not module}
        found = [(position, module) for position, module in found if id(module) not in inner]
        found.sort(key=lambda each: each[0])
        return [(f"{type(module).__name__} {number}", module) for number, (_, module) in enumerate(found)]

    # -- calls of the script

    def _stepped_by_us(self, scheduler: LRScheduler, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._where() not in (Where.UPDATING, Where.OUTSIDE):
            if self._by_host():  # the host does not know that the runtime has stepped the scheduler
                return None
            raise UserError(
                f"{type(scheduler).__name__}.step() was called, but the runtime steps this scheduler, once after every global "
                "step: leave scheduler.step() out of the script, or scheduler= out of prepare()"
            )
        return act(*arguments, **named)

    def _scheduler_stepped(
        self, what: str, scheduler: LRScheduler, act: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        where = self._where()
        if isinstance(scheduler, ReduceLROnPlateau) and where in IN_BODY:
            raise UserError(
                f"{what} with a metric was called in the loop over batches, where each worker has another one: call it between "
                f"epochs, with a metric that is the same on all workers: {METRIC}"
            )
        optimizer = scheduler.optimizer
        if isinstance(scheduler, ReduceLROnPlateau):
            self._plateaus.add(what)
        if where is Where.BEFORE_STEP and not self._has_stepped(optimizer):
            raise UserError(f"{what} was called before optimizer.step() in the loop over batches: call it behind it")
        # This worker may have joined after the optimizer's steps.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        call = [what, pack([list(arguments), named], f"an argument of {what}", _as_number)]
        return self._called(where, call, partial(act, *arguments, **named))

    def _average_updated(
        self, name: str, number: int, average: AveragedModel, act: Callable[..., Any], model: torch.nn.Module
    ) -> None:
        where = self._where()
        path = "" if where is Where.OUTSIDE else self._path(name, model)
        if where is Where.BEFORE_STEP:
            raise UserError(
                f"{name}.update_parameters() was called before optimizer.step() in the loop over batches: call it behind it"
            )
        self._called(where, [f"{name}.update_parameters()", number, path], partial(act, model))

    def _called(self, where: Where, call: list[Any], act: Callable[[], Any]) -> Any:
        if where in IN_BODY:
            self._bodies[-1].append(call)
        match where:
            case Where.OUTSIDE | Where.UPDATING:
                return act()
            case Where.BETWEEN | Where.LAST:
                self._since.append(call)
                return act()
            case Where.BEFORE_STEP:
                self._waiting.append(partial(self._act_late, call, act))
        return None

    def _act_late(self, call: list[Any], act: Callable[[], Any]) -> None:
        self._since.append(call)
        act()

    def _path(self, name: str, model: torch.nn.Module) -> str:
        """Return the path of this module within the model. Raises UserError if it is no part of the model."""
        wanted = [id(parameter) for parameter in model.parameters()]
        for path, module in self._model.named_modules():
            if module is model or [id(parameter) for parameter in module.parameters()] == wanted:
                return str(path)
        raise UserError(
            f"{name}.update_parameters(other) was called with a model that prepare() has not got: give it the model "
            "that is trained, or a part of it"
        )

    # -- a step

    def begin(self) -> None:
        """Begin a step, or begin it again."""
        self._bodies.clear()
        self._waiting.clear()

    def begin_body(self) -> None:
        """Begin the body of a virtual worker."""
        self._bodies.append([])
        self._waiting.clear()

    def end_body(self, step: int) -> None:
        """End a body. Raises UserError if its calls differ from those of the first body."""
        first, last = self._bodies[0], self._bodies[-1]
        if first != last:
            what, both_have_it = _first_difference(first, last)
            if both_have_it:
                raise UserError(
                    f"{what} was called with other arguments for one virtual worker than for another in step {step}, such as "
                    f"`scheduler.step(epoch + i / len(batches))` with the number i of a batch; {REMEDY}"
                )
            raise UserError(
                f"{what} was called for one virtual worker and not for another in step {step}: a call that is made in some steps "
                f"only, such as `if run.steps_done % 100 == 0`, must be the same for all of them; {REMEDY}"
            )

    @property
    def steps_scheduler(self) -> bool:
        """Whether the present body has stepped a scheduler."""
        return any(len(call) == 2 for call in self._bodies[-1])

    def applied(self) -> None:
        """Take note of the update, and make the calls that wait for it."""
        self._since.clear()
        for act in self._waiting:
            act()
        self._waiting.clear()

    # -- in band: the calls since the last update are the same on all workers

    def numbers(self, part: Part) -> Sequence[int]:
        """Return a digest of this worker's calls since the last update, and its negative."""
        if part.joins:
            return NOTHING, NOTHING
        if not self._since:
            return 0, 0
        text = msgspec.msgpack.encode(self._since)
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> (64 - HASH_BITS)
        return number, -number

    wants = never

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Return whether the workers' calls differ."""
        return greatest[0] != NOTHING and greatest[0] != -greatest[1]

    def payload(self, part: Part) -> Any:
        """Return the calls since the last update; None from a joining worker."""
        return None if part.joins else list(self._since)

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Compare the payloads. Raises UserError if the workers' calls differ."""
        present = [(rank, payload) for rank, payload in enumerate(payloads) if payload is not None]
        for rank, payload in present:
            if payload != present[0][1]:
                what, _ = _first_difference(payload, present[0][1])
                remedy = METRIC if what in self._plateaus else REMEDY
                raise UserError(
                    f"{what} was called differently on worker {present[0][0]} and on worker {rank} before step {part.step}: "
                    f"what it is called with, and whether, must be the same on all workers; {remedy}"
                )

    # -- for a joiner

    @property
    def calls(self) -> list[Any]:
        """Calls that have acted since the last update."""
        return list(self._since)

    def replay(self, calls: Sequence[Any]) -> None:
        """Make the calls that other workers have made since the update.

        Schedulers are skipped: their states are transferred.
        """
        known = len(self._since)  # calls that this worker has made already
        self._since = [list(call) for call in calls]
        for call in self._since[known:]:
            if len(call) == 3:
                _, number, path = call
                average = self.averages[number]
                type(average)._original(average, self._model.get_submodule(path))


IN_BODY = (Where.BEFORE_STEP, Where.BEHIND_STEP, Where.LAST)


def _intercept(target: Any, method: str, handler: Callable[..., Any]) -> None:
    """Let `handler(target, act, ...)` take each call of the method; `act(...)` makes the original call.

    This inserts a class, since an attribute of the object would be taken for a part of its state.
    """
    kind = type(target)
    original = getattr(kind, method)

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        if self is not target:  # a copy
            return original(self, *arguments, **named)
        return handler(self, partial(original, self), *arguments, **named)

    put_between(target, {method: called, "_original": staticmethod(original)})


def _form(module: torch.nn.Module) -> tuple[torch.Size, ...]:
    return tuple(parameter.shape for parameter in module.parameters())


def _parts(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return the schedulers that a composed scheduler steps itself, at any depth."""
    direct: Sequence[LRScheduler] = getattr(scheduler, "_schedulers", ())
    return [*direct, *(part for each in direct for part in _parts(each))]


def names_of(frame: FrameType | None, objects: Sequence[Any]) -> dict[int, str]:
    """Return the script's names of these objects: variables, or attributes of `self`."""
    wanted = {id(each) for each in objects}
    names: dict[int, str] = {}
    while frame is not None:
        for variables in (frame.f_locals, frame.f_globals):
            for name, value in list(variables.items()):
                if id(value) in wanted:
                    names.setdefault(id(value), name)
                for attribute, inner in list(getattr(value, "__dict__", {}).items()) if name == "self" else ():
                    if id(inner) in wanted:
                        names.setdefault(id(inner), f"self.{attribute}")
        frame = frame.f_back
    return names


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> tuple[str, bool]:
    """Return what was called where two lists of calls differ, and whether both have a call of it there."""
    for left, right in zip(one, other, strict=False):
        if left != right:
            return str(left[0]), left[0] == right[0]
    longer = one if len(one) > len(other) else other
    return str(longer[min(len(one), len(other))][0]), False


def _as_number(tensor: torch.Tensor, where: str) -> Any:
    """Return a tensor metric as a number or a list."""
    return tensor.tolist()
