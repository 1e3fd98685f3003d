"""A user's request for GPUs: how many, of which type, with how much memory, how many on each server.

In a file `gpus` is a number, a range such as ``1:8``, or fields::

    gpus: {min: 4, max: 8, type: [A100, V100], memory: 40GiB, per_server: 4}

Each field has an option of its own on the command line, which takes precedence over the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..protocol.errors import UserError
from ..protocol.limits import (
    MAX_CPUS,
    MAX_GPU_MEMORY_BYTES,
    MAX_GPU_TYPE,
    MAX_GPU_TYPES,
    MAX_GPUS,
    MIN_CPUS,
    MIN_MEMORY_BYTES,
)
from ..protocol.model import GpuRange

FIELDS = ("min", "max", "type", "memory", "per_server")
MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([KMGT]i?B)", re.ASCII)
UNITS = {f"{letter}{i}B": (1024 if i else 1000) ** power for power, letter in enumerate("KMGT", 1) for i in ("", "i")}


@dataclass(frozen=True)
class GpuOptions:
    """GPU options of the command line; None or empty: not given."""

    gpus: str | None = None
    types: tuple[str, ...] = ()
    memory: str | None = None
    per_server: int | None = None


@dataclass(frozen=True)
class WantedGpus:
    """The GPUs that a job requests, as in JobSpec."""

    range: GpuRange
    types: tuple[str, ...] = ()
    memory_bytes: int = 0
    per_server: int | None = None


def wanted_gpus(where: str, written: Any, options: GpuOptions) -> WantedGpus:
    """Return the GPUs that a file and options request. `where`: the field of the file, for people. Raises UserError."""
    fields = _fields(where, written) if isinstance(written, dict) else {}
    at_types, types = f"{where}.type", fields.get("type")
    if options.types:
        at_types, types = "--gpu-type", [part for each in options.types for part in each.split(",")]
    at_memory, memory = f"{where}.memory", fields.get("memory")
    if options.memory is not None:
        at_memory, memory = "--gpu-memory", options.memory
    at_each, each = f"{where}.per_server", fields.get("per_server")
    if options.per_server is not None:
        at_each, each = "--gpus-per-server", options.per_server
    at_range, told = (where, written) if options.gpus is None else ("--gpus", options.gpus)
    per_server = _per_server(at_each, each)
    return WantedGpus(
        range=_whole_servers(at_each, _range(at_range, told, per_server), per_server),
        types=_types(at_types, types),
        memory_bytes=memory_bytes(at_memory, memory),
        per_server=per_server,
    )


def _fields(where: str, given: dict[Any, Any]) -> dict[str, Any]:
    for key in given:
        if key not in FIELDS:
            raise UserError(f"{where}: unknown field {key!r}; known are {', '.join(FIELDS)}")
    return given


def _range(where: str, given: Any, per_server: int | None) -> GpuRange:
    low, high = _bounds(where, given, per_server or 1)
    if low < 1:
        raise UserError(f"{where}: the minimum is {low}; it must be at least 1")
    if high < low:
        raise UserError(f"{where}: the maximum {high} is less than the minimum {low}")
    if high > MAX_GPUS:
        raise UserError(f"{where}: the maximum {high} is over the limit of {MAX_GPUS}")
    return GpuRange(min=low, max=high)


def _bounds(where: str, given: Any, least: int) -> tuple[int, int]:
    """Return least and greatest number of GPUs; both are `least` if `given` sets none."""
    allowed = "a number, or a range such as 1:8"
    match given:
        case None:
            return least, least
        case bool():
            raise UserError(f"{where}: {given!r} is not {allowed}")
        case int():
            return given, given
        case str() if found := re.fullmatch(r"(-?\d{1,9})(?:[:-](-?\d{1,9}))?", given, re.ASCII):
            return int(found[1]), int(found[2] or found[1])
        case dict():
            for key in ("min", "max"):
                value = given.get(key, 1)
                if not isinstance(value, int) or isinstance(value, bool):
                    raise UserError(f"{where}.{key}: {value!r} is not a whole number")
            if not {"min", "max"} & given.keys():  # other fields alone, such as a type
                return least, least
            if "max" not in given:
                raise UserError(f"{where}: max is missing; write {{min: 1, max: 8}}, or a number")
            return given.get("min", least), given["max"]
    named = isinstance(given, str) and re.match(r"[A-Za-z]", given)
    kind = "; the type of GPU stands apart: --gpu-type A100, or gpus.type in a job file" if named else ""
    raise UserError(f"{where}: {given!r} is not {allowed}{kind}")


def _per_server(where: str, given: Any) -> int | None:
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= MAX_GPUS:
        raise UserError(f"{where}: {given!r} is not a number of GPUs from 1 to {MAX_GPUS}")
    return given


def _whole_servers(where: str, gpus: GpuRange, per_server: int | None) -> GpuRange:
    for word, count in (("minimum", gpus.min), ("maximum", gpus.max)):
        if per_server is not None and count % per_server:
            raise UserError(f"{where}: the {word} of {count} GPUs is no multiple of {per_server} on each server")
    return gpus


def _types(where: str, given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    types = [given] if isinstance(given, str) else given
    allowed = "such as A100, or a list such as [A100, V100]"
    if not isinstance(types, list) or not types or not all(isinstance(each, str) for each in types):
        raise UserError(f"{where}: {given!r} is not a type of GPU {allowed}")
    found = tuple(dict.fromkeys(each.strip() for each in types))
    if len(found) > MAX_GPU_TYPES:
        raise UserError(f"{where}: {len(found)} types are too many: at most {MAX_GPU_TYPES}")
    for each in found:
        if len(each) > MAX_GPU_TYPE or not each.isprintable() or not any(c.isalnum() for c in each):
            raise UserError(f"{where}: {each[:80]!r} is not a type of GPU {allowed}")
    return found


def amounts(at_cpus: str, cpus: object, at_memory: str, memory: object) -> tuple[float, int]:
    """Return the cores and the memory (bytes) that each worker asks for; 0: none. Raises UserError."""
    bytes_ = memory_bytes(at_memory, memory)
    if 0 < bytes_ < MIN_MEMORY_BYTES:
        raise UserError(f"{at_memory}: {memory!r} is too little for a process: at least {MIN_MEMORY_BYTES >> 20} MiB")
    if cpus is None:
        return 0.0, bytes_
    number = cpus if isinstance(cpus, int | float) and not isinstance(cpus, bool) else None
    if number is None or not MIN_CPUS <= number <= MAX_CPUS:
        raise UserError(f"{at_cpus}: {cpus!r} is not a number of cores from {MIN_CPUS:g} to {MAX_CPUS:g}")
    return float(number), bytes_


def memory_bytes(where: str, given: Any) -> int:
    """Return an amount of memory in bytes; 0: none is given. Raises UserError."""
    if given is None:
        return 0
    match = MEMORY.fullmatch(given.strip()) if isinstance(given, str) else None
    bytes_ = round(float(match[1]) * UNITS[match[2]]) if match is not None else 0
    if not 0 < bytes_ <= MAX_GPU_MEMORY_BYTES:
        raise UserError(f"{where}: {given!r} is not an amount of memory such as 40GiB or 16GB")
    return bytes_
