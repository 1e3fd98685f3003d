"""The oracle's exception."""

from __future__ import annotations


class Violation(Exception):
    """An invariant is broken. `invariant`: its name, the same for every history; `text`: the events of this history."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text
