"""`gandiva`: time slices round robin (Gandiva, OSDI'18), not elastic, without lengths or deadlines (ElasticFlow 6.1).

Gandiva gives each server to jobs that want the same number of GPUs, more of them than fit, and suspends and resumes
them in turn. A policy here decides about shares, not servers. So the whole cluster takes turns: slices begin and end
everywhere at the same moments, otherwise a large job would never find enough GPUs free at once. Gavel's rounds work the
same way.

Gandiva also tries which jobs may run on one GPU at the same time. That is left out: here a GPU belongs to one job at a
time. Its migrations to better places are the placement's task. ElasticFlow, too, leaves out how Gandiva grows jobs into
idle GPUs.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from ..arrays import Floats, Ints
from ..order import Served, counted, found, hand_out, serve, take, wishes
from ..view import JobTable, Reason
from ..waiting_queue import WaitingQueue
from .base import Shares, no_shares, waits_for
from .reviews import EARLY_S, LATE_S


class GandivaParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`slice_s`: how many seconds a job runs before another one gets its turn (Gandiva: about 60)."""

    slice_s: Annotated[float, msgspec.Meta(gt=LATE_S)] = 60.0


class Gandiva:
    """When a slice is over all jobs queue up again: first those that have waited, the longest wait first, then those
    that have run. Each gets its requested GPUs or none; a job that does not fit is passed over. In between, running
    jobs go on, and GPUs that become free go to waiting jobs, the longest wait first.

    The first of the queue always fits, so no job waits for ever. Of the jobs that have run, the one that has run for
    the smallest part of its life goes first. So where only a few have to make room, it is not always the same ones.
    """

    name = "gandiva"
    needs_lengths = False
    Parameters = GandivaParameters

    def __init__(self, parameters: GandivaParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        slice_s = self.parameters.slice_s
        turn = math.floor((now + EARLY_S) / slice_s)
        begun_s = turn * slice_s
        served = (
            self._requeued(jobs, gpus, now, begun_s) if now - begun_s <= LATE_S else serve(jobs, gpus, _LONGEST, now)
        )
        given, want = served.given, jobs.requested_gpus
        free = served.free

        def why(row: int) -> Reason | None:
            return waits_for(int(want[row]), free, gpus, "left by jobs whose turn it is") if not given[row] else None

        return Shares(given, why, (turn + 1) * slice_s if served.waiting else math.inf, served.rows)

    def _requeued(self, jobs: JobTable, gpus: int, now: float, begun_s: float) -> Served:
        """Serve all jobs at the beginning of a slice.

        First come the jobs that have waited since before the slice. Then those follow that ran until its beginning or
        have just arrived, the job that has run for the smallest part of its life first.
        """
        since_s = begun_s - EARLY_S
        line = jobs.line(_LONGEST)
        if line is not None:
            new = np.searchsorted(jobs.rows, [number for _, number, _ in line.from_key(since_s)])
            own = wishes(jobs, _LeastRun(self.parameters.slice_s), np.concatenate([jobs.running, new]), now)
            first = take(gpus, [], line, since_s)
            rest = take(gpus - sum([want for _, _, want in first]), own, WaitingQueue())
            fitting = line.fitting(gpus) + int(np.count_nonzero(jobs.requested_gpus[jobs.running] <= gpus))
            return found(jobs, first + rest, fitting, gpus)
        want = jobs.requested_gpus
        given, fits = no_shares(jobs), want <= gpus
        waited = jobs.waiting_since_s < since_s  # False for running jobs, whose value is nan
        free = hand_out(given, gpus, jobs.waiting_since_s, want, np.flatnonzero(fits & waited))
        keys, _ = _LeastRun(self.parameters.slice_s).ranks(jobs, slice(None), now)
        free = hand_out(given, free, keys, want, np.flatnonzero(fits & ~waited & (want <= free)))
        return counted(given, want, gpus, free)


@dataclass(frozen=True)
class _Longest:
    """Running jobs go on, then the longest wait comes first."""

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        return np.where(jobs.share[rows] > 0, -np.inf, jobs.waiting_since_s[rows]), jobs.requested_gpus[rows]


@dataclass(frozen=True)
class _LeastRun:
    """Order of jobs by the part of its life that each has run, the smallest first. It changes with time."""

    slice_s: float

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        age_s = np.maximum(now - jobs.submitted_s[rows], self.slice_s)
        return jobs.executed_s[rows] / age_s, jobs.requested_gpus[rows]


_LONGEST = _Longest()
