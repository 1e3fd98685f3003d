"""Conversion of values to plain data that MessagePack and a checkpoint can carry, with the types that Python
distinguishes.

A scalar stands for itself. A container is a mapping of one entry from its kind to its contents, so that a tuple comes
back as a tuple and a mapping may have numbers for keys. Tensors and NumPy arrays are numbered and travel separately.
NumPy scalars keep their type, since a sum of them is rounded as that type rounds. Random generators travel as their
states. Dataclasses, named tuples, members of enums, the script's subclasses of list, dict and set, and objects of its
other classes are rebuilt from the class of the same name in the same module, with their attributes, without a call of
the class. An object of these other classes that is there twice stays one.
"""

from __future__ import annotations

import argparse
import array
import dataclasses
import datetime
import enum
import functools
import json
import pathlib
import random
import sys
import types
import uuid
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from types import MemberDescriptorType
from typing import Any

import msgspec
import numpy
import torch

from ..protocol.errors import PeerError, UserError
from .source.own_code import attributes_of, is_own_class, mro_of

INT_MIN, INT_MAX = -(2**63), 2**64 - 1  # range of MessagePack's integers
MAX_DEPTH = 32


def no_tensors(tensor: torch.Tensor, where: str) -> int:
    """Refuse a tensor where none can be carried. Raises UserError."""
    raise UserError(f"{where} is a tensor, which cannot be carried here: use .item() or .tolist()")


