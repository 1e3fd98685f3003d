"""Optimizers and schedulers that the runtime steps, as a host loop sees them."""

from __future__ import annotations

from typing import Any


class Passive:
    """To step it is nothing, since the runtime does; all else is the object's own."""

    def __init__(self, inner: Any, **instead: Any) -> None:
        """instead: attributes that answer in the place of the object's."""
        self.__dict__.update(instead, _inner=inner)

    def step(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: each micro-batch starts from no gradient."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_inner"], name, value)
