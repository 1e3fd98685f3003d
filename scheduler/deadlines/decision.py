"""Newcomers of one turn: admitted with their planned ends, or refused with counter-offers (ElasticFlow 4.1).

All newcomers of a turn are decided together: if there is room for all of them, all are admitted, in any order. If not,
they are admitted one by one in ascending order of GPU time, which leaves room for most; of equal ones the first.

A deadline holds because of the plan for it, not by itself. The least GPU time that ends the job by then may be in the
way of another promise, while the GPU time for an earlier end may not (`promises`, "what is exact"). So a newcomer with
a deadline that does not hold, while an earlier one does, is admitted, and planned to end by the earlier one.

A refusal comes with a counter-offer: the earliest deadline that would hold, and the smallest changes that would each
save the job's own deadline. These are less work, more GPUs in the cluster, or the consent of less important jobs, which
would go on without a promise. Each of these has been tried with the same calculation that admits: the job would be
admitted if nothing else happens before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from .allocation import soft_too
from .promises import Plan, Promise, continued, fill, in_order, longer, settle
from .timeline import Filled, Timeline

SEARCH = 20  # limit of a bisection's steps
FINE = 0.005  # relative size of the range at which a search ends
CAUTION = 1  # argument of `promises.plan`: a running job pays for one change of its share, if it can
MOST_TRIED = 12  # limit of jobs that are tried one by one for their consent


@dataclass(frozen=True)
class Commitments:
    """The promises that have been given, and the GPUs for them.

    `gpus`: those that may be promised. `promised`: jobs that have promises, in any order. `busy`: GPUs among these that
    others hold for a time: (from, until, how many). `first`: keys of jobs that come before the order of deadlines
    (`promises.settle`). Times are as `now`.
    """

    now: float
    gpus: int
    promised: Sequence[Promise] = ()
    busy: Sequence[tuple[float, float, int]] = ()
    first: tuple[int, ...] = ()

    def timeline(self, gpus: int | None = None) -> Timeline:
        found = Timeline(self.now, self.gpus if gpus is None else gpus)
        for from_s, until_s, count in self.busy:
            found.occupy(from_s, until_s, count)
        return found

    def plan(self, newcomers: Sequence[Promise] = (), gpus: int | None = None) -> Plan | None:
        """Return a plan with which all deadlines hold, those of `newcomers` included; None if there is none."""
        found = self._anew(newcomers, gpus)
        if isinstance(found, Plan):
            return found
        kept = self._kept(newcomers, gpus)
        return kept if kept is not None and kept.holds else None

    def able(self, newcomers: Sequence[Promise]) -> tuple[Commitments, Plan | None]:
        """Return the situation without promises that have become impossible to keep, and a plan of the rest with the
        newcomers; None: there is none."""
        new = {one.key for one in newcomers}
        found = self._anew(newcomers)
        if isinstance(found, Plan):
            return self, found
        kept = self._kept(newcomers)
        if kept is not None and all(one.key in new for one in kept.broken):
            return self, kept if kept.holds else None
        if found.key in new:
            return self, None
        settled = settle(self.promised, self.timeline())
        if settled.holds and not settled.first:
            return self, None
        rest = [one for one in self.promised if one.key in settled.found]
        situation = replace(self, promised=rest, first=settled.first)
        return situation, situation.plan(newcomers)

    def _anew(self, newcomers: Sequence[Promise], gpus: int | None = None) -> Plan | Promise:
        """Return a new plan in the order of deadlines, or the first job that finds too little."""
        order = in_order([*self.promised, *newcomers], self.first)
        return longer(Plan(self.timeline(gpus), self.first), order, CAUTION)

    def _kept(self, newcomers: Sequence[Promise], gpus: int | None = None) -> Plan | None:
        """Return a plan of the newcomers beside the rest of the last plan."""
        return continued([*self.promised, *newcomers], self.timeline(gpus))


@dataclass(frozen=True)
class Offer:
    """Changes that would hold instead, each by itself.

    `deadline_s`: the earliest deadline with which the job would be admitted; inf: none (its minimum is more than all
    GPUs). `left_s`: the work, in seconds on one GPU, with which it would be admitted as it is; 0: none. `more_gpus`:
    how many more GPUs of the cluster would admit it; None: no number helps. `consent`: keys of jobs that count less, or
    have soft deadlines, and that would have to go on without their promises; empty: that would not help.
    """

    deadline_s: float
    left_s: float
    more_gpus: int | None
    consent: tuple[int, ...]


@dataclass(frozen=True)
class AdmissionDecision:
    """The decision about a newcomer.

    `finish_s`: when it ends if it gets no more than its minimum; inf: not promised. `gpus`: its minimum satisfactory
    share, the most GPUs that it needs at a time; 0: not promised. `gpu_s`: the GPU time that it needs. `by_s`: the
    deadline for its plan, which is before its own; inf: its own. `offer`: if it is refused. `pool`: number of the pool
    to which `finish_s`, `gpus`, `gpu_s` and `offer` apply (`pool_assignment`).
    """

    key: int
    admitted: bool
    finish_s: float = math.inf
    gpus: int = 0
    gpu_s: float = math.inf
    by_s: float = math.inf
    offer: Offer | None = None
    pool: int = 0


def decided(
    situation: Commitments, newcomers: Sequence[Promise], offers: bool = True
) -> tuple[list[AdmissionDecision], Plan]:
    """Return the verdicts on the newcomers, in their order, and the plan of all jobs that then have promises.

    All newcomers have deadlines. `offers`: refusals come with counter-offers, and a job is admitted if an earlier
    deadline than its own holds. Soft deadlines refuse no job: their verdicts state whether there is room for them
    beside all others. Counter-offers count the jobs that have been admitted in the same turn. The plan includes soft
    deadlines for which there is room, and is kept from now on.
    """
    hard = [one for one in newcomers if not one.soft]
    situation, plan = situation.able(hard)
    chosen = hard
    if plan is None:
        chosen, plan = _chosen(situation, hard)
    then = replace(situation, promised=[*situation.promised, *chosen])
    found = plan or then.plan() or Plan(then.timeline())
    by_s: dict[int, float] = {}
    offered: dict[int, Offer] = {}
    for one in hard if offers else ():
        if one.key in found.found:
            continue
        offer = offered[one.key] = counter_offer(then, one)
        sooner = replace(then, promised=[*then.promised, structs.replace(one, deadline_s=offer.deadline_s)])
        if offer.deadline_s < one.deadline_s and (held := sooner.plan()) is not None:
            then, found, by_s[one.key] = sooner, held, offer.deadline_s
    soft_too(found, [one for one in newcomers if one.soft])
    return [
        admitted(one, found.found[one.key], by_s.get(one.key, math.inf))
        if one.key in found.found
        else AdmissionDecision(
            one.key, one.soft, offer=offered.get(one.key) or (counter_offer(then, one) if offers else None)
        )
        for one in newcomers
    ], found


def _chosen(situation: Commitments, newcomers: Sequence[Promise]) -> tuple[list[Promise], Plan | None]:
    """Return the newcomers to admit if not all fit, and the resulting plan of all jobs; None: none is admitted."""
    chosen: list[Promise] = []
    found = None
    if len(newcomers) <= 1:
        return chosen, found
    for one in sorted(newcomers, key=lambda one: (alone_gpu_s(situation, one), one.key)):
        tried = situation.plan([*chosen, one])
        if tried is not None:
            chosen.append(one)
            found = tried
    return chosen, found


def alone_gpu_s(situation: Commitments, one: Promise) -> float:
    """Return the GPU time that a job needs if there is no other; inf if it cannot end in time."""
    filled = fill(situation.timeline(), one)
    return math.inf if filled is None else filled.gpu_s


def admitted(one: Promise, filled: Filled, by_s: float, pool: int = 0) -> AdmissionDecision:
    """Return the verdict on an admitted job with these GPUs."""
    return AdmissionDecision(
        one.key, True, filled.finish_s, one.levels.counts[filled.level], filled.gpu_s, by_s, pool=pool
    )


# -- counter-offers


def counter_offer(situation: Commitments, newcomer: Promise) -> Offer:
    """Return changes with which a refused newcomer would be admitted."""
    return Offer(
        deadline_s=earliest_deadline(situation, newcomer),
        left_s=most_work(situation, newcomer),
        more_gpus=more_gpus(situation, newcomer),
        consent=consents(situation, newcomer),
    )


def within(situation: Commitments, newcomer: Promise, gpu_s: float) -> Offer:
    """Return a later deadline, or less work, with which a newcomer takes no more GPU time than `gpu_s`."""

    def would(after_s: float) -> bool:
        return _takes_gpu_s(situation, structs.replace(newcomer, deadline_s=situation.now + after_s)) <= gpu_s

    levels = newcomer.levels
    after_s = math.inf
    if len(levels) and levels.counts[1] <= situation.gpus and newcomer.left_s / levels.gain(1) <= gpu_s:
        after_s = _least(
            would, newcomer.deadline_s - situation.now, 2 * newcomer.left_s / levels.rates[1] + newcomer.lead_s
        )
    left_s = _most(
        lambda left_s: _takes_gpu_s(situation, structs.replace(newcomer, left_s=left_s)) <= gpu_s, newcomer.left_s
    )
    return Offer(situation.now + after_s, left_s, None, ())


def _takes_gpu_s(situation: Commitments, newcomer: Promise) -> float:
    """Return the newcomer's GPU time beside all promises; inf if its deadline does not hold."""
    plan = situation.plan([newcomer])
    return plan.found[newcomer.key].gpu_s if plan is not None else math.inf


