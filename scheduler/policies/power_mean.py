"""Shares that maximise a power mean of the jobs' speedups, for which Pollux uses a genetic algorithm.

Theory of operation
-------------------

The power mean ``((1/J) sum_j x_j^p)^(1/p)`` is greatest where the sum of ``u(x_j)`` is, with ``u(x) = x^p / p``, and
``log x`` for p = 0. Every job's term depends on its own share alone, so dividing the GPUs is a multiple-choice
knapsack: a share of n GPUs weighs n and is worth u. Up to p = 1 the function u is concave and grows, so a job with a
concave speedup gains less by each further GPU. Then giving every GPU to the job with the largest gain is optimal.

Three things make values that are not concave: minimums above one GPU, dents in measured speedups, and the penalty for
changes, which a job with an unchanged share does not pay. Then GPUs are given along the least concave function above
the values, from corner to corner, the steepest step first. As long as steps fit, no other division of so many GPUs is
worth more: it solves the knapsack's linear relaxation. After the first step that does not fit, only fitting steps are
examined. So the optimum exceeds the result by at most the value of that one step (`tests/scheduling/test_pollux.py`
tries all divisions).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from ..arrays import Floats, Ints

Values = Floats  # one job's value of 0, 1, 2 ... GPUs; -inf: impossible number (never 0 GPUs)

FLOOR = 1e-3  # added to every speedup, so that 0 GPUs have a finite value (as in Pollux' simulator)
ANY = 2**31  # GPUs: more than any job can have
ROUNDING = 1e-12  # sums that differ by a smaller relative amount are equal


def worth(speedups: Floats, power: float) -> Values:
    """Return the value u of each of these speedups. `power` is at most 1."""
    raised = speedups + FLOOR
    return np.asarray(np.log(raised) if power == 0 else raised**power / power)


def divide(values: Sequence[Values], gpus: int, present: Ints) -> Ints:
    """Return how many of `gpus` GPUs each job gets, in the order of `values`, so that the sum of the values is large.

    The sum is no less than that of the `present` shares, if these are possible. Of equal steps, the first job's comes
    first. Equal jobs are recognised by sharing one array.
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
    """Return the sum of the values of these shares."""
    return float(sum(float(one[share]) for one, share in zip(values, shares.tolist(), strict=True)))


class _Steps:
    """The steepest step up from a share: the value of each GPU of the step, and the number of its GPUs."""

    def __init__(self, values: Sequence[Values]) -> None:
        self._values = values
        self._known: dict[tuple[int, int, int], tuple[float, int] | None] = {}  # by array, share and `most`

    def __len__(self) -> int:
        return len(self._values)

    def steepest(self, job: int, has: int, most: int) -> tuple[float, int] | None:
        """Return the steepest step of at most `most` GPUs, the smallest of equal ones; None if no further GPU has a
        value for the job."""
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
