"""The number of GPUs of each job now (ElasticFlow 4.2, Algorithm 2), also without deadlines or with soft ones (4.4).

First each promised job gets the GPUs of its plan for now. The rest goes, one step at a time, to the job with the step
of the greatest *return*. ElasticFlow measures it in GPU time: the GPU time that a job saves later by getting more now,
minus the GPU time given now. With the level that the job needs at most (`Filled.level`) a GPU-second adds `gain(level)`
work, which is the value of later GPU-seconds for the job. A step adds `gain(step)` per GPU-second now. So a GPU-second
given now saves

    gain(step) / gain(level)

GPU-seconds later. The step with the greatest ratio goes first. That is ElasticFlow's priority for a slot of any length,
per GPU, which matters because steps between powers of two are of different sizes. For concave curves ratios only fall
from step to step. Then no other division of the remaining GPUs, with as many of them in use, needs less GPU time in all
(Theorem 2).

A job without a deadline counts as due at the end of time and needs one GPU (its minimum) at any time. So its first step
has a ratio of 1, which no promised job's next step exceeds. Of equal ratios the job with the least remaining work comes
first.

A job without spare time for a change of its share (`Filled.spare`) gets no more than its plan, or keeps its GPUs. A
soft deadline is promised if it can be kept beside all others (`soft_too`); otherwise the job counts as one without a
deadline. A job with a broken promise comes before all others, because it is late already.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from .promises import Plan, Promise, fill, in_order

LATE, OTHERS = 0, 1


def allocate(plan: Plan, promised: Mapping[int, Promise], free_running: Sequence[Promise], gpus: int) -> dict[int, int]:
    """Return how many GPUs each job gets now, by key; jobs that get none are left out.

    `promised`: the jobs of `plan`, by key. `free_running`: jobs without deadlines, or with soft ones that are not
    promised; their `deadline_s` is ignored.
    """
    share = {key: one.gpus for key, one in plan.found.items() if one.gpus}
    free = gpus - sum(share.values())
    heap: list[tuple[int, float, float, int]] = []
    queued: dict[int, tuple[int, Promise, float]] = {}  # by key: class of the job, the job, gain of a GPU at its level
    following: dict[int, int] = {}  # by key of a job: its next level

    def offer(key: int) -> None:
        kind, one, worth = queued[key]
        levels, level = one.levels, following[key]
        if level < len(levels.counts):
            heapq.heappush(heap, (kind, -levels.gain(level) / worth, one.left_s, key))

    for key, filled in plan.found.items():
        one = promised[key]
        if not filled.spare:
            more = one.share - filled.gpus
            if 0 < more <= free:
                share[key] = one.share
                free -= more
            continue
        queued[key] = OTHERS, one, one.levels.gain(filled.level)
    for kind, jobs in ((LATE, plan.broken), (OTHERS, free_running)):
        for one in jobs:
            if len(one.levels):
                queued[one.key] = kind, one, one.levels.gain(1)
    for key, (_, one, _) in queued.items():
        following[key] = one.levels.at_most(share[key]) + 1 if key in share else 1
        offer(key)
    while free and heap:
        key = heapq.heappop(heap)[3]
        gets = queued[key][1].levels.counts[following[key]]
        takes = gets - share.get(key, 0)
        if takes <= free:
            share[key] = gets
            free -= takes
            following[key] += 1
            offer(key)
    return share


def soft_too(plan: Plan, soft: Sequence[Promise]) -> list[Promise]:
    """Promise as many soft deadlines beside those of the plan as there is room for, the earliest first. Changes `plan`.

    Returns the jobs with deadlines that are not promised.
    """
    left = []
    for one in in_order(soft):
        filled = fill(plan.timeline, one)
        if filled is None:
            left.append(one)
        else:
            plan.found[one.key] = filled
    return left