def earliest_deadline(situation: Commitments, newcomer: Promise) -> float:
    """Return the earliest deadline with which a job would be admitted, to half a percent of the time until then; inf:
    none."""
    if not len(newcomer.levels) or newcomer.levels.counts[1] > situation.gpus:
        return math.inf
    now = situation.now
    best = newcomer.levels.rates[newcomer.levels.at_most(situation.gpus)]
    shortest_s = newcomer.left_s / best + newcomer.lead_s
    last_s = max([one.deadline_s for one in situation.promised], default=now)

    def would(after_s: float) -> bool:
        return situation.plan([structs.replace(newcomer, deadline_s=now + after_s)]) is not None

    after_s = _least(would, shortest_s * (1 + 1e-9), max(last_s - now, 0.0) + 2 * shortest_s + 1.0)
    return now + after_s


def most_work(situation: Commitments, newcomer: Promise) -> float:
    """Return the most work with which a job would be admitted as it is, to half a percent of its own; 0: none."""
    return _most(lambda left_s: situation.plan([structs.replace(newcomer, left_s=left_s)]) is not None, newcomer.left_s)


def _most(would: Callable[[float], bool], whole: float) -> float:
    """Return the greatest value below `whole` that satisfies a monotone condition, to 0.5 % of `whole`; or 0."""
    held, broken = 0.0, whole
    for _ in range(SEARCH):
        if broken - held <= FINE * whole:
            break
        middle = (held + broken) / 2
        if would(middle):
            held = middle
        else:
            broken = middle
    return held


