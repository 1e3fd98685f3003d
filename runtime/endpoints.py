"""Addresses of a cluster's controllers, as configurations and options name them: one, or several of which one leads."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.errors import OperatorError
from .transport import check_form

MOST_ENDPOINTS = 9


def split(told: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in a list, or in a text separated by commas, unchecked."""
    texts = told.split(",") if isinstance(told, str) else told
    return tuple(text.strip() for text in texts if text.strip())


def endpoints(told: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses as `split`. Raises OperatorError for no address, too many, an invalid one or a repeated one."""
    found = split(told)
    if not found:
        raise OperatorError("no address is named: tcp://HOST:PORT or ipc:///PATH, or several of them")
    for address in found:
        check_form(address)
    if len(set(found)) < len(found):
        raise OperatorError(f"an address is named twice in {', '.join(found)}")
    if len(found) > MOST_ENDPOINTS:
        raise OperatorError(f"{len(found)} addresses are named, and at most {MOST_ENDPOINTS} may be")
    return found
