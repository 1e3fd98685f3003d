"""When jobs end that are served in the order of their deadlines, with a fixed number of GPUs or none, if nobody else comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Job:
    """`left_s`: s on one GPU; `deadline_s`: inf: none; `gpus`: what it gets or nothing; `rate`: how fast it is with them, of one
    GPU; `hard`: its deadline must be kept."""

    left_s: float
    deadline_s: float
    gpus: int
    rate: float
    hard: bool


def late(jobs: Sequence[Job], gpus: int, now: float) -> int | None:
    """The first job, by position, that misses a hard deadline; None: no job does. Who does not fit is passed over."""
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
