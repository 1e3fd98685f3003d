"""`gandiva`: time slices round robin (Gandiva, OSDI'18), as ElasticFlow 6.1 uses it: not elastic, and blind to lengths
and deadlines.

Gandiva gives each server to jobs that want the same number of GPUs, more of them than fit, and suspends and resumes
them in turn. A policy here decides about shares, not servers. So the whole cluster takes turns: slices begin and end
everywhere at the same moments, otherwise a large job would never find enough GPUs free at once. That is also how
Gavel's rounds work.

What Gandiva finds out by trying, which jobs may run on one GPU at the same time, is left out: here a GPU belongs to one
job at a time. Its migrations to better places are the placement's business, and its growing of jobs into idle GPUs
ElasticFlow leaves out, too.
"""

from __future__ import annotations

import math
import random
from typing import Annotated

import msgspec
import numpy as np

from ..view import Floats, JobTable, Reason
from .base import Shares, rigid, waits_for
from .reviews import EARLY_S, LATE_S


class GandivaParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`slice_s`: how many seconds a job runs before another one gets its turn (Gandiva: about 60)."""

    slice_s: Annotated[float, msgspec.Meta(gt=LATE_S)] = 60.0


class Gandiva:
    """When a slice is over all jobs queue up again: first those that have waited, the longest wait first, then those
    that have run. Each gets the GPUs it requested or none; who does not fit is passed over. In between, running jobs go
    on, and GPUs that become free go to waiting jobs, the longest wait first.

    The first of the queue always fits, so nobody waits for ever. Of those that have run, the one that has run for the
    smallest part of its life goes first. So where only a few have to make room, it is not always the same ones.
    """

    name = "gandiva"
    needs_lengths = False
    Parameters = GandivaParameters

    def __init__(self, parameters: GandivaParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        slice_s = self.parameters.slice_s
        turn = math.floor((now + EARLY_S) / slice_s)
        want = jobs.requested_gpus
        given = rigid(jobs, gpus, self._keys(jobs, now, turn * slice_s), want)
        free = gpus - int(given.sum())
        waiting = bool(((given == 0) & (want <= gpus)).any())

        def why(row: int) -> Reason | None:
            return waits_for(int(want[row]), free, gpus, "left by jobs whose turn it is") if not given[row] else None

        return Shares(given, why, (turn + 1) * slice_s if waiting else math.inf)

    def _keys(self, jobs: JobTable, now: float, begun_s: float) -> Floats:
        """The order of the queue. Those that wait since before the slice began: below 0."""
        wait_s = np.where(jobs.share > 0, 0.0, now - jobs.waiting_since_s)
        if now - begun_s > LATE_S:
            return np.where(jobs.share > 0, -np.inf, -wait_s)
        age_s = np.maximum(now - jobs.submitted_s, self.parameters.slice_s)
        waited = wait_s > now - begun_s + EARLY_S
        return np.where(waited, -wait_s, jobs.executed_s / age_s)
