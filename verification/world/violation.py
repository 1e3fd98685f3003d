"""What the oracle raises."""

from __future__ import annotations


class Violation(Exception):
    """An invariant is broken. `invariant` is its name, the same for every history; `text` says what happened here."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text
