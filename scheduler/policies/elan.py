"""`elastic-fifo`, `elastic-backfill`: Elan's two rules put on top of FIFO and of backfill (Elan VI-C).

**Admission.** The waiting jobs are examined in the order of submission. A job starts if as many GPUs as its minimum are
free, or if its start does not make the average job completion time (JCT) longer. No job is stopped for it: the job must
fit in beside the minimums of the running jobs. (Elan writes that the minimum be "less than" the free GPUs; then no job
could take the last one.)

**Allocation.** Each running job has its minimum; then one GPU at a time goes to the job with the largest marginal gain,
until no gain is positive. The gain is that of Optimus, to which Elan refers: by how much one GPU more shortens the
remaining time.

**The average JCT.** Elan does not describe how it is estimated. A job's past time and the number of jobs are the same
in every case. So this implementation compares the sum of the times from now to the end, over the running jobs and the
candidate:

* The candidate starts. Every job has the share that the allocation rule then gives. When the candidate is over, the
  others again have the shares that they had without it. So it takes left / T(n), and each of the others, for as long as
  both run, loses the part 1 - T(share beside it) / T(share without it).
* The candidate waits. The others have the shares that the rule gives without it. It starts as soon as enough of them
  are over for its minimum, and then has all GPUs that are free at that moment, up to its maximum.

In both cases no job grows when another of the others ends, and jobs that wait behind the candidate are not counted.
Jobs of unknown length count as very long.

**Behind the first job that has to wait** no job starts with `elastic-fifo`. With `elastic-backfill`, jobs that do not
delay it may start: the moment at which enough running jobs will be over for its minimum must not come later, again with
constant shares.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np

from ..arrays import Floats, Ints
from ..view import JobTable, Reason, ReasonCode, Taken
from .backfill import free_after
from .base import Shares, no_shares, waits_for
from .fifo import first_waiting
from .optimus import shorten


class ElasticFifoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Elastic FIFO takes no parameters."""


