"""`afs-l`, `afs-p`, `afs-s`: apathetic future share (AFS 3, Alg. 1, App. D).

The next GPU goes to the longer job b rather than to the shorter job a if ``(p'_b - p_b) / p'_b > (p'_a - p_a) / p_a``  (3), with p and p'
the throughputs now and with one GPU more. Lengths are those at the present shares, and a job without GPUs counts as infinitely long.

Algorithm 1 finds the top job by comparing one after the other with the best so far, in any order. App. C proves (3) transitive for
a < b < c in length where both comparisons say yes. Where one says no they are not: a may beat b, b beat c, and c beat a (worked out in
tests/scheduling/test_afs.py), so that the top job depends on the order. We compare in ascending order of length. The top job is then
one of the records: jobs that have more to gain, relatively, than every shorter one. That allows whole columns to be searched at once.
"""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np

from ..view import Ints, JobTable, Reason
from .base import Shares, no_shares, smallest, waits_for
from .max_min import level


class AfsLParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class AfsL:
    """AFS with known lengths (Alg. 1): each job its minimum in ascending order of length; what is left by (3)."""

    name = "afs-l"
    needs_lengths = True
    Parameters = AfsLParameters

    def __init__(self, parameters: AfsLParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        least = jobs.min_gpus
        given = no_shares(jobs)
        free = gpus
        for row in smallest(jobs.left_s, min(len(jobs), gpus)).tolist():
            if least[row] <= free:
                given[row] = least[row]
                free -= int(least[row])
        if free:
            _by_inequality(jobs, given, free)
        return _shares(jobs, given, gpus)


class AfsPParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`unit_s`: how long a job runs before another one gets its turn, while there are more jobs than GPUs (AFS 3.3: 2 h)."""

    unit_s: float = 7200.0


class AfsP:
    """AFS without lengths (AFS 3.3): while there are more jobs than GPUs, processor sharing in units of time; else by (3).

    Which of two jobs is shorter is not known: the one that wins against the other whichever of them is shorter is preferred, else
    one at random. The counter of a job is the number of units that it has run; a job is not taken off before its unit is over.
    """

    name = "afs-p"
    needs_lengths = False
    Parameters = AfsPParameters

    def __init__(self, parameters: AfsPParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given = no_shares(jobs)
        if len(jobs) <= gpus and int(jobs.min_gpus.sum()) <= gpus:
            given[:] = jobs.min_gpus
            self._share_out(jobs, given, gpus - int(given.sum()), rng)
            return _shares(jobs, given, gpus)
        unit_s = self.parameters.unit_s
        units = jobs.executed_s / unit_s
        counter = np.floor(units + 1e-9)
        running = (jobs.share > 0) & (units - counter > 1e-9)  # in the middle of its unit
        order = np.where(running, -1.0, counter)
        free = gpus
        for row in smallest(order, min(len(jobs), gpus)).tolist():
            if jobs.min_gpus[row] <= free:
                given[row] = jobs.min_gpus[row]
                free -= int(jobs.min_gpus[row])
        rows = np.flatnonzero(given)
        rest_s = (counter[rows] + 1) * unit_s - jobs.executed_s[rows]
        return _shares(jobs, given, gpus, now + float(rest_s.min()) if len(rows) else math.inf)

    def _share_out(self, jobs: JobTable, given: Ints, free: int, rng: random.Random) -> None:
        order = list(range(len(jobs)))
        rng.shuffle(order)
        _one_by_one(jobs, given, free, np.array(order, dtype=np.int64))


class AfsS(AfsP):
    """AFS that only knows the share of each job's greatest throughput (App. D): as `afs-p`, but max-min up to it instead of (3)."""

    name = "afs-s"

    def _share_out(self, jobs: JobTable, given: Ints, free: int, rng: random.Random) -> None:
        level(given, jobs.max_gpus, free)


def _shares(jobs: JobTable, given: Ints, gpus: int, review_s: float = math.inf) -> Shares:
    free = gpus - int(given.sum())

    def why(row: int) -> Reason | None:
        return waits_for(int(jobs.min_gpus[row]), free, gpus) if not given[row] else None

    return Shares(given, why, review_s)


def _by_inequality(jobs: JobTable, given: Ints, free: int) -> None:
    """Stage two of Alg. 1. Changes `given`."""
    most = np.minimum(jobs.max_gpus, jobs.curves.most)
    rows = np.flatnonzero((given > 0) & (given < most))
    speedup, curve = jobs.curves.speedup, jobs.curve
    share = given[rows]
    now, then = speedup[curve[rows], share], speedup[curve[rows], share + 1]
    length = jobs.left_s[rows] / now
    order = np.argsort(length, kind="stable")
    # Columns in ascending order of length. gain: relative to the throughput then (the left side of (3)), bar: to that now.
    rows, length = rows[order], length[order]
    gain, bar = ((then - now) / then)[order], ((then - now) / now)[order]
    while free:
        top, size = 0, len(rows)
        while top < size and gain[top] <= 0:
            better = gain[top:] > 0
            step = int(better.argmax())
            if not better[step]:
                return
            top += step
        if top >= size:
            return
        while True:
            better = gain[top + 1 :] > bar[top]
            step = int(better.argmax()) if len(better) else 0
            if not len(better) or not better[step]:
                break
            top += 1 + step
        row = int(rows[top])
        given[row] += 1
        free -= 1
        share_ = int(given[row])
        if share_ >= most[row]:
            gain[top] = bar[top] = 0.0
            continue
        p, q = float(speedup[curve[row], share_]), float(speedup[curve[row], share_ + 1])
        shorter = float(jobs.left_s[row]) / p
        at = int(np.searchsorted(length[:top], shorter, side="right"))
        for column in (rows, length, gain, bar):
            column[at + 1 : top + 1] = column[at:top].copy()
        rows[at], length[at], gain[at], bar[at] = row, shorter, (q - p) / q, (q - p) / p


def _one_by_one(jobs: JobTable, given: Ints, free: int, order: Ints) -> None:
    """Stage two without lengths. Who wins whichever of two is shorter has a gain above the other's bar; so nobody beats those
    whose bar is at least the greatest gain of all: the first of them in `order` is taken. Changes `given`."""
    most = np.minimum(jobs.max_gpus, jobs.curves.most)
    rows = order[(given[order] > 0) & (given[order] < most[order])]
    speedup, curve = jobs.curves.speedup, jobs.curve
    now, then = speedup[curve[rows], given[rows]], speedup[curve[rows], given[rows] + 1]
    gain, bar = (then - now) / then, (then - now) / now
    while free and len(rows):
        highest = gain.max()
        if highest <= 0:
            return
        at = int((bar >= highest).argmax())
        row = int(rows[at])
        given[row] += 1
        free -= 1
        share = int(given[row])
        if share >= most[row]:
            gain[at] = bar[at] = 0.0
        else:
            p, q = float(speedup[curve[row], share]), float(speedup[curve[row], share + 1])
            gain[at], bar[at] = (q - p) / q, (q - p) / p
