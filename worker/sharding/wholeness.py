"""Workers' wishes for the whole of a divided state, which travel in the step's word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..events import Whole
from ..inband import Part, never


class WholeWishes:
    """A participant in the exchange within a step, which has no payloads."""

    name = "divided state"
    slots = 1

    def __init__(self) -> None:
        self.whole_at: int | None = None  # the applied step of which this worker has the whole state
        self.wish = Whole.NOT  # of this worker for the whole state after the step in progress
        self.greatest_wish = Whole.NOT  # of any worker

    def numbers(self, part: Part) -> Sequence[int]:
        """Return this worker's wish for the whole state after the step."""
        return (int(self.wish),)

    wants = never

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Take note of the greatest wish."""
        self.greatest_wish = Whole(greatest[0])
        return False

    def payload(self, part: Part) -> Any:
        """Return nothing."""
        return None

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Read nothing."""
