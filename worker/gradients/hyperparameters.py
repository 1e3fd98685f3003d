"""Hyper-parameters: the options in `optimizer.param_groups`, which are part of the job's state.

Each virtual worker's body begins with the job's values. The values that it leaves at `optimizer.step()` hold for this step's
update. All bodies of a step have to agree: bodies of one worker are compared at once, and those of several workers by a number in
the step's word (`inband`). So no values have to be sent, except to workers that run no body in the step, such as a joiner in its
first one: they take those of virtual worker 0. The next step begins with the values that the last body of each worker leaves
after `optimizer.step()`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any

import msgspec
import torch

from ...protocol.errors import UserError
from ..inband import NOTHING, Part
from ..plain import inline, pack, restored, unpack

REMEDY = (
    "every virtual worker runs the loop body once for each global step, so derive it from run.steps_done, and not from a "
    "counter of loop bodies or from a batch"
)
HASH_BITS = 62  # of a hash in the word, which also has its negative


@dataclass(frozen=True, eq=False)  # `_equal` compares the values
class _Tensor:
    """A tensor that is a hyper-parameter, with a copy of its value."""

    tensor: torch.Tensor | None  # the script's own tensor; None: the value is from another worker
    value: torch.Tensor


Options = list[list[dict[str, Any]]]  # by optimizer and group; tensors are `_Tensor`
_FIXED = frozenset({type(None), bool, int, float, str, tuple})  # types of options that cannot change in place
_values = methodcaller("values")
_param_groups = attrgetter("param_groups")
_Changes = dict[str, tuple[Any, Any]]  # by the option's name: values before and after


class Hyperparameters:
    """The options of all groups of these optimizers in a step. Takes part in the step's word."""

    name = "hyper-parameters"
    slots = 2

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._hashed: tuple[Options, int] | None = None
        self._sizes: list[int] | None = None  # of all groups at the last `_take`; None: values may change in place
        self._seen: list[Any] = []  # all keys and values at the last `_take`
        self._taken: Options = []  # result of the last `_take`
        self._begin_with(self._take())

    def _begin_with(self, start: Options) -> None:
        self._start = start
        self.some_look_away = False  # whether some workers run no body in this step
        self._own: Options | None = None  # options of this worker's first body at its `optimizer.step()`
        self._base: Options = start  # options of the present body just after its `optimizer.step()`
        self._behind: _Changes | None = None  # changes by this worker's first body after its `optimizer.step()`
        self._told: Options | None = None  # options of virtual worker 0, received by a worker that runs no body
        self._step = -1

    # -- a step

    def begin(self, step: int) -> None:
        """Begin a step."""
        self._begin_with(self._take())
        self._step = step

    def restore(self) -> None:
        """Restore the values with which the step began."""
        self._put(self._start)

    def begin_body(self) -> None:
        """Begin the body of a virtual worker."""
        if self._own is not None and self._take() is not self._start:
            self.restore()

    def keep(self) -> None:
        """Keep a body's options at its `optimizer.step()`. Raises UserError if they differ from an earlier body's."""
        taken = self._take()
        self._check_groups(taken)
        if self._own is None:
            self._own = taken
        else:
            self._disagree(_difference(self._own, taken), "")
        self._base = self._own

    def end_body(self, followed: bool) -> None:
        """Compare a body's changes after `optimizer.step()`, at its end. Raises UserError if they differ from an earlier body's.

        followed: a scheduler was stepped in the body (`following`), so nothing is compared."""
        if followed or self._own is None:
            return
        taken = self._take()
        self._check_groups(taken)
        changes = _changes(self._base, taken)
        if self._behind is None:
            self._behind = changes
        else:
            self._disagree(_disagreement(self._behind, changes), " after optimizer.step()")

    def apply(self) -> None:
        """Set the step's options, just before the update."""
        told, self._told = self._told, None
        if told is not None:
            self._put(told)
        elif self._own is not None and self._take() is not self._own:
            self._put(self._own)

    def updated(self) -> None:
        """Take the options after the update, which may have changed them."""
        self._base = self._take()

    def _disagree(self, found: tuple[str, Any, Any] | None, where: str) -> None:
        if found is not None:
            option, one, two = found
            raise UserError(
                f"{option} is {one} for one virtual worker and {two} for another{where} in step {self._step}: {REMEDY}"
            )

    def _check_groups(self, taken: Options) -> None:
        if taken is not self._start and [*map(len, taken)] != [*map(len, self._start)]:
            raise UserError("add_param_group() was called in the loop over batches: call it between epochs")

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        """Return a hash of the options before and after this worker's bodies, and its negative.

        The workers agree if the maximum of the one is the negative of the maximum of the other."""
        if part.joins or self._own is None:
            return NOTHING, NOTHING
        number = self._hash()
        return number, -number

    def wants(self, part: Part) -> bool:
        """Return whether a worker without a body needs the options, since the bodies have changed them."""
        if not self.some_look_away or self._own is None or 0 not in part.hosted:
            return False
        return _difference(self._start, self._own) is not None

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Return whether the workers disagree."""
        return greatest[0] != NOTHING and greatest[0] != -greatest[1]

    def payload(self, part: Part) -> Any:
        """Return the options with which the step began, and those that this worker's bodies have left."""
        if part.joins or self._own is None:
            return None
        return {"first": 0 in part.hosted, "start": plain(self._start), "own": plain(self._own)}

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Compare the payloads; a worker without a body takes virtual worker 0's options. Raises UserError on a difference."""
        present = [(rank, payload) for rank, payload in enumerate(payloads) if payload is not None]
        for kind, when in (("start", "before"), ("own", "in")):
            for rank, payload in present:
                _refuse(present[0], (rank, payload), kind, f"{when} step {part.step}")
        if self._own is None:
            for _, payload in present:
                if payload["first"]:
                    self._told = _of_plain(payload["own"])

    def _hash(self) -> int:
        assert self._own is not None
        both = [*self._start, *self._own]
        if self._hashed is None or _difference(self._hashed[0], both) is not None:
            text = msgspec.msgpack.encode([plain(self._start), plain(self._own)])
            number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> (64 - HASH_BITS)
            self._hashed = both, number
        return self._hashed[1]

    # -- as values

    def values(self) -> Any:
        """Return the present options in plain values."""
        return plain(self._take())

    def set_values(self, values: Any) -> None:
        """Set the options to a result of `values` of the same script."""
        self._put(_of_plain(values))

    def _take(self) -> Options:
        """Return the present options.

        If all are the same objects as at the last call, it returns the same list: a step that sets no option copies nothing, and
        compares nothing further."""
        present = [*map(_param_groups, self._optimizers)]
        every = [*chain.from_iterable(present)]
        sizes = [*map(len, present), *map(len, every)]
        if sizes == self._sizes and all(map(is_, self._seen, chain(*every, *map(_values, every)))):
            return self._taken
        self._taken = [
            [
                {
                    key: _Tensor(value, value.detach().clone()) if isinstance(value, torch.Tensor) else value
                    for key, value in group.items()
                    if key != "params"
                }
                for group in groups
            ]
            for groups in present
        ]
        changeable = any(
            type(value) not in _FIXED for groups in self._taken for group in groups for value in group.values()
        )
        self._sizes = None if changeable else sizes
        self._seen = [*chain(*every, *map(_values, every))]
        return self._taken

    def _put(self, options: Options) -> None:
        for optimizer, saved in zip(self._optimizers, options, strict=True):
            for group, values in zip(optimizer.param_groups, saved, strict=False):
                for key, value in values.items():
                    group[key] = _into(group.get(key), value)


