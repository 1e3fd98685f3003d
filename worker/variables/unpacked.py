"""Contents of objects that hide them from `vars`: caches, weak mappings, context variables, shared memory, threads, files and
objects of compiled code. `reachable` reads them like attributes.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import gc
import io
import multiprocessing.sharedctypes
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

_CACHE: type = type(functools.lru_cache(lambda: None))
_SIMPLE: type = ctypes.c_int.__mro__[1]  # of all plain C values
_SHARED: type = multiprocessing.sharedctypes.SynchronizedBase
_LINK = "_lru_list_elem"  # holds an entry of a cache with a limit
_OF_THREADS = frozenset(vars(threading.Thread())) | frozenset(vars(threading.Timer(1.0, lambda: None)))

PACKED: tuple[type, ...] = (
    _CACHE,
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, weakref.ref),
    *(contextvars.ContextVar, threading.local),
    *(_SIMPLE, ctypes.Array, ctypes.Structure, _SHARED),
    *(io.BytesIO, io.StringIO),
)


def contents(value: Any, kind: type) -> Any:
    """Return what an object of one of the types `PACKED` holds, as plain values and containers."""
    if issubclass(kind, _CACHE):
        return _cached(value)
    if issubclass(kind, weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
        return dict(value.items())
    if issubclass(kind, weakref.WeakSet):
        return set(value)
    if issubclass(kind, weakref.ref):
        return value()
    if issubclass(kind, contextvars.ContextVar):
        try:
            return value.get()
        except LookupError:  # never set, and without a default
            return None
    if issubclass(kind, threading.local):
        return types.SimpleNamespace(**threading.local.__getattribute__(value, "__dict__"))
    if issubclass(kind, io.BytesIO | io.StringIO):
        return None if value.closed else (value.getvalue(), value.tell())
    if issubclass(kind, _SHARED):
        return contents(value.get_obj(), type(value.get_obj()))
    if issubclass(kind, _SIMPLE) and isinstance(value.value, int | float | bool | bytes):
        return value.value
    return bytes(value)


def _cached(value: Any) -> Any:
    """Return the entries of a function under `functools.lru_cache`; those of one with a limit in the order of their use."""
    held = gc.get_referents(value)
    cache = next(each for each in held if type(each) is dict and each is not vars(value))
    if type(next(iter(cache.values()), None)).__name__ != _LINK:
        return dict(cache)
    return [each for each in held[: held.index(cache)] if not isinstance(each, type)]


def of_thread(inner: dict[str, Any]) -> dict[str, Any]:
    """Return those of a thread's attributes that its own class has added."""
    return {name: value for name, value in inner.items() if name not in _OF_THREADS}


class Pickled(pickle.Pickler):
    """The bytes by which an object of a library would be pickled, without values that can be looked into.

    Strings that are equal, but not identical, give the same bytes, since nothing is referred to by its place in the
    stream. So an object that contains itself cannot be pickled.
    """

    def __init__(self, write: Callable[[bytes | memoryview], Any], digest: Callable[[Any], Any | None]) -> None:
        """write: called with the bytes. digest: returns what stands for a value that can be looked into; None for others."""
        super().__init__(types.SimpleNamespace(write=write), protocol=4)
        self.fast = True
        self._digest = digest

    def persistent_id(self, value: Any) -> Any:
        """Return what stands for a part of the object in the stream; None: the part is pickled."""
        return self._digest(value)
