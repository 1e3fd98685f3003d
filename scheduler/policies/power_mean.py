"""Shares that make a power mean of the jobs' speedups large: what Pollux looks for with a genetic algorithm.

Theory of operation
-------------------
The power mean ``((1/J) sum_j x_j^p)^(1/p)`` is greatest where the sum of ``u(x_j)`` is, with ``u(x) = x^p / p``, and ``log x``
for p = 0. Every job's term depends on its own share alone, so dividing the GPUs is a multiple-choice knapsack: a share of n GPUs
weighs n and is worth u. Up to p = 1 the function u is concave and grows, so a job whose speedup is concave gains less by each
further GPU. Then giving every GPU to whom it brings most is optimal.

Three things make values that are not concave: minimums above one GPU, dents in measured speedups, and a penalty for changes that
a job is spared which keeps its share. Then GPUs are given along the least concave function above the values, from corner to
corner, the steepest step first. As long as steps fit, no other division of so many GPUs is worth more: it solves the knapsack's
linear relaxation. From the first step on that does not fit, only steps are looked at that do. So the best division of all GPUs is
worth at most as much more than what is found as that one step (`tests/scheduling/test_pollux.py` tries all divisions).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from ..view import Floats, Ints

Values = Floats  # of one job: what 0, 1, 2 … GPUs are worth; -inf: it cannot have so many. 0 GPUs are always possible

FLOOR = 1e-3  # added to every speedup, so that no GPUs at all are worth something (as in Pollux' simulator)
ROUNDING = 1e-12  # sums that differ by less than this part are equal


def worth(speedups: Floats, power: float) -> Values:
    """What each of these speedups is worth, u; `power` is at most 1."""
    raised = speedups + FLOOR
    return np.asarray(np.log(raised) if power == 0 else raised**power / power)


def divide(values: Sequence[Values], gpus: int, present: Ints) -> Ints:
    """How many of `gpus` GPUs each job gets, in the order of `values`, so that their sum is large.

    It is no less than that of the `present` shares, if they are possible. Of equal steps the first job's comes first.
    """
    found = np.zeros(len(values), dtype=np.int64)
    _hand_out(values, found, gpus)
    free = gpus - int(present.sum())
    if free < 0 or not math.isfinite(total(values, present)):
        return found
    kept = present.copy()
    _hand_out(values, kept, free)
    least = total(values, kept)
    return found if total(values, found) - least > ROUNDING * abs(least) else kept


def total(values: Sequence[Values], shares: Ints) -> float:
    """What these shares are worth together."""
    return float(sum(float(one[share]) for one, share in zip(values, shares.tolist(), strict=True)))


def _hand_out(values: Sequence[Values], shares: Ints, free: int) -> None:
    """Raise shares by up to `free` GPUs in all, the steepest step first. Changes `shares`."""
    heap: list[tuple[float, int, int]] = []

    def offer(job: int, most: int | None = None) -> None:
        has = int(shares[job])
        ahead = values[job][has + 1 :][:most]
        if len(ahead):
            slopes = (ahead - values[job][has]) / np.arange(1, len(ahead) + 1)
            more = int(np.argmax(slopes))
            if slopes[more] > 0:
                heapq.heappush(heap, (-float(slopes[more]), job, more + 1))

    if free > 0:
        for job in range(len(values)):
            offer(job)
    while heap and free:
        _, job, more = heapq.heappop(heap)
        if more <= free:
            shares[job] += more
            free -= more
            offer(job)
        else:
            offer(job, free)
