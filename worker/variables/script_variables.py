"""Variables that only a script's code between epochs changes, such as the best result so far or a patience counter: they
travel with the job's state, as those of `run.state` do, without a line in the script.

*Which variables.* A worker compares looks at the script (`looking`): from the loop's beginning to now, and from the
beginning of a pass over the batches to now. A variable that changes within a pass belongs to loop bodies, of which each
worker runs its own, so no value is right for all workers. A variable that has changed otherwise was changed by code
that every worker runs once for an epoch. A value that follows by the source from numbers that bodies add up, such as a
history of training losses, is left out, too (`slicing.Slice.follows_from_bodies`). What is left out, and differs, is
named as before (`crosscheck`).

*When.* The values are read where a state is given to a joining worker or a checkpoint is written. They are set where
the receiver's loop is at the same place: at once, in the pass over the state's epoch, or else where that pass begins. The
epoch's code before the batches gets the values with which it began at the giver, since it may change them.

*What follows from them.* Code at an epoch's beginning may change these variables, compute other values from them, and
call a function with them that contains the loop over batches: `train_epoch(model, batches, scale)`. If it has changed
some on a joining worker, which began with their later values, then the small values that were bound there, and that
bodies have not changed, come too. A time, and what differs by the worker's place (`is_leader`, `rank`), never come.

*One worker.* As long as one worker has run all loop bodies, what they have changed is right, too. A checkpoint contains it,
for the process that goes on from there; a worker that joins does not get it, since the bodies of both are others from then on.

*How.* A value is set in the variable of the loop's function or module, or in the attribute of an object of the
script's own. A list, dict, set or array that the script changes in place is filled in place, so that its other names
see the change. An object under two names stays one. A tensor that shares memory with the model's, as in
`best = model.state_dict()`, is the receiver's own. A variable of which only a part is reached by another path, too, such
as a dict in a list that has a name of its own, is not carried: its parts would be other objects at the receiver.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy
import torch

from ...protocol.errors import PeerError
from ..kept import Difference, Kind, Reach, differences, last_name, variable_of
from ..source.own_code import attributes_of, is_own_class, variables_in
from ..state.script_state import put
from ..value_kinds import MUTABLE, names_within
from .body_counters import BodyCounters
from .frames import Variable, find
from .looking import SHARE_OF_EPOCH, Looking
from .packed_variables import Packing, Unpacking, without_graph

PASSES = 3  # that are looked at whatever it costs; later ones if the time since the last look is `SHARE_OF_EPOCH` looks
_KINDS = frozenset({Kind.PLAIN, Kind.CONTAINER, Kind.TENSOR, Kind.ARRAY, Kind.GENERATOR, Kind.MODULE})
_AT_BEGIN = "0 "  # prefix of variables that code at the epoch's beginning has bound

_GENERATORS = (random.Random, numpy.random.Generator, numpy.random.RandomState, torch.Generator)
_MUTABLE = (*MUTABLE, *_GENERATORS)
_SMALL = (type(None), bool, int, float, complex, str, bytes, numpy.generic)
MOST_ITEMS = 32  # of a container or tensor that follows from variables
FIRST_ALONE = 1 << 32  # number of the first tensor of `give_alone`, which no tensor of `give` has
MOST_ALONE = 100_000  # of one that an epoch begins anew, as long as one worker has run all loop bodies

# By name: whether the value is filled in place, or the increment of a counter in each body; the packed value, or the name of
# the variable that has the same object; and the packed value of the epoch's beginning (None: the same, False: not known).
Values = Mapping[str, Sequence[Any]]


class ScriptVariables:
    """The variables of one script. For the thread that runs the script, which is in the loop."""

    def __init__(
        self,
        looking: Looking,
        counters: BodyCounters,
        modules: Callable[[], Sequence[torch.nn.Module]],
        device: torch.device,
    ) -> None:
        """counters: variables that bodies change, and that have the same values on all workers between two steps. modules:
        returns the job's, in the same order on each worker. device: where received tensors are allocated that are
        on an accelerator at the giver.
        """
        self._looking = looking
        self._counters = counters
        self._modules = modules
        self._device = device
        self.alone = True  # whether this worker has run all loop bodies of the job so far
        self._is_only = True  # whether it trains alone now
        # Variables that the loop of the only worker has changed, each with whether it is filled in place
        self._of_one: dict[str, bool] = {}
        self._in_pass = False
        self._begun: Reach | None = None  # the script's values where the present pass began; None: not looked at
        self._passes = 0
        self._looked_at_s, self._look_took_s = 0.0, 0.0
        self._of_bodies: set[str] = set()  # variables that have changed within a pass
        self._counted: set[str] = set()  # of them those that are counters of bodies
        # Variables to carry, each with whether it is filled in place; None: not to be carried, by the source
        self._carried: dict[str, bool | None] = {}
        self._sharing: set[str] = set()  # variables with a part that another path reaches, too
        # Of the variables to carry, where the present epoch began: text, and packed value without tensors
        self._at_begin: dict[str, tuple[bytes | None, list[Any] | None]] = {}
        # Of the variables to carry, and of those of functions between the loops, where the present pass began
        self._texts: dict[str, bytes | None] = {}
        self._coming: tuple[int, Values] | None = None  # values for the pass over this epoch
        self._taken: Values = {}  # received values that were set in the present pass
        self._from_one: frozenset[str] = frozenset()  # variables of `give_alone` in the checkpoint
        self.restored: frozenset[str] = frozenset()  # last names (`kept.last_name`) of those of them that were set

    def enter(self, workers: int) -> None:
        """Enter a generation with so many workers."""
        self._is_only = workers == 1
        self.alone &= self._is_only

    def epoch_begins(self, epoch: int) -> None:
        """Begin the epoch: its code before the batches has the variables of the received state, as they were there."""
        if self._coming is not None and self._coming[0] <= epoch:
            if self._coming[0] < epoch:  # code between the epochs found the present values
                self._coming = epoch, {name: [how, packed, None] for name, (how, packed, _) in self._coming[1].items()}
            self._bind(self._coming[1], self._present_of(self._coming[1]), at_begin=True)
        elif self._passes and self._affords_look():
            self._look()
        packing = self._packing()
        self._at_begin = {
            name: (packing.text(variable), packing.without_tensors(variable))
            for name, variable in (*self._present(), *self._changed_alone())
        }

    def pass_begins(self, epoch: int) -> None:
        """Begin the pass over an epoch's batches, after `Looking.first_batches`."""
        self._taken = {}
        if self._coming is not None and self._coming[0] <= epoch:
            self._set(self._coming[1])
        self._in_pass = True
        self._passes += 1
        self._begun = self._look() if self._affords_look() else None
        self._texts = self._texts_now()

    def _packing(self, first: int = 0) -> Packing:
        return Packing(self._modules(), self._looking.state.optimizers, first)

    def _affords_look(self) -> bool:
        since_s = time.thread_time() - self._looked_at_s
        return self._passes <= PASSES or since_s >= SHARE_OF_EPOCH * self._look_took_s

    def _look(self) -> Reach:
        """Look which variables have changed since the loop began, and which share a part. Returns the look."""
        began_s = time.thread_time()
        now = self._looking.now(sys._getframe())
        made = [Difference(name, node, node) for name, node in self._looking.made_at_epochs.items()]
        for each in (*self._looking.since_begin(now), *made, *self._looking.set_at_epochs):
            self._judge(each)
            if self.alone:
                in_place = self._looking.carried_in_place(each, alone=True) if each.node.kind in _KINDS else None
                self._of_one |= {} if in_place is None else dict.fromkeys(_names(each), in_place)
        if self.alone:
            self._of_one |= dict.fromkeys(self._looking.bound_since(now), False)
        self._sharing = {name for pair in now.shared if not _is_alias(*pair) for name in map(_variable, pair)}
        self._looked_at_s = time.thread_time()
        self._look_took_s = self._looked_at_s - began_s
        return now

    def _texts_now(self) -> dict[str, bytes | None]:
        packing = self._packing()
        return {name: packing.text(variable) for name, variable in (*self._present(), *self._within(self.alone))}

    def _present(self) -> Iterator[tuple[str, Variable]]:
        """Yield the variables to carry. Those that the script has registered by functions travel as registered values do."""
        frame, registered = self._looking.frame(sys._getframe()), self._looking.state.registered.mentioned()
        for name, in_place in self._carried.items():
            carried = in_place is not None and name not in self._of_bodies and name not in self._sharing
            if not carried or frame is None or name.rpartition(".")[2] in registered:
                continue
            if (variable := find(frame, name)) is not None:
                yield name, variable

    def _changed_alone(self) -> Iterator[tuple[str, Variable]]:
        """Yield the variables that bodies change, too, as long as one worker has run all of them."""
        frame, registered = self._looking.frame(sys._getframe()), self._looking.state.registered.mentioned()
        if frame is None or not self.alone:
            return
        for name in self._of_one:
            is_carried = name not in self._sharing and name.rpartition(".")[2] not in registered
            variable = find(frame, name) if is_carried else None
            # A thread may have read its value already
            if variable is not None and not isinstance(variable.owner, threading.Thread):
                yield name, variable

    def _within(self, alone: bool) -> Iterator[tuple[str, Variable]]:
        """Yield the small plain variables that code at the epoch's beginning has bound, and of functions between the loops.

        alone: larger ones, too, and attributes of objects.
        """
        frames = self._looking.frames(sys._getframe())
        outer = [(name, find(frames[0][1], name)) for name in self._looking.temporaries] if frames else []
        found = [(f"{_AT_BEGIN}{name}", variable) for name, variable in outer if variable is not None]
        for prefix, frame in frames[1:]:
            found += [(prefix + name, Variable(frame, name, value)) for name, value in variables_in(frame).items()]
        if alone:
            found += [each for pair in found for each in self._attributes(*pair)]
        most = MOST_ALONE if alone else MOST_ITEMS
        for name, variable in found:
            if _is_small(variable.value, most) and not self._looking.is_own(variable.name):
                yield name, variable

    def _attributes(self, name: str, variable: Variable) -> Iterator[tuple[str, Variable]]:
        """Yield the attributes of an object of a class of the script's own."""
        value, kind = variable.value, type(variable.value)
        if is_own_class(kind) and not isinstance(value, type | torch.nn.Module):
            for attribute, inner in attributes_of(value, kind).items():
                yield f"{name}.{attribute}", Variable(value, attribute, inner)

    def bodies_shown(self) -> None:
        """Undo what loop bodies have changed that have run again for the names they bind (`Stepping.show`)."""
        self._set({name: each for name, each in self._taken.items() if type(each[0]) is not int})

    def pass_ends(self) -> None:
        """Take note that the script's code between two epochs begins."""
        self._in_pass, self._begun, self._taken = False, None, {}

    def loop_ends(self) -> None:
        """Take note that the loop has ended, also without a pass after a checkpoint was loaded."""
        if self._coming is not None:
            self._set(self._coming[1])
        self.pass_ends()

    def give(self, looks: bool) -> Values | None:
        """Return the present values as plain data; None outside a pass over the batches, and if the pass was not looked at.

        looks: look now in this case.
        """
        if self._coming is not None:  # received, and not set yet
            return {name: each for name, each in self._coming[1].items() if name not in self._from_one}
        if not self._in_pass or (self._begun is None and not looks):
            return None
        kept = self._note(self._look())
        counters = {name: (variable, by) for name, variable, by in self._counters.present()}
        found = dict(self._present()) | {name: variable for name, variable in self._within(False) if name in kept}
        found |= {name: variable for name, (variable, _) in counters.items()}
        return self._packed(found, self._carried | {name: by for name, (_, by) in counters.items()})

    def give_alone(self, given: Values) -> Values | None:
        """Return the values of further variables, for a checkpoint: those that bodies change, also those that an epoch begins
        anew if they are small. None: other workers have run some bodies, or there is no pass.

        given: the values that `give` has returned before.
        """
        if self.alone and self._coming is not None:
            return {name: each for name, each in self._coming[1].items() if name in self._from_one}
        if not self.alone or not self._in_pass:
            return None
        begun, texts = self._texts, self._texts_now()
        found = dict(self._changed_alone())
        found |= {name: each for name, each in self._within(True) if name in begun and begun[name] != texts.get(name)}
        owners: dict[int, set[str]] = {}  # of parts within containers
        for name, variable in found.items():
            for part in _containers(variable.value):
                if part is not variable.value:
                    owners.setdefault(id(part), set()).add(name)
        for name, variable in found.items():
            if id(variable.value) in owners:
                owners[id(variable.value)].add(name)
        shared = {name for names in owners.values() if len(names) > 1 for name in names}
        how = {name: self._of_one.get(name, isinstance(each.value, _MUTABLE)) for name, each in found.items()}
        alone = {name: each for name, each in found.items() if name not in {*given, *shared}}
        return self._packed(alone, how, FIRST_ALONE)

    def _packed(self, found: Mapping[str, Variable], how: Mapping[str, bool | int | None], number: int = 0) -> Values:
        packing = self._packing(number)
        given: dict[str, Sequence[Any]] = {}
        firsts: dict[int, str] = {}  # names of objects that have another name, too
        for name, variable in found.items():
            if (first := firsts.setdefault(id(variable.value), name)) != name and not isinstance(
                variable.value, _SMALL
            ):
                given[name] = [False, first, None]
            elif (packed := packing.packed(variable)) is not None:
                given[name] = [how.get(name, False), packed, self._begin_of(name, packing.text(variable))]
        return {name: each for name, each in given.items() if type(each[1]) is not str or each[1] in given}

    def _begin_of(self, name: str, text: bytes | None) -> Any:
        """Return the value at the epoch's beginning: None: the present one; False: it is not known."""
        before, packed = self._at_begin.get(name, (None, None))
        return None if before == text else False if packed is None else packed

    def _note(self, now: Reach) -> set[str]:
        """Note which variables have changed since the pass began, if it was looked at; return the unchanged ones."""
        # a copied dict of the model's own tensors changes with them, and not by a statement of a body
        texts = self._texts_now().items()
        kept = {name for name, text in texts if text is not None and text == self._texts.get(name)}
        counted = {variable.place for _, variable, _ in self._counters.present()}
        frame = self._looking.frame(sys._getframe())
        for names in map(_names, [] if self._begun is None else differences(self._begun, now)):
            found = [find(frame, name) for name in names] if frame is not None else []
            if any(each is not None and each.place in counted for each in found):
                self._counted.update(names)
            elif kept.isdisjoint(names):
                self._of_bodies.update(names)
        return kept

    def come(self, epoch: int, values: Values | None, alone: Values | None, at_once: bool) -> None:
        """Take over the values of a received state of this epoch.

        alone: of `give_alone`, if the state is from a checkpoint. at_once: the script is in the pass over it.
        """
        self.alone = alone is not None and self._is_only
        self.restored = frozenset()
        self._from_one = frozenset(alone or ())
        self._of_one |= {name: how is True for name, (how, _, _) in (alone or {}).items() if " " not in name}
        values = values if not alone else {**alone, **(values or {})}
        self._coming = None if values is None else (epoch, values)
        if values is not None and at_once and self._in_pass:
            self._note(self._looking.now(sys._getframe()))
            self._set(values)
            self._begun, self._texts = self._look(), self._texts_now()

    def step_passes(self, bodies: int) -> None:
        """Count the bodies of a step in which this worker has run none, since it has received the state in it."""
        if self._coming is None:
            self._counters.step_passes(bodies)
            return
        for how, packed, _ in self._coming[1].values():
            if type(how) is int:
                packed[0] += how * bodies

    def _set(self, values: Values) -> None:
        """Set the variables; where code at the epoch's beginning has changed some, also what it has made of them."""
        self._coming, self._taken = None, values
        packing, present = self._packing(), self._present_of(values)
        before = [packing.text(variable) for _, variable in present]
        self._bind(values, present)
        stale = before != [packing.text(variable) for _, variable in self._present_of(values)]
        within = [
            *(self._within(bool(self._from_one)) if stale or self._from_one else ()),
            *((name, each) for name, each, _ in self._counters.present()),
        ]
        self._bind(
            values, [each for each in within if each[0] in values and packing.packed(each[1]) != values[each[0]][1]]
        )
        self._looking.look_at_derived(sys._getframe())

    def _present_of(self, values: Values) -> list[tuple[str, Variable]]:
        """Return those of the loop's variables that this script has."""
        frame = self._looking.frame(sys._getframe())
        names = [] if frame is None else [name for name in values if " " not in name]
        found = [
            (
                name,
                find(frame, name)
                or _inherited(frame, name)
                or (_unbound(frame, name) if name in self._of_one else None),
            )
            for name in names
            if frame is not None
        ]
        return [(name, variable) for name, variable in found if variable is not None]

    def _bind(self, values: Values, variables: Sequence[tuple[str, Variable]], at_begin: bool = False) -> None:
        """Bind variables to their values; those of a class that this script does not have stay.

        at_begin: to the values of the epoch's beginning, as far as they are known.
        """
        unpacking = Unpacking(self._modules(), self._device)
        bound: dict[str, Any] = {}
        for name, variable in variables:
            how, packed, begin = values[name]
            in_place = how is True
            if " " not in name and name not in self._of_one:
                self._carried.setdefault(name, in_place)
            if at_begin and begin is not None:
                packed = begin
            if type(packed) is str and {name, packed} <= self._from_one and last_name(packed) in self.restored:
                self.restored |= {last_name(name)}  # an object that is filled under its other name
            if packed is False or (type(packed) is str and packed not in bound):
                continue
            try:
                value = bound[packed] if type(packed) is str else unpacking.value(packed)
            except PeerError:  # a class that other code had (`submit --resume --with-new-code`)
                continue
            if name in self._from_one:
                if _filled(variable.value, value):
                    value = variable.value
                elif isinstance(variable.value, _MUTABLE) or (in_place and not isinstance(value, (*_SMALL, tuple))):
                    continue  # another name may refer to the object; what differs is named
                else:
                    variable.bind(value)
                bound[name] = value
                self.restored |= {last_name(name), *names_within(value)}
                continue
            bound[name] = put(variable.value, value) if in_place else value
            variable.bind(bound[name])

    def _judge(self, difference: Difference) -> None:
        """Decide whether the variables of a value that has changed since the loop began are to be carried."""
        frame, names = self._looking.frame(sys._getframe()), _names(difference)
        found = [name for name in names if frame is not None and find(frame, name) is not None]
        if not found or difference.node.kind not in _KINDS:
            return
        if not self._counted.isdisjoint(names):
            self._carried |= dict.fromkeys(found, False)
        elif not self._carried.keys() >= set(found) and self._of_bodies.isdisjoint(names):
            self._carried |= dict.fromkeys(found, self._looking.carried_in_place(difference))


