"""Reductions of short arrays: for the least or the sum of some dozens of numbers numpy's `min` and `sum` are slow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .view import Floats, Ints


def least_of(values: Floats) -> float:
    """Return the smallest of these numbers, nan if one is; inf if there are none."""
    return float(values.item(values.argmin())) if len(values) else math.inf


def sum_of(values: Ints) -> int:
    """Return the sum of these numbers."""
    return sum(values.tolist())
