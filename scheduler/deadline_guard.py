"""Deadlines under any policy that may change shares at any time: promised jobs get the GPUs that they need.

A promised job gets the GPUs of its plan for now, and the policy divides the rest among the jobs without promises. GPUs
that these cannot use go to the promised jobs, also divided by the policy (`sharing`). More GPUs than the plan never do
harm: a job that is ahead of its plan needs less later (ElasticFlow 4.2). So jobs without deadlines end as soon as the
promises allow, and a promised job ends by its deadline (ElasticFlow 4.4). A promised job also waits while that costs
nothing (`postponing`).

Where the policy divides GPUs among promised jobs, it may leave one of them less than its plan. Then the others give
back the missing GPUs: the job that loses least by it first, and none falls below its minimum as long as that is enough
(`raised`).

A job with a breaking promise comes next, with as many GPUs as it can use. A deadline that is not promised takes nothing
from others: a job with an unknown throughput or length, or one that is being measured, gets the share of a job without
a deadline.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..protocol.model import JobId
from .arrays import Ints
from .deadlines.pool_assignment import PoolCommitments, settled, soft_among
from .deadlines.pools import Pool
from .deadlines.postponing import latest_start_s, postponed
from .deadlines.promises import Plan, Promise, in_order
from .deadlines.table import Busy as Busy
from .deadlines.table import DeadlineTerms, due, schedules, situations, soft_choices
from .manual import shares_by_hand
from .schedule import Schedule
from .sets import union
from .view import UNKNOWN_S, ClusterView, Gpus, JobTable, Schedules


@dataclass(frozen=True)
class Deadlines:
    """The `terms` on which deadlines are promised.

    `wide`: the view, extended by jobs that no policy decides about at present and by their GPUs, after its own rows and
    servers; None: there are none. `busy`: GPUs that are not free for a while, in every pool: (from, until, how many).
    `busy_on`: likewise, by GPU type. `uncertain`: rows of jobs that are
    being measured, whose deadlines are ignored for now.
    """

    terms: DeadlineTerms
    wide: ClusterView | None = None
    busy: Busy = ()
    busy_on: Mapping[str, Busy] = field(default_factory=dict)
    uncertain: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Needs:
    """GPUs that promises need now.

    `least`: by row, how many GPUs a job must have at least, if any. `homes`: by row, the GPUs of the type on which the
    promise is planned, of all jobs with a known promise. `stay`: rows without spare time for a change: they get no more
    than `least`.
    """

    least: Mapping[int, int]
    homes: Mapping[int, Gpus]
    stay: frozenset[int]


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

    def needs(self, view: ClusterView) -> Needs:
        """Return the needs of the rows in view."""
        found, rows = self.plan.found, {*self.plan.found, *(one.key for one in self.plan.broken)}
        rows = {row for row in rows if row < len(view.jobs)}
        everything = (1 << view.total_gpus) - 1
        return Needs(
            least={row: gpus for row in sorted(rows) if (gpus := self.least.get(row, 0))},
            homes={row: self.these.pools[self.homes[row]].gpus & everything for row in sorted(rows)},
            stay=frozenset(row for row in rows if row in found and not found[row].spare),
        )

    def starts_s(self, row: int) -> float:
        """Return when a job of the plan that has no GPUs gets some at the latest (Unix time); inf if unknown."""
        filled = self.plan.found[row]
        return latest_start_s(self.promised[row]) if filled.level <= 1 and self.waits else filled.more_s

    @property
    def waits(self) -> bool:
        """Whether jobs of the plan wait for others."""
        return self.waits_until_s > -math.inf


@dataclass(frozen=True, kw_only=True)
class Kept(Foreseen):
    """Shares after the promises have been applied, by row."""

    shares: Ints


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


def raised(jobs: JobTable, shares: Ints, least: Mapping[int, int], total: int) -> Ints:
    """Return the shares, raised to at least `least`. Other jobs give GPUs back for that, out of `total` GPUs."""
    given = shares.copy()
    for row, gpus in least.items():
        given[row] = max(int(given[row]), gpus)
    too_many = int(given.sum()) - total
    if too_many <= 0:
        return given
    heap: list[
        tuple[int, float, int]
    ] = []  # of jobs that have to give back all GPUs, the job submitted last comes first

    def offer(row: int) -> None:
        share, floor = int(given[row]), least.get(row, int(jobs.min_gpus[row]))
        if share > floor:
            speedup = jobs.curves.row(int(jobs.curve[row]))
            heapq.heappush(heap, (0, (speedup[share] - speedup[share - 1]) / max(speedup[share], 1e-12), row))
        elif share and row not in least:
            heapq.heappush(heap, (1, -float(row), row))

    for row in np.flatnonzero(given).tolist():
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
    return given


def next_s(foreseen: Foreseen, now: float) -> float:
    """Return when to decide again without an event (Unix time, s); inf: not before the next event."""
    found = foreseen.plan.next_s(now)
    return min(found, foreseen.waits_until_s) if foreseen.waits_until_s > now else found
