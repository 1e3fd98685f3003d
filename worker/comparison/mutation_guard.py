"""Changes of tensors by a loop body that no other worker would make: refused at once, or warned of.

A loop body runs once for each virtual worker, and not at all on a worker in its first step. So a body must not change
parameters itself, nor a copy of the model that is not part of the job's state (an average by hand, a target network):
the result would depend on the number of workers.

In each body the tensors' version counters are compared, which costs next to nothing. Changes by way of `tensor.data`
leave no trace there. So in a job's first step the contents are compared, too, since most scripts do in their first step
what they do in all. Changes that a script begins later often begin with an epoch, so contents are compared in the first
step of later epochs, and in rarer and rarer steps between.

A clamp after the update acts once for each update, however many bodies run: a second one changes nothing. If it first
acts in the middle of a job, there is a warning in place of a refusal.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, is_
from types import FrameType
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from ...protocol.errors import UserError
from ..digests import digests
from ..following import names_of
from ..gradients.update import ElasticOptimizer
from ..interposed import put_between
from ..state.training_state import TrainingState
from ..variables.packed_variables import MOST_BYTES
from .copies import Shapes, held, shapes_of, tensors_in

# Least number of steps between two in which contents are compared, apart from those with numbers that are powers of two.
STEPS_APART = 16
_MODELS: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # models of all jobs that this process has prepared


_version = attrgetter("_version")


def _addresses_and_versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the addresses of these tensors, then their versions. Called in every step, so no Python function runs per
    tensor.
    """
    return [*map(torch.Tensor.data_ptr, tensors), *map(_version, tensors)]


@dataclass
class _Watched:
    """Named tensors, with their addresses, versions and perhaps contents at the beginning of a body."""

    named: Callable[[], Sequence[tuple[str, torch.Tensor]]]
    present: Sequence[tuple[str, torch.Tensor]] = ()  # the last result of `named`
    tensors: list[torch.Tensor] = field(default_factory=list)  # the tensors of `present`
    were: Sequence[torch.Tensor] = ()  # the tensors at the beginning of the body
    seen: Sequence[int] = ()  # addresses and versions of `were`
    contents: Sequence[int] | None = None  # digests, in a step in which contents are compared
    put_back: set[str] = field(default_factory=set)  # names of tensors that bodies change and restore

    def remember(self, contents: bool) -> None:
        self.seen = self._look()
        self.were = self.tensors
        self.contents = _contents(self.tensors) if contents else None

    def _look(self) -> list[int]:
        if (present := self.named()) is not self.present:
            self.present, self.tensors = present, [tensor for _, tensor in present]
        return _addresses_and_versions(self.tensors)

    def changed(self) -> str | None:
        """Return the name of a tensor that has changed since `remember`, or None."""
        seen, present = self._look(), self.present
        if self.contents is None and self.seen == seen and all(map(is_, self.were, self.tensors)):
            return None
        count = len(self.were)
        if len(present) != count:
            return "one of its tensors"
        touched = [
            name
            for at, (name, tensor) in enumerate(present)
            if tensor is not self.were[at] or seen[at::count] != self.seen[at::count]
        ]
        if self.contents is None:
            return next((name for name in touched if name not in self.put_back), None)
        now = _contents(self.tensors)
        for (name, _), one, two in zip(present, self.contents, now, strict=True):
            if one != two:
                return name
        self.put_back.update(touched)
        return None


