"""Values that a training script keeps beside the job's state, by name: digests of everything that its loop can reach.

The runtime carries the state that it owns (weights, optimizers, buffers, registered values) to a joining worker. A
script may keep more in Python: a counter, an average in a list, a replay buffer, a generator of its own. A joining
worker has run no loop body, so its copy is that of a script that has just begun. Two workers find such state by looking
at the same boundary between two steps:

1. Each *looks* (`look`): from the variables of the frame that holds the loop, the globals of the script's modules, the
   script's classes and functions it follows attributes, items, closures and defaults, and digests the values. The result
   (`Reach`) is a tree of names, each with a digest, a few words that show the value, and no reference to any object of
   the script. `Reach.plain` and `Reach.of` convert it for MessagePack.
2. One of them compares (`differences`) the names that both have, and that both have read completely. Each difference is
   the most specific name that explains it: `ema.num_updates` rather than `ema`, but `shadow` rather than each of its
   forty items.

**State and temporaries.** A name is carried if it was bound before the first loop body ran. `names_bound` returns these
names. It is called where `run.epochs()` begins, and again where the worker's first pass over the batches begins (for
names that the beginning of an epoch binds, such as `hidden = None`). A name that is bound in the body only is a
temporary. So is a name that each body binds before it reads it, such as the targets of the loops' headers
(`assigned.temporaries`).

**State and noise.** A name that differs, and that neither worker's loop has changed (`Reach.since`), was different from
the beginning: the time at which the process began, a directory of its own, or a list in another order. Such a
difference matters only if samples or gradients differ. `Difference.changed` distinguishes the two cases.

**Soundness.** Every reported difference is one: a value that is too large is sampled, at places that depend on its own
size alone; a value that the limits cut off, or that changes while it is read, has no digest. Equal digests prove
nothing for values that were sampled, for iterators and objects that cannot be read (`Reach.opaque`, `Kind.UNSEEN`), and for
values in other processes. Objects of libraries are compared as they would be pickled (`Kind.LIBRARY`). Digests depend
neither on addresses nor on the hash seed, nor on the device.

No code of the script runs: attributes are read from where Python stores them, without properties, `__getattr__`,
`__eq__`, `__hash__` or `__repr__`.

`looking.Looking` takes these looks for one script, and `advice` makes messages of their differences.
"""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import io
import itertools
import marshal
import pathlib
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy
import torch

from ..kept import NAMED_DEPTH, Kind, Node, Reach, function_type
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
    variables_of_loop,
)
from ..value_kinds import (
    CHANGING,
    DENIED_BASES,
    DESCRIPTORS,
    FOREIGN,
    ITERATORS,
    MUTABLE,
    NAMED_ITEMS,
    OF_MODULES,
    PICKLED,
    PLAIN,
    SET_ITERATOR,
    STDLIB_OBJECTS,
    attributes_in,
    is_of,
    of_caches,
    of_member,
    of_optimizers,
    of_tensor,
    options_in,
    options_of_optimizer,
    weight,
)
from . import hooks
from .sampled import MARSHAL, SAMPLED_ELEMENTS, flattened, sampled, strides
from .shown import a_kind, counted, element, key_suffix, short, shown
from .unpacked import PACKED, Pickled, contents, of_thread

WHOLE_ITEMS = 1024  # items up to which a list of other than plain values is read completely
WHOLE_VALUES = 1 << 18  # items up to which a list of plain values is read completely
WHOLE_BYTES = 1 << 20  # size up to which a tensor, an array or a text is read completely


@dataclass(frozen=True)
class Limits:
    """Limits of one look. A value that is cut off by one of them has no digest."""

    seconds: float = 0.5
    items: int = 50_000
    depth: int = 16
    hashed_bytes: int = 64 << 20
    names: int = 2_000


# -- where to begin


