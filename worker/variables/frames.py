"""Variables of a running script, found by the names that a look gives them, and bound without running code of the script."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from ..source.own_code import (
    attributes_of,
    consumers,
    directories,
    mro_of,
    own_modules,
    variables_in,
    variables_of,
    variables_of_loop,
)


@dataclass(frozen=True)
class Variable:
    """A variable of a function or module, or an attribute of an object or class."""

    owner: Any  # a function's frame, a module's dict, an object or a class
    name: str
    value: Any

    @property
    def place(self) -> tuple[int, str]:
        """A key that two descriptions of one variable have in common."""
        return id(self.owner), self.name

    def bind(self, value: Any) -> None:
        """Bind the variable to a value, without running code of the script."""
        owner = self.owner
        if isinstance(owner, FrameType):
            _bind_in_function(owner, self.name, value)
        elif type(owner) is dict:
            owner[self.name] = value
        elif isinstance(owner, type):
            type.__setattr__(owner, self.name, value)
        else:
            object.__setattr__(owner, self.name, value)


def names_bound(frame: FrameType | None) -> frozenset[str]:
    """Return the variables that have a value now, of this frame and of its module."""
    if frame is None:
        return frozenset()
    return frozenset(variables_of_loop(frame))


def names_of(frame: FrameType | None, known: Collection[int]) -> frozenset[str]:
    """Return the variables of this frame and its module that refer to objects with these ids."""
    variables = {} if frame is None else variables_of_loop(frame)
    return frozenset(name for name, value in variables.items() if id(value) in known)


def find(frame: FrameType, name: str, inherits: bool = False) -> Variable | None:
    """Return the variable of this name, as a look names it: `best`, `trainer.best`, `Meter.total`, `helpers.best`.

    None if there is none, or its owner is no object with attributes of its own. inherits: an attribute that the object has
    from its class alone counts, too; bound, it becomes the object's own.
    """
    root, *attributes = name.split(".")
    for each in (frame, *consumers(frame)):
        if root in (variables := variables_in(each)):
            return (
                _attribute(variables[root], attributes, inherits)
                if attributes
                else Variable(each, root, variables[root])
            )
    if root in frame.f_globals:
        value = frame.f_globals[root]
        return _attribute(value, attributes, inherits) if attributes else Variable(frame.f_globals, root, value)
    for prefix, module in own_modules(directories(), frame.f_globals).items():
        if name.startswith(f"{prefix}."):
            first, *others = name[len(prefix) + 1 :].split(".")
            if first in module:
                return _attribute(module[first], others, inherits) if others else Variable(module, first, module[first])
    return None


def _attribute(owner: Any, attributes: Sequence[str], inherits: bool) -> Variable | None:
    for position, name in enumerate(attributes):
        own: Mapping[str, Any]
        if isinstance(owner, ModuleType):
            own = owner = variables_of(owner)
        else:
            own = vars(owner) if isinstance(owner, type) else attributes_of(owner, type(owner))
        if name not in own and inherits and not isinstance(owner, type) and position == len(attributes) - 1:
            own = next((vars(each) for each in mro_of(type(owner)) if name in vars(each)), own)
        if name not in own:
            return None
        if position == len(attributes) - 1:
            return Variable(owner, name, own[name])
        owner = own[name]
    return None


def _bind_in_function(frame: FrameType, name: str, value: Any) -> None:
    """Bind a variable of a function that is running, as a debugger does."""
    snapshot = frame.f_locals
    snapshot[name] = value
    if sys.version_info < (3, 13):  # later, `f_locals` writes to the frame itself (PEP 667)
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        variables_in(frame)
