"""Types of arrays, and reductions of short ones.

For the least or the sum of some dozens of numbers numpy's `min` and `sum` are slow.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def least_of(values: Floats) -> float:
    """Return the smallest of these numbers; nan if any is nan, inf if there are none."""
    return float(values.item(values.argmin())) if len(values) else math.inf


def sum_of(values: Ints) -> int:
    """Return the sum of these numbers."""
    return sum(values.tolist())
