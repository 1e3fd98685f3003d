"""Proxies of optimizers and schedulers for a host loop, where the runtime makes the steps."""

from __future__ import annotations

from typing import Any


class Passive:
    """Proxy with a `step` that does nothing, since the runtime steps the object; all other attributes are the object's
    own.
    """

    def __init__(self, inner: Any, **instead: Any) -> None:
        """instead: attributes that replace the object's."""
        self.__dict__.update(instead, _inner=inner)

    def step(self, *arguments: Any, **named: Any) -> None:
        """Do nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: each micro-batch starts without a gradient."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_inner"], name, value)
