"""The pool of each promised job (`pools`), and the plans of all pools. Pure.

A job that has begun, or that has a schedule, has its pool already. A newcomer gets the first pool with a plan in which
its deadline and all others of the pool hold. Pools are tried in the order of the part of a pool's GPUs that the job
would need. If no pool has room, a waiting job with a promise moves to another pool, if both pools have plans then.

With a single pool, all of this amounts to one plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from . import decision
from .allocation import soft_too
from .decision import AdmissionDecision, Commitments, admitted, alone_gpu_s, counter_offer
from .pools import Pool
from .promises import Plan, Promise, in_order, settle

MOVES = 8  # limit of waiting jobs that are tried in another pool, for each newcomer and pool

Choices = Mapping[int, Promise]  # a job as a promise in each pool that it may use, by the pool's number


@dataclass(frozen=True)
class PoolCommitments:
    """The commitments of each pool. `choices`: returns the choices of the promised job with this key."""

    pools: tuple[Pool, ...]
    each: tuple[Commitments, ...]
    choices: Callable[[int], Choices]

    def moved(self, key: int, before: int, after: int) -> PoolCommitments:
        """Return the situations with a promised job in another pool."""
        each = list(self.each)
        each[before] = replace(each[before], promised=[one for one in each[before].promised if one.key != key])
        each[after] = replace(each[after], promised=[*each[after].promised, self.choices(key)[after]])
        return replace(self, each=tuple(each))


def settled(these: PoolCommitments) -> tuple[PoolCommitments, list[Plan]]:
    """Return the best plan of each pool (`promises.settle`).

    A job that would be late moves to another pool where all deadlines hold with it, if it may use one.
    """
    plans = [settle(one.promised, one.timeline()) for one in these.each]
    if len(plans) == 1:
        return these, plans
    for before, plan in enumerate(plans):
        for late in tuple(plan.broken):
            for after, one in these.choices(late.key).items():
                target = these.each[after]
                if after == before or plans[after].broken:
                    continue
                tried = settle([*target.promised, one], target.timeline())
                if tried.holds:
                    these = these.moved(late.key, before, after)
                    source = these.each[before]
                    plans[after], plans[before] = tried, settle(source.promised, source.timeline())
                    break
    return these, plans


def soft_among(
    these: PoolCommitments, plans: Sequence[Plan], soft: Iterable[Choices]
) -> tuple[list[int], dict[int, int]]:
    """Promise as many soft deadlines beside those of the plans as there is room for. Changes `plans`.

    Return the keys of the jobs that find none, and by key the pools of the others.
    """
    left, homes = [], {}
    by_key = {_any(choices).key: choices for choices in soft}
    for first in in_order(_any(choices) for choices in by_key.values()):
        for number in _preferred(these.each, by_key[first.key]):
            if not soft_too(plans[number], [by_key[first.key][number]]):
                homes[first.key] = number
                break
        else:
            left.append(first.key)
    return left, homes


def decided(
    these: PoolCommitments, newcomers: Sequence[Choices], offers: bool = True
) -> tuple[list[AdmissionDecision], dict[int, Plan]]:
    """Return the verdicts on the newcomers, in their order, and the new plans by pool; as `decision.decided`.

    In several pools, and where jobs have a fixed number of GPUs per server, newcomers are decided one by one.
    """
    if len(these.each) == 1 and not any(choices[0].each for choices in newcomers):
        verdicts, plan = decision.decided(these.each[0], [choices[0] for choices in newcomers], offers)
        return verdicts, {0: plan}
    turn = _Turn(these)
    found: dict[int, AdmissionDecision] = {}
    for choices in sorted(newcomers, key=turn.cost):
        if not _any(choices).soft:
            one = turn.admit(choices) or turn.admit_by_move(choices)
            one = one or turn.refuse(choices, offers)
            found[one.key] = one
    for choices in newcomers:
        if _any(choices).soft:
            one = turn.soft(choices) or turn.refuse(choices, offers)
            found[one.key] = one
    return [found[_any(choices).key] for choices in newcomers], turn.plans


class _Turn:
    """The newcomers of one turn, one after the other."""

    def __init__(self, these: PoolCommitments) -> None:
        self._these = these
        self._servers = [0] * len(these.each)  # by pool: servers that newcomers with fixed numbers of GPUs may take
        self.plans: dict[int, Plan] = {}

    def cost(self, choices: Choices) -> tuple[float, int]:
        each = self._these.each
        return min(alone_gpu_s(each[number], one) for number, one in choices.items()), _any(choices).key

    def admit(self, choices: Choices) -> AdmissionDecision | None:
        """Admit a newcomer to the first pool that has room for it; None: there is none."""
        for number in _preferred(self._these.each, choices):
            one = self._seated(choices, number)
            situation, plan = self._these.each[number].able([one])
            if plan is not None:
                return self._take(number, one, replace(situation, promised=[*situation.promised, one]), plan)
        return None

    def admit_by_move(self, choices: Choices) -> AdmissionDecision | None:
        """Admit a newcomer to a pool from which a waiting job with a promise can move to another one."""
        if len(self._these.each) == 1:
            return None
        for number in _preferred(self._these.each, choices):
            one = self._seated(choices, number)
            waiting = [other for other in self._these.each[number].promised if not other.share and not other.each]
            for other in sorted(waiting, key=lambda other: (-other.deadline_s, other.key))[:MOVES]:
                for after in self._these.choices(other.key):
                    if after == number:
                        continue
                    there = self._these.moved(other.key, number, after)
                    if (plan := there.each[number].plan([one])) is None:
                        break
                    if (plan_there := there.each[after].plan()) is not None:
                        self._these, self.plans[after] = there, plan_there
                        situation = there.each[number]
                        return self._take(number, one, replace(situation, promised=[*situation.promised, one]), plan)
        return None

    def refuse(self, choices: Choices, offers: bool) -> AdmissionDecision:
        """Refuse a newcomer, with a counter-offer, or admit it with an earlier deadline than its own."""
        key, soft, found = _any(choices).key, _any(choices).soft, []
        for number in _preferred(self._these.each, choices) if offers else ():
            one, situation = self._seated(choices, number), self._these.each[number]
            offer = counter_offer(situation, one)
            if not soft and offer.deadline_s < one.deadline_s:
                sooner = structs.replace(one, deadline_s=offer.deadline_s)
                if (plan := situation.plan([sooner])) is not None:
                    situation = replace(situation, promised=[*situation.promised, sooner])
                    return self._take(number, one, situation, plan, offer.deadline_s)
            found.append((offer.deadline_s, -offer.left_s, number, offer))
        if not found:
            return AdmissionDecision(key, soft)
        *_, number, offer = min(found, key=lambda one: one[:3])
        return AdmissionDecision(key, soft, offer=offer, pool=number)

    def soft(self, choices: Choices) -> AdmissionDecision | None:
        """Return the verdict on a soft deadline for which there is room beside all others; None: there is none."""
        for number in _preferred(self._these.each, choices):
            one = self._seated(choices, number)
            if number not in self.plans:
                situation = self._these.each[number]
                self.plans[number] = situation.plan() or Plan(situation.timeline())
            plan = self.plans[number]
            if not soft_too(plan, [one]):
                self._seat(number, one, plan)
                return admitted(one, plan.found[one.key], math.inf, number)
        return None

    def _take(
        self, number: int, one: Promise, situation: Commitments, plan: Plan, by_s: float = math.inf
    ) -> AdmissionDecision:
        each = list(self._these.each)
        each[number] = situation
        self._these, self.plans[number] = replace(self._these, each=tuple(each)), plan
        self._seat(number, one, plan)
        return admitted(one, plan.found[one.key], by_s, number)

    def _seated(self, choices: Choices, number: int) -> Promise:
        """Return the newcomer as a promise in a pool, without the servers that other newcomers of the turn may take."""
        one = choices[number]
        return structs.replace(one, seats=max(0, one.seats - self._servers[number] * one.each)) if one.each else one

    def _seat(self, number: int, one: Promise, plan: Plan) -> None:
        if one.each:
            self._servers[number] += plan.found[one.key].gpus // one.each


def chosen(choices: Choices, found: AdmissionDecision) -> Promise:
    """Return the job as a promise in the pool of the verdict."""
    return choices.get(found.pool) or _any(choices)


def _any(choices: Choices) -> Promise:
    return next(iter(choices.values()))


def _preferred(each: Sequence[Commitments], choices: Choices) -> list[int]:
    """Return the pools that a job may use: first that where it has GPUs, then the one of which it needs the smallest
    part."""
    if len(choices) == 1:
        return list(choices)

    def part(number: int) -> tuple[bool, float, int]:
        one, situation = choices[number], each[number]
        load_gpu_s = sum([other.left_s / other.levels.gain(1) for other in situation.promised if len(other.levels)])
        own_gpu_s = one.left_s / one.levels.gain(1) if len(one.levels) else math.inf
        return not one.share, (load_gpu_s + own_gpu_s) / max(situation.gpus, 1), number

    return sorted(choices, key=part)