class ElasticFifo:
    """Elan's rules; the first job that has to wait holds all later ones back, except where it could not fit into the
    whole cluster."""

    name = "elastic-fifo"
    needs_lengths = True
    Parameters = ElasticFifoParameters

    def __init__(self, parameters: ElasticFifoParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        return _elastic(jobs, gpus, look_ahead_jobs=0)


class ElasticBackfillParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`look_ahead_jobs`: how many jobs behind the first waiting one are examined (as `bf_max_job_test` of Slurm)."""

    look_ahead_jobs: Annotated[int, msgspec.Meta(ge=0)] = 100


class ElasticBackfill:
    """Elan's rules; behind the first job that has to wait, jobs may start that do not delay it."""

    name = "elastic-backfill"
    needs_lengths = True
    Parameters = ElasticBackfillParameters

    def __init__(self, parameters: ElasticBackfillParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        return _elastic(jobs, gpus, self.parameters.look_ahead_jobs)


def _elastic(jobs: JobTable, gpus: int, look_ahead_jobs: int) -> Shares:
    """Return the shares of both policies.

    Only those waiting jobs are examined that could start, plus the first that has to wait and `look_ahead_jobs` behind
    it.
    """
    running = _running(jobs, gpus)
    has = jobs.share
    if len(running) < len(jobs.running):
        has = no_shares(jobs)
        has[running] = 1
    waiting = first_waiting(has, running, jobs.min_gpus, gpus, gpus + 1 + look_ahead_jobs)
    rows = np.sort(np.concatenate([running, waiting]))
    division = _Division(jobs.cut(rows), gpus, np.searchsorted(rows, running))
    division, refused = _admit(division, np.searchsorted(rows, waiting), look_ahead_jobs)
    given = no_shares(jobs)
    given[rows] = division.given

    def why(row: int) -> Reason | None:
        if given[row]:
            return None
        if jobs.min_gpus[row] > gpus:
            return waits_for(int(jobs.min_gpus[row]), division.idle, gpus)
        assert refused is not None
        head, reason = int(rows[refused[0]]), refused[1]
        return reason if row == head else Reason(ReasonCode.BEHIND_ANOTHER, f"waits behind {jobs.name(head)}")

    return Shares(given, why, rows=rows[division.given > 0])


def _admit(division: _Division, waiting: Ints, look_ahead_jobs: int) -> tuple[_Division, tuple[int, Reason] | None]:
    """Return the running jobs after the admission rule, and the first job that has to wait, with its reason."""
    jobs, gpus = division.jobs, division.gpus
    free = max(0, gpus - int(jobs.share[division.rows].sum()))  # GPUs that are free now
    refused: tuple[int, Reason] | None = None
    behind = 0
    for row in waiting.tolist():
        if refused and (behind == look_ahead_jobs or not division.room):
            break
        behind += 1 if refused else 0
        wanted = int(jobs.min_gpus[row])
        if wanted > division.room:
            text = "not needed for the minimums of running jobs"
            refused = refused or (row, waits_for(wanted, division.room, gpus, text, Taken.MINIMUMS))
            continue
        joined = division.joined_by(row)
        if wanted > free and joined.longer_s(division) > 0:
            text = "free, and if others gave theirs, jobs would take longer on average"
            refused = refused or (row, waits_for(wanted, free, gpus, text, Taken.HELD))
            continue
        if refused and joined.wait_s(refused[0]) > division.wait_s(refused[0]):
            continue
        free = free - wanted if wanted <= free else joined.idle
        division = joined
    return division, refused


def _running(jobs: JobTable, gpus: int) -> Ints:
    """Return the rows of jobs that keep running, in the order of submission: all running jobs, unless GPUs have been
    lost."""
    rows = jobs.running
    least = jobs.min_gpus[rows]
    if least.sum() <= gpus:
        return rows
    kept, free = [], gpus
    for row, wanted in zip(rows.tolist(), least.tolist(), strict=True):
        if wanted <= free:
            kept.append(row)
            free -= wanted
    return np.array(kept, dtype=np.int64)


class _Division:
    """Some jobs with the shares of the allocation rule."""

    def __init__(self, jobs: JobTable, gpus: int, rows: Ints) -> None:
        self.jobs = jobs
        self.gpus = gpus
        self.rows = rows

    def joined_by(self, row: int) -> _Division:
        return _Division(self.jobs, self.gpus, np.append(self.rows, row))

    @cached_property
    def room(self) -> int:
        """Number of GPUs beyond the minimums of the jobs."""
        return self.gpus - int(self.jobs.min_gpus[self.rows].sum())

    @cached_property
    def given(self) -> Ints:
        """The shares, by row of the table."""
        given = no_shares(self.jobs)
        given[self.rows] = self.jobs.min_gpus[self.rows]
        shorten(self.jobs, given, self.room, np.sort(self.rows))
        return given

    @cached_property
    def idle(self) -> int:
        return self.gpus - int(self.given.sum())

    @cached_property
    def _speedup(self) -> Floats:
        found: Floats = self.jobs.speedup(self.rows, self.given[self.rows])
        return found

    @cached_property
    def _left_s(self) -> Floats:
        """The remaining time of each job, in the order of `rows`."""
        return self.jobs.left_s[self.rows] / self._speedup

    def wait_s(self, row: int) -> float:
        """Return the seconds until a job's minimum is free."""
        return self._free_after(row)[0]

    def _free_after(self, row: int) -> tuple[float, int]:
        return free_after(self._left_s, self.given[self.rows], self.idle, int(self.jobs.min_gpus[row]))

    def longer_s(self, without: _Division) -> float:
        """Return by how many seconds the sum of the times to the end grows if the last job of `rows` starts now.

        It starts beside the jobs of `without`; otherwise it would wait for its minimum.
        """
        jobs, row = self.jobs, int(self.rows[-1])
        wait_s, free = without._free_after(row)
        share = min(free, int(jobs.max_gpus[row]), jobs.curves.most)
        waiting_s = wait_s + float(jobs.left_s[row] / jobs.speedup(row, share))
        own_s = float(self._left_s[-1])
        lost = 1.0 - self._speedup[:-1] / without._speedup
        return own_s + float((np.minimum(own_s, self._left_s[:-1]) * lost).sum()) - waiting_s