def _into(present: Any, saved: Any) -> Any:
    """Return a saved option. A tensor's value is copied to the script's own tensor, or for another worker's value to `present`.

    If `present` does not have its shape and type, it is a new tensor."""
    if not isinstance(saved, _Tensor):
        return saved
    tensor, value = saved.tensor, saved.value
    if tensor is None:
        fits = isinstance(present, torch.Tensor) and present.shape == value.shape and present.dtype == value.dtype
        tensor = present if fits else value.clone()
    with torch.no_grad():
        return tensor.copy_(value)


def _difference(one: Options, other: Options) -> tuple[str, Any, Any] | None:
    """Return the name of the first option that differs, with both values; None: all are equal."""
    for name, (a, b) in _changes(one, other).items():
        return name, _shown(a), _shown(b)
    return None


def _disagreement(one: _Changes, other: _Changes) -> tuple[str, Any, Any] | None:
    """Return the name of the first option that was changed differently, with both values; None: there is none.

    An option that both have changed, from different values, is not compared."""
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            began, ended = one.get(name) or other[name]
            values = (ended, began) if name in one else (began, ended)
            return name, _shown(values[0]), _shown(values[1])
        if _equal(one[name][0], other[name][0]) and not _equal(one[name][1], other[name][1]):
            return name, _shown(one[name][1]), _shown(other[name][1])
    return None


def _changes(one: Options, other: Options) -> _Changes:
    found: _Changes = {}
    if one is other or _plainly_equal(one, other):
        return found
    for number, (groups, others) in enumerate(zip(one, other, strict=True)):
        if len(groups) != len(others):
            return {"the number of the optimizer's param_groups": (len(groups), len(others))}
        for position, (left, right) in enumerate(zip(groups, others, strict=True)):
            for key in [*left, *(key for key in right if key not in left)]:
                a, b = left.get(key), right.get(key)
                if a is not b and not _equal(a, b):
                    which = f"optimizer {number + 1}'s" if len(one) > 1 else "the optimizer's"
                    found[f"{which} param_groups[{position}][{key!r}]"] = a, b
    return found


def _plainly_equal(one: Options, other: Options) -> bool:
    """Return whether `==` finds the options equal, as in most steps. False if it cannot, such as for arrays."""
    try:
        return one == other
    except (ValueError, RuntimeError, TypeError):  # "truth value is ambiguous" of an array, for example
        return False


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, _Tensor) and isinstance(b, _Tensor):
        return a.value.shape == b.value.shape and a.value.dtype == b.value.dtype and torch.equal(a.value, b.value)
    if isinstance(a, _Tensor) or isinstance(b, _Tensor):
        return False
    return bool(a == b) or (a != a and b != b)


def _shown(value: Any) -> Any:
    return value.value.tolist() if isinstance(value, _Tensor) else value


def _refuse(one: tuple[int, Any], other: tuple[int, Any], kind: str, when: str) -> None:
    found = _difference(_of_plain(one[1][kind]), _of_plain(other[1][kind]))
    if found is not None:
        option, first, second = found
        raise UserError(
            f"{option} is {first} on worker {one[0]} and {second} on worker {other[0]} {when}: what sets it must not depend on "
            f"the worker; {REMEDY}"
        )


def plain(options: Options) -> list[Any]:
    """Return options in plain values, with the tensors' contents. Raises UserError, naming the option that cannot be packed."""
    return [
        [
            pack(
                {key: value.value if isinstance(value, _Tensor) else value for key, value in group.items()},
                "optimizer.param_groups",
                inline,
            )
            for group in groups
        ]
        for groups in options
    ]


def _of_plain(values: Any) -> Options:
    def tensor_of(content: Any, present: Any) -> Any:
        return _Tensor(None, restored(content))

    return [[unpack(group, tensor_of) for group in groups] for groups in values]
