"""Few numbers at a time: a decision asks for the least of some dozens, and numpy's `min` and `sum` then cost several times as much as
what they do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .view import Floats


def least(values: Floats) -> float:
    """The smallest of these numbers, nan if one is; inf: there are none."""
    return float(values.item(values.argmin())) if len(values) else math.inf
