"""What a policy decided about one job, and why: a policy that writes down what another one says."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from ..controller.scheduling.policies.base import Policy, Shares
from ..controller.scheduling.view import JobTable


@dataclass(frozen=True)
class Moment:
    """From `time_s` (since the first submission) on the policy gave the job `gpus` GPUs, before packing, and `why` no more."""

    time_s: float
    gpus: int
    why: str


class Explained:
    """Decides as `policy` does, and keeps what changes for the job in row `row` of the simulation's columns."""

    def __init__(self, policy: Policy, row: int) -> None:
        self.name = policy.name
        self.needs_lengths = policy.needs_lengths
        self.story: list[Moment] = []
        self._policy = policy
        self._row = row
        self._last: object = None

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        shares = self._policy.shares(jobs, gpus, now, rng)
        at = int(np.searchsorted(jobs.rows, self._row))
        if at < len(jobs) and jobs.rows[at] == self._row:
            given = int(shares.gpus[at])
            reason = shares.why(at) if given < jobs.max_gpus[at] else None
            here = (given, reason.code if reason else None)  # the text counts GPUs, and so changes all the time
            if here != self._last:
                self._last = here
                self.story.append(Moment(now, given, reason.text if reason else ""))
        return shares
