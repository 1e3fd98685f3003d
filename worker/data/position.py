"""The position of a job in its data, for data in which it does not follow from the step's number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class DataPosition(Protocol):
    """Position of a job in its data between two steps."""

    def state(self) -> dict[str, Any]:
        """Return the position in plain values."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Set the position to a result of `state`. Raises UserError if that is a position in other data."""
