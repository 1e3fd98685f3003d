"""`pollux`: goodput shared out fairly (Pollux, OSDI'21; a baseline of ElasticFlow 6.1).

Goodput is throughput times statistical efficiency: the samples per second of a job, weighted by how much each advances
its training. A job with a batch size that is chosen for each share (`simulator/goodput.py`) has a curve of goodput in
place of one of throughput. A job that keeps its batch has efficiency 1 with each share, and its goodput is its
throughput. On real clusters this is always so, because a job's batch is its own affair.

Every `interval_s` all GPUs are divided again, so that the power mean over the J jobs of

    speedup_j = goodput(share) / goodput(fair share),   fair share = GPUs / J, rounded up,

is as large as possible (4.2). The more negative the `power` is, the more the worst-off job counts; 1 is the average.
The speedup of a job with a changed share is multiplied by

    (age - changes * restart_s) / (age + restart_s),

the part of its time in which it would have trained, if it went on to be changed as often as so far. Between two
intervals jobs with GPUs keep them, and get no more.

Differences from the paper and its public simulator:

* Idle GPUs go to jobs without any at once, not only at the next interval, by the same mean. `start_at_once: false` is
  as in the paper.
* The paper searches with a genetic algorithm over (job, server) matrices. Here only the numbers of GPUs are searched,
  by `power_mean`, with a bound on the distance from the optimum; the placement chooses the GPUs. Throughput counts as
  on the fewest servers, and a move to other GPUs with the same share counts as no change.
* The paper applies the factor to jobs without GPUs, too. Then a new job would gain nothing by its start. A job that has
  waited for some seconds would get more GPUs the less it has waited, since a small speedup counts much. Here a job
  without GPUs has nothing to lose.
* The paper fits a model of throughput to a job's measurements so far, and lets the job have at most twice as many GPUs
  as ever before. Here measured curves are taken as they are (`--curves measured`: as measured so far), without such a
  limit.
* Sizing the cluster to its jobs is left out.
"""

from __future__ import annotations

import math
import random
from typing import Annotated

import msgspec
import numpy as np

from ..arrays import Floats, Ints
from ..view import JobTable, Reason
from .base import Shares, no_shares, smallest, waits_for
from .power_mean import Values, divide, worth
from .reviews import EARLY_S, LATE_S

MANY_KINDS = 10_000  # with so many combinations, sorting the rows is cheaper than an entry for each


class PolluxParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`interval_s`: every how many seconds the GPUs are divided (Pollux: 60).

    `restart_s`: for how many seconds a job stands still at a change of its GPUs, by which changes are weighed (Pollux:
    30). Where training goes on meanwhile, it is less than one.

    `start_at_once`: between two intervals idle GPUs go to jobs that have none; false: they wait for the next one.

    `power`: of the mean over jobs, from -10 to 1 (Pollux: -1). Lower: fairer; higher: more goodput in all.
    """

    interval_s: Annotated[float, msgspec.Meta(gt=LATE_S)] = 60.0
    restart_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 30.0
    start_at_once: bool = True
    power: Annotated[float, msgspec.Meta(ge=-10, le=1)] = -1.0


class Pollux:
    """At fixed intervals GPUs are divided so that a mean of all jobs' speedups over their fair shares is greatest;
    changes have to be worth a restart."""

    name = "pollux"
    needs_lengths = False
    chooses_batch = True  # the policy chooses batch sizes if the goodput with them is known (`simulator.assign`)
    Parameters = PolluxParameters

    def __init__(self, parameters: PolluxParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        interval_s = self.parameters.interval_s
        turn = math.floor((now + EARLY_S) / interval_s)
        given, review_s = _kept(jobs, gpus), math.inf
        fitting = np.flatnonzero(jobs.min_gpus <= gpus)
        if len(fitting):
            review_s = (turn + 1) * interval_s
            if now - turn * interval_s <= LATE_S:
                given = self._divided(jobs, fitting, gpus, now, self.parameters.restart_s)
                if np.array_equal(given, jobs.share) and self._settled(jobs, fitting, gpus, now):
                    review_s = math.inf
            elif self.parameters.start_at_once:
                given += self._begun(jobs, fitting, gpus, given, now)
        free = gpus - int(given.sum())

        def why(row: int) -> Reason | None:
            return waits_for(int(jobs.min_gpus[row]), free, gpus) if not given[row] else None

        return Shares(given, why, review_s)

    def _settled(self, jobs: JobTable, fitting: Ints, gpus: int, now: float) -> bool:
        """Return whether no share would change even if changes were free.

        Then none changes before a job arrives or ends.
        """
        return np.array_equal(self._divided(jobs, fitting, gpus, now, 0.0), jobs.share)

    def _begun(self, jobs: JobTable, fitting: Ints, gpus: int, given: Ints, now: float) -> Ints:
        """Return the shares of the idle GPUs for jobs that have none."""
        idle = gpus - int(given.sum())
        waiting = fitting[(given[fitting] == 0) & (jobs.min_gpus[fitting] <= idle)]
        if not len(waiting):
            return no_shares(jobs)
        return self._divided(jobs, waiting, gpus, now, self.parameters.restart_s, idle)

    def _divided(
        self, jobs: JobTable, fitting: Ints, gpus: int, now: float, restart_s: float, free: int | None = None
    ) -> Ints:
        """Return the shares of these rows. `free`: number of GPUs to divide; None: all `gpus`."""
        free = gpus if free is None else free
        most = np.minimum(np.minimum(jobs.max_gpus, jobs.curves.most), gpus)
        fair = -(-gpus // len(jobs))
        kinds = _Kinds(jobs, most, fair, self.parameters.power)
        rows = _looked_at(jobs, fitting, free, kinds)
        kept_part = changed_part(jobs, rows, now, restart_s)
        share = np.where(jobs.share[rows] <= most[rows], jobs.share[rows], 0)
        values = [
            kinds.values(row, has, part)
            for row, has, part in zip(rows.tolist(), share.tolist(), kept_part.tolist(), strict=True)
        ]
        given = no_shares(jobs)
        given[rows] = divide(values, free, share)
        return given


def changed_part(jobs: JobTable, rows: Ints, now: float, restart_s: float) -> Floats:
    """Return the part of its speedup, from 0 to 1, that each of these jobs keeps if its share changes (Pollux'
    REALLOC_FACTOR)."""
    age_s = np.maximum(now - jobs.submitted_s[rows], 0.0)
    lost_s = jobs.changes[rows] * restart_s
    part = np.maximum(age_s - lost_s, 0.0) / np.maximum(age_s + restart_s, EARLY_S)
    return np.where((jobs.share[rows] > 0) & (restart_s > 0), part, 1.0)


class _Kinds:
    """Values of shares for jobs. Jobs with the same curve and the same limits are of one kind."""

    def __init__(self, jobs: JobTable, most: Ints, fair: int, power: float) -> None:
        self._jobs, self._most, self._fair, self._power = jobs, most, fair, power
        self._known: dict[tuple[int, int, int], tuple[Floats, Values]] = {}

    def values(self, row: int, share: int, part: float) -> Values:
        """Return the values by number of GPUs.

        `part`: the part of its speedup that the job keeps if it does not get its `share`.
        """
        speedups, whole = self._of(row)
        if part == 1.0:
            return whole
        least = int(self._jobs.min_gpus[row])
        found = worth(part * speedups, self._power)
        found[1:least] = -np.inf
        found[share] = whole[share]
        return found

    def steepest(self, row: int) -> float:
        """Return the greatest value per GPU for a job that has none."""
        _, whole = self._of(row)
        return float(((whole[1:] - whole[0]) / np.arange(1, len(whole))).max(initial=-math.inf))

    def of_rows(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return one row of each kind, and the kind of each row."""
        first, of = first_of_each(self._jobs.curve[rows], self._jobs.min_gpus[rows], self._most[rows])
        return rows[first], of

    def _of(self, row: int) -> tuple[Floats, Values]:
        jobs = self._jobs
        key = int(jobs.curve[row]), int(jobs.min_gpus[row]), int(self._most[row])
        found = self._known.get(key)
        if found is None:
            curve, least, most = key
            speedup = jobs.curves.speedup[curve, : most + 1]
            speedup = speedup / speedup[min(max(self._fair, least), most)]
            values = worth(speedup, self._power)
            values[1:least] = -np.inf
            found = self._known[key] = speedup, values
        return found


def first_of_each(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each combination of values in these columns, and the number of each row's combination."""
    key, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        least = int(column.min())
        span = int(column.max()) - least + 1
        key = key * span + (column - least)
        size *= span
    if size > MANY_KINDS:
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        return first, of
    rows = np.full(size, -1)
    rows[key[::-1]] = np.arange(len(key) - 1, -1, -1)  # of several writes the last one stays, which is the first row
    kinds = (rows >= 0).nonzero()[0]
    number = np.empty(size, dtype=np.int64)
    number[kinds] = np.arange(len(kinds))
    return rows[kinds], number[key]


def _looked_at(jobs: JobTable, fitting: Ints, gpus: int, kinds: _Kinds) -> Ints:
    """Return the rows that may get GPUs, in ascending order: jobs with GPUs, and as many of the others as there are
    GPUs, those with the greatest value per GPU."""
    running = jobs.share[fitting] > 0
    rest = fitting[~running]
    if len(rest) > gpus:
        of_each, of = kinds.of_rows(rest)
        steepest = np.array([kinds.steepest(row) for row in of_each.tolist()])
        rest = rest[smallest(-steepest[of], gpus)]
    return np.sort(np.concatenate([fitting[running], rest]))


def _kept(jobs: JobTable, gpus: int) -> Ints:
    """Return the jobs' present shares, as far as they still fit, the first submitted first."""
    share = np.minimum(jobs.share, np.minimum(jobs.max_gpus, jobs.curves.most))
    share[share < jobs.min_gpus] = 0
    share[np.cumsum(share) > gpus] = 0
    return share
