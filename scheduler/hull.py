"""The hull of a throughput curve: the least concave and growing curve above it.

Measured throughput has dents: with 5 GPUs a job may be no faster than with 4. A rule that looks one GPU ahead, and
assumes that gains only fall, needs the hull. In a dent the hull promises more throughput than the job gets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


ROUNDING = 1e-12  # relative to the greatest throughput


def concave(curves: Floats) -> Floats:
    """Return the least concave and growing curve above each row; column n is the value with n GPUs."""
    above = np.maximum.accumulate(curves, axis=1)
    for row in above:
        if np.all(np.diff(row, 2) <= ROUNDING * row[-1]):
            continue
        corners = [0]
        for n in range(1, len(row)):
            while len(corners) > 1:
                a, b = corners[-2], corners[-1]
                if (row[b] - row[a]) * (n - a) > (row[n] - row[a]) * (b - a):
                    break
                corners.pop()
            corners.append(n)
        row[:] = np.interp(np.arange(len(row)), corners, row[corners])
    return above