class MutationGuard:
    """Compares tensors before and after the loop bodies of one script. For the training thread."""

    def __init__(self, state: TrainingState, virtual_workers: int, by_host: Callable[[], bool]) -> None:
        """by_host: returns whether a framework runs the loop: its bodies are not the script's, and not compared."""
        self._state = state
        self._virtual_workers = virtual_workers
        self._by_host = by_host
        self._own = _plain_ones(state.named_parameters())
        self._divided = _divided_ones(state.named_parameters())
        self._parameters = _Watched(lambda: self._own if not self._divided else _rows_of(self._divided))
        self._registered = _Watched(state.registered.present_tensors)
        self._copies: list[tuple[str, Any, _Watched]] = []  # the script's name for the copy, and the copy
        self._in_lists: list[tuple[str, type, _Watched]] = []  # copies in lists, tuples and mappings, with their names
        self._beside: list[_Watched] = []  # all copies
        self._epoch_begins = False
        self._compared_at = -1  # the last step in which contents were compared
        self._first = False  # the step in progress is the job's first
        self._has_updated = False  # the update of the step in progress has been made
        self._warned: set[str] = set()  # names of parameters

    def find(self, frame: FrameType | None, is_local: Callable[[str], bool] = lambda name: False) -> None:
        """Find the copies of the model, before the loop begins.

        frame: of the script, for the names. is_local: returns whether a copy of this name may differ between workers.
        """
        _MODELS.update(module for _, module in self._state.modules)
        known = {tensor.data_ptr() for _, tensor in self._own}
        known |= {tensor.data_ptr() for tensor in self._state.registered.tensors()}
        own = {id(parameter) for _, parameter in self._own}
        wanted = {name for name, _ in self._state.model.named_parameters()}
        modules: list[torch.nn.Module] = []
        shadows: list[dict[str, torch.Tensor]] = []
        for each in gc.get_objects():
            kind = type(each)
            if issubclass(kind, torch.nn.Module):
                modules.append(each)
            elif issubclass(kind, torch.amp.GradScaler):
                if each is not self._state.scaler and each.is_enabled():
                    put_between(each, {"step": partial(_refuse_scaler, kind.step, each)})
            elif kind in (dict, OrderedDict) and len(each) >= len(wanted) and _is_shadow(each, wanted):
                shadows.append(each)
        parts = {id(part) for module in modules for part in module.modules() if part is not module}
        parts |= {
            id(part) for module in modules if issubclass(type(module), AveragedModel) for part in module.modules()
        }
        parts |= {id(part) for module in _MODELS for part in module.modules()}
        parts |= {id(each) for module in modules for each in (module._parameters, module._buffers)}
        roots = [each for each in modules if id(each) not in parts]
        found: list[Any] = [*roots, *(each for each in shadows if id(each) not in parts)]
        names = names_of(frame, found)
        for each in found:
            tensors = _tensors_of(each, own, known)
            if tensors():
                kept = _Watched(tensors)
                kept.remember(contents=False)
                self._copies.append((names.get(id(each), f"a {type(each).__name__}"), each, kept))
        named = {id(each) for _, each, _ in self._copies}
        for copy in held(frame, self._shapes()):
            tensors = _items_of(copy.read, own, known)
            if tensors() and id(copy.read()) not in named and not is_local(copy.name):
                kept = _Watched(tensors)
                kept.remember(contents=False)
                self._in_lists.append((copy.name, type(copy.read()), kept))
        self._beside = [kept for *_, kept in (*self._copies, *self._in_lists)]

    def _shapes(self) -> set[Shapes]:
        """Return the shapes of the model's parameters, of those that are trained, and of all its tensors, except for shapes
        of registered values.
        """
        model = self._state.model
        every = list(model.parameters())
        several = [every, [each for each in every if each.requires_grad], [*model.state_dict().values()]]
        found = {shapes for each in several if each and (shapes := shapes_of(each)) is not None}
        return found - {shapes for each in self._state.registered.each() if (shapes := shapes_of(each)) is not None}

    def look_again(self) -> None:
        """Begin an epoch, before which the script may have added parameters to an optimizer."""
        self._epoch_begins = True
        self._own = _plain_ones(self._state.named_parameters())
        self._divided = _divided_ones(self._state.named_parameters())

    # -- a step

    def begin_body(self, step: int) -> None:
        """Begin the loop body of a virtual worker."""
        if self._by_host():
            return
        self._first, self._has_updated = step == 0, False
        epoch_begins = self._epoch_begins
        contents = self._is_due(step)
        self._parameters.remember(contents)
        if contents or self._registered.contents is not None:
            self._registered.remember(contents)
        carried = epoch_begins and sum(one.nbytes for each in self._beside for one in each.tensors) <= MOST_BYTES
        other = [each for each in self._beside if carried or contents != (each.contents is not None)]
        if other and not self._first and not carried:  # what changes between epochs comes with the script's variables
            self._check_copies()  # the script may have changed copies between two steps
        for kept in other:
            kept.remember(contents)

    def _is_due(self, step: int) -> bool:
        """Return whether contents are compared in this step: the same for all bodies of a step."""
        if step != self._compared_at:
            apart = self._epoch_begins and step >= self._compared_at + STEPS_APART
            if step & (step - 1) == 0 or apart:
                self._compared_at = step
        self._epoch_begins = False
        return step == self._compared_at

    def check(self) -> None:
        """Compare at the end of a body, or at its `optimizer.step()`. Raises UserError for a change that no other worker
        would make.
        """
        if self._state.registered.watched:
            self._state.registered.check(self._virtual_workers)
        if self._by_host():
            return
        if self._registered.contents is not None and (name := self._registered.changed()) is not None:
            self._state.registered.refuse(name, self._virtual_workers)
        name = self._parameters.changed()
        if name is not None and self._has_updated and not self._first and self._parameters.contents is not None:
            self._warn_of_late(name)
        elif name is not None:
            raise UserError(
                f"the parameter {name} was changed in the loop body, which runs once for each virtual worker, and not on a "
                "worker that has just joined. Change it in a function that is called once for each update: prepare(…, "
                "after_update=function). What the forward pass changes is to be a buffer. To evaluate the loss at another point, "
                "copy the old values back before optimizer.step()"
            )
        if self._beside:
            self._check_copies()

    def moved(self) -> None:
        """Record the parameters' rows under `fully_shard` after other workers have taken some over."""
        if self._divided and not self._by_host():
            self._parameters.remember(self._parameters.contents is not None)

    def updated(self) -> None:
        """Record the tensors after an update and the script's own functions in it. Raises UserError."""
        if self._state.registered.watched:
            self._state.registered.remember()
        if self._by_host():
            return
        self._has_updated = True
        if self._beside:
            self._check_copies()
        first = self._parameters.contents is not None
        self._parameters.remember(first)
        if first:
            self._registered.remember(first)

    def _warn_of_late(self, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            warnings.warn(
                f"the parameter {name} was changed behind optimizer.step(), in the loop body, which runs once for each virtual "
                "worker. If a second change does more than the first (a clamp's does not), change it in a function that is "
                "called once for each update: prepare(…, after_update=function)",
                stacklevel=2,
            )

    def _check_copies(self) -> None:
        for name, copy, kept in self._copies:
            if kept.changed() is not None and not (isinstance(copy, torch.nn.Module) and copy in _MODELS):
                if isinstance(copy, torch.nn.Module) and any(each.grad is not None for each in copy.parameters()):
                    raise UserError(
                        f"{name} is trained in the loop by an optimizer that prepare() did not get: give prepare() one model "
                        f"that has both, such as torch.nn.ModuleDict({{'model': model, {name!r}: {name}}}), and both optimizers"
                    )
                raise UserError(
                    f"{name} was changed in the loop, and is no part of the job's state: a worker that joins would have another "
                    "one. Before prepare() call run.register('average', average), with the object or with get and set; and "
                    "change it in prepare(…, after_update=function). torch.optim.swa_utils.AveragedModel needs neither"
                )
        for name, kind, kept in self._in_lists:
            if kept.changed() is not None:
                raise UserError(
                    f"{name} has tensors of the shapes of the model's parameters, was changed in the loop, and is no part of the "
                    "job's state: a worker that joins would have other ones. Before prepare() call "
                    f"{_registration(name, kind)}, and change it in prepare(…, after_update=function). What is only used "
                    f"within a loop body is made there, or said to be a worker's own: run.local({name!r})"
                )


def _refuse_scaler(step: Callable[..., Any], scaler: torch.amp.GradScaler, optimizer: Any, *rest: Any) -> Any:
    """Refuse `scaler.step(optimizer)` of a scaler that sees single micro-batches. Raises UserError."""
    if isinstance(optimizer, ElasticOptimizer):
        raise UserError(
            "scaler.step(optimizer): this gradient scaler sees single micro-batches. Make it one of the global gradient before "
            "prepare(): scaler = run.scaler(scaler)"
        )
    return step(scaler, optimizer, *rest)


def _contents(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a digest of each tensor's bits."""
    found: list[int] = []
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        found += digests([tensor.detach() for tensor in tensors if tensor.device == device]).tolist()
    return found


def _plain_ones(named: Sequence[tuple[str, Any]]) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that have memory of their own: not lazy or fake ones, nor subclasses that a library composes."""
    return [
        (name, each)
        for name, each in named
        if type(each) in (torch.Tensor, torch.nn.Parameter)
        and each.layout is torch.strided
        and each.device.type != "meta"
    ]


def _divided_ones(named: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the parameters under `fully_shard`: DTensors, of which each worker has some rows."""
    return [(name, each) for name, each in named if hasattr(each, "_local_tensor")]


def _rows_of(divided: Sequence[tuple[str, Any]]) -> list[tuple[str, torch.Tensor]]:
    """Return this worker's present rows of parameters under `fully_shard`."""
    return [(name, each._local_tensor) for name, each in divided]


def _is_shadow(each: dict[Any, Any], wanted: set[str]) -> bool:
    """Return whether the mapping has a tensor for each parameter of the model."""
    return all(isinstance(each.get(name), torch.Tensor) for name in wanted)


def _registration(name: str, kind: type) -> str:
    """Return the line that registers a list, tuple or mapping which the script keeps under this name."""
    holder, _, key = name.rpartition(".")
    if kind is list:
        put = f"lambda values: {name}.__setitem__(slice(None), values)"
    elif kind is tuple:
        put = f'lambda values: setattr({holder}, "{key}", values)' if holder else "set"
    else:
        put = f"{name}.update"
    return f'run.register("{key}", lambda: {name}, {put})'


def _items_of(
    read: Callable[[], Any], own: set[int], known: set[int]
) -> Callable[[], Sequence[tuple[str, torch.Tensor]]]:
    """Return a function that reads the present tensors of a list or mapping, except for those of the job's state."""
    plain = _plain_ones([(str(number), each) for number, each in enumerate(tensors_in(read()))])
    wanted = {name for name, each in plain if id(each) not in own and each.data_ptr() not in known}

    def tensors() -> Sequence[tuple[str, torch.Tensor]]:
        present = enumerate(tensors_in(read()))
        return [(str(n), each) for n, each in present if str(n) in wanted and isinstance(each, torch.Tensor)]

    return tensors


def _tensors_of(each: Any, own: set[int], known: set[int]) -> Callable[[], Sequence[tuple[str, torch.Tensor]]]:
    """Return a function that reads the tensors of a module or mapping, except for those of the job's state.

    own: identities of the state's parameters. known: addresses of the state's tensors when the loop began.
    """
    pairs = dict(each.named_parameters()) if isinstance(each, torch.nn.Module) else dict(each)
    plain = _plain_ones([(name, each) for name, each in pairs.items() if id(each) not in own])
    names = [name for name, tensor in plain if tensor.data_ptr() not in known]
    if isinstance(each, torch.nn.Module):
        return lambda: [(name, pairs[name]) for name in names]
    return lambda: [(name, each[name]) for name in names if isinstance(each.get(name), torch.Tensor)]
