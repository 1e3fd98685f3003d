"""What a job's throughput would be with other shares, from what has been measured (AFS 4.5).

A job that nothing is known of is assumed to scale linearly. Measured shares replace the assumption; beyond the largest of them
linear scaling is assumed again, so that the job is given more and measured there ("overestimate first, readjust later"). Below
the smallest one too, which makes a little too much of few GPUs. Measurements are noisy, and policies look one GPU ahead: the
estimate is the least growing concave curve above the points.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .view import Floats


def estimate(measured: Mapping[int, float], most: int) -> Floats:
    """Steps per second with 0 to `most` GPUs, from those with some shares (all above 0); up to a factor where none is known."""
    shares = np.arange(most + 1, dtype=float)
    if not measured:
        return shares
    known = sorted(measured)
    points = [0, *known]
    rates = np.maximum.accumulate([0.0, *(measured[share] for share in known)])
    curve = np.interp(shares, points, rates)
    last = points[-1]
    if last < most:
        curve[last:] = rates[-1] * shares[last:] / last
    above: Floats = concave(curve[None, :])[0]
    return above


def concave(curves: Floats) -> Floats:
    """The least concave and growing curve above each row; column n is the value with n GPUs."""
    above = np.maximum.accumulate(curves, axis=1)
    for row in above:
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
