"""End times of jobs that are served by deadlines with fixed numbers of GPUs, if no further job comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Job:
    """A job to serve.

    `left_s`: remaining seconds on one GPU. `deadline_s`: inf: none. `gpus`: its fixed number of GPUs. `rate`: its speed
    with them, relative to one GPU. `hard`: whether its deadline must be kept.
    """

    left_s: float
    deadline_s: float
    gpus: int
    rate: float
    hard: bool


def late(jobs: Sequence[Job], gpus: int, now: float) -> int | None:
    """Return the position of the first job that misses a hard deadline; None if no job does.

    A job that does not fit into the free GPUs is skipped.
    """
    order = sorted(range(len(jobs)), key=lambda at: (jobs[at].deadline_s, at))
    left = [one.left_s for one in jobs]
    while any(jobs[at].hard and jobs[at].deadline_s < math.inf for at in order):
        free, running = gpus, []
        for at in order:
            if jobs[at].gpus <= free:
                running.append(at)
                free -= jobs[at].gpus
        step_s = min(left[at] / jobs[at].rate for at in running)
        now += step_s
        for at in running:
            left[at] -= step_s * jobs[at].rate
        over = {at for at in running if left[at] <= TOLERANCE_S}
        for at in order:
            one = jobs[at]
            if one.hard and one.deadline_s + TOLERANCE_S < now + (0.0 if at in over else left[at] / one.rate):
                return at
        order = [at for at in order if at not in over]
    return None
