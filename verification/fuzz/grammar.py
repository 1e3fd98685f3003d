"""Generator of plain values from the types of the protocol: valid in form, rarely in meaning."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any

import msgspec
from msgspec import inspect

NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    64,
    1000,
    2**31 - 1,
    2**31,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**64 - 1,
    -1,
    -2,
    -(2**31),
    -(2**63),
)
FLOATS = (0.0, 1.0, 0.5, 1e-9, 1e-320, 1e9, 1e300, -1.0, -0.0, math.inf, -math.inf, math.nan)
TEXTS = (
    "", "x", "none", "0", "-1", "../../etc/passwd", "/", "a" * 256, "\n2026-01-01 info root all is well", "\x1b[2J\x07",
    "x\0y", "\U0001f480", "\u202egnp", "${HOME}", "$(reboot)", "'; drop table records; --", "{0}", "%s%n", "__class__",
)  # fmt: skip
LONG = 3000  # characters of a long text
MOST_ITEMS = 3  # usual maximum length of a sequence or mapping
DEEPEST = 12

Plain = Any  # a value that MessagePack can encode: None, bool, int, float, str, bytes, list, dict


@dataclass(frozen=True)
class Words:
    """Values that are meaningful to the receiver, by field name."""

    known: Mapping[str, Sequence[Plain]] = field(default_factory=dict)
    often: float = 0.7  # probability of a meaningful value in a field that has some


class Grammar:
    """Generates plain values of types, with extreme numbers except in fields that `Words` knows."""

    def __init__(self, rng: random.Random, words: Words | None = None) -> None:
        self._rng = rng
        self._words = words or Words()

    def message(self, kind: type | UnionType) -> Plain:
        """Return a value of `kind`; of a union, of any of its members."""
        return self._make(type_info(kind), "", 0)

    def _make(self, kind: inspect.Type, name: str, depth: int) -> Plain:
        words = self._words.known.get(name)
        if words and self._rng.random() < self._words.often:
            return self._rng.choice(words)
        match kind:
            case inspect.StructType():
                return self._struct(kind, depth)
            case inspect.UnionType(types=types):
                return self._make(self._rng.choice(types), name, depth)
            case inspect.DictType(key_type=key, value_type=value):
                keys = [self._make(key, "", depth + 1) for _ in self._items(depth)]
                return {each: self._make(value, "", depth + 1) for each in keys}
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                return [self._make(item, name.removesuffix("s"), depth + 1) for _ in self._items(depth)]
            case inspect.TupleType(item_types=items):
                return [self._make(item, name, depth + 1) for item in items]
            case inspect.EnumType(cls=cls):
                return self._rng.choice([member.value for member in cls])
            case inspect.LiteralType(values=values):
                return self._rng.choice(values)
            case _:
                return self._leaf(kind)

    def _struct(self, kind: inspect.StructType, depth: int) -> Plain:
        made = {} if kind.tag is None else {kind.tag_field: kind.tag}
        rare = depth >= DEEPEST or self._rng.random() < 0.5  # include few of the optional fields
        for each in kind.fields:
            if each.required or self._rng.random() < (0.1 if rare else 0.9):
                made[each.encode_name] = self._make(each.type, each.encode_name, depth + 1)
        return made

    def _items(self, depth: int) -> range:
        if depth >= DEEPEST:
            return range(0)
        many = self._rng.random() < 0.005
        return range(self._rng.randrange(200) if many else self._rng.randrange(MOST_ITEMS + 1))

    def _leaf(self, kind: inspect.Type) -> Plain:
        match kind:
            case inspect.BoolType():
                return self._rng.random() < 0.5
            case inspect.IntType():
                return self._rng.choice(NUMBERS) if self._rng.random() < 0.5 else self._rng.randrange(20)
            case inspect.FloatType():
                return self._rng.choice(FLOATS) if self._rng.random() < 0.5 else self._rng.random() * 10
            case inspect.StrType():
                return self.text()
            case inspect.BytesType():
                return self._rng.randbytes(self._rng.randrange(40))
            case inspect.NoneType():
                return None
            case inspect.AnyType():
                return self.anything()
            case _:
                raise NotImplementedError(f"a {type(kind).__name__} in a message")

    def text(self) -> str:
        """Return a random text."""
        chance = self._rng.random()
        if chance < 0.6:
            return self._rng.choice(TEXTS)
        if chance < 0.62:
            return "n" * LONG
        return f"{self._rng.choice('abcs')}{self._rng.randrange(100)}"

    def anything(self, depth: int = 0) -> Plain:
        """Return a random plain value."""
        match self._rng.randrange(8 if depth < 3 else 6):
            case 0:
                return None
            case 1:
                return self._rng.random() < 0.5
            case 2:
                return self._rng.choice(NUMBERS)
            case 3:
                return self._rng.choice(FLOATS)
            case 4:
                return self.text()
            case 5:
                return self._rng.randbytes(8)
            case 6:
                return [self.anything(depth + 1) for _ in range(self._rng.randrange(4))]
            case _:
                return {self.text(): self.anything(depth + 1) for _ in range(self._rng.randrange(4))}


@cache
def type_info(kind: type | UnionType) -> inspect.Type:
    """Return msgspec's description of a type."""
    return inspect.type_info(kind)


def kinds(union: type | UnionType) -> tuple[str, ...]:
    """Return the tags of the messages in a union."""
    found = type_info(union)
    types = found.types if isinstance(found, inspect.UnionType) else (found,)
    return tuple(str(each.tag) for each in types if isinstance(each, inspect.StructType))


def encode(value: Plain) -> bytes:
    """Encode a plain value as MessagePack."""
    return msgspec.msgpack.encode(value)
