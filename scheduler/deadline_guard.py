"""Deadlines beside any policy that may change shares at any time: promised jobs get the GPUs that they need.

A promised job gets the GPUs of its plan for now, and the policy divides the rest among the jobs without promises. GPUs
that these cannot use go to the promised jobs, also divided by the policy (`divide`). More GPUs than the plan never do
harm: a job that is ahead of its plan needs less later (ElasticFlow 4.2). So jobs without deadlines end as soon as the
promises allow, and a promised job ends by its deadline (ElasticFlow 4.4). A promised job also waits while that costs
nothing (`postponing`).

Quotas or the policy may nevertheless leave a promised job less than its plan. Then other jobs give back the missing
GPUs: the job that loses least by it first, and no job falls below its minimum as long as that is enough (`keep`).

A job with a breaking promise comes next, with as many GPUs as it can use. A deadline that is not promised takes nothing
from others: a job with an unknown throughput or length, or one that is being measured, gets the share of a job without
a deadline.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..protocol.model import JobId
from .arrays import Bools, Ints
from .deadlines.pool_assignment import PoolCommitments, settled, soft_among
from .deadlines.pools import Pool
from .deadlines.postponing import latest_start_s, postponed
from .deadlines.promises import Plan, Promise, in_order
from .deadlines.table import Busy as Busy
from .deadlines.table import DeadlineTerms, due, schedules, situations, soft_choices
from .manual import shares_by_hand
from .policies.base import Shares, no_shares, waits_for
from .schedule import Schedule
from .sets import union
from .view import UNKNOWN_S, ClusterView, JobTable, Reason, Schedules

Ask = Callable[[JobTable, int], Shares]  # returns the policy's shares of these jobs alone, for so many GPUs


@dataclass(frozen=True)
class Deadlines:
    """The `terms` on which deadlines are promised.

    `wide`: the view, extended by jobs that no policy decides about at present and by their GPUs, after its own rows and
    servers; None: there are none. `busy`: GPUs that are not free for a while, in every pool: (from, until, how many).
    `busy_on`: likewise, by GPU type. `uncertain`: rows with deadlines that are ignored for now, though something is
    known of them.
    """

    terms: DeadlineTerms
    wide: ClusterView | None = None
    busy: Busy = ()
    busy_on: Mapping[str, Busy] = field(default_factory=dict)
    uncertain: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Needs:
    """GPUs that promises need now, by row.

    `least`: how many GPUs a job must have at least; -1: it has no known promise. `exact`: the job has no spare time for
    a change, and gets no more than `least`.
    """

    least: Ints
    exact: Bools

    def cut(self, rows: Ints) -> Needs:
        """Return the needs of these rows alone."""
        return Needs(self.least[rows], self.exact[rows])


@dataclass(frozen=True)
class Foreseen:
    """Needs of the promises now and later.

    `plan`: of all jobs with promises, soft ones included. `unkept`: rows with soft deadlines that do not hold.
    `unknown`: rows with deadlines that cannot be evaluated yet. `least`: by row of the view, how many GPUs a job must
    have at least. `waits_until_s`: jobs of the plan wait for others until then (Unix time); -inf: none does. Other rows
    are those of `Deadlines.wide`, if there is one. `schedules`: as in `JobTable`, for the next decision. `these`: the
    situation of each pool, of jobs with promises. `homes`: by row, the number of the pool in which the job is planned.
    """

    plan: Plan
    promised: dict[int, Promise]
    unkept: tuple[int, ...]
    unknown: tuple[int, ...]
    least: Mapping[int, int]
    waits_until_s: float = -math.inf
    schedules: Schedules = field(default_factory=dict)
    these: PoolCommitments = field(kw_only=True)
    homes: Mapping[int, int] = field(default_factory=dict)

    def needs(self, rows: int) -> Needs:
        """Return the needs of a view with so many rows."""
        found = Needs(np.full(rows, -1), np.zeros(rows, dtype=bool))
        for row in (*self.plan.found, *(one.key for one in self.plan.broken)):
            if row < rows:
                found.least[row] = self.least.get(row, 0)
                found.exact[row] = row in self.plan.found and not self.plan.found[row].spare
        return found

    def starts_s(self, row: int) -> float:
        """Return the latest time at which a job of the plan without GPUs gets some (Unix time); inf if that is not
        known."""
        filled = self.plan.found[row]
        return latest_start_s(self.promised[row]) if filled.level <= 1 and self.waits else filled.more_s

    @property
    def waits(self) -> bool:
        """Whether jobs of the plan wait for others."""
        return self.waits_until_s > -math.inf


@dataclass(frozen=True, kw_only=True)
class Kept(Foreseen):
    """The shares after promises are applied. `shares`: by row. `lowered`: rows that got less than the policy gave."""

    shares: Ints
    lowered: frozenset[int]


def has_any(view: ClusterView, deadlines: Deadlines) -> bool:
    """Return whether any job has a deadline."""
    return bool(np.isfinite((deadlines.wide or view).jobs.deadline_s).any())


def foresee(view: ClusterView, deadlines: Deadlines) -> Foreseen:
    """Return the needs of the promises, now and later."""
    wide, terms = deadlines.wide or view, deadlines.terms
    jobs = wide.jobs
    these, _ = situations(wide, (), terms, deadlines.busy, deadlines.busy_on)
    these, plans = settled(these)
    soft = [row for row in due(jobs).tolist() if jobs.soft[row] and row not in wide.manual_shares]
    soft = [row for row in soft if row not in deadlines.uncertain]
    of_soft = soft_choices(wide, soft, terms)
    unkept, homes = soft_among(these, plans, of_soft)
    by_pool = [{one.key: one for one in asked.promised} for asked in these.each]
    for row, choices in zip(soft, of_soft, strict=True):
        if row in homes:
            by_pool[homes[row]][row] = choices[homes[row]]
    unknown = tuple(
        row
        for row in np.flatnonzero(np.isfinite(jobs.deadline_s)).tolist()
        if (jobs.left_s[row] >= UNKNOWN_S or row in deadlines.uncertain) and row not in wide.manual_shares
    )
    others = {*view.manual_shares, *(row for own in by_pool for row in own)}
    waits_until_s = -math.inf
    least: dict[int, int] = {}
    of_next: dict[JobId, Schedule] = {}
    for number, (pool, asked, promised) in enumerate(zip(these.pools, these.each, by_pool, strict=True)):
        useful = _useful(view, others, pool if len(by_pool) > 1 else None)
        if later := postponed(asked, plans[number], promised, useful):
            plans[number], until_s = later
            waits_until_s = min(waits_until_s, until_s) if waits_until_s > -math.inf else until_s
        least |= _needed(view, pool if len(by_pool) > 1 else None, plans[number], promised)
        of_next |= schedules(jobs, plans[number], pool.name)
    return Foreseen(
        plan=plans[0] if len(plans) == 1 else _together(plans),
        promised={row: one for own in by_pool for row, one in own.items()},
        unkept=tuple(unkept),
        unknown=unknown,
        least=least,
        waits_until_s=waits_until_s,
        schedules=of_next,
        these=these,
        homes={row: number for number, own in enumerate(by_pool) for row in own},
    )


def _together(plans: Sequence[Plan]) -> Plan:
    """Return one plan with the jobs of all pools."""
    found = Plan(plans[0].timeline, tuple(key for plan in plans for key in plan.first))
    for plan in plans:
        found.found |= plan.found
        found.broken += plan.broken
    found.broken = in_order(found.broken)
    return found


def _useful(view: ClusterView, others: Collection[int], pool: Pool | None) -> int:
    """Return how many GPUs the jobs of the view can use in a pool, without these rows. `pool`: None: it has all
    GPUs."""
    jobs, gpus = view.jobs, view.total_gpus if pool is None else pool.gpus.bit_count()
    most = np.where(jobs.min_gpus <= gpus, np.minimum(jobs.max_gpus, jobs.curves.most), 0)
    most[[row for row in others if row < len(most)]] = 0
    if pool is not None and view.limit_of is not None:
        able = [any(option & pool.gpus for option in limit.options) for limit in view.limits]
        most[~np.array(able)[view.limit_of]] = 0
    return int(most.sum())


def divide(jobs: JobTable, needs: Needs, gpus: int, ask: Ask) -> Shares:
    """Return the shares of some jobs: first of jobs without promises, from the GPUs that the others do not need; then
    of promised jobs, from all that is left."""
    bound = needs.least >= 0
    if not bound.any() or (bound.all() and not needs.exact.any()):
        return _asked(jobs, gpus, gpus, ask)
    given = no_shares(jobs)
    given[needs.exact] = needs.least[needs.exact]
    told: dict[int, tuple[Shares, int]] = {}  # by row: the answer with its reason, and the row there
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
    """Return the policy's shares for `gpus` of the `of` present GPUs. Jobs with a larger minimum get none."""
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
    """Raise the `shares` of a policy, by row of the view, to the needs of the promises."""
    by_hand = frozenset(view.manual_shares)
    given, lowered = raised(view.jobs, shares, foreseen.least, view.total_gpus, by_hand)
    return Kept(**vars(foreseen), shares=given, lowered=lowered)