def inline(tensor: torch.Tensor, where: str) -> list[Any]:
    """Return a tensor with its contents as plain data, for the few and small ones that do not travel separately."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data]


def restored(content: Any) -> torch.Tensor:
    """Return the tensor of `inline`, on the CPU. Raises PeerError for other data."""
    try:
        kind, shape, data = content
        flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, kind)) if data else None
        return torch.empty(shape, dtype=getattr(torch, kind)) if flat is None else flat.view(shape)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise PeerError(f"a value is no tensor: {error}") from None


def pack(value: Any, where: str, number: Callable[[torch.Tensor, str], Any] = no_tensors) -> Any:
    """Return `value` as plain data.

    `number` numbers a tensor. Raises UserError, naming the place, for a value that cannot travel.
    """
    return _Packing(number).pack(value, where, 0)


class _Packing:
    """The conversion of one value."""

    def __init__(self, number: Callable[[torch.Tensor, str], Any], is_key: bool = False) -> None:
        self._number = number
        self._is_key = is_key
        self._objects: dict[int, int] = {}  # numbers of the objects of the script's classes, by their ids

    def pack(self, value: Any, where: str, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._number(value, where)}
        kind = type(value)
        if depth > MAX_DEPTH:
            raise UserError(f"{where} is nested too deeply, or contains itself")
        if value is None or kind in (bool, float, str, bytes) or (kind is int and INT_MIN <= value <= INT_MAX):
            if kind is str and not value.isascii():
                _check_text(value, where)
            return value
        if kind in (list, tuple):
            return {kind.__name__: self._items(value, where, depth)}
        if kind in (dict, OrderedDict, Counter):
            pairs = [
                [_key(key, where, depth), self.pack(item, f"{where}[{key!r}]", depth + 1)]
                for key, item in value.items()
            ]
            packed: Any = {kind.__name__: pairs}
        else:
            packed = self._rarer(value, where, depth)
        if packed is not None and (others := _other_attributes(value)):
            return {"with attributes": [packed, self._named(others, where, depth)]}
        if packed is not None:
            return packed
        raise UserError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be carried along: use numbers, text, bytes, None, "
            "tensors, arrays, generators, dates, paths, objects of the script's own classes, and lists, tuples, deques, sets and "
            "mappings of them"
        )

    def _items(self, values: Iterable[Any], where: str, depth: int) -> list[Any]:
        return [self.pack(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(values)]

    def _named(self, attributes: Mapping[str, Any], where: str, depth: int) -> list[Any]:
        return [[name, self.pack(item, f"{where}.{name}", depth + 1)] for name, item in attributes.items()]

    def _rarer(self, value: Any, where: str, depth: int) -> Any:
        """Return the result of `pack` for types that few scripts have. None: the value has none of these types."""
        kind = type(value)
        if kind in _ARGUMENTS:
            return {"made by": [kind.__name__, self._items(_ARGUMENTS[kind](value), where, depth)]}
        if kind is int:
            return {"integer": hex(value)}
        if kind is deque:
            return {"deque": [value.maxlen, self._items(value, where, depth)]}
        if kind in (set, frozenset):  # in an order that does not depend on hash values
            keys = [_key(key, where, depth) for key in value]
            return {kind.__name__: sorted(keys, key=msgspec.msgpack.encode)}
        if kind is defaultdict and value.default_factory in _FACTORIES.values():
            name = next(name for name, each in _FACTORIES.items() if each is value.default_factory)
            return {"defaultdict": [name, self.pack(dict(value), where, depth)]}
        if isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
            return {"scalar": [value.dtype.str, value.tobytes()]}
        if kind is numpy.ndarray and not value.flags.writeable:
            return {"read-only array": self.pack(value.copy("K"), where, depth)}
        if kind is numpy.ndarray and not value.flags.c_contiguous:
            axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
            if (in_memory := value.transpose(axes)).flags.c_contiguous:  # sums over another order are rounded otherwise
                return {"transposed array": [axes, self.pack(in_memory, where, depth)]}
        if kind is numpy.ndarray:
            try:
                whole = numpy.require(value, requirements=["C", "W"])
                return {"array": self._number(torch.from_numpy(whole), where)}
            except (TypeError, ValueError):  # of another byte order
                raise UserError(
                    f"{where} is an array of {value.dtype}, which cannot be carried along: use numbers"
                ) from None
        if isinstance(value, torch.Generator):
            return {"generator": ["torch", value.device.type, value.get_state().numpy().tobytes()]}
        if isinstance(value, numpy.random.Generator):
            return {"generator": ["numpy", type(value.bit_generator).__name__, _as_json(value.bit_generator.state)]}
        if kind is numpy.random.RandomState:
            return {"generator": ["numpy legacy", "", _as_json(value.get_state(legacy=False))]}
        if kind is random.Random:
            return {"generator": ["python", "", _as_json(value.getstate())]}
        if dataclasses.is_dataclass(value) and _class(kind.__module__, kind.__qualname__) is kind:
            try:
                fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
            except AttributeError as error:
                raise UserError(f"{where} is a dataclass, of which a field has no value: {error}") from None
            return {"dataclass": [kind.__module__, kind.__qualname__, self._named(fields, where, depth)]}
        if isinstance(value, tuple) and hasattr(kind, "_fields") and _class(kind.__module__, kind.__qualname__) is kind:
            return {"named tuple": [kind.__module__, kind.__qualname__, self._items(value, where, depth)]}
        if _class(kind.__module__, kind.__qualname__) is not kind:
            return None
        if isinstance(value, enum.Enum):
            return {"member": [kind.__module__, kind.__qualname__, _key(value._value_, where, depth)]}
        if (base := _base(kind)) is not None:
            return {"subclass": [kind.__module__, kind.__qualname__, self.pack(base(value), where, depth)]}
        if self._is_key or not is_own_object(value):
            return None
        if id(value) in self._objects:
            return {"object again": self._objects[id(value)]}
        self._objects[id(value)] = len(self._objects)
        attributes = attributes_of(value, kind)
        return {"object": [kind.__module__, kind.__qualname__, self._named(attributes, where, depth)]}


def _key(value: Any, where: str, depth: int) -> Any:
    """Return the key of a mapping, or another value without tensors, as plain data."""
    return _Packing(no_tensors, is_key=True).pack(value, f"a key of {where}", depth + 1)


def is_own_object(value: Any) -> bool:
    """Return whether the value is a namespace, or an object of a class of the script's own with all its state in attributes."""
    kind = type(value)
    return kind in _NAMESPACES or (
        kind is not object
        and all(each in _BASES or each.__module__ in _STATELESS or is_own_class(each) for each in mro_of(kind))
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in _COPYING)
        and _class(kind.__module__, kind.__qualname__) is kind
    )