def _inherited(frame: FrameType, name: str) -> Variable | None:
    """Return an attribute that the object has from its class alone so far, as one without a value of its own."""
    variable = find(frame, name, inherits=True)
    return None if variable is None else replace(variable, value=None)


def _unbound(frame: FrameType, name: str) -> Variable | None:
    """Return a variable of the loop's function or module, or an attribute of an object of the script's own, without a value."""
    root, _, attribute = name.rpartition(".")
    if not root:
        owner = frame.f_globals if frame.f_locals is frame.f_globals else frame
        return (
            Variable(owner, name, None)
            if owner is not frame or name in (*frame.f_code.co_varnames, *frame.f_code.co_cellvars)
            else None
        )
    holder = find(frame, root)
    return None if holder is None or not is_own_class(type(holder.value)) else Variable(holder.value, attribute, None)


def _is_alias(first: str | None, second: str | None) -> bool:
    """Return whether both paths are variables, so that one object has two names, rather than being a part of a value."""
    return first is not None and second is not None and variable_of(first) == first and variable_of(second) == second


def _variable(name: str | None) -> str:
    return "" if name is None else variable_of(name)


def _filled(present: Any, value: Any) -> bool:
    """Fill an object with a value, so that its other names see the change. Returns whether that was possible."""
    if present is value:
        return True
    if not isinstance(present, torch.Tensor):
        return isinstance(present, _MUTABLE) and put(present, value) is present
    if type(present) is not type(value) or present.requires_grad:
        return False
    if (present.shape, present.dtype, present.device) != (value.shape, value.dtype, value.device):
        return False
    present.copy_(value)
    return True


