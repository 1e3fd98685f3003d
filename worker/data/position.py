"""The position of a job in its data, where that does not follow from the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class DataPosition(Protocol):
    """Where a job is in its data, as it stands between two steps."""

    def state(self) -> dict[str, Any]:
        """In plain values."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take it over. Raises UserError if it is that of other data."""