def _needed(view: ClusterView, pool: Pool | None, plan: Plan, promised: Mapping[int, Promise]) -> dict[int, int]:
    """Return how many GPUs of a pool a job must have at least, by row. `pool`: None: it has all GPUs."""
    rows = len(view.jobs)
    if pool is None:
        free = view.total_gpus - (int(shares_by_hand(view).sum()) if view.manual_shares else 0)
    else:
        there = pool.gpus & ((1 << view.total_gpus) - 1)
        free = (there & ~union(view.placements.get(row, 0) for row in view.manual_shares)).bit_count()
    least: dict[int, int] = {}
    for row, filled in plan.found.items():  # the plan may count with GPUs outside of the view that come later
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
    for row, filled in plan.found.items():  # a job without time for a change keeps its GPUs, if it can
        more = promised[row].share - least.get(row, 0)
        if row < rows and not filled.spare and 0 < more <= free:
            least[row] = promised[row].share
            free -= more
    return least


def raised(
    jobs: JobTable, shares: Ints, least: Mapping[int, int], total: int, fixed: Collection[int] = ()
) -> tuple[Ints, frozenset[int]]:
    """Raise the shares to at least `least`, and return them with the rows that give GPUs back for that, out of `total`
    GPUs.

    `fixed`: rows that give none.
    """
    given = shares.copy()
    for row, gpus in least.items():
        given[row] = max(int(given[row]), gpus)
    too_many = int(given.sum()) - total
    if too_many <= 0:
        return given, frozenset()
    heap: list[tuple[int, float, int]] = []  # where whole jobs have to stop, the job submitted last stops first

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
    for row in np.flatnonzero((given > 0) & (given < shares)).tolist():  # stopped jobs may have given too much
        back = min(int(shares[row] - given[row]), -too_many)
        if back > 0:
            given[row] += back
            too_many += back
    return given, frozenset(np.flatnonzero(given < shares).tolist())


def next_s(kept: Foreseen, now: float) -> float:
    """Return when to decide again without an event (Unix time, s); inf: not before the next event."""
    found = kept.plan.next_s(now)
    return min(found, kept.waits_until_s) if kept.waits_until_s > now else found
