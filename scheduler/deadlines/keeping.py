"""Deadlines beside any policy that may change shares at any time: promised jobs have what their promises need, whatever it gives.

A promised job gets what its plan says for now, and jobs without promises share what is left: the policy divides that among them.
What they cannot use goes to the promised jobs, divided by the policy, too (`divide`). More than the plan says never does harm:
whoever is ahead of his plan needs less later (ElasticFlow 4.2). So jobs without deadlines end as soon as the promises allow, and
a promised job ends by its deadline (ElasticFlow 4.4); a promised job also waits, while that costs nothing (`postponing`).

Where quotas or the policy nevertheless leave a promised job less than its plan says, others give back what is lacking: who loses
least by it first, and nobody below his minimum as long as that is enough (`keep`).

A job whose promise breaks comes next, with as many GPUs as it can use. A deadline that is not promised takes nothing from others:
a job whose throughput or length is still unknown, or is being measured, gets what the policy gives a job without a deadline.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..manual import shares_by_hand
from ..policies.base import Shares, no_shares, waits_for
from ..view import UNKNOWN_S, Bools, ClusterView, Ints, JobTable, Reason, Schedules
from .allocation import soft_too
from .postponing import latest_start_s, postponed
from .promises import Plan, Promise, settle
from .table import Terms, due, promises, schedules, situation

Busy = Sequence[tuple[float, float, int]]
Ask = Callable[[JobTable, int], Shares]  # what the policy gives these jobs, alone, of so many GPUs


@dataclass(frozen=True)
class Deadlines:
    """On which `terms` deadlines are promised. `wide`: the view, and behind its rows and servers such jobs as no policy decides
    about at present, with their GPUs; None: there are none. `busy`: GPUs that are not free for a while: (from, until, how many).
    `uncertain`: rows whose deadlines are not looked at yet, though something is known of them.
    """

    terms: Terms
    wide: ClusterView | None = None
    busy: Busy = ()
    uncertain: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Needs:
    """What promises need now, by row. `least`: how many GPUs a job is to have at least; -1: it has no promise that is known of.
    `exact`: it has no time to spare for a change, and gets no more than that."""

    least: Ints
    exact: Bools

    def cut(self, rows: Ints) -> Needs:
        """Of these rows alone."""
        return Needs(self.least[rows], self.exact[rows])


@dataclass(frozen=True)
class Foreseen:
    """`plan`: of all jobs with promises, soft ones among them; `unkept`: rows whose soft deadlines do not hold.
    `unknown`: rows whose deadlines cannot be looked at yet. `least`: by row of the view, how many GPUs a job is to have at least.
    `waits_until_s`: jobs of the plan wait for others until then (Unix time); -inf: none does. Other rows are those of
    `Deadlines.wide`, if there is one. `schedules`: as in `JobTable`, for the next decision."""

    plan: Plan
    promised: dict[int, Promise]
    unkept: tuple[int, ...]
    unknown: tuple[int, ...]
    least: Mapping[int, int]
    waits_until_s: float = -math.inf
    schedules: Schedules = field(default_factory=dict)

    def needs(self, rows: int) -> Needs:
        """Of a view with so many rows."""
        found = Needs(np.full(rows, -1), np.zeros(rows, dtype=bool))
        for row in (*self.plan.found, *(one.key for one in self.plan.broken)):
            if row < rows:
                found.least[row] = self.least.get(row, 0)
                found.exact[row] = row in self.plan.found and not self.plan.found[row].spare
        return found

    def starts_s(self, row: int) -> float:
        """When a job of the plan that has no GPUs gets some at the latest (Unix time); inf: that is not known."""
        filled = self.plan.found[row]
        return latest_start_s(self.promised[row]) if filled.level <= 1 and self.waits else filled.more_s

    @property
    def waits(self) -> bool:
        """Do jobs of the plan wait for others?"""
        return self.waits_until_s > -math.inf


@dataclass(frozen=True, kw_only=True)
class Kept(Foreseen):
    """What has become of it. `shares`: by row. `lowered`: rows that got less than the policy gave."""

    shares: Ints
    lowered: frozenset[int]


def has_any(view: ClusterView, deadlines: Deadlines) -> bool:
    """Has any job a deadline?"""
    return bool(np.isfinite((deadlines.wide or view).jobs.deadline_s).any())


def foresee(view: ClusterView, deadlines: Deadlines) -> Foreseen:
    """What the promises need, now and later."""
    wide, terms = deadlines.wide or view, deadlines.terms
    jobs = wide.jobs
    asked, _ = situation(wide, (), terms)
    asked = replace(asked, busy=deadlines.busy)
    plan = settle(asked.promised, asked.timeline())
    promised = {one.key: one for one in asked.promised}
    soft = [row for row in due(jobs).tolist() if jobs.soft[row] and row not in wide.manual_shares]
    soft = [row for row in soft if row not in deadlines.uncertain]
    of_soft = promises(jobs, soft, asked.gpus, view.now, terms)
    unkept = tuple(one.key for one in soft_too(plan, of_soft))
    promised |= {one.key: one for one in of_soft if one.key in plan.found}
    unknown = tuple(
        row
        for row in np.flatnonzero(np.isfinite(jobs.deadline_s)).tolist()
        if (jobs.left_s[row] >= UNKNOWN_S or row in deadlines.uncertain) and row not in wide.manual_shares
    )
    waits_until_s = -math.inf
    if later := postponed(asked, plan, promised, _useful(view, {*promised, *view.manual_shares})):
        plan, waits_until_s = later
    least = _needed(view, plan, promised)
    return Foreseen(plan, promised, unkept, unknown, least, waits_until_s, schedules(jobs, plan))


def _useful(view: ClusterView, others: Collection[int]) -> int:
    """How many GPUs the jobs of the view can use, but for these rows."""
    jobs = view.jobs
    most = np.where(jobs.min_gpus <= view.total_gpus, np.minimum(jobs.max_gpus, jobs.curves.most), 0)
    most[[row for row in others if row < len(most)]] = 0
    return int(most.sum())


def divide(jobs: JobTable, needs: Needs, gpus: int, ask: Ask) -> Shares:
    """The shares of some jobs: those without promises first, of what the others need not; then these, of all that is left."""
    bound = needs.least >= 0
    if not bound.any() or (bound.all() and not needs.exact.any()):
        return _asked(jobs, gpus, gpus, ask)
    given = no_shares(jobs)
    given[needs.exact] = needs.least[needs.exact]
    told: dict[int, tuple[Shares, int]] = {}  # by row: where its reason stands
    others, able = np.flatnonzero(~bound), np.flatnonzero(bound & ~needs.exact)
    review_s = math.inf
    for rows, kept in ((others, int(needs.least[able].sum())), (able, 0)):
        left = max(0, gpus - int(given.sum()))
        found = _asked(jobs.cut(rows), max(0, left - kept), gpus, ask)
        least = {at: need for at, need in enumerate(needs.least[rows].tolist()) if need > 0}
        given[rows] = raised(jobs.cut(rows), found.gpus, least, left)[0]
        told |= {row: (found, at) for at, row in enumerate(rows.tolist())}
        review_s = min(review_s, found.review_s)

    def why(row: int) -> Reason | None:
        found, at = told.get(row, (None, 0))
        return found.why(at) if found is not None else None

    return Shares(given, why, review_s)


def _asked(jobs: JobTable, gpus: int, of: int, ask: Ask) -> Shares:
    """As the policy has it, asked about `gpus` GPUs, `of` those that there are; jobs whose minimum is beyond these get none."""
    able = np.flatnonzero(jobs.min_gpus <= gpus)
    if len(able) == len(jobs) > 0:
        return ask(jobs, gpus)
    given = no_shares(jobs)
    told = ask(jobs.cut(able), gpus) if len(able) else Shares(no_shares(jobs)[able], lambda _: None)
    given[able] = told.gpus
    place = {row: at for at, row in enumerate(able.tolist())}
    free = gpus - int(given.sum())

    def why(row: int) -> Reason | None:
        return told.why(place[row]) if row in place else waits_for(int(jobs.min_gpus[row]), free, of)

    return Shares(given, why, told.review_s)


def keep(view: ClusterView, shares: Ints, foreseen: Foreseen) -> Kept:
    """Raise the `shares` that a policy has given, by row of the view, to what the promises need."""
    by_hand = frozenset(view.manual_shares)
    given, lowered = raised(view.jobs, shares, foreseen.least, view.total_gpus, by_hand)
    return Kept(**vars(foreseen), shares=given, lowered=lowered)


def _needed(view: ClusterView, plan: Plan, promised: Mapping[int, Promise]) -> dict[int, int]:
    """By row, how many GPUs a job is to have at least."""
    rows = len(view.jobs)
    held = int(shares_by_hand(view).sum()) if view.manual_shares else 0
    free = view.total_gpus - held
    least: dict[int, int] = {}
    for row, filled in plan.found.items():  # GPUs that the view does not show may be reckoned with, and come later
        levels = promised[row].levels
        can = levels.counts[levels.at_most(max(0, min(filled.gpus, free)))] if row < rows else 0
        if can:
            least[row] = can
            free -= can
    for one in plan.broken:
        can = one.levels.counts[one.levels.at_most(max(free, 0))] if len(one.levels) and one.key < rows else 0
        if can:
            least[one.key] = can
            free -= can
    for row, filled in plan.found.items():  # who has no time for a change keeps what it has, if it can
        more = promised[row].share - least.get(row, 0)
        if row < rows and not filled.spare and 0 < more <= free:
            least[row] = promised[row].share
            free -= more
    return least


def raised(
    jobs: JobTable, shares: Ints, least: Mapping[int, int], total: int, fixed: Collection[int] = ()
) -> tuple[Ints, frozenset[int]]:
    """The shares, none of these below what it is to have at least; and who gives GPUs back for that, as there are `total`.

    `fixed`: rows that give none.
    """
    given = shares.copy()
    for row, gpus in least.items():
        given[row] = max(int(given[row]), gpus)
    too_many = int(given.sum()) - total
    if too_many <= 0:
        return given, frozenset()
    heap: list[tuple[int, float, int]] = []  # the last ones submitted first, where whole jobs have to stop

    def offer(row: int) -> None:
        share, floor = int(given[row]), least.get(row, int(jobs.min_gpus[row]))
        if share > floor:
            speedup = jobs.curves.row(int(jobs.curve[row]))
            heapq.heappush(heap, (0, (speedup[share] - speedup[share - 1]) / max(speedup[share], 1e-12), row))
        elif share and row not in least:
            heapq.heappush(heap, (1, -float(row), row))

    for row in np.flatnonzero(given).tolist():
        if row not in fixed:
            offer(row)
    while too_many > 0 and heap:
        stops, _, row = heapq.heappop(heap)
        back = int(given[row]) if stops else 1
        given[row] -= back
        too_many -= back
        if not stops:
            offer(row)
    for row in np.flatnonzero((given > 0) & (given < shares)).tolist():  # whole jobs may have given back too much
        back = min(int(shares[row] - given[row]), -too_many)
        if back > 0:
            given[row] += back
            too_many += back
    return given, frozenset(np.flatnonzero(given < shares).tolist())


def next_s(kept: Foreseen, now: float) -> float:
    """When to look again, though nothing has happened (Unix time, s); inf: not before something has."""
    found = kept.plan.next_s(now)
    return min(found, kept.waits_until_s) if kept.waits_until_s > now else found
