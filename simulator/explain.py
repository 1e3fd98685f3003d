"""What was decided about one job, and why, as a simulation goes on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..scheduler.pipeline import Decision
from ..scheduler.view import ClusterView


@dataclass(frozen=True)
class Moment:
    """From `time_s` (since the first submission) on the job had `gpus` GPUs, and `why` no more.

    `wanted_gpus` is what the policy gave it; packing may have lowered or raised that.
    """

    time_s: float
    gpus: int
    wanted_gpus: int
    why: str


class Story:
    """Keeps what changes for the job in row `row` of the simulation's columns."""

    def __init__(self, row: int) -> None:
        self.moments: list[Moment] = []
        self._row = row
        self._last: object = None

    def note(self, view: ClusterView, decision: Decision) -> None:
        """A decision has been made."""
        jobs = view.jobs
        at = int(np.searchsorted(jobs.rows, self._row))
        if at == len(jobs) or jobs.rows[at] != self._row:
            return
        gpus, wanted = int(decision.shares[at]), int(decision.wanted[at])
        reason = decision.why(at) if gpus < jobs.max_gpus[at] else None
        here = (gpus, wanted, reason.code if reason else None)  # the text counts GPUs, and so changes all the time
        if here != self._last:
            self._last = here
            self.moments.append(Moment(view.now, gpus, wanted, reason.text if reason else ""))
