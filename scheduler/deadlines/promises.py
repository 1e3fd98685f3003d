"""All promised jobs together: the least that each needs, in the order of deadlines (ElasticFlow 4.1, Algorithm 1).

The job with the earliest deadline takes the GPU time that it needs first, and so on. If all jobs find enough, every
deadline holds.

What is exact
-------------

* *One job*: it takes the least possible GPU time, given the GPU time of the others (`timeline`).
* *All jobs, linear curves*: the jobs find enough if and only if some division is enough (Theorem 1).
* *All jobs, concave curves*: if the jobs find enough, their division is sufficient, so a promise is never given in
  error. The other direction does not hold, neither here nor in ElasticFlow. A job with an early deadline may choose, of
  several divisions with nearly the same cost, one that is in the way of a later job. Such a set of jobs is refused
  though it could be served. Where a job finds too little, `settle` therefore tries again with this job first.

Jobs that already have a promise
--------------------------------

A plan in which all deadlines hold is kept until another one is found in which they hold, too (`settle`). If nothing
unforeseen has happened, each job has done at least as much work as its schedule planned, so the rest of the plan is
enough for all (`continued`). The plan is the proof that all promises can be kept. A new plan in the order of deadlines
is mostly better, since idle GPUs have been given away meanwhile (`allocation`) and some jobs are ahead. It need not
exist, because the filling is greedy. The proof holds for two reasons. Changes of a share count as work. A job gets more
than its schedule, or other GPUs, only if it can pay for that change and for the way back (`Filled.spare`).

A job that finds too little in every order cannot keep its promise: GPUs have been lost, or the job is slower than
predicted. `Plan.broken` reports that before its deadline; the others keep their promises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ..levels import Levels
from ..schedule import Schedule, Segment
from .timeline import TOLERANCE_S, Filled, Timeline, Want

LEAST_LEFT_S = 4e-6  # least remaining work of an unfinished job: more than `TOLERANCE_S`, so that it needs a GPU
REPAIRS = 8  # limit of attempts to leave the order of deadlines for jobs that find too little
INSTANT_S = 1e-3  # least time until the next review


class Promise(msgspec.Struct, frozen=True):
    """A job with a deadline. `key` names it (a row of the view), and decides between equal deadlines.

    `left_s`: remaining work, in seconds on one GPU. `deadline_s`: the time by which it must end. `grace_s`: how much
    later is acceptable if there is no other way (which keeps rounding from breaking a promise). `share`: its GPUs at
    present. `lead_s`: how long it stands still before it works on, if its share does not change, or when it gets its
    first GPUs. `change_s`: how long it stands still at a change of its share. `priority`: a larger number counts more.
    `soft`: it goes on if the deadline is missed, and its deadline never stands in the way of others. `schedule`: its
    GPUs in the last plan. `each`: its fixed number of GPUs on each server; 0: any number. `seats`: the most GPUs that
    it can begin with at once, where `each` counts.
    """

    key: int
    left_s: float
    deadline_s: float
    levels: Levels
    grace_s: float = 0.0
    share: int = 0
    lead_s: float = 0.0
    change_s: float = 0.0
    priority: int = 0
    soft: bool = False
    schedule: Schedule | None = None
    each: int = 0
    seats: int = 0


@dataclass
class Plan:
    """GPUs that each job needs, by key.

    `broken`: jobs that cannot end in time, in the order of their deadlines. `first`: the keys of jobs that came before
    that order.
    """

    timeline: Timeline
    first: tuple[int, ...] = ()
    found: dict[int, Filled] = field(default_factory=dict)
    broken: list[Promise] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.broken

    def copy(self) -> Plan:
        return Plan(self.timeline.copy(), self.first, self.found.copy(), self.broken.copy())

    def next_s(self, now: float) -> float:
        """Return when a job needs more GPUs than at `now`; inf: never.

        If a job should end within an instant, times within that instant are ignored: the end of the job will be
        reported anyway, and the job may have reported too short a length, and train on.
        """
        soon_s = now + INSTANT_S
        after_s = soon_s if any(one.finish_s <= soon_s for one in self.found.values()) else now
        return min((one.more_s for one in self.found.values() if one.more_s > after_s), default=math.inf)


def in_order(promises: Iterable[Promise], first: Sequence[int] = ()) -> list[Promise]:
    """Return the jobs in the order of their deadlines, but those with the keys in `first` before the others.

    Jobs with a fixed number of GPUs per server come before those without, since their shares never change.
    """
    order = sorted(promises, key=lambda one: (not one.each, not (one.each and one.share), one.deadline_s, one.key))
    if first:
        ranks = {key: at for at, key in enumerate(first)}
        order.sort(key=lambda one: ranks.get(one.key, len(ranks)))
    return order


def fill(timeline: Timeline, one: Promise, caution: int = 0) -> Filled | None:
    """Take the free GPUs that a job needs and return them; None if there are not enough. `caution`: as for `plan`."""
    least_s = LEAST_LEFT_S * max(one.levels.fastest, 1.0)
    left_s = max(one.left_s, least_s)
    for until_s in (one.deadline_s, one.deadline_s + one.grace_s) if one.grace_s else (one.deadline_s,):
        if (
            one.left_s < least_s and abs(until_s - timeline.now) < INSTANT_S
        ):  # rounding errors have left this remainder of the job
            until_s += INSTANT_S
        if one.each:
            found = _fill_fixed(timeline, one, left_s, until_s)
        elif not one.change_s:
            found = timeline.fill(Want(left_s, until_s, one.levels, one.lead_s, one.change_s))
        elif one.share:
            found = _fill_running(timeline, one, left_s, until_s, caution)
        else:
            found = _fill_waiting(timeline, one, left_s, until_s, caution)
        if found is not None:
            return found
    return None


def _fill_fixed(timeline: Timeline, one: Promise, left_s: float, until_s: float) -> Filled | None:
    """Fill a job with a fixed number of GPUs per server: from now to its end with one share.

    It keeps its servers, so no later decision has to find enough GPUs on single servers for it.
    """
    want = Want(left_s, until_s, one.levels, one.lead_s, one.change_s)
    for gpus in (one.share,) if one.share else [count for count in one.levels.counts[1:] if count <= one.seats]:
        if (found := timeline.keep(want, gpus)) is not None:
            return replace(found, spare=False)
    return None


def _fill_waiting(timeline: Timeline, one: Promise, left_s: float, until_s: float, caution: int) -> Filled | None:
    """Fill a waiting job.

    The job may get more than it needs when it starts, and lose the excess again, if it can pay for that change without
    needing more GPUs now.
    """
    starts = Want(left_s, until_s, one.levels, one.lead_s, one.change_s)
    if caution < 1:
        goes_back = Want(left_s, until_s, one.levels, one.lead_s + one.change_s, one.change_s)
        least, found = timeline.fill(starts, commit=False), timeline.fill(goes_back, commit=False)
        if least is not None and found is not None and found.gpus <= least.gpus:
            return timeline.fill(goes_back)
    found = timeline.fill(starts)
    if found is None or (not found.gpus and one.lead_s >= one.change_s):  # GPUs before its latest start are extra
        return found
    return replace(found, spare=False)


def _fill_running(timeline: Timeline, one: Promise, left_s: float, until_s: float, caution: int) -> Filled | None:
    change_s = max(one.lead_s, one.change_s)
    if caution < 1:
        found = timeline.fill(Want(left_s, until_s, one.levels, change_s + one.change_s, one.change_s))
        if found is not None:
            return found
    changes = Want(left_s, until_s, one.levels, change_s, one.change_s)
    found = timeline.fill(changes) if caution < 2 else None
    if found is None:
        stays = Want(left_s, until_s, one.levels, one.lead_s, one.change_s)
        found = timeline.fill(stays, commit=False)
        if found is not None and found.gpus == one.share:
            found = timeline.fill(stays)
        else:
            found = timeline.keep(stays, one.share) or timeline.fill(changes)
    if found is None:
        return None
    return replace(found, spare=False)


def plan(promises: Sequence[Promise], timeline: Timeline, first: Sequence[int] = (), caution: int = 0) -> Plan:
    """Run Algorithm 1 on the free GPUs of `timeline`, which is changed.

    Jobs that hold are in the plan, the others in `broken`.

    `first`: keys of jobs that come before the order of deadlines. `caution`: the pauses that running jobs are planned
    to pay for, if they can. With 0, running jobs pay for a change of their shares now and another one later, so that
    they may get more than they need, and lose it again. With 1, they pay for one change now. With 2, they pay only for
    pauses that the plan requires. Pauses cost GPU time, which other jobs may need.
    """
    found = Plan(timeline, tuple(first))
    for one in in_order(promises, first):
        filled = fill(timeline, one, caution)
        if filled is None:
            found.broken.append(one)
        else:
            found.found[one.key] = filled
    return found


def earliest_first(promises: Sequence[Promise], timeline: Timeline) -> Plan:
    """Plan in the order of deadlines without admission: a job that cannot be in time takes all that it can use in its
    place of the order."""
    found = Plan(timeline)
    for one in in_order(promises):
        filled = fill(timeline, one) if len(one.levels) else None
        if filled is None and len(one.levels):
            filled = timeline.rush(
                Want(max(one.left_s, LEAST_LEFT_S), one.deadline_s, one.levels, one.lead_s, one.change_s)
            )
        if filled is not None:
            found.found[one.key] = filled
    return found


def repaired(promises: Sequence[Promise], timeline: Timeline, first: Sequence[int], tries: int) -> Plan | Promise:
    """Return a plan, as `holds` does, after up to `tries` further attempts.

    Each attempt begins with the job that found too little before.

    If all fail, return the job that found too little in the first attempt. `timeline` stays unchanged.
    """
    begun = found = holds(promises, timeline.copy(), first)
    ahead = tuple(first)
    for _ in range(tries):
        if isinstance(found, Plan) or found.key in ahead:
            break
        ahead = (found.key, *ahead)
        found = holds(promises, timeline.copy(), ahead)
    return found if isinstance(found, Plan) else begun


def holds(
    promises: Sequence[Promise], timeline: Timeline, first: Sequence[int] = (), caution: int = 0
) -> Plan | Promise:
    """Return the result of `plan` if all deadlines hold with it; otherwise the first job that finds too little."""
    return longer(Plan(timeline, tuple(first)), in_order(promises, first), caution)


def longer(found: Plan, order: Sequence[Promise], caution: int) -> Plan | Promise:
    """Return the plan, which is changed, extended by these jobs; or the first of them that finds too little."""
    for one in order:
        filled = fill(found.timeline, one, caution)
        if filled is None:
            return one
        found.found[one.key] = filled
    return found


def settle(promises: Sequence[Promise], timeline: Timeline) -> Plan:
    """Return the best plan for jobs that have promises: a new one in the order of deadlines if all hold, otherwise the
    rest of the last plan.

    If neither holds, something unforeseen has happened. Then several orders are tried for the fewest broken promises: a
    job that finds too little comes first in the next attempt. `timeline` stays unchanged.
    """
    degrees = range(3 if any(one.change_s for one in promises) else 1)
    for caution in degrees:
        if isinstance(found := holds(promises, timeline.copy(), (), caution), Plan):
            return found
    best = continued(promises, timeline)
    if best is not None and best.holds:
        return best
    for caution in degrees:
        found = _settle(promises, timeline, caution)
        if best is None or len(found.broken) < len(best.broken):
            best = found
        if best.holds:
            break
    assert best is not None
    return best


def continued(promises: Sequence[Promise], timeline: Timeline) -> Plan | None:
    """Return the rest of the last plan, extended in the order of deadlines by the jobs outside of it and those for
    which it is no longer enough.

    None if there are not enough GPUs any more, or there is no such plan. `timeline` stays unchanged.
    """
    found, others = Plan(timeline.copy()), []
    pieces: list[Segment] = []
    now = timeline.now
    wait_s = (
        INSTANT_S if any(_is_ending(one, now) for one in promises) else 0.0
    )  # all jobs keep their GPUs until it has ended
    for one in in_order(promises):
        ends = wait_s > 0 and _is_ending(one, now)
        kept = _continued(one, now + wait_s) if one.schedule is not None and not ends else None
        if wait_s and (kept is not None or ends):
            kept = _for_an_instant(one, now, wait_s, kept)
        if kept is None:
            others.append(one)
        else:
            found.found[one.key], own = kept
            pieces += own
    if not pieces or not found.timeline.take(pieces):
        return None
    for one in others:
        filled = fill(found.timeline, one) or fill(found.timeline, one, caution=1)
        if filled is None:
            found.broken.append(one)
        else:
            found.found[one.key] = filled
    return found


def _is_ending(one: Promise, now: float) -> bool:
    """Return whether only rounding errors have left work of a job with a schedule that has just ended."""
    if not one.share or one.left_s >= LEAST_LEFT_S * max(one.levels.fastest, 1.0) or one.schedule is None:
        return False
    return bool(one.schedule.pieces) and abs(one.schedule.pieces[-1][1] - now) < INSTANT_S


def _for_an_instant(
    one: Promise, now: float, wait_s: float, then: tuple[Filled, list[Segment]] | None
) -> tuple[Filled, list[Segment]]:
    """Let a job keep its GPUs until `wait_s` is over, and continue by its schedule after that.

    `then`: None: the job has ended.
    """
    begins_s = now + wait_s
    own = [(now, begins_s, one.share)] if one.share else []
    own += then[1] if then is not None else []
    schedule = Schedule.of(own)
    if then is None:
        level = max(1, one.levels.at_most(one.share))
        return Filled(one.share, level, begins_s, one.share * wait_s, math.inf, False, schedule), own
    more_s = begins_s if then[0].gpus > one.share else then[0].more_s
    return replace(then[0], gpus=one.share, more_s=more_s, spare=False, schedule=schedule), own


def _continued(one: Promise, now: float) -> tuple[Filled, list[Segment]] | None:
    """Return the rest of a job's schedule until its end, also as pieces; None if the job does not end in time by it.

    If there is time for a change now and one back again, the job keeps its GPUs until it would end with both.
    """
    assert one.schedule is not None
    levels, until_s = one.levels, one.deadline_s + one.grace_s + TOLERANCE_S
    if not len(levels):
        return None
    left_s = max(one.left_s, LEAST_LEFT_S * max(levels.fastest, 1.0))
    ends_s = one.schedule.ends_s(now, left_s, levels, one.share, one.lead_s, one.change_s)
    if ends_s > until_s:
        return None
    rest = list(one.schedule.rest(now, levels))
    begins_s, _, gpus = rest[0]
    has = gpus if begins_s <= now else 0
    spare = not one.each and (not one.change_s or (not one.share and not has and one.lead_s >= one.change_s))
    if not spare and not one.each:
        back_s = one.change_s * levels.rates[levels.at_most(has)]
        lead_s = max(one.lead_s, one.change_s)
        latest_s = one.schedule.ends_s(now, left_s + back_s, levels, one.share, lead_s, one.change_s)
        if latest_s <= until_s:
            spare, ends_s = True, latest_s
    own = [(from_s, min(end_s, ends_s), count) for from_s, end_s, count in rest if from_s < ends_s]
    gpu_s = sum(count * (end_s - from_s) for from_s, end_s, count in own)
    level = levels.at_most(max(count for _, _, count in own))
    more_s = min((from_s for from_s, _, count in own if count > has), default=math.inf)
    return Filled(has, level, own[-1][1], gpu_s, more_s, spare, Schedule.of(own)), own  # other jobs may have the rest


def _settle(promises: Sequence[Promise], timeline: Timeline, caution: int) -> Plan:
    if not caution and isinstance(held := repaired(promises, timeline, (), REPAIRS), Plan):
        return held
    best = tried = plan(promises, timeline.copy(), (), caution)
    first: list[int] = []
    for _ in range(REPAIRS):
        if best.holds:
            break
        more = [one.key for one in tried.broken if one.key not in first]
        if not more:
            break
        first = more + first
        tried = plan(promises, timeline.copy(), first, caution)
        if len(tried.broken) < len(best.broken):
            best = tried
    return best
