"""Copies of a model that a script keeps in lists, tuples and mappings: an average's `shadow_params`, a Lookahead's slow
weights.

They are found by their shapes, which are those of the model's parameters in their order, from the variables of the
script and the attributes of its own objects. Each copy is read again from its place in the script, since scripts
replace tensors, or the list.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from ..source.own_code import (
    attributes_of,
    directories,
    is_own_file,
    loop_frame,
    module_of,
    mro_of,
    own_modules,
    own_names,
    variables_in,
)

DEPTH = 5  # attributes and items between a variable and a copy
ITEMS = 32  # items up to which a container is searched
OBJECTS = 10_000  # objects that are searched at most

Shapes = tuple[torch.Size, ...]


class Copy(NamedTuple):
    """Tensors that the script keeps."""

    name: str  # expression in the script
    read: Callable[[], Any]  # returns the present value


def shapes_of(tensors: Sequence[Any]) -> Shapes | None:
    """Return the shapes of the tensors; None if not all of the values are tensors."""
    return tuple(each.shape for each in tensors) if all(type(each) in _TENSORS for each in tensors) else None


def tensors_in(value: Any) -> Sequence[Any]:
    """Return the items of a list, a tuple or a mapping; of any other value none."""
    if type(value) in (list, tuple):
        return list(value)
    return list(dict.values(value)) if issubclass(type(value), dict) else []


def held(frame: FrameType | None, wanted: set[Shapes]) -> list[Copy]:
    """Return the script's lists, tuples and mappings of tensors with one of these sequences of shapes.

    frame: as for `loop_frame`.
    """
    frame = loop_frame(frame)
    if frame is None:
        return []
    lengths = {len(shapes) for shapes in wanted}
    found: list[Copy] = []
    for name, read, value in _Held(frame):
        kind = type(value)
        several = (kind in (list, tuple) or issubclass(kind, dict)) and len(value) in lengths
        if several and shapes_of(tensors_in(value)) in wanted:
            found.append(Copy(name, read))
    return found


_TENSORS = (torch.Tensor, torch.nn.Parameter)
_Found = tuple[str, Callable[[], Any], Any]


class _Held:
    """All values reachable from the variables of a script: names, functions that read them again, and values."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self._directories = directories()
        self._own = own_names(self._directories)
        self._seen: set[int] = set()

    def __iter__(self) -> Iterator[_Found]:
        frame = self._frame
        for name, value in variables_in(frame).items():
            yield from self._from(name, lambda value=value: value, value, 0)  # type: ignore[misc]
        yield from self._mapping("", frame.f_globals, 0)
        for name, module in own_modules(self._directories, frame.f_globals).items():
            yield from self._mapping(f"{name}.", module, 0)

    def _mapping(self, prefix: str, mapping: Mapping[str, Any], depth: int) -> Iterator[_Found]:
        for name, value in list(mapping.items()):
            if type(name) is str and not name.startswith("__"):
                yield from self._from(f"{prefix}{name}", _reader(mapping, name), value, depth)

    def _from(self, name: str, read: Callable[[], Any], value: Any, depth: int) -> Iterator[_Found]:
        kind = type(value)
        if id(value) in self._seen or depth > DEPTH or len(self._seen) > OBJECTS or kind in _SIMPLE:
            return
        self._seen.add(id(value))
        yield name, read, value
        if kind in (list, tuple) and len(value) <= ITEMS:
            for number, each in enumerate(value):
                yield from self._from(f"{name}[{number}]", lambda each=each: each, each, depth + 1)  # type: ignore[misc]
        elif kind is dict and len(value) <= ITEMS:
            for key, each in list(value.items()):
                if type(key) is str:
                    yield from self._from(f"{name}[{key!r}]", _reader(value, key), each, depth + 1)
        elif kind is types.MethodType:
            yield from self._from(name, lambda: value.__self__, value.__self__, depth)
        elif kind is types.FunctionType and "__wrapped__" in value.__dict__:
            decorated = value.__dict__["__wrapped__"]
            yield from self._from(name, lambda: decorated, decorated, depth + 1)
        elif kind is types.FunctionType and is_own_file(value.__code__.co_filename, self._directories):
            for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield from self._from(variable, lambda cell=cell: _content(cell), _content(cell), depth + 1)  # type: ignore[misc]
        elif any(module_of(each) in self._own for each in mro_of(kind)):
            for attribute, each in attributes_of(value, kind).items():
                if not attribute.startswith("__") and attribute not in _OF_MODULES:
                    again = _attribute_reader(value, kind, attribute)
                    yield from self._from(f"{name}.{attribute}", again, each, depth + 1)


_SIMPLE = frozenset({type(None), bool, int, float, complex, str, bytes, type, *_TENSORS})
_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})


def _reader(mapping: Mapping[str, Any], name: str) -> Callable[[], Any]:
    return lambda: mapping.get(name)


def _attribute_reader(value: Any, kind: type, attribute: str) -> Callable[[], Any]:
    return lambda: attributes_of(value, kind).get(attribute)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned
        return None
