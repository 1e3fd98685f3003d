"""`optimus`: every GPU where it shortens the remaining times most (Optimus, EuroSys'18, as in AFS 5.1 and Elan VI-C).

The marginal gain of a job's next GPU is the decrease of its remaining time,  left / T(n) - left / T(n + 1). Optimus
divides that by a worker's part of the scarcest resource; here that is one GPU for every job. Optimus predicts the
remaining time of a job from its loss. Like AFS this implementation takes the prediction as correct, so the policy needs
lengths. It is asked at every arrival and every end of a job rather than once in an interval.
"""

from __future__ import annotations

import random

import msgspec
import numpy as np

from ..arrays import Floats, Ints
from ..view import JobTable, Reason, Taken
from .base import Shares, smallest, waits_for
from .max_min import minimums


class OptimusParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Optimus takes no parameters."""


class Optimus:
    """Every job its minimum (one GPU, mostly), in the order of submission, while that fits; then one GPU at a time to
    the job with the largest decrease of its remaining time, until no job gains.

    Where throughput is concave, this gives the least possible sum of the remaining times. Lengths decide which jobs
    grow, not which jobs wait: long jobs hold short ones back (AFS 5.2, 6).
    """

    name = "optimus"
    needs_lengths = True
    Parameters = OptimusParameters

    def __init__(self, parameters: OptimusParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, left = minimums(jobs, gpus)
        rows = np.flatnonzero(given)
        if left:
            shorten(jobs, given, left, rows)

        def why(row: int) -> Reason | None:
            if given[row]:
                return None
            what = "left by the minimums of earlier jobs"
            return waits_for(int(jobs.min_gpus[row]), left, gpus, what, Taken.MINIMUMS)

        return Shares(given, why, rows=rows)


def shorten(jobs: JobTable, given: Ints, free: int, among: Ints) -> None:
    """Give `free` GPUs, one by one, to the job with the largest decrease of its remaining time, up to its maximum.

    Changes `given`.

    Jobs without GPUs get none (`among`: the rows of those that have some, in ascending order); of equal gains the job
    submitted first comes first.

    Where throughput is concave a job gains less by each further GPU, so the given GPUs are exactly those with the
    largest gains. Where a curve has dents, the GPUs behind a poor one are reached through it, and so count as no
    better.
    """
    most = np.minimum(jobs.max_gpus[among], jobs.curves.most)
    can = given[among] < most
    rows = among[can]
    if free <= 0 or not len(rows):
        return
    owner, saved_s = steps(jobs, rows, given[rows], np.minimum(most[can] - given[rows], free))
    _count_as_reached(owner, saved_s)
    best = smallest(-saved_s, free)
    np.add.at(given, owner[best[saved_s[best] > 0]], 1)


def _count_as_reached(owner: Ints, saved_s: Floats) -> None:
    """Limit each GPU's gain to the gains of the same job's earlier GPUs. Changes `saved_s`."""
    rises = np.flatnonzero((saved_s[1:] > saved_s[:-1]) & (owner[1:] == owner[:-1]))
    for row in np.unique(owner[rises]).tolist():
        here = slice(*np.searchsorted(owner, [row, row + 1]))
        np.minimum.accumulate(saved_s[here], out=saved_s[here])


def steps(jobs: JobTable, rows: Ints, shares: Ints, count: Ints) -> tuple[Ints, Floats]:
    """Return the next `count` GPUs of each of these rows from `shares` on, one entry each: the row, and by how much its
    remaining time shrinks in seconds."""
    owner = np.repeat(rows, count)
    share = np.arange(len(owner)) + np.repeat(shares - np.cumsum(count) + count, count)
    left_s = jobs.left_s[owner]
    saved_s: Floats = left_s / jobs.speedup(owner, share) - left_s / jobs.speedup(owner, share + 1)
    return owner, saved_s