def look(
    frame: FrameType | None,
    bound: Collection[str],
    known: Collection[int] = (),
    limits: Limits = Limits(),
    *,
    beside: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.thread_time,
) -> Reach:
    """Return the values that the script keeps: everything reachable from the frame of its loop and from its modules.

    frame: as for `loop_frame`. bound: the variables of the frame and its module to be read (`names_bound`, without
    `assigned.temporaries`). known: ids of objects that the runtime carries (`leave_out`): of such modules and
    optimizers only attributes of the script's own classes are read, of the others nothing. beside: further objects by
    name, such as the dataset, to which no variable of the script refers.

    Takes time and hashing within the limits. Never raises an error of the script's objects, and keeps no reference to
    them.
    """
    frame = loop_frame(frame)
    walk = _Walk(frozenset(known), limits, clock, directories())
    roots: dict[str, Any] = {}
    if frame is not None:
        variables = variables_of_loop(frame)
        roots.update({name: value for name, value in variables.items() if name in bound})
        for prefix, module in own_modules(walk.directories, frame.f_globals).items():
            roots.update({f"{prefix}.{name}": value for name, value in list(module.items()) if not _is_hidden(name)})
    roots = {name: value for name, value in roots.items() if not name.startswith("__")}
    walk.roots(roots)
    walk.roots({**(beside or {}), **hooks.of_all_modules()})
    walk.classes()
    return Reach(walk.found, tuple(dict.fromkeys(walk.opaque)), walk.cut, tuple(walk.shared))


def _is_hidden(name: Any) -> bool:
    return type(name) is not str or name.startswith("__")


# -- the walk

_EMPTY: dict[str, Node] = {}
_PYTHON_S: Callable[[random.Random], Any] = random.Random.getstate


class _Cut(Exception):
    """Raised when a look reaches one of its limits."""