def _check_text(value: str, where: str) -> None:
    """Raise UserError for text that UTF-8 cannot express, such as the name of a file in another encoding."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} is text with a lone surrogate, which cannot be carried along") from None


def _base(kind: type) -> Any:
    """Return the container of Python of which a class is a subclass that adds nothing but code and attributes."""
    base = next((each for each in (list, dict, set) if issubclass(kind, each)), None)
    return None if base is None or issubclass(kind, OrderedDict | defaultdict) else base


def _other_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of these types beside its items and fields, such as the `_metadata` of a
    `state_dict()`, without those that are computed when they are read.
    """
    if not (isinstance(value, dict | list | set | tuple) or dataclasses.is_dataclass(value)):
        return {}
    fields = {each.name for each in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    return {
        name: each
        for name, each in getattr(value, "__dict__", {}).items()
        if name not in fields and not isinstance(getattr(type(value), name, None), functools.cached_property)
    }


def _reduced(value: Any) -> tuple[Any, ...]:
    arguments: tuple[Any, ...] = value.__reduce__()[1]
    return arguments


# Types of which a few arguments make an equal value
_ARGUMENTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    **dict.fromkeys((range, slice, Fraction, Decimal, datetime.timedelta, datetime.timezone), _reduced),
    **dict.fromkeys((datetime.date, datetime.time, datetime.datetime), _reduced),
    **dict.fromkeys((pathlib.PosixPath, pathlib.PurePosixPath), lambda path: [str(path)]),
    complex: lambda number: [number.real, number.imag],
    bytearray: lambda data: [bytes(data)],
    array.array: lambda values: [values.typecode, values.tobytes()],
    uuid.UUID: lambda each: [str(each)],
    torch.Size: lambda size: [[*size]],
    torch.dtype: lambda kind: [str(kind).removeprefix("torch.")],
}
_MAKERS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in _ARGUMENTS}
_MAKERS["dtype"] = functools.partial(getattr, torch)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_BASES = (object, UserDict, UserList)
_COPYING = (
    "__deepcopy__",
    "__getstate__",
    "__reduce__",
    "__reduce_ex__",
    "__setstate__",
)  # methods of classes with more
_STATELESS = frozenset({"abc", "collections.abc", "typing"})  # modules of base classes without attributes of their own
_FACTORIES: dict[str, Any] = {each.__name__: each for each in (int, float, list, dict, set, str, deque)}


def _as_json(state: Any) -> str:
    return json.dumps(state, default=lambda array: array.tolist())  # integers of any size


