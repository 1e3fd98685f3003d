"""Few numbers at a time. A decision asks for the least or the sum of some dozens, for which numpy's `min` and `sum` are slow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .view import Floats, Ints


def least_of(values: Floats) -> float:
    """The smallest of these numbers, nan if one is; inf: there are none."""
    return float(values.item(values.argmin())) if len(values) else math.inf


def sum_of(values: Ints) -> int:
    """Their sum."""
    return sum(values.tolist())