class _Walk:
    """The state of one look while it follows references."""

    def __init__(
        self, known: frozenset[int], limits: Limits, clock: Callable[[], float], directories: tuple[str, ...]
    ) -> None:
        self.directories = directories
        self.found: dict[str, Node] = {}
        self.opaque: list[str] = []
        self.cut: str | None = None
        self._own = own_names(directories)
        self._known = known
        self._limits = limits
        self._clock = clock
        self._end = clock() + limits.seconds
        self._items = 0
        self._bytes = 0
        self._names = 0
        self._seen: dict[int, tuple[Any, Node | None]] = {}  # keeps each object alive, so that its id stays unique
        self._first_names: dict[int, str | None] = {}
        self.shared: list[tuple[str | None, str | None]] = []
        self._classes: dict[str, type] = {}  # classes of the objects that were found

    def roots(self, roots: Mapping[str, Any]) -> None:
        """Read root values, small ones first: a large dataset must not use up their time."""
        for name in sorted(roots, key=lambda name: (weight(roots[name]), name)):
            value = roots[name]
            if issubclass(type(value), types.ModuleType) or name in self.found:
                continue
            node = self.of(value, name, 0)
            if node.kind is not Kind.OTHER or node.parts or node.shown:
                self.found[name] = node

    def classes(self) -> None:
        """Read attributes of the classes of the objects found."""
        done: set[str] = set()
        while todo := sorted(set(self._classes) - done):
            for name in todo:
                done.add(name)
                if id(self._classes[name]) not in self._seen and name not in self.found:
                    node = self.of(self._classes[name], name, 0)
                    self.found[name] = node

    # -- one value

    def of(self, value: Any, name: str | None, depth: int) -> Node:
        """Return the node of a value. name: its name in messages; None: nested too deeply to have one."""
        kind = type(value)
        if kind in PLAIN:
            return self._plain(value, name)
        try:
            self._count(depth)
        except _Cut as limit:
            self.cut = str(limit)
            return Node(None, Kind.OTHER, kind.__name__)
        seen = self._seen.get(id(value))
        if seen is not None:
            if issubclass(kind, MUTABLE):
                self.shared.append((self._first_names.get(id(value)), name))
            return _INSIDE if seen[1] is None else seen[1]._replace(again=True, parts=_EMPTY)
        self._seen[id(value)], self._first_names[id(value)] = (value, None), name
        try:
            node = self._inside(value, kind, name, depth)
        except _Cut as limit:
            self.cut = str(limit)
            node = Node(None, Kind.OTHER, kind.__name__)
        except Exception as error:  # an odd object of the script, or one that another thread changes meanwhile
            self.opaque.append(f"{name or 'a value'}: {type(error).__name__}")
            node = Node(None, Kind.OTHER, kind.__name__)
        self._seen[id(value)] = value, node
        return node

    def _count(self, depth: int) -> None:
        self._items += 1
        if self._items > self._limits.items:
            raise _Cut("items")
        if depth > self._limits.depth:
            raise _Cut("depth")
        if self._clock() > self._end:
            raise _Cut("time")

    def _hash(self, *parts: bytes | memoryview) -> int:
        digest = hashlib.blake2b(digest_size=8)
        for part in parts:
            self._bytes += len(part)
            if self._bytes > self._limits.hashed_bytes:
                raise _Cut("bytes")
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return int.from_bytes(digest.digest(), "little") >> 1

    def _plain(self, value: Any, name: str | None) -> Node:
        whole = value
        if type(value) in (str, bytes) and len(value) > WHOLE_BYTES:
            whole = [len(value), value[:WHOLE_BYTES], value[-WHOLE_BYTES:]]
        try:
            digest = self._hash(marshal.dumps(whole, MARSHAL))
        except _Cut as limit:
            self.cut = str(limit)
            return Node(None, Kind.PLAIN, type(value).__name__)
        return Node(digest, Kind.PLAIN, type(value).__name__, "" if name is None else shown(value))

    def _constant(self, kind: type, text: str = "", shown: str = "") -> Node:
        return Node(self._hash(text.encode(errors="replace")), Kind.OTHER, kind.__name__, short(shown))

    def _inside(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        if id(value) in self._known:
            return self._carried(value, kind, name, depth)
        for base, handle in _HANDLERS:
            if issubclass(kind, base):
                node = handle(self, value, kind, name, depth)
                return self._with_attributes(node, value, kind, name, depth) if base in _CONTAINERS else node
        top = module_of(kind).partition(".")[0]
        full = f"{module_of(kind)}.{kind.__qualname__}"
        if issubclass(kind, threading.Thread) and top in self._own:
            inner = [(f".{each}", part) for each, part in sorted(of_thread(attributes_of(value, kind)).items())]
            self._note_class(kind)
            return self._combine(Kind.OBJECT, kind, b"thread", inner, name, depth, a_kind(kind))
        if issubclass(kind, (*DENIED_BASES, threading.Thread)) or top in FOREIGN:
            return self._not_seen(value, kind, name)
        if top == "torch":
            return self._of_torch(value, kind, name, depth)
        is_python_s = top in sys.stdlib_module_names or top == "builtins"
        if (is_python_s and full not in STDLIB_OBJECTS) or top in PICKLED:
            return self._pickled(value, kind, name, depth)
        if top not in self._own and not attributes_of(value, kind):
            return self._pickled(value, kind, name, depth)
        node = self._object(value, kind, name, depth)
        return node._replace(kind=Kind.DATA) if issubclass(kind, torch.utils.data.Dataset) else node

    def _with_attributes(self, node: Node, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of a container, with the attributes that an object of a subclass of the script's own has."""
        if module_of(kind) not in self._own or not (inner := attributes_of(value, kind)):
            return node
        self._note_class(kind)
        attributes = [(f".{each}", part) for each, part in sorted(inner.items()) if not each.startswith("__")]
        found = self._combine(node.kind, kind, _eight(node.digest), attributes, name, depth, node.shown)
        digest = found.digest if node.digest is not None else None
        return found._replace(digest=digest, shape=node.shape, parts={**node.parts, **found.parts})

    def _not_seen(self, value: Any, kind: type, name: str | None) -> Node:
        """Return the node of an object that cannot be read, or whose contents no training depends on."""
        if name is not None and hasattr(kind, "__next__"):
            self.opaque.append(f"{name}: an iterator that cannot be looked into")
        elif name is not None and module_of(kind).startswith("tqdm"):
            self.opaque.append(f"{name}: a progress bar, whose position is this process's own")
        return self._constant(kind, kind.__qualname__)

    def _pickled(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of an object of a library, as it would be pickled; of one that cannot be, a node that never differs."""
        hashed = hashlib.blake2b(digest_size=8)

        def write(data: bytes | memoryview) -> None:
            self._bytes += len(data)
            if self._bytes > self._limits.hashed_bytes:
                raise _Cut("bytes")
            hashed.update(data)

        def digest(part: Any) -> int | None:
            self._count(depth)
            if part is value or not (
                isinstance(part, _LOOKED_INTO) or module_of(type(part)).partition(".")[0] in self._own
            ):
                return None
            node = self.of(part, None, depth + 1)
            if node.digest is None:
                raise _Cut(self.cut or "items")
            return node.digest

        try:
            Pickled(write, digest).dump(value)
        except _Cut:
            raise
        except Exception:  # an open connection, or an object that contains itself
            node = self._not_seen(value, kind, name)
            is_unseen = hasattr(kind, "__next__") or module_of(kind).partition(".")[0] in CHANGING
            is_unseen |= module_of(kind).partition(".")[0] not in (*sys.stdlib_module_names, "builtins")
            return node._replace(kind=Kind.UNSEEN, shown=a_kind(kind)) if is_unseen else node
        return Node(int.from_bytes(hashed.digest(), "little") >> 1, Kind.LIBRARY, kind.__name__, a_kind(kind))

    def _file(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of a file that is read: the position."""
        if value.closed or value.writable() or not value.readable():
            return self._constant(kind, kind.__qualname__)
        try:
            position = value.tell()
        except OSError:  # a pipe, or a file that a loop iterates over
            return self._not_seen(value, kind, name)._replace(kind=Kind.UNSEEN, shown="a file")
        return Node(self._hash(str(position).encode()), Kind.LIBRARY, kind.__name__, f"a file at byte {position}")

    # -- of several

    def _combine(
        self,
        kind: Kind,
        type_: type,
        head: bytes,
        parts: Iterable[tuple[str, Any]],
        name: str | None,
        depth: int,
        text: str,
        keep: bool = True,
    ) -> Node:
        """Return the node of a value with parts, each with the suffix of its name. keep: the parts have names."""
        named = name is not None and keep and depth < NAMED_DEPTH
        kept: dict[str, Node] = {}
        digests: list[bytes] = [head]
        complete = True
        shape: tuple[int, ...] | None = None
        for number, (label, value) in enumerate(parts):
            inner = f"{name}{label}" if named and self._names < self._limits.names else None
            part = self.of(value, inner, depth + 1)
            digests += (label.encode(errors="replace") if keep else b"", part.type.encode(), _eight(part.digest))
            complete &= part.digest is not None
            if number == 0 and kind is Kind.CONTAINER:
                shape = part.shape
            if inner is not None and (part.parts or part.kind is not Kind.OTHER or "_hooks[" in label):
                kept[label] = part
                self._names += 1
        digest = self._hash(*digests) if complete else None
        return Node(digest, kind, type_.__name__, text, shape, parts=kept or _EMPTY)

    def _sequence(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        base = next(each for each in (list, tuple, collections.deque) if issubclass(kind, each))
        items: list[Any] = list(base.__iter__(value))
        own = base if base is not tuple or kind is tuple else kind
        text = counted(kind, len(items))
        head = kind.__name__.encode() + len(items).to_bytes(8, "little")
        if kind is collections.deque:
            head += str(value.maxlen).encode()
        if set(map(type, items)) <= PLAIN:
            digest = self._hash(head, marshal.dumps(sampled(items, WHOLE_VALUES), MARSHAL))
            if len(items) > NAMED_ITEMS or name is None:
                return Node(digest, Kind.CONTAINER, own.__name__, text)
            if len(items) <= 4:
                text = short(f"{'' if kind in (list, tuple) else kind.__name__}{items!r}")
        chosen = sampled(items, WHOLE_ITEMS)
        keep = len(items) <= NAMED_ITEMS
        pairs = ((f"[{number}]", item) for number, item in enumerate(chosen))
        return self._combine(Kind.CONTAINER, kind, head, pairs, name, depth, text, keep)

    def _mapping(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        ordered = issubclass(kind, collections.OrderedDict)
        items = list(collections.OrderedDict.items(value) if ordered else dict.items(value))
        text = counted(kind, len(items))
        head = kind.__name__.encode() + len(items).to_bytes(8, "little")
        keep = len(items) <= NAMED_ITEMS
        plain = {type(each) for pair in items for each in pair} <= PLAIN
        if plain and (name is None or not keep):
            whole = [each for pair in sampled(items, WHOLE_VALUES) for each in pair]
            return Node(self._hash(head, marshal.dumps(whole, MARSHAL)), Kind.CONTAINER, kind.__name__, text)
        chosen = sampled(items, WHOLE_ITEMS)
        keys = [self.of(key, None, depth + 1) for key, _ in chosen]
        if any(key.digest is None for key in keys):
            raise _Cut("items")
        head += b"".join(_eight(key.digest) for key in keys)
        labels = [key_suffix(key) for key, _ in chosen] if keep else [""] * len(chosen)
        keep = keep and len(set(labels)) == len(labels) and None not in labels
        pairs = ((label or "", item) for label, (_, item) in zip(labels, chosen, strict=True))
        return self._combine(Kind.CONTAINER, kind, head, pairs, name, depth, text, keep)

    def _set(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        base = set if issubclass(kind, set) else frozenset
        items = list(base.__iter__(value))
        parts = [self.of(item, None, depth + 1).digest for item in items] if len(items) <= self._limits.items else []
        complete = [part for part in parts if part is not None]
        digest = self._hash(kind.__name__.encode(), *map(_eight, sorted(complete)), _eight(len(items)))
        return Node(
            digest if len(complete) == len(parts) else None, Kind.CONTAINER, kind.__name__, counted(kind, len(items))
        )

    def _object(
        self, value: Any, kind: type, name: str | None, depth: int, apart: Collection[str] = (), only: Any = None
    ) -> Node:
        """Return a node of the attributes, in the order of their names. only: a predicate on the attributes' values."""
        self._note_class(kind)
        if module_of(kind).partition(".")[0] not in self._own:
            apart = {*apart, *of_caches(kind)}
        attributes = [
            (f".{attribute}", inner)
            for attribute, inner in sorted(attributes_of(value, kind).items())
            if attribute not in apart
            and not attribute.startswith("__")
            and not issubclass(type(inner), types.ModuleType)
            and (only is None or only(inner))
        ]
        return self._combine(Kind.OBJECT, kind, kind.__qualname__.encode(), attributes, name, depth, a_kind(kind))

    def _note_class(self, kind: type) -> None:
        for each in mro_of(kind):
            if module_of(each) in self._own:
                self._classes.setdefault(each.__qualname__.rpartition(".")[2], each)

    # -- values of one kind

    def _tensor(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        if kind not in _TENSORS or value.layout is not torch.strided or value.device.type == "meta":
            return self._constant(kind, kind.__qualname__)
        if attributes := of_tensor(value):
            bits = self._bits(value, kind, name)
            head = b"" if bits.digest is None else _eight(bits.digest)
            node = self._combine(Kind.TENSOR, kind, head, attributes, name, depth, bits.shown)
            return node._replace(shape=bits.shape)
        return self._bits(value, kind, name)

    def _bits(self, value: Any, kind: type, name: str | None) -> Node:
        plain = value.detach()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        small = plain
        if plain.numel() * plain.element_size() > WHOLE_BYTES:
            small = plain[strides(plain.shape)]
        data = small.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        shape = tuple(plain.shape)
        digest = self._hash(str(plain.dtype).encode(), str(shape).encode(), data.data)
        text = ""
        if name is not None:
            first = element(small.reshape(-1)[0].item()) if plain.numel() else ""
            text = first if plain.numel() == 1 else f"a tensor {list(shape)}" + (f" ({first}, …)" if first else "")
        return Node(digest, Kind.TENSOR, kind.__name__, text, shape)

    def _array(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        plain = numpy.asarray(value) if kind is numpy.ndarray else value.view(numpy.ndarray)
        shape = tuple(int(size) for size in plain.shape)
        if plain.dtype.hasobject:
            items = sampled(plain.reshape(-1).tolist(), WHOLE_ITEMS) if plain.dtype == object else []
            pairs = ((f"[{number}]", item) for number, item in enumerate(items))
            head = str(shape).encode()
            return self._combine(Kind.ARRAY, kind, head, pairs, name, depth, f"an array {list(shape)}", keep=False)
        small = plain[strides(shape)] if plain.nbytes > WHOLE_BYTES else plain
        digest = self._hash(str(plain.dtype).encode(), str(shape).encode(), small.tobytes())
        text = ""
        if name is not None:
            first = element(small.reshape(-1)[0].item()) if plain.size and plain.dtype.kind in "biufc" else ""
            text = (
                first if plain.size == 1 and first else f"an array {list(shape)}" + (f" ({first}, …)" if first else "")
            )
        if attributes := [(f".{each}", part) for each, part in sorted(attributes_of(value, kind).items())]:
            node = self._combine(Kind.ARRAY, kind, _eight(digest), attributes, name, depth, text)  # such as a mask
            return node._replace(shape=shape)
        return Node(digest, Kind.ARRAY, kind.__name__, text, shape)

    def _scalar(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        if value.dtype.hasobject:
            return self._constant(kind, kind.__qualname__)
        text = shown(value.item()) if name is not None and value.dtype.kind in "biufcSU" else ""
        return Node(self._hash(str(value.dtype).encode(), value.tobytes()), Kind.PLAIN, kind.__name__, text)

    def _generator(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of a random generator: its state."""
        state: Any
        if issubclass(kind, torch.Generator):
            state = torch.Generator.get_state(value).cpu().numpy().tobytes()
        elif issubclass(kind, random.SystemRandom):
            return self._constant(kind, kind.__qualname__)
        elif issubclass(kind, random.Random):
            state = _PYTHON_S(value)
        elif issubclass(kind, numpy.random.Generator):
            state = value.bit_generator.state
        elif issubclass(kind, numpy.random.RandomState):
            state = numpy.random.RandomState.get_state(value, legacy=False)
        else:
            state = value.state  # a bit generator
        digest = self._hash(*flattened(state))
        module = "numpy.random" if module_of(kind).startswith("numpy.random") else module_of(kind)
        label = f"{module.removeprefix('torch._C') or 'torch'}.{kind.__name__}"
        return Node(digest, Kind.GENERATOR, label, f"a {label}")

    def _module(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of a module that the job does not train, with all its tensors: a teacher, or a loss that
        counts.
        """
        inner = attributes_of(value, kind)
        parts = [
            (f".{label}", part)
            for members in ("_parameters", "_buffers", "_modules")
            for label, part in dict.items(inner.get(members) or {})
            if part is not None
        ]
        if not module_of(kind).startswith("torch."):
            self._note_class(kind)
            parts += [(f".{label}", part) for label, part in sorted(inner.items()) if not is_of(label, OF_MODULES)]
        else:
            parts += options_in(inner, kind)
        return self._combine(Kind.MODULE, kind, kind.__qualname__.encode(), parts, name, depth, a_kind(kind))

    def _carried(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of an object that the runtime carries: only attributes of the script's own class."""
        if issubclass(kind, torch.nn.Module):
            inner = attributes_of(value, kind)
            parts = [(f".{label}", part) for label, part in dict.items(inner.get("_modules") or {}) if part is not None]
            parts = [each for each in parts if id(each[1]) in self._known]
            tensors = [(f".{label}", part) for label, part in dict.items(inner.get("_parameters") or {})]
            parts += [each for each in tensors if each[1] is not None and _given_to(each[1])]
            parts += hooks.of_module(inner)
            has_state = kind.get_extra_state is not torch.nn.Module.get_extra_state
            if not module_of(kind).startswith("torch.") and not has_state:
                self._note_class(kind)
                parts += [(f".{label}", part) for label, part in sorted(inner.items()) if not is_of(label, OF_MODULES)]
            else:
                parts += options_in(inner, kind)  # that a schedule may set, such as the rate of dropout
            return self._combine(Kind.MODEL, kind, b"carried", parts, name, depth, a_kind(kind))
        if issubclass(kind, torch.Tensor) and (attributes := _given_to(value)):
            return self._combine(Kind.OBJECT, kind, b"carried", attributes, name, depth, a_kind(kind))
        if issubclass(kind, torch.optim.Optimizer):
            inner = attributes_of(value, kind)
            parts = [*options_of_optimizer(inner, kind), *hooks.of_optimizer(inner)]
            return self._combine(Kind.OBJECT, kind, b"carried", parts, name, depth, a_kind(kind))
        return self._constant(kind, "carried")

    def _of_torch(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        if issubclass(kind, torch.device):  # each worker has its own device
            return self._constant(kind, value.type)
        if issubclass(kind, torch.dtype | torch.layout | torch.memory_format):
            return Node(self._hash(repr(value).encode()), Kind.PLAIN, kind.__name__, repr(value))
        if issubclass(kind, torch.utils.data.Dataset | torch.utils.data.Sampler):
            return self._object(value, kind, name, depth)._replace(kind=Kind.DATA)
        if issubclass(kind, torch.optim.Optimizer):
            return self._object(value, kind, name, depth, of_optimizers() - {"state", "param_groups"})
        if module_of(kind).startswith("torch.optim"):
            return self._object(value, kind, name, depth, only=lambda inner: type(inner) in PLAIN)
        if module_of(kind) == "torch.quasirandom" or module_of(kind).startswith("torch.distributions."):
            return self._object(value, kind, name, depth)
        if module_of(kind) == "torch.utils.data.dataloader":
            # A loader is described by its data, an iterator of one by its position.
            inner = attributes_in(
                value,
                kind,
                "dataset",
                "_dataset",
                "generator",
                "sampler",
                "batch_sampler",
                "collate_fn",
                "_num_yielded",
            )
            return self._combine(Kind.DATA, kind, b"loader", inner, name, depth, a_kind(kind))
        return self._not_seen(value, kind, name)

    def _iterator(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of an iterator by its `__reduce__`, which for Python's own iterators shows the next items and
        consumes none.
        """
        if kind is itertools.count and not hasattr(kind, "__reduce__"):
            return self._plain(repr(value), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # later versions of Python will not copy some iterators
            described = value.__reduce__()
        self._seen[id(described)] = described, None  # kept alive, so that no other object gets its address
        pairs = ((f"[{number}]", each) for number, each in enumerate(described))
        node = self._combine(Kind.ITERATOR, kind, b"", pairs, None, depth, short(f"a {kind.__name__}"))
        if node.digest is None and name is not None:
            self.opaque.append(f"{name}: an iterator that cannot be looked into")
        return node

    def _of_set(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        (remaining,) = value.__reduce__()[1]
        self._seen[id(remaining)] = remaining, None
        return self._set(frozenset(remaining), frozenset, None, depth)

    def _own_iterator(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of a generator function's iterator: its position and its variables."""
        frame = value.gi_frame
        if frame is None or value.gi_running or not is_own_file(frame.f_code.co_filename, self.directories):
            return self._not_seen(value, kind, None if frame is None or value.gi_running else name)
        head = f"{frame.f_code.co_name} {frame.f_lasti}".encode()
        pairs = [(f".{each}", inner) for each, inner in sorted(variables_in(frame).items())]
        return self._combine(Kind.ITERATOR, kind, head, pairs, None, depth, f"a generator of {frame.f_code.co_name}()")

    # -- code that keeps something

    def _function(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of a function: attributes, defaults, and the variables of enclosing functions."""
        code = value.__code__
        head = f"{value.__module__}.{value.__qualname__}"
        decorated = value.__dict__.get("__wrapped__")
        if not is_own_file(code.co_filename, self.directories):
            return self._constant(kind, head, head) if decorated is None else self.of(decorated, name, depth + 1)
        parts = [(f".{each}", inner) for each, inner in sorted(value.__dict__.items()) if not each.startswith("__")]
        names = code.co_varnames[: code.co_argcount]
        defaults = value.__defaults__ or ()
        both = [*zip(names[len(names) - len(defaults) :], defaults, strict=True), *(value.__kwdefaults__ or {}).items()]
        parts += [(f"({each})", inner) for each, inner in both if type(inner) not in PLAIN]
        text = f"{head}{[inner for _, inner in both if type(inner) in PLAIN]!r}"
        for each, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            try:
                parts.append((f".{each}", cell.cell_contents))
            except ValueError:  # not assigned yet
                continue
        if decorated is not None:
            parts.append(("", decorated))
        if not parts:
            return self._constant(kind, text, head)
        node = self._combine(
            Kind.OBJECT, kind, text.encode(errors="replace"), parts, name, depth, f"{value.__name__}()"
        )
        return node._replace(type=function_type(code.co_qualname))

    def _builtin(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        return self._constant(kind, value.__qualname__, value.__name__)

    def _method(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        parts = [("", value.__self__), ("()", value.__func__)]
        return self._combine(Kind.OBJECT, kind, b"method", parts, name, depth, f"{value.__func__.__name__}()")

    def _class(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        head = f"{module_of(value)}.{value.__qualname__}"
        if module_of(value) not in self._own:
            return self._constant(kind, head, head)
        parts = []
        if issubclass(kind, enum.EnumMeta):
            members = dict(type.__dict__["__dict__"].__get__(value)["_member_map_"])
            parts = [(f".{each}", member) for each, member in members.items() if of_member(member)]
            if not parts:
                return self._constant(kind, head, head)
            return self._combine(Kind.OBJECT, value, head.encode(), parts, name, depth, f"the class {value.__name__}")
        for each, inner in sorted(type.__dict__["__dict__"].__get__(value).items()):
            inner = inner.__func__ if type(inner) in (staticmethod, classmethod) else inner
            if not each.startswith("__") and each != "_abc_impl" and not issubclass(type(inner), DESCRIPTORS):
                parts.append((f".{each}", inner))
        return self._combine(Kind.OBJECT, value, head.encode(), parts, name, depth, f"the class {value.__name__}")

    def _packed(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of an object that hides what it holds."""
        cached = getattr(value, "__wrapped__", None) if issubclass(kind, PACKED[0]) else None
        if isinstance(cached, types.FunctionType) and not is_own_file(cached.__code__.co_filename, self.directories):
            return self._constant(kind, cached.__qualname__)
        held = contents(value, kind)
        self._seen[id(held)] = held, None  # kept alive, so that no other object gets its address
        node = self._plain(held, name) if type(held) in PLAIN else self._inside(held, type(held), name, depth)
        if issubclass(kind, io.BytesIO | io.StringIO):
            node = node._replace(kind=Kind.LIBRARY, shown=a_kind(kind), parts=_EMPTY)
        return node._replace(type=kind.__name__)

    def _enum(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        label = f"{kind.__name__}.{object.__getattribute__(value, '_name_')}"
        if module_of(kind) in self._own and (own := of_member(value)):
            return self._combine(Kind.PLAIN, kind, label.encode(), own, name, depth, label)
        return Node(self._hash(label.encode()), Kind.PLAIN, kind.__name__, label)

    def _partial(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        parts = [("", value.func), ("(args)", value.args), ("(keywords)", value.keywords)]
        return self._combine(Kind.OBJECT, kind, b"partial", parts, name, depth, "a partial")

    def _spelled(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of a value that its text represents completely."""
        base = next(each for each in _SPELLED if issubclass(kind, each))
        text = base.__repr__(value) if base is not pathlib.PurePath else str(pathlib.PurePath.__str__(value))
        return Node(self._hash(kind.__name__.encode(), text.encode()), Kind.PLAIN, kind.__name__, short(text))

    def _buffer(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        data = memoryview(value).cast("B") if len(value) else memoryview(b"")
        if len(data) > WHOLE_BYTES:
            data = memoryview(bytes(data[:: len(data) // SAMPLED_ELEMENTS]))
        text = counted(kind, len(value))
        return Node(self._hash(_eight(len(value)), data), Kind.ARRAY, kind.__name__, text)

    def _derived(self, value: Any, kind: type, name: str | None, depth: int) -> Node:
        """Return the node of an instance of a subclass of Python's plain types."""
        exact: Any
        if issubclass(kind, int):
            exact = int.__add__(value, 0)
        elif issubclass(kind, float):
            exact = float.fromhex(float.hex(value))
        elif issubclass(kind, complex):
            exact = complex.__add__(value, 0j)
        else:
            exact = str.__str__(value) if issubclass(kind, str) else bytes.__add__(value, b"")
        return self._plain(exact, name)._replace(type=kind.__name__)


def _given_to(tensor: Any) -> list[tuple[str, Any]]:
    """Return the attributes and hooks that the script has given to a parameter of the job."""
    return of_tensor(tensor) + hooks.of_tensor(tensor)


_LOOKED_INTO = (torch.Tensor, numpy.ndarray, numpy.random.Generator, numpy.random.RandomState, types.FunctionType)
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO)
_Handler = Callable[[_Walk, Any, type, str | None, int], Node]
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_SPELLED = (
    *(range, slice, decimal.Decimal, fractions.Fraction, pathlib.PurePath),
    *(datetime.date, datetime.time, datetime.timedelta),
)
_SEQUENCES, _SETS = (list, tuple, collections.deque), (set, frozenset)
_CONTAINERS = (_SEQUENCES, dict, _SETS)
_HANDLERS: tuple[tuple[type | tuple[type, ...], _Handler], ...] = (
    (torch.Tensor, _Walk._tensor),
    (numpy.ndarray, _Walk._array),
    (numpy.generic, _Walk._scalar),
    (enum.Enum, _Walk._enum),
    (_SEQUENCES, _Walk._sequence),
    (dict, _Walk._mapping),
    (_SETS, _Walk._set),
    (torch.nn.Module, _Walk._module),
    (
        (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator),
        _Walk._generator,
    ),
    (SET_ITERATOR, _Walk._of_set),
    (ITERATORS, _Walk._iterator),
    (types.GeneratorType, _Walk._own_iterator),
    (types.FunctionType, _Walk._function),
    (types.MethodType, _Walk._method),
    (types.BuiltinFunctionType, _Walk._builtin),
    (functools.partial, _Walk._partial),
    (PACKED, _Walk._packed),
    (_FILES, _Walk._file),
    (type, _Walk._class),
    (_SPELLED, _Walk._spelled),
    ((bytearray, array.array), _Walk._buffer),
    ((int, float, complex, str, bytes), _Walk._derived),
)
_INSIDE = Node(0, Kind.OTHER, "again", again=True)  # a value that contains itself


def _eight(digest: int | None) -> bytes:
    return b"" if digest is None else digest.to_bytes(8, "little")