def _class(module: str, name: str) -> Any:
    """Return the class of that name, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def unpack(data: Any, tensor: Callable[[Any, Any], Any] | None = None, present: Any = None) -> Any:
    """Return the value that was packed.

    `tensor` returns the tensor of a number; its second argument is the object at the same place in `present`, a value
    of about the same form, or None. Raises PeerError if `data` was not made by `pack`.
    """
    return _Unpacking(tensor).unpack(data, present)


class _Unpacking:
    """The conversion of plain data to one value."""

    def __init__(self, tensor: Callable[[Any, Any], Any] | None) -> None:
        self._tensor = tensor
        self._objects: list[Any] = []  # of the script's classes, by their numbers

    def unpack(self, data: Any, present: Any = None) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) != 1:
            raise PeerError("a packed container must have exactly one kind")
        ((kind, content),) = data.items()
        match kind:
            case "tensor" if self._tensor is not None:
                return self._tensor(content, present)
            case "list" | "tuple":
                there = (
                    present
                    if isinstance(present, list | tuple) and len(present) == len(content)
                    else [None] * len(content)
                )
                items = [self.unpack(item, old) for item, old in zip(content, there, strict=True)]
                return items if kind == "list" else tuple(items)
            case "dict" | "Counter" | "OrderedDict":
                old = present if isinstance(present, dict) else {}
                pairs = [(self.unpack(key), item) for key, item in content]
                result = {key: self.unpack(item, old.get(key)) for key, item in pairs}
                return result if kind == "dict" else {"Counter": Counter, "OrderedDict": OrderedDict}[kind](result)
            case _:
                return self._rarer(kind, content, present)

    def _rarer(self, kind: str, content: Any, present: Any) -> Any:
        match kind:
            case "deque":
                maxlen, items = content
                return deque(self.unpack({"list": items}, [*present] if type(present) is deque else None), maxlen)
            case "set" | "frozenset":
                return {"set": set, "frozenset": frozenset}[kind](self.unpack(key) for key in content)
            case "defaultdict":
                name, pairs = content
                return defaultdict(_FACTORIES[name], self.unpack(pairs, present))
            case "scalar":
                return numpy.frombuffer(content[1], dtype=content[0])[0]
            case "array" if self._tensor is not None:
                fits = type(present) is numpy.ndarray and present.flags.c_contiguous and present.flags.writeable
                return self._tensor(
                    content, torch.from_numpy(present) if fits and present.dtype.kind in "biufc" else None
                ).numpy()
            case "transposed array" if self._tensor is not None:
                axes, packed = content
                of_kind = type(present) is numpy.ndarray and present.ndim == len(axes)
                found = self.unpack(packed, present.transpose(axes) if of_kind else None)
                return found.transpose(numpy.argsort(axes))
            case "read-only array" if self._tensor is not None:
                found = self.unpack(content)
                found.flags.writeable = False
                return found
            case "generator":
                return _generator(*content)
            case "integer":
                return int(content, 16)
            case "made by":
                maker, arguments = content
                if maker not in _MAKERS:
                    raise PeerError(f"{maker!r} is not a type of packed values")
                return _MAKERS[maker](*self.unpack({"list": arguments}))
            case "object":
                return self._object(content, present)
            case "object again":
                return self._objects[content]
            case "dataclass" | "named tuple" | "member" | "subclass":
                return self._made_again(kind, content, present)
            case "with attributes":
                inner, named = content
                made = self.unpack(inner, present)
                vars(made).update({name: self.unpack(each, getattr(present, name, None)) for name, each in named})
                return made
            case _:
                raise PeerError(f"{kind!r} is not a kind of packed value")

    def _made_again(self, kind: str, content: Any, present: Any) -> Any:
        module, name, parts = content
        made_by = _class(module, name)
        if kind == "named tuple":
            if not (isinstance(made_by, type) and issubclass(made_by, tuple) and hasattr(made_by, "_make")):
                raise PeerError(f"there is no named tuple {module}.{name} here")
            same = type(present) is made_by
            return made_by._make(self.unpack({"list": parts}, [*present] if same else None))
        if kind == "member":
            if not (isinstance(made_by, type) and issubclass(made_by, enum.Enum)):
                raise PeerError(f"there is no enum {module}.{name} here")
            return made_by(self.unpack(parts))
        if kind == "subclass":
            base = _base(made_by) if isinstance(made_by, type) else None
            if base is None:
                raise PeerError(f"there is no list, dict or set {module}.{name} here")
            made: Any = base.__new__(made_by)
            fill(made, self.unpack(parts, base(present) if type(present) is made_by else None))
            return made
        if not (isinstance(made_by, type) and dataclasses.is_dataclass(made_by)):
            raise PeerError(f"there is no dataclass {module}.{name} here")
        made = object.__new__(made_by)
        for field, packed in parts:
            object.__setattr__(made, field, self.unpack(packed, getattr(present, field, None)))
        return made

    def _object(self, content: Sequence[Any], present: Any) -> Any:
        """Return an object of the script's class of this name, without a call of the class."""
        module, name, named = content
        made_by = _class(module, name)
        if not (isinstance(made_by, type) and (made_by in _NAMESPACES or is_own_class(made_by))):
            raise PeerError(f"the script has no class {module}.{name}")
        made: Any = made_by() if made_by in _NAMESPACES else object.__new__(made_by)
        self._objects.append(made)
        old = attributes_of(present, made_by) if type(present) is made_by else {}
        set_attributes(made, {each: self.unpack(packed, old.get(each)) for each, packed in named})
        return made


def _generator(library: str, name: str, state: Any) -> Any:
    match library:
        case "torch":
            made = torch.Generator(device=name)
            made.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            return made
        case "numpy":
            source = getattr(numpy.random, name)()
            source.state = json.loads(state)
            return numpy.random.Generator(source)
        case "numpy legacy":
            legacy = numpy.random.RandomState()
            legacy.set_state(json.loads(state))
            return legacy
        case _:
            version, internal, gauss = json.loads(state)
            python = random.Random()
            python.setstate((version, tuple(internal), gauss))
            return python


def fill(container: Any, contents: Any) -> None:
    """Replace the contents of a list, dict or set, also of a subclass, without its own methods."""
    if isinstance(container, list):
        list.__setitem__(container, slice(None), contents)
        return
    base: Any = next(each for each in (OrderedDict, dict, set) if isinstance(container, each))
    items = (set if base is set else dict)(contents)
    base.clear(container)
    base.update(container, items)


def set_attributes(value: Any, attributes: Mapping[str, Any]) -> None:
    """Give an object of the script's own classes these attributes alone, without its own methods."""
    kind = type(value)
    slots = {name for base in mro_of(kind) for name, each in vars(base).items() if type(each) is MemberDescriptorType}
    for name in slots & attributes_of(value, kind).keys() - attributes.keys():
        object.__delattr__(value, name)
    for name in slots & attributes.keys():
        object.__setattr__(value, name, attributes[name])
    if hasattr(value, "__dict__"):
        fill(vars(value), {name: each for name, each in attributes.items() if name not in slots})
