"""`backfill`: FIFO that lets later jobs use what the first waiting one leaves idle (the second baseline of Elan VI-C).

Elan takes it from Slurm: lower jobs start earlier if that does not delay higher ones. This is the EASY variant: the
first job that waits has a reservation, the moment at which enough of the running jobs are over, and nobody may delay
it; those behind it have none. (Slurm's own plugin gives more waiting jobs a reservation, which guards them too, and
leaves a little more idle.)
"""

from __future__ import annotations

import random

import msgspec
import numpy as np

from ..view import UNKNOWN_S, Floats, Ints, JobTable
from .base import Shares
from .fifo import behind_the_first, in_order

AT_ONCE = 256  # jobs that are looked at one by one before those that do not fit any more are sorted out


class BackfillParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class Backfill:
    """As `fifo`: rigid, and nobody is interrupted. A later job may overtake the first one that waits if it fits into
    what is free, and either will be over at the time of the reservation, or needs no more GPUs than will be left over
    then.

    A job takes as long as its remaining work takes with its GPUs. One of unknown length counts as endless: it may use
    only what is left over for good, and where the first job waits for such a one, others may overtake it as long as
    their own length is known.
    """

    name = "backfill"
    needs_lengths = True
    Parameters = BackfillParameters

    def __init__(self, parameters: BackfillParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, queue = in_order(jobs, gpus)
        if len(queue) > 1:
            _overtake(jobs, given, queue, gpus)
        return behind_the_first(jobs, given, queue, gpus)


def _overtake(jobs: JobTable, given: Ints, queue: Ints, gpus: int) -> None:
    """Start jobs behind the first of the queue that do not delay it. Changes `given`."""
    want, free = jobs.requested_gpus, gpus - int(given.sum())
    rows = queue[1:]
    rows = rows[want[rows] <= free]
    if not len(rows):
        return
    running = np.flatnonzero(given)
    wanted = int(want[queue[0]])
    wait_s, then = free_after(remaining_s(jobs, running, given[running]), given[running], free, wanted)
    spare = then - wanted
    left_s = remaining_s(jobs, rows, want[rows])
    in_time = (left_s <= wait_s) & (left_s < np.inf)
    while True:
        fits = (want[rows] <= free) & (in_time | (want[rows] <= spare))
        rows, in_time = rows[fits], in_time[fits]
        if not len(rows):
            return
        for row, over in zip(rows[:AT_ONCE].tolist(), in_time[:AT_ONCE].tolist(), strict=True):
            wanted = int(want[row])
            if wanted <= free and (over or wanted <= spare):
                given[row] = wanted
                free -= wanted
                spare -= 0 if over else wanted
        rows, in_time = rows[AT_ONCE:], in_time[AT_ONCE:]


def free_after(left_s: Floats, shares: Ints, free: int, wanted: int) -> tuple[float, int]:
    """How long it takes until `wanted` GPUs are free, and how many are free then, if nobody starts and jobs with these
    shares end after `left_s`. `free` are free now."""
    if wanted <= free:
        return 0.0, free
    order = np.argsort(left_s, kind="stable")
    ends_s, freed = left_s[order], free + np.cumsum(shares[order])
    wait_s = float(ends_s[np.searchsorted(freed, wanted)])
    return wait_s, int(freed[np.searchsorted(ends_s, wait_s, side="right") - 1])


def remaining_s(jobs: JobTable, rows: Ints, gpus: Ints) -> Floats:
    """How long these still take with so many GPUs each; infinite where it is not known."""
    left_s = jobs.left_s[rows]
    found: Floats = left_s / jobs.speedup(rows, np.minimum(gpus, jobs.curves.most))
    found[left_s >= UNKNOWN_S] = np.inf
    return found
