"""Insertion of a class between an object and its own class: the object stays the same, and gets methods of the runtime."""

from __future__ import annotations

from typing import Any


def put_between(target: Any, members: dict[str, Any], *bases: type) -> None:
    """Give `target` a class that has these members, then those of `bases`, then its own.

    Copies and pickles have the original class.
    """
    kind = type(target)
    reduce: Any = kind.__reduce_ex__

    def reduced(self: Any, protocol: Any) -> Any:
        _, arguments, *rest = reduce(self, protocol)
        return (new, tuple(kind if each is type(self) else each for each in arguments), *rest)

    described = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    target.__class__ = type(kind.__name__, (*bases, kind), {**described, "__reduce_ex__": reduced, **members})


def new(kind: type, *arguments: Any) -> Any:
    """Return an object without its state, like `copyreg.__newobj__`, for which pickle has checks of its own."""
    return kind.__new__(kind, *arguments)
