"""Promised jobs wait for others while that costs nothing.

A plan lets each job work as early as it can. Where a job has enough time, that serves no purpose: the job has been
promised to end by its deadline, and not sooner, and jobs without promises wait meanwhile. So a search tries to give the
jobs without promises more GPUs for a while than the plan leaves them, under these conditions:

* All promises hold, without the help of margins.
* The promised jobs need no more GPU time than by the plan, and none needs a higher share at any time. So postponed jobs
  have time to spare with their fewest GPUs: if something goes wrong, more GPUs make up for it.
* No running job is stopped, unless changes cost nothing.
* Each job keeps a part of the time until its deadline in reserve (`CUSHION`). It is planned to end that much before its
  deadline, or at its end by the original plan, if that is later.

The number of these GPUs is found by bisection. The search is repeated with each event, and at the latest after a part
of the time that can be spared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from .allocation import soft_too
from .decision import Commitments
from .promises import INSTANT_S, Plan, Promise, holds
from .timeline import LIKELY_CHANGES

CUSHION = 0.1  # fraction of the time until a deadline
PART = 0.125  # fraction of the spare time after which the search is repeated
LEAST_S, MOST_S = 5.0, 600.0  # bounds of the time between two searches
TRIES = 5  # numbers of GPUs that a search tries
SAME = 1e-9  # GPU times that differ by less (relatively) are equal


def postponed(
    asked: Commitments, plan: Plan, promised: Mapping[int, Promise], useful: int
) -> tuple[Plan, float] | None:
    """Return a plan in which promised jobs wait, and until when it holds (Unix time); None if none can wait, or no job
    would gain.

    `plan`: that of all promises, soft ones included, without waiting. `useful`: GPUs that jobs without promises can
    use.
    """
    left = asked.gpus - sum(one.gpus for one in plan.found.values())
    if useful <= max(left, 0) or not plan.holds or plan.first:
        return None
    spare_s = max((_spare_s(asked, plan, one) for one in promised.values()), default=0.0)
    if spare_s < LEAST_S:
        return None
    until_s = asked.now + min(max(PART * spare_s, LEAST_S), MOST_S)
    strict = [_reserved(asked.now, plan, one) for one in promised.values()]
    needed_gpu_s = sum(one.gpu_s for one in plan.found.values()) * (1 + SAME)
    found = None
    low, high = left, min(useful, asked.gpus)
    tried = high
    for _ in range(TRIES):
        busy = (*asked.busy, (asked.now, until_s, tried))
        later = _holds(replace(asked, busy=busy), strict)
        if later is not None and _no_higher(plan, later) and _gpu_s(plan, later, promised) <= needed_gpu_s:
            found, low = later, tried
        else:
            high = tried
        tried = (low + high) // 2
        if tried <= low:
            break
    return None if found is None else (found, until_s)


def latest_start_s(one: Promise) -> float:
    """Return when a job with its fewest GPUs has to begin to end with its reserve (Unix time)."""
    return one.deadline_s - (one.lead_s + one.left_s / one.levels.rates[1]) / (1 - CUSHION)


def _no_higher(plan: Plan, later: Plan) -> bool:
    """Return whether no job needs a higher share later.

    With a linear curve that would cost no GPU time, but leave no reserve.
    """
    return all(filled.level <= plan.found[key].level for key, filled in later.found.items())


def _gpu_s(plan: Plan, later: Plan, promised: Mapping[int, Promise]) -> float:
    """Return the GPU time of a plan, without the pauses that are counted only because a job that has not begun begins
    later."""
    found = sum(one.gpu_s for one in later.found.values())
    for key, filled in later.found.items():
        one = promised[key]
        if plan.found[key].gpus and not filled.gpus:
            found -= LIKELY_CHANGES * one.change_s * one.levels.counts[1]
    return found


def _spare_s(asked: Commitments, plan: Plan, one: Promise) -> float:
    """Return by how many seconds a job with its fewest GPUs now could have them later."""
    filled = plan.found[one.key]
    return _until_s(asked.now, one) - filled.finish_s if filled.gpus and filled.level <= 1 else 0.0


def _until_s(now: float, one: Promise) -> float:
    return one.deadline_s - CUSHION * (one.deadline_s - now)


def _reserved(now: float, plan: Plan, one: Promise) -> Promise:
    """Return the job with the latest end that it may have if it waits as its deadline."""
    ends_s = plan.found[one.key].finish_s + INSTANT_S
    return structs.replace(one, deadline_s=min(one.deadline_s, max(_until_s(now, one), ends_s)), grace_s=0.0)


def _holds(asked: Commitments, strict: Sequence[Promise]) -> Plan | None:
    """Return a plan with which all these deadlines hold, soft ones after the others; None if there is none.

    Also None if a running job would wait although changes cost pauses, or if a waiting job must end at once, so that
    rounding decides.
    """
    found = holds([one for one in strict if not one.soft], asked.timeline())
    if not isinstance(found, Plan) or soft_too(found, [one for one in strict if one.soft]):
        return None
    waiting = [one for one in strict if not found.found[one.key].gpus]
    if any((one.share and one.change_s) or one.deadline_s < asked.now + LEAST_S for one in waiting):
        return None
    return found
