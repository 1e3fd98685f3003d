"""`backfill`: FIFO that lets later jobs use what the first waiting one leaves idle (the second baseline of Elan VI-C).

Elan takes the policy from Slurm: lower jobs start earlier if that does not delay higher ones. This is the EASY variant.
The first waiting job has a reservation, the moment at which enough of the running jobs are over, and no job may delay
it. The jobs behind it have none. (Slurm's own plugin gives more waiting jobs a reservation, which guards them too, and
leaves a little more idle.)
"""

from __future__ import annotations

import random

import msgspec
import numpy as np

from ..arrays import Floats, Ints
from ..view import UNKNOWN_S, JobTable
from .base import Shares
from .fifo import InOrder, behind_the_first, in_order

AT_ONCE = 4096  # number of jobs that are examined together


class BackfillParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Backfill takes no parameters."""


class Backfill:
    """As `fifo`: rigid, without preemption. A later job may overtake the first waiting job if it fits into the free
    GPUs, and either will be over at the time of the reservation, or needs no more GPUs than will be left over then.

    A job takes as long as its remaining work takes with its GPUs. A job of unknown length counts as endless: it may use
    only GPUs that stay free for good. Where the first job waits for such a job, others may overtake it if their own
    lengths are known.
    """

    name = "backfill"
    needs_lengths = True
    Parameters = BackfillParameters

    def __init__(self, parameters: BackfillParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        division = in_order(jobs, gpus)
        if division.head is not None:
            _overtake(jobs, division, division.head, gpus)
        return behind_the_first(jobs, division, gpus)


def _overtake(jobs: JobTable, division: InOrder, head: int, gpus: int) -> None:
    """Start the jobs behind the first waiting one that do not delay it. Changes `division`."""
    given, running, want = division.given, division.rows, jobs.requested_gpus
    free = gpus - int(given[running].sum())
    if not free:
        return
    wanted = int(want[head])
    wait_s, then = free_after(remaining_s(jobs, running, given[running]), given[running], free, wanted)
    spare = then - wanted
    started: list[int] = []
    for begin in range(head + 1, len(jobs), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        rows = begin + np.flatnonzero((given[some] == 0) & (want[some] <= free))
        left_s = remaining_s(jobs, rows, want[rows])
        in_time = (left_s <= wait_s) & (left_s < np.inf)
        for row, over in zip(
            rows[fits := in_time | (want[rows] <= spare)].tolist(), in_time[fits].tolist(), strict=True
        ):
            wanted = int(want[row])
            if wanted <= free and (over or wanted <= spare):
                started.append(row)
                free -= wanted
                spare -= 0 if over else wanted
        if not free:
            break
    given[started] = want[started]
    division.rows = np.sort(np.concatenate([running, np.array(started, dtype=np.int64)]))


def free_after(left_s: Floats, shares: Ints, free: int, wanted: int) -> tuple[float, int]:
    """Return the seconds until `wanted` GPUs are free, and how many are free then.

    Assumes that no job starts and that jobs with these shares end after `left_s` seconds. `free`: GPUs that are free
    now.
    """
    if wanted <= free:
        return 0.0, free
    order = np.argsort(left_s, kind="stable")
    ends_s, freed = left_s[order], free + np.cumsum(shares[order])
    wait_s = float(ends_s[np.searchsorted(freed, wanted)])
    return wait_s, int(freed[np.searchsorted(ends_s, wait_s, side="right") - 1])


def remaining_s(jobs: JobTable, rows: Ints, gpus: Ints) -> Floats:
    """Return the remaining seconds of these rows with `gpus` GPUs each; infinite where the length is unknown."""
    left_s = jobs.left_s[rows]
    found: Floats = left_s / jobs.speedup(rows, np.minimum(gpus, jobs.curves.most))
    found[left_s >= UNKNOWN_S] = np.inf
    return found
