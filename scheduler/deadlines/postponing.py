"""Promised jobs wait for others while that costs nothing.

A plan lets each job work as early as it can. Where a job has time enough, that is in nobody's interest: it has been promised to
end by its deadline, and not sooner, and jobs without promises wait meanwhile. So it is tried what happens if they have more GPUs
for a while than the plan leaves them. They may have as many as do no harm:

* All promises hold, without the help of margins.
* The promised jobs need no more GPU time than by the plan, and none needs a higher share at any time. So those that wait have
  time to spare with the fewest GPUs that they can run with: if something goes wrong, more GPUs make up for it.
* No job that runs is stopped, unless changes cost nothing.
* Each job keeps a part of the time until its deadline in reserve (`CUSHION`): it is planned to end so much before it, or when it
  ends by the plan, if that is later.

How many GPUs that are is searched by halving. It is looked at again with each event, and after a part of the time that can be
spared, at the latest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from .allocation import soft_too
from .promises import INSTANT_S, Plan, Promise, holds
from .timeline import LIKELY_CHANGES
from .verdict import Situation

CUSHION = 0.1  # of the time until a deadline
PART = 0.125  # of the time that can be spared: after that it is looked at again
LEAST_S, MOST_S = 5.0, 600.0  # between two looks
TRIES = 5  # numbers of GPUs
SAME = 1e-9  # a part of the GPU time that is rounding


def postponed(asked: Situation, plan: Plan, promised: Mapping[int, Promise], useful: int) -> tuple[Plan, float] | None:
    """A plan in which promised jobs wait, and until when that holds (Unix time); None: none can wait, or nobody would gain by it.

    `plan`: that of all promises, soft ones among them, without waiting; `useful`: GPUs that jobs without promises can use.
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
    """When a job with its fewest GPUs has to begin, so that it ends with its reserve (Unix time)."""
    return one.deadline_s - (one.lead_s + one.left_s / one.levels.rates[1]) / (1 - CUSHION)


def _no_higher(plan: Plan, later: Plan) -> bool:
    """Does no job need a higher share later? With a linear curve that would cost no GPU time, but leave no way out."""
    return all(filled.level <= plan.found[key].level for key, filled in later.found.items())


def _gpu_s(plan: Plan, later: Plan, promised: Mapping[int, Promise]) -> float:
    """What a plan needs, less the pauses that are reckoned with only because a job that has not begun begins later."""
    found = sum(one.gpu_s for one in later.found.values())
    for key, filled in later.found.items():
        one = promised[key]
        if plan.found[key].gpus and not filled.gpus:
            found -= LIKELY_CHANGES * one.change_s * one.levels.counts[1]
    return found


def _spare_s(asked: Situation, plan: Plan, one: Promise) -> float:
    """How much later a job that has its fewest GPUs now might have them."""
    filled = plan.found[one.key]
    return _until_s(asked.now, one) - filled.finish_s if filled.gpus and filled.level <= 1 else 0.0


def _until_s(now: float, one: Promise) -> float:
    return one.deadline_s - CUSHION * (one.deadline_s - now)


def _reserved(now: float, plan: Plan, one: Promise) -> Promise:
    """As it is to end at the latest, if it waits."""
    ends_s = plan.found[one.key].finish_s + INSTANT_S
    return structs.replace(one, deadline_s=min(one.deadline_s, max(_until_s(now, one), ends_s)), grace_s=0.0)


def _holds(asked: Situation, strict: Sequence[Promise]) -> Plan | None:
    """A plan with which all these deadlines hold, those of soft ones after the others; None: there is none, or a job would wait
    that runs, though changes cost pauses, or that is to end at once, so that rounding decides."""
    found = holds([one for one in strict if not one.soft], asked.timeline())
    if not isinstance(found, Plan) or soft_too(found, [one for one in strict if one.soft]):
        return None
    waiting = [one for one in strict if not found.found[one.key].gpus]
    if any((one.share and one.change_s) or one.deadline_s < asked.now + LEAST_S for one in waiting):
        return None
    return found
