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
ANY = 2**31  # GPUs: more than any job can have
ROUNDING = 1e-12  # sums that differ by less than this part are equal


def worth(speedups: Floats, power: float) -> Values:
    """What each of these speedups is worth, u; `power` is at most 1."""
    raised = speedups + FLOOR
    return np.asarray(np.log(raised) if power == 0 else raised**power / power)


def divide(values: Sequence[Values], gpus: int, present: Ints) -> Ints:
    """How many of `gpus` GPUs each job gets, in the order of `values`, so that their sum is large. Jobs that are alike are known
    by sharing one array.

    It is no less than that of the `present` shares, if they are possible. Of equal steps the first job's comes first.
    """
    steps = _Steps(values)
    found = np.zeros(len(values), dtype=np.int64)
    _hand_out(steps, found, gpus)
    free = gpus - int(present.sum())
    if free < 0 or not math.isfinite(total(values, present)):
        return found
    kept = present.copy()
    _hand_out(steps, kept, free)
    least = total(values, kept)
    return found if total(values, found) - least > ROUNDING * abs(least) else kept


def total(values: Sequence[Values], shares: Ints) -> float:
    """What these shares are worth together."""
    return float(sum(float(one[share]) for one, share in zip(values, shares.tolist(), strict=True)))


class _Steps:
    """The steepest step up from a share: what each GPU of it is worth, and how many there are."""

    def __init__(self, values: Sequence[Values]) -> None:
        self._values = values
        self._known: dict[tuple[int, int, int], tuple[float, int] | None] = {}  # by array, share and `most`

    def __len__(self) -> int:
        return len(self._values)

    def steepest(self, job: int, has: int, most: int) -> tuple[float, int] | None:
        """Of `most` GPUs at most; None: no further GPU is worth anything to the job. Of equal ones the smallest."""
        values = self._values[job]
        key = id(values), has, most
        if key not in self._known:
            self._known[key] = self._of(values, has, most)
        return self._known[key]

    def _of(self, values: Values, has: int, most: int) -> tuple[float, int] | None:
        ahead = values[has + 1 : has + 1 + most]
        if not len(ahead):
            return None
        slopes = (ahead - values[has]) / np.arange(1, len(ahead) + 1)
        at = int(slopes.argmax())
        return (float(slopes[at]), at + 1) if slopes[at] > 0 else None


def _hand_out(steps: _Steps, shares: Ints, free: int) -> None:
    """Raise shares by up to `free` GPUs in all, the steepest step first. Changes `shares`."""
    if free <= 0:
        return
    heap: list[tuple[float, int, int]] = []
    share: list[int] = shares.tolist()

    def offer(job: int, most: int) -> None:
        step = steps.steepest(job, share[job], most)
        if step is not None:
            heapq.heappush(heap, (-step[0], job, step[1]))

    for job in range(len(steps)):
        offer(job, ANY)
    while heap and free:
        _, job, more = heapq.heappop(heap)
        if more <= free:
            share[job] += more
            free -= more
            offer(job, ANY)
        else:
            offer(job, free)
    shares[:] = share
