"""Comparison of two workers' data: a few samples are read, and digests of their contents are compared.

Each worker's own script builds the dataset from the files of its server. Files may be missing there, be older, or be
listed in another order. So each worker takes a *fingerprint* of its dataset in `prepare`: the length, and digests of
some samples, with numbers that follow from the length. For data that is read in sequence, the fingerprint has the names
and sizes of the files instead. A fingerprint is part of the training state. A worker that takes over a state compares
the state's fingerprint with its own before it trains: a joining worker with that of the sender, a restarting job with
that of its checkpoint. So a difference is always the newcomer's, and `difference` names it.

Reading the dataset must not change it, nor take long. Each sample is read twice with the same seeds; a sample that
differs from itself is random beyond the seeded generators, and no evidence. The attributes of the dataset and its
parts, and the global generators, are restored afterwards. Reading ends after `LIMIT_S`. Samples that were not reached,
or cannot be read at this time, are no evidence either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import struct
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import numpy
import torch

from ...protocol.errors import UserError
from ..source.own_code import directories, is_installed
from ..virtual import derive_seed, seed_everything
from .fetching import columns
from .generators import generators_kept
from .shards import Shards

SAMPLES = 3  # of a dataset with samples that may take long to read
ROWS = 64  # rows of tensors, or samples of a list
FILES = 64  # files of a dataset at most that are sent with names and sizes
NAMES = 100_000  # entries of a list of files that are considered
LIMIT_S = 1.0
WHOLE_BYTES = 64 << 20  # tensors up to this size are compared as a whole
DEPTH = 8  # levels of nested containers in a sample
ITEMS = 100_000  # items of a sample
OBJECTS = 200  # parts of a dataset with attributes that are restored


class Unlike(UserError):
    """Raised if this worker differs from those that have the job's state.

    The worker must not train; the others continue without it.
    """


class Likeness:
    """The fingerprint of one worker's data, to be compared with another worker's."""

    def __init__(
        self, dataset: Any, worker: str, now: Callable[[], float], samples: bool = True, what: str = "the dataset"
    ) -> None:
        """worker: name of the worker. samples: whether samples have to be equal, or only their number. what: name of
        the dataset in errors.
        """
        self._worker, self._now, self._samples, self._what = worker, now, samples, what
        self._own = fingerprint(dataset, now)
        if not samples:
            self._own = {name: value for name, value in self._own.items() if name not in ("samples", "columns")}

    def of(self, dataset: Any, what: str) -> Likeness:
        """Return the fingerprint of another dataset of this worker. what: name of that dataset in errors."""
        return Likeness(dataset, self._worker, self._now, self._samples, what)

    def plain(self) -> dict[str, Any]:
        """Return the fingerprint as plain values, as part of the training state."""
        return {"of": self._worker, **self._own}

    def check(self, theirs: Mapping[str, Any] | None) -> None:
        """Compare with the fingerprint of a received state; None, from a state of an older version, passes.

        Raises Unlike if this worker's data differ.
        """
        found = None
        if theirs is not None:
            found = difference(self._own, theirs, self._worker, str(theirs["of"]), self._what)
        if found is not None:
            raise Unlike(found)


def fingerprint(dataset: Any, now: Callable[[], float]) -> dict[str, Any]:
    """Return the plain values that `difference` compares.

    dataset: map-style, or `Shards`. now: a clock in seconds, for the limit. Draws no random numbers, and raises no
    error of the dataset.
    """
    if isinstance(dataset, Shards):
        lists = {name: _names(value) for name, value in _lists(dataset.source)}
        return {"size": len(dataset.shards), "names": _names(dataset.shards), "lists": lists}
    found = columns(dataset)
    size = len(dataset)
    with generators_kept(), _attributes_kept(dataset):
        lists = {name: _names(value) for name, value in _lists(dataset)}
        if found is not None:
            return {"size": size, "columns": [_whole(each) for each in found], "samples": _rows(found), "lists": lists}
        most = ROWS if isinstance(dataset, list) else SAMPLES
        return {"size": size, "samples": _samples(dataset, chosen(size, most), now), "lists": lists}


def chosen(size: int, most: int) -> list[int]:
    """Return at most `most` sample numbers in ascending order, one from each equal part, at a pseudo-random offset.

    The offset keeps the choice out of step with any pattern in the dataset.
    """
    if size <= most:
        return list(range(size))
    drawn = (derive_seed(0, "likeness", size, i) % (size // most) + i * (size // most) for i in range(most))
    return sorted(drawn)


def difference(
    own: Mapping[str, Any], theirs: Mapping[str, Any], me: str, them: str, what: str = "the dataset"
) -> str | None:
    """Return in one sentence how the data of the workers `me` and `them` differ; None if the fingerprints agree."""
    between = f"between {them} and {me}"
    if own["size"] != theirs["size"]:
        kind = "shards" if "names" in own else "samples"
        return (
            f"{what} has {theirs['size']} {kind} for {them} and {own['size']} for {me}: give all servers the same files"
            + _reason(own, theirs)
        )
    if "names" in own and "names" in theirs:
        found = _names_differ(own["names"], theirs["names"])
        if found is not None:
            return f"the shards of {what} differ {between}: {found}"
        reason = _reason(own, theirs)
        return f"{what} differs {between}{reason}" if reason else None
    for number, (a, b) in enumerate(zip(own.get("columns", ()), theirs.get("columns", ()), strict=False)):
        if a is not None and b is not None and a != b:
            row = _first_difference(own, theirs)
            where = f"tensor {number} of {what}" + ("" if row is None else f", in row {row},")
            return (
                f"{where} differs {between}: make it from the same files, with a seed, and sort what comes from a set or a "
                "directory"
            )
    index = _first_difference(own, theirs)
    if index is None:
        return None
    why = _reason(own, theirs) or ": the files differ, or the list of files has another order: sort it"
    return f"sample {index} of {what} differs {between}{why}"


def _first_difference(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> int | None:
    others = dict(theirs.get("samples", ()))
    return next((i for i, digest in own.get("samples", ()) if others.get(i, digest) != digest), None)


def _reason(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the difference of a list among the dataset's attributes, which explains the difference of a sample; else
    "".
    """
    for name, value in own.get("lists", {}).items():
        other = theirs.get("lists", {}).get(name)
        found = None if other is None else _names_differ(value, other)
        if found is not None:
            return f". Its {name!r}: {found}"
    return ""


