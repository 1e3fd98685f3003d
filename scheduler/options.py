"""Conversion of parameters from a file to frozen structs; each mistake is reported in one sentence.

The sentence names the source, the field, the found value and the allowed ones. The field is kept apart too, for callers
that can find its line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any, TypeVar

import msgspec

from ..protocol.errors import OperatorError

S = TypeVar("S")

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_OWN_CHECK = re.compile(r"(\w+): (.*)")  # error that a struct's `__post_init__` raises about one field
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class WrongOption(OperatorError):
    """An option is wrong.

    `field` is its path from the top of the document: "parameters.unit_s"; empty: the document itself.
    """

    def __init__(self, source: str, field: str, text: str) -> None:
        super().__init__(f"{source}: {field}: {text}" if field else f"{source}: {text}")
        self.field = field
        self.text = text


def plain(values: object) -> object:
    """Return the values with dates and times turned back into ISO 8601 texts, since YAML converts such texts."""
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    return values.isoformat() if isinstance(values, date) else values


def convert(values: object, into: type[S], source: str, at: str = "") -> S:
    """Convert plain `values` to the struct `into`. For messages, the values stand in the field `at` of `source`.

    Raises WrongOption.
    """
    for way, key in _keys(values):
        if not isinstance(key, str):
            text = "is no text: a name stands in quotes if YAML would read it as a number, or as yes, no, on or off"
            raise WrongOption(source, _join(at, [*way, str(key)]), text)
    try:
        converted = msgspec.convert(values, into)
    except msgspec.ValidationError as error:
        message, _, where = str(error).rpartition(" - at ") if " - at " in str(error) else (str(error), "", "")
        if "[...]" in where:
            _of_one_key(values, into, where.strip("`"), source, at)
        steps: list[str | int] = [name or int(number) for name, number in _STEP.findall(where.strip("`"))]
        own = _OWN_CHECK.fullmatch(message)
        if own is not None:
            steps, message = [*steps, own[1]], own[2]
        unknown = _UNKNOWN.fullmatch(message)
        if unknown is not None:
            fields = getattr(into, "__struct_fields__", ()) if not steps else ()
            known = f"; known are {', '.join(fields)}" if fields else "; there are none" if not steps else ""
            raise WrongOption(source, _join(at, [*steps, unknown[1]]), f"is unknown{known}") from None
        found = f"{_found(values, steps)!r}: " if steps else ""
        raise WrongOption(source, _join(at, steps), found + message[:1].lower() + message[1:]) from None
    for steps, number in _numbers(values):
        if not math.isfinite(number):
            raise WrongOption(source, _join(at, steps), f"{number} is not allowed: a finite number")
    return converted


def _of_one_key(values: Any, into: type[S], where: str, source: str, at: str) -> None:
    """Raise WrongOption with the key of a mapping, which msgspec does not name, for the first key that is wrong by
    itself."""
    before, _, behind = where.partition("[...]")
    way = [name or int(number) for name, number in _STEP.findall(before)]
    mapping = _found(values, way)
    steps = [name or int(number) for name, number in _STEP.findall(behind)]
    for key, value in mapping.items():
        try:
            msgspec.convert(_with(values, way, {key: value}), into)
        except msgspec.ValidationError as error:
            message = str(error).rpartition(" - at ")[0] or str(error)
            unknown = _UNKNOWN.fullmatch(message)
            if unknown is not None:
                raise WrongOption(source, _join(at, [*way, key, *steps, unknown[1]]), "is unknown") from None
            found = f"{_found(value, steps)!r}: " if steps else ""
            raise WrongOption(
                source, _join(at, [*way, key, *steps]), found + message[:1].lower() + message[1:]
            ) from None


def _with(values: Any, way: list[str | int], mapping: object) -> Any:
    """Return a copy of nested mappings with another mapping at this path."""
    if not way or not isinstance(values, dict):
        return mapping
    return {**values, way[0]: _with(values[way[0]], way[1:], mapping)}


def _keys(values: object) -> Iterator[tuple[list[str | int], object]]:
    """Yield all keys of mappings in plain values, and the path to each mapping."""
    if isinstance(values, list | tuple):
        for at, value in enumerate(values):
            for steps, key in _keys(value):
                yield [at, *steps], key
    if isinstance(values, dict):
        for step, value in values.items():
            yield [], step
            for steps, key in _keys(value):
                yield [str(step), *steps], key


def _numbers(values: object) -> Iterator[tuple[list[str | int], float]]:
    """Yield all floats in plain values, and the path to each."""
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(values, dict):
        items = values.items()
    elif isinstance(values, list | tuple):
        items = enumerate(values)
    elif isinstance(values, float):
        yield [], values
    for step, value in items:
        for steps, number in _numbers(value):
            yield [step, *steps], number


def _found(values: Any, steps: list[str | int]) -> Any:
    for step in steps:
        values = values[step]
    return values


def _join(at: str, steps: list[str | int]) -> str:
    path = at
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
