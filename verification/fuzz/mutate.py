"""Corruption of valid messages: as trees of plain values, as bytes, and as frames."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec

from .grammar import Grammar, Plain, encode

DEEP = 3000  # nesting beyond any interpreter's stack
NEARLY = (120, 300, 480, 900, 990)  # nesting around the limits of the stack

# First bytes of MessagePack that announce more than follows: arrays, maps, texts and bytes of 4 GiB, a list in a list ...
PROMISES = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdc\xff\xff",
    b"\xde\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc1", b"\xd6\xff\xff\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12,
)  # fmt: skip
NOT_UTF8 = (b"\xa2\xc3\x28", b"\xa1\xff", b"\xa3\xed\xa0\x80", b"\xd9\x04\xf0\x28\x8c\x28")


class Mutator:
    """Draws corruptions from `rng`, which determines all of them."""

    def __init__(self, rng: random.Random, grammar: Grammar) -> None:
        self._rng = rng
        self._grammar = grammar
        self._on_trees: tuple[Callable[[Plain], Plain], ...] = (
            self._replace, self._replace, self._drop, self._add, self._rename, self._wrap, self._grow, self._retag,
        )  # fmt: skip
        self._on_bytes: tuple[Callable[[bytes], bytes], ...] = (
            self._truncate, self._flip, self._flip, self._insert, self._promise, self._repeat, self._no_text, self._noise,
        )  # fmt: skip

    def tree(self, message: Plain) -> Plain:
        """Return `message` with one corruption in its tree."""
        return self._rng.choice(self._on_trees)(message)

    def data(self, data: bytes) -> bytes:
        """Return `data` with some bytes corrupted."""
        return self._rng.choice(self._on_bytes)(data)

    def payload(self, message: Plain) -> bytes:
        """Return the encoded `message`, corrupted on one level, on both, or not at all."""
        chance = self._rng.random()
        if chance < 0.3:
            return encode(message)
        if chance < 0.31:
            return self.deep()
        if chance < 0.7:
            return _encoded(self.tree(message))
        return self.data(encode(message))

    def deep(self) -> bytes:
        """Very deep nesting."""
        depth = self._rng.choice((DEEP, 100 * DEEP, *NEARLY))
        return self._rng.choice((b"\x91", b"\x81\xa1a", b"\x81\xa4type")) * depth + b"\xc0"

    def frames(self, payload: bytes) -> list[bytes]:
        """Return the message's frames: usually one."""
        if self._rng.random() < 0.97:
            return [payload]
        count = self._rng.choice((2, 2, 3, 5, 60))
        others = [
            self._rng.choice((b"", b"x", payload, b"\0\0\0\0\1", self._rng.randbytes(30))) for _ in range(count - 1)
        ]
        return [*others, payload] if self._rng.random() < 0.5 else [payload, *others]

    # -- trees

    def _replace(self, value: Plain) -> Plain:
        if isinstance(value, dict) and value and self._rng.random() < 0.85:
            key = self._rng.choice(list(value))
            return {**value, key: self._replace(value[key])}
        if isinstance(value, list) and value and self._rng.random() < 0.8:
            at = self._rng.randrange(len(value))
            return [*value[:at], self._replace(value[at]), *value[at + 1 :]]
        return self._grammar.anything()

    def _drop(self, value: Plain) -> Plain:
        return self._somewhere(value, lambda known: {key: known[key] for key in list(known)[1:]})

    def _add(self, value: Plain) -> Plain:
        return self._somewhere(value, lambda known: {**known, self._grammar.text(): self._grammar.anything()})

    def _rename(self, value: Plain) -> Plain:
        keys: tuple[Plain, ...] = (1, None, b"type", "Type", "\0", 1.5, True)
        return self._somewhere(value, lambda known: {self._rng.choice(keys): entry for entry in known.values()})

    def _retag(self, value: Plain) -> Plain:
        tags: tuple[Plain, ...] = ("Commit", "Nobody", "", "submit", 1, None, ["Submit"], "Envelope", "x" * 5000)
        return self._somewhere(value, lambda known: {**known, "type": self._rng.choice(tags)})

    def _wrap(self, value: Plain) -> Plain:
        return self._somewhere(value, lambda known: [known])

    def _grow(self, value: Plain) -> Plain:
        big = self._rng.choice(
            ("n" * 70_000, [None] * 5000, {str(n): n for n in range(500)}, "\u20ac" * 2000, math.nan)
        )
        return self._somewhere(value, lambda known: {**known, self._rng.choice(list(known) or ["x"]): big})

    def _somewhere(self, value: Plain, change: Callable[[dict[Plain, Plain]], Plain]) -> Plain:
        """Return `value` with one of its mappings changed."""
        if not isinstance(value, dict):
            return change({"x": value})
        inner = [key for key, each in value.items() if isinstance(each, dict)]
        if inner and self._rng.random() < 0.7:
            key = self._rng.choice(inner)
            return {**value, key: self._somewhere(value[key], change)}
        return change(value)

    # -- bytes

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._rng.randrange(len(data) + 1)]

    def _flip(self, data: bytes) -> bytes:
        changed = bytearray(data or b"\0")
        for _ in range(self._rng.choice((1, 1, 1, 2, 8))):
            changed[self._rng.randrange(len(changed))] = self._rng.randrange(256)
        return bytes(changed)

    def _insert(self, data: bytes) -> bytes:
        at = self._rng.randrange(len(data) + 1)
        return data[:at] + self._rng.randbytes(self._rng.randrange(1, 5)) + data[at:]

    def _promise(self, data: bytes) -> bytes:
        at = self._rng.randrange(len(data) + 1)
        return data[:at] + self._rng.choice(PROMISES) + data[at + 1 :]

    def _no_text(self, data: bytes) -> bytes:
        at = self._rng.randrange(len(data) + 1)
        return data[:at] + self._rng.choice(NOT_UTF8) + data[at + 2 :]

    def _repeat(self, data: bytes) -> bytes:
        return data * self._rng.choice((2, 3))

    def _noise(self, data: bytes) -> bytes:
        return self._rng.randbytes(self._rng.randrange(60))


def _encoded(value: Plain) -> bytes:
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):  # a key that MessagePack cannot encode
        return encode(str(value)[:1000])