def more_gpus(situation: Commitments, newcomer: Promise) -> int | None:
    """Return how many more GPUs in the cluster would admit a job; None if no number would, as it does not scale that
    far."""
    most = newcomer.levels.counts[-1]
    if not len(newcomer.levels) or situation.plan([newcomer], situation.gpus + most) is None:
        return None
    none, enough = 0, most
    while enough - none > 1:
        middle = (none + enough) // 2
        if situation.plan([newcomer], situation.gpus + middle) is None:
            none = middle
        else:
            enough = middle
    return enough


def consents(situation: Commitments, newcomer: Promise) -> tuple[int, ...]:
    """Return a smallest set of less important jobs that would have to give up their promises for the newcomer; empty if
    that does not help.

    Smallest: none of them could keep its promise beside the others' and the newcomer's. Soft deadlines come first, then
    the lowest priority, then the latest deadline.
    """
    asked = [one for one in situation.promised if one.soft or one.priority < newcomer.priority]
    asked.sort(key=lambda one: (not one.soft, one.priority, -one.deadline_s, one.key))

    def would(without: Sequence[Promise]) -> bool:
        keys = {one.key for one in without}
        rest = [one for one in situation.promised if one.key not in keys]
        return replace(situation, promised=rest).plan([newcomer]) is not None

    none, enough = 0, len(asked)
    if not asked or not would(asked):
        return ()
    while enough - none > 1:
        middle = (none + enough) // 2
        if would(asked[:middle]):
            enough = middle
        else:
            none = middle
    chosen = asked[:enough]
    for one in asked[:enough][:-1][:MOST_TRIED]:
        without = [other for other in chosen if other is not one]
        if would(without):
            chosen = without
    return tuple(one.key for one in chosen)


def _least(would: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least value for which a monotone condition holds; inf if it does not even hold far beyond `high`."""
    for _ in range(SEARCH):
        if would(high):
            break
        low, high = high, 2 * high
    else:
        return math.inf
    if would(low):
        return low
    for _ in range(SEARCH):
        if high - low <= FINE * high:
            break
        middle = (low + high) / 2
        if would(middle):
            high = middle
        else:
            low = middle
    return high