# ------------------------------------------------------------------------------------------------------------------ samples


def _samples(dataset: Any, indices: Sequence[int], now: Callable[[], float]) -> list[list[Any]]:
    """Return numbers and digests of the samples that are the same in two readings."""
    end = now() + LIMIT_S
    told: list[list[Any]] = []
    many = getattr(dataset, "__getitems__", None)

    def read(index: int) -> str:
        seed_everything(derive_seed(0, "likeness", index))
        return digest(many([index])[0] if callable(many) else dataset[index])

    for index in indices:
        try:
            first = read(index)
            if now() >= end:
                break
            if read(index) == first:
                told.append([index, first])
        except Exception:
            # The dataset is the script's: files that are missing now may be there when training reads them.
            continue
        if now() >= end:
            break
    return told


def _rows(found: Sequence[torch.Tensor]) -> list[list[Any]]:
    return [[row, digest([each[row] for each in found])] for row in chosen(len(found[0]), ROWS)]


def _whole(tensor: torch.Tensor) -> str | None:
    return digest(tensor) if tensor.nbytes <= WHOLE_BYTES else None


def digest(value: Any) -> str:
    """Return a digest of a sample's contents.

    Objects of the script's own classes count by their attributes. Objects of unknown libraries count by their type
    alone, since their attributes may contain addresses. Absolute paths count by their last part, since servers keep
    files in different places.
    """
    hashed = hashlib.blake2b(digest_size=12)
    left = ITEMS

    def add(value: Any, depth: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEPTH:
            return
        hashed.update(f"{type(value).__qualname__};".encode())
        if (data := _plain_bytes(value)) is not None:
            hashed.update(len(data).to_bytes(8, "big"))
            hashed.update(data)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                add(key, depth + 1)
                add(item, depth + 1)
        elif isinstance(value, Set):
            hashed.update(" ".join(sorted(digest(item) for item in value)).encode())
        elif isinstance(value, Sequence | deque):
            hashed.update(len(value).to_bytes(8, "big"))
            for item in value:
                add(item, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                add(getattr(value, field.name), depth + 1)
        elif _is_scripts(type(value)) and hasattr(value, "__dict__"):
            for name, item in vars(value).items():
                hashed.update(name.encode())
                add(item, depth + 1)

    add(value, 0)
    return hashed.hexdigest()


_NO_CONTENT = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def _is_scripts(kind: type) -> bool:
    """Return whether a class is defined in the script or in a module beside it."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or kind.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return False
    return not is_installed(file, directories())


def _plain_bytes(value: Any) -> bytes | None:
    """Return the bytes of a value without parts; None for any other value."""
    match value:
        case torch.Tensor():
            return _tensor_bytes(value)
        case numpy.ndarray():
            if value.dtype.hasobject:
                return digest(value.tolist()).encode()
            return f"{value.dtype.str} {value.shape} ".encode() + value.tobytes()
        case numpy.generic():
            return value.tobytes()
        case str():
            return (os.path.basename(value) if os.path.isabs(value) else value).encode(errors="surrogatepass")
        case PurePath():
            return value.name.encode(errors="surrogatepass")
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case float():
            return struct.pack(">d", value)
        case bool() | int() | complex() | None:
            return repr(value).encode()
    if type(value).__module__.startswith("PIL.") and callable(getattr(value, "tobytes", None)):
        return f"{value.mode} {value.size} ".encode() + bytes(value.tobytes())
    return None


def _tensor_bytes(tensor: torch.Tensor) -> bytes:
    text = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    try:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return text + plain.view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # sparse, quantized, nested
        return text


# -------------------------------------------------------------------------------------------------------------------- files


def _lists(dataset: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return up to four lists of names, such as file names, among a dataset's attributes."""
    found: list[tuple[str, Sequence[Any]]] = []
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, list | tuple) and value and isinstance(_name(value[0]), str):
            found.append((name, value))
    return found[:4]


def _name(entry: Any) -> str | None:
    """Return the name of an entry: of a file, or of a file with its class as in torchvision's `samples`; None for other
    entries.
    """
    if isinstance(entry, tuple | list) and entry:
        first = _name(entry[0])
        return (
            None
            if first is None
            else " ".join([first, *(str(each) for each in entry[1:4] if type(each) in (int, str))])
        )
    return os.path.basename(entry) if isinstance(entry, str | PurePath) else None


def _names(entries: Sequence[Any]) -> dict[str, Any]:
    """Return the count of a list of files, digests of the names in their order and sorted, and some names with file
    sizes.
    """
    names = [_name(each) or "" for each in entries[:NAMES]]
    places = chosen(len(names), FILES)
    return {
        "count": len(entries),
        "order": _joined(names),
        "sorted": _joined(sorted(names)),
        "some": [[place, names[place], _size(entries[place])] for place in places],
    }


def _joined(names: Sequence[str]) -> str:
    text = "\0".join(names).encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def _size(entry: Any) -> int | None:
    """Return the size of an entry's file in bytes; None if there is no such file."""
    if isinstance(entry, tuple | list) and entry:
        entry = entry[0]
    try:
        return os.path.getsize(entry) if isinstance(entry, str | PurePath) and os.path.isfile(entry) else None
    except (OSError, ValueError):
        return None


def _names_differ(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    if own["count"] != theirs["count"]:
        return f"{theirs['count']} entries there, {own['count']} here"
    others = {place: (name, size) for place, name, size in theirs["some"]}
    for place, name, size in own["some"]:
        other, other_size = others.get(place, (name, size))
        if other != name:
            how = "the same names in another order: sort them" if own["sorted"] == theirs["sorted"] else "other names"
            return f"entry {place} is {other!r} there and {name!r} here, {how}"
        if size is not None and other_size is not None and size != other_size:
            return f"{name!r} has {other_size} bytes there and {size} here"
    if own["order"] != theirs["order"]:
        return "the same names in another order: sort them" if own["sorted"] == theirs["sorted"] else "other names"
    return None


# ---------------------------------------------------------------------------------------------------------- nothing changes


@contextmanager
def _attributes_kept(dataset: Any) -> Iterator[None]:
    """Restore the attributes of a dataset and its parts after the context.

    These are counters, caches, generators, and files that are opened at the first read, which processes that read ahead
    must not share. Queues and locks, which threads may be using, are left alone.
    """
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    contents: list[tuple[Any, Any]] = []
    states: list[Callable[[], object]] = []
    waiting: list[Any] = [dataset]
    known: set[int] = set()
    while waiting and len(known) < OBJECTS:
        each = waiting.pop()
        if id(each) in known or isinstance(each, (*_NO_CONTENT, torch.Tensor, numpy.ndarray)):
            continue
        known.add(id(each))
        if (restore := _generator_state(each)) is not None:
            states.append(restore)
            continue
        attributes = getattr(each, "__dict__", None)
        if isinstance(attributes, dict) and type(each).__module__.partition(".")[0] not in sys.stdlib_module_names:
            kept.append((attributes, dict(attributes)))
            for value in attributes.values():
                if type(value) in (list, dict, set, deque) and len(value) <= ITEMS:
                    contents.append((value, value.copy()))
                waiting.append(value)
        if isinstance(each, list | tuple) and len(each) <= 16:
            waiting.extend(each)
    try:
        yield
    finally:
        for attributes, before in kept:
            if attributes.keys() != before.keys() or any(attributes[name] is not before[name] for name in before):
                attributes.clear()
                attributes.update(before)
        for value, before in contents:
            if isinstance(value, list):
                value[:] = before
            else:
                value.clear()
                (value.extend if isinstance(value, deque) else value.update)(before)
        for restore in states:
            restore()


def _generator_state(each: Any) -> Callable[[], object] | None:
    """Return a function that sets a random generator back to its present state; None if `each` is no generator."""
    match each:
        case torch.Generator():
            state: Any = each.get_state()
            return lambda: each.set_state(state)
        case random.Random():
            state = each.getstate()
            return lambda: each.setstate(state)
        case numpy.random.RandomState():
            state = each.get_state()
            return lambda: each.set_state(state)
        case numpy.random.Generator():
            bits, state = each.bit_generator, each.bit_generator.state
            return lambda: setattr(bits, "state", state)
    return None
