"""The decisions about one job, with reasons, as a simulation goes on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..scheduler.pipeline import Decision
from ..scheduler.view import ClusterView


@dataclass(frozen=True)
class Moment:
    """From `time_s` (since the first submission) on the job had `gpus` GPUs; `why` is the reason that it had no more.

    `wanted_gpus` is the policy's share; packing may have lowered or raised that.
    """

    time_s: float
    gpus: int
    wanted_gpus: int
    why: str


class Story:
    """Record of the changes of the job in row `row` of the simulation's columns."""

    def __init__(self, row: int) -> None:
        self.moments: list[Moment] = []
        self._row = row
        self._last: object = None

    def note(self, view: ClusterView, decision: Decision) -> None:
        """Record a decision."""
        jobs = view.jobs
        at = int(np.searchsorted(jobs.rows, self._row))
        if at == len(jobs) or jobs.rows[at] != self._row:
            return
        gpus, wanted = int(decision.shares[at]), int(decision.wanted[at])
        reason = decision.why(at) if gpus < jobs.max_gpus[at] else None
        # The reason's text is left out of the comparison: it contains numbers of GPUs that change all the time.
        here = (gpus, wanted, reason.code if reason else None)
        if here != self._last:
            self._last = here
            self.moments.append(Moment(view.now, gpus, wanted, reason.text if reason else ""))