def _containers(value: Any) -> Iterator[Any]:
    """Yield the value, and each part of it once, that may change in place."""
    todo, seen = [value], set[int]()
    while todo:
        each = todo.pop()
        if id(each) in seen or not isinstance(each, (*MUTABLE, tuple)):
            continue
        seen.add(id(each))
        yield each
        todo += each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple | deque) else ()


def _is_small(value: Any, items: int) -> bool:
    """Return whether a value consists of plain values and tensors, with at most so many items each; more than `MOST_ITEMS`:
    also of deques, sets, arrays and generators.
    """
    if type(value) is torch.Tensor:
        return value.numel() <= items and not without_graph(value).requires_grad
    if items > MOST_ITEMS:
        if isinstance(value, numpy.ndarray):
            return value.size <= items and not value.dtype.hasobject
        if isinstance(value, _GENERATORS):
            return True
    elif type(value) not in (dict, list, tuple):
        return isinstance(value, _SMALL)
    if isinstance(value, dict):
        inner: tuple[Any, ...] = (*value, *value.values())
        return len(value) <= items and all(_is_small(each, items) for each in inner)
    if isinstance(value, list | tuple | set | deque):
        return len(value) <= items and all(_is_small(each, items) for each in value)
    return isinstance(value, _SMALL)


def _names(difference: Difference) -> list[str]:
    return [variable_of(each.name) for each in difference.by_each_name]
