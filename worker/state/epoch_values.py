"""What a script derives from the weights at an epoch's beginning (`run.epoch_begin`): computed once, and carried.

Teachers, pseudo-labels, cluster centres and the old policy of PPO are functions of the weights that the epoch begins with. A
worker that joins in the middle of the epoch, and a restart from a checkpoint of there, have later weights. So such values are
part of the job's state until the next epoch begins (Elan V-A, RegisterState), numbered in the order of their calls.

A newcomer gets the state before its script begins the epoch, so the values are there when the script asks. A module is built by
the script's function, and filled. One that comes in the last step of an epoch begins the next one before it has got what others
have changed behind that step. Then it computes the values too, and they are filled with the job's, in place, since the script's
variables name them already. Where that cannot be, as with a number that is another one, the worker ends, to be replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import torch

from ...protocol.errors import UserError
from .plain import inline, pack, restored, unpack
from .script_state import put

NAME = "epoch_begin"


class Unfilled(Exception):
    """The job has another value than the script's variables have, which nothing can be put into."""


class EpochValues:
    """Those of the epoch that the job is in."""

    def __init__(self) -> None:
        self._epoch = -1
        self._values: list[Any] = []  # as the script has them; as they travel, where it has not asked yet
        self._asked = 0  # so many the script has
        self._new = False  # there are some that joiners of the present step were not sent

    def begin(self, epoch: int) -> None:
        """The script's loop has come to `epoch`."""
        self._asked = 0
        if epoch > self._epoch:
            self._epoch, self._values = epoch, []

    def value(self, epoch: int, function: Callable[[], Any], seed: Callable[[int], None]) -> Any:
        """What the function has given at the beginning of `epoch`, on the worker that came there first. Raises UserError.

        seed: seeds what draws for the call of this number."""
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
        seed(2 * number + 1)  # what the script draws next is the same, whether the function has drawn or not
        return value

    def _check(self, number: int, value: Any) -> None:
        where = f"the value of run.epoch_begin() number {number + 1}"
        pack(_given(value), where, lambda tensor, place: 0)

    # -- as a value that is registered

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self) -> list[Any]:
        """The epoch, and all values."""
        return [self._epoch, [_given(value) for value in self._values]]

    def present(self, packed: Any) -> Any:
        """The same, if they are of the epoch of those that were packed: then they may be written to."""
        return self.get() if packed["list"][0] == self._epoch else None

    def set(self, values: list[Any]) -> None:
        """Take over what `get` has given."""
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
        """What there is is sent in this step, where a joiner gets the state."""
        self._new = False

    def changes(self) -> Any:
        """All values, if there are new ones."""
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
    """A module as it travels, or None."""
    return value if type(value) is dict and _MODULE in value else None


def _fill(target: Any, value: Any, number: int) -> None:
    """Let `target`, which the script has, be `value`, which has come. Raises UserError for another module; Unfilled."""
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
