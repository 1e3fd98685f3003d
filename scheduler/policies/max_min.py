"""`max-min`: elastic fair share (the max-min baseline of AFS, section 2)."""

from __future__ import annotations

import random

import msgspec
import numpy as np

from ..arrays import Ints
from ..view import JobTable, Reason, Taken
from .base import Shares, no_shares, waits_for


class MaxMinParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Max-min takes no parameters."""


class MaxMin:
    """Every job its minimum, in the order of submission, while that fits; then one GPU at a time to the job that has
    least.

    No job gets more than its maximum. A job with a minimum that does not fit waits; smaller ones behind it may go
    first.
    """

    name = "max-min"
    needs_lengths = False
    Parameters = MaxMinParameters

    def __init__(self, parameters: MaxMinParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, free = minimums(jobs, gpus)
        rows = np.flatnonzero(given)
        share = given[rows]
        left = level(share, jobs.max_gpus[rows], free)
        given[rows] = share

        def why(row: int) -> Reason | None:
            if given[row]:
                return None
            what = "left by the minimums of earlier jobs"
            return waits_for(int(jobs.min_gpus[row]), left, gpus, what, Taken.MINIMUMS)

        return Shares(given, why, rows=rows)


def minimums(jobs: JobTable, gpus: int) -> tuple[Ints, int]:
    """Give each job its minimum, in the order of submission, where it still fits.

    Return the shares and how many GPUs are left.
    """
    given, free = no_shares(jobs), gpus
    least = jobs.min_gpus
    begin = 0
    while free and begin < len(jobs):
        total = np.cumsum(least[begin : begin + free])  # at most `free` jobs fit
        fits = int(np.searchsorted(total, free, side="right"))
        given[begin : begin + fits] = least[begin : begin + fits]
        free -= int(total[fits - 1]) if fits else 0
        begin += fits
        later = np.flatnonzero(least[begin:] <= free) if free else np.empty(0, dtype=np.int64)
        begin = begin + int(later[0]) if len(later) else len(jobs)
    return given, free


def level(given: Ints, most: Ints, free: int) -> int:
    """Raise the smallest positive shares first, one GPU at a time, none above its maximum.

    Return how many of the `free` GPUs are left.

    Changes `given`. Of equal shares, the job submitted first comes first.
    """
    if free <= 0:
        return free
    rows = np.flatnonzero((given > 0) & (given < most))
    while free > 0 and len(rows):
        share = given[rows]
        lowest = int(share.min())
        at_lowest = rows[share == lowest]
        above = share[share > lowest]
        rise = int(min(most[at_lowest].min(), above.min() if len(above) else most[at_lowest].min())) - lowest
        rise = min(rise, free // len(at_lowest))  # raise all of them together while they stay the lowest
        if not rise:
            given[at_lowest[:free]] += 1
            return 0
        given[at_lowest] += rise
        free -= rise * len(at_lowest)
        rows = rows[given[rows] < most[rows]]
    return free
