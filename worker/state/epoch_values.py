"""Values that a script derives from the weights at an epoch's beginning (`run.epoch_begin`): computed once, then
carried.

Teachers, pseudo-labels, cluster centres and the old policy of PPO are functions of the weights at the epoch's
beginning. A worker that joins in the middle of the epoch, or restarts there from a checkpoint, has later weights. So
such values are part of the job's state until the next epoch begins (Elan V-A, RegisterState), numbered in the order of
their calls.

A joining worker gets the state before its script begins the epoch, so the values exist when the script requests them. A
module is built by the script's function, and filled. A worker that joins in the last step of an epoch begins the next
one before it has the changes that others made after that step. Then it computes the values too, and they are filled
with the job's in place, since variables of the script refer to them already. If a value cannot be filled, such as a
number that differs, the worker ends and is replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import torch

from ...protocol.errors import UserError
from ..plain import inline, pack, restored, unpack
from .script_state import put

NAME = "epoch_begin"


class Unfilled(Exception):
    """The job's value differs from the script's, which cannot be changed in place."""


class EpochValues:
    """The values of the job's current epoch."""

    def __init__(self) -> None:
        self._epoch = -1
        self._values: list[Any] = []  # as the script has them; in packed form until the script requests them
        self._asked = 0  # number of values that the script has requested
        self._new = False  # whether some values were not sent to workers that join in the present step

    def begin(self, epoch: int) -> None:
        """Note that the script's loop has come to `epoch`."""
        self._asked = 0
        if epoch > self._epoch:
            self._epoch, self._values = epoch, []

    def value(self, epoch: int, function: Callable[[], Any], seed: Callable[[int], None]) -> Any:
        """Return the result of `function` at the beginning of `epoch`, as the first worker there computed it.

        seed: a function that seeds the generators by a number, before and after the call. Raises UserError for values
        that cannot travel.
        """
        number, self._asked = self._asked, self._asked + 1
        seed(2 * number)
        known = epoch == self._epoch and number < len(self._values)
        if known and _module_part(self._values[number]) is None:
            value = self._values[number]
        else:
            value = function()
            self._check(number, value)
            if known:
                _fill(value, self._values[number], number)
                self._values[number] = value
            elif epoch == self._epoch:
                self._values.append(value)
                self._new = True
        seed(2 * number + 1)  # the script's next random numbers are the same, whether the function has drawn any or not
        return value

    def _check(self, number: int, value: Any) -> None:
        where = f"the value of run.epoch_begin() number {number + 1}"
        pack(_given(value), where, lambda tensor, place: 0)

    # -- as a value that is registered

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self) -> list[Any]:
        """Return the epoch and all values."""
        return [self._epoch, [_given(value) for value in self._values]]

    def present(self, packed: Any) -> Any:
        """Return `get()` if the packed values are of the same epoch, so that they may be copied into it; else None."""
        return self.get() if packed["list"][0] == self._epoch else None

    def set(self, values: list[Any]) -> None:
        """Take over the result of `get` of another worker."""
        epoch, given = values
        if epoch != self._epoch:
            self._epoch, self._asked, self._values = epoch, 0, [*given]
            return
        for number, value in enumerate(given):
            if number < min(self._asked, len(self._values)):
                _fill(self._values[number], value, number)
            elif number < len(self._values):
                self._values[number] = value
            else:
                self._values.append(value)

    # -- to joiners

    def step_begins(self) -> None:
        """Begin a step; the present values are sent to workers that join in it."""
        self._new = False

    def changes(self) -> Any:
        """Return all values if some are new; else None."""
        return pack(self.get(), NAME, inline) if self._new else None

    def take(self, changes: Any) -> None:
        """Take over another worker's `changes`."""
        if changes is not None:
            self.set(unpack(changes, lambda content, present: restored(content)))


def _given(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        tensors = {name: tensor.detach() for name, tensor in [*value.named_parameters(), *value.named_buffers()]}
        extra = {
            path: module.get_extra_state()
            for path, module in value.named_modules()
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        }
        return {_MODULE: tensors, "extra": extra}
    return value


_MODULE = "tensors of a module"


def _module_part(value: Any) -> dict[str, Any] | None:
    """Return `value` if it is a module in packed form; else None."""
    return value if type(value) is dict and _MODULE in value else None


def _fill(target: Any, value: Any, number: int) -> None:
    """Fill `target`, which the script has, with `value`, which has been received.

    Raises UserError for another module, and Unfilled for a value that cannot be changed in place.
    """
    if target is value:
        return
    if isinstance(target, torch.nn.Module):
        _fill_module(target, value, number)
    elif isinstance(target, tuple) and isinstance(value, tuple) and len(target) == len(value):
        for one, other in zip(target, value, strict=True):
            _fill(one, other, number)
    elif isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor):
        with torch.no_grad():
            if target.shape == value.shape and target.dtype == value.dtype:
                target.copy_(value)
            else:
                target.data = value.to(target.device)
    elif _is_open(target) and type(target) is type(value):
        vars(target).update(vars(value))
    elif put(target, value) is not target and _packed(target) != _packed(value):
        raise Unfilled(
            f"the value of run.epoch_begin() number {number + 1} is {_words(target)} here, and another one in the job's state"
        )


def _fill_module(target: torch.nn.Module, value: Any, number: int) -> None:
    own = _given(target)
    if _module_part(value) is None or [*own[_MODULE]] != [*value[_MODULE]] or [*own["extra"]] != [*value["extra"]]:
        raise UserError(
            f"the module of run.epoch_begin() number {number + 1} has other parameters or buffers than in the job's state: the "
            "function has to build the same module on all workers"
        )
    with torch.no_grad():
        for name, tensor in own[_MODULE].items():
            tensor.copy_(value[_MODULE][name])
    for path, state in value["extra"].items():
        target.get_submodule(path).set_extra_state(state)


def _packed(value: Any) -> Any:
    return msgspec.msgpack.encode(pack(value, NAME, inline))


def _is_open(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and hasattr(value, "__dict__")


def _words(value: Any) -> str:
    shape = f" of shape {[*value.shape]}" if isinstance(value, torch.Tensor | numpy.ndarray) else ""
    return f"a {type(value).__name__}{shape}"
