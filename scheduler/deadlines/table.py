"""Conversion of the scheduler's view to promises: the rows with promises, and the GPUs that may be promised, by pool."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Annotated

import msgspec
import numpy as np
from msgspec import structs

from ..arrays import Floats, Ints
from ..levels import Levels, levels_by, levels_of
from ..manual import shares_by_hand
from ..sets import union
from ..view import UNKNOWN_S, ClusterView, Gpus, JobTable, Schedules
from .decision import Commitments
from .pool_assignment import Choices, PoolCommitments
from .pools import Pool, Pools, pools
from .promises import Plan, Promise
from .reserve import reserved_gpus

DAY_S = 86_400.0
NO_LEVELS = Levels((0,), (0.0,))

Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class DeadlineTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Terms on which deadlines are promised.

    `powers`: true: shares are powers of two, so that buddy placement finds a block for each (ElasticFlow 4.3); false:
    any number of GPUs. `margin_s`: jobs are planned to end so many seconds before their deadlines. `start_s`: how many
    seconds a job stands still when it gets its first GPUs. `resize_s`: how many seconds at each further change of its
    GPUs. `failures_per_server_day`: how often a server fails; GPUs are kept in reserve for that. `failure_s`: how many
    seconds a failed server is away. `failure_chance`: how likely it may be that more servers are away than the reserve
    has.
    """

    powers: bool = True
    margin_s: Seconds = 1.0
    start_s: Seconds = 5.0
    resize_s: Seconds = 0.5
    failures_per_server_day: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    failure_s: Seconds = DAY_S
    failure_chance: Part = 0.01

    def reserve(self, sizes: Sequence[int]) -> int:
        """Return the number of GPUs that are not promised, on servers with so many GPUs each."""
        if not self.failures_per_server_day:
            return 0
        per_s = self.failures_per_server_day / DAY_S
        return reserved_gpus(sizes, per_s, self.failure_s, self.failure_chance)


DEFAULT_TERMS = DeadlineTerms(powers=False)


def due(jobs: JobTable) -> Ints:
    """Return the rows with deadlines, soft ones included, and known lengths."""
    return np.flatnonzero((jobs.deadline_s < math.inf) & (jobs.left_s < UNKNOWN_S))


def promises(
    jobs: JobTable,
    rows: Sequence[int],
    gpus: int,
    now: float,
    terms: DeadlineTerms,
    new: bool = False,
    curve_on: Ints | None = None,
) -> list[Promise]:
    """Return the promises of these rows, which are their keys; `gpus`: no job has more.

    `new`: the jobs have not been admitted yet, so they have to end a margin before their deadlines. Jobs with promises
    may use up their margin if there is no other way. `curve_on`: as in `Curves.on`; None: the jobs' own curves apply.
    """
    at = np.asarray(rows, dtype=np.int64)
    columns = (
        jobs.left_s[at],
        jobs.deadline_s[at] - terms.margin_s,
        jobs.share[at],
        jobs.priority[at],
        jobs.soft[at],
        _lead_s(jobs, at, now, terms.start_s),
        jobs.curve[at] if curve_on is None else curve_on[jobs.curve[at]],
        jobs.min_gpus[at],
        np.minimum(jobs.max_gpus[at], gpus),
    )
    known: dict[tuple[int, int, int], Levels] = {}
    schedules = jobs.schedules
    found = []
    change_s = max(terms.start_s, terms.resize_s)  # the job may be interrupted, and start again
    for key, left_s, deadline_s, share, priority, soft, lead_s, curve, least, most in zip(
        at.tolist(), *[column.tolist() for column in columns], strict=True
    ):
        if (levels := known.get((curve, least, most))) is None:
            levels = known[curve, least, most] = levels_of(jobs.curves, curve, least, most, terms.powers)
        found.append(
            Promise(
                key=key,
                left_s=left_s,
                deadline_s=deadline_s,
                levels=levels,
                grace_s=0.0 if new else terms.margin_s,
                share=share,
                lead_s=lead_s,
                change_s=change_s,
                priority=priority,
                soft=bool(soft),
                schedule=schedules.get(jobs.name(key)) if schedules else None,
            )
        )
    return found


def _lead_s(jobs: JobTable, rows: Ints, now: float, start_s: float) -> Floats:
    """Return how long these rows stand still before they work, in seconds. `start_s`: for jobs without GPUs."""
    found: Floats = np.where(jobs.share[rows] > 0, np.maximum(jobs.still_until_s[rows] - now, 0.0), start_s)
    return found


Busy = Sequence[tuple[float, float, int]]  # GPUs that are not free for a while: (from, until, how many)


def situations(
    view: ClusterView, newcomers: Sequence[int], terms: DeadlineTerms, busy: Busy = (), busy_on: Mapping[str, Busy] = {}
) -> tuple[PoolCommitments, list[Choices]]:
    """Return the promises that have been given, by pool, and those that newcomers ask for.

    `newcomers`: rows of the view that are to be decided; those without deadlines, or of unknown length, are left out.
    All others of the view with hard deadlines have promises. Keys are rows. GPUs that are held by hand, or for a job
    that waits for many at once (`reservation`), are not promised. `busy`: counts in every pool; `busy_on`: by pool.
    """
    new = set(newcomers)
    table = _table(view, terms, new)
    hard = table.hard
    by_pool: list[list[int]] = [[] for _ in table.pools.all]
    for row, number in zip(hard, table.homes(hard), strict=True):
        by_pool[number].append(row)
    each = [
        Commitments(
            view.now,
            gpus,
            table.promises(number, by_pool[number], promised=True),
            (*busy, *busy_on.get(table.pools.all[number].name, ())),
        )
        for number, gpus in enumerate(table.gpus)
    ]
    these = PoolCommitments(table.pools.all, tuple(each), partial(table.choices, promised=True))
    return these, [table.choices(row) for row in due(view.jobs).tolist() if row in new]


def choices_of(view: ClusterView, row: int, terms: DeadlineTerms) -> Choices:
    """Return, by pool, the promises that a job without one may request."""
    return _table(view, terms).choices(row)


def soft_choices(view: ClusterView, rows: Sequence[int], terms: DeadlineTerms) -> list[Choices]:
    """Return the promises that jobs with soft deadlines ask for."""
    if not rows:
        return []
    table = _table(view, terms)
    if len(table.pools.all) == 1 and view.limit_of is None:
        return [{0: one} for one in table.promises(0, rows, promised=True)]
    return [table.choices(row, promised=True) for row in rows]


def _table(view: ClusterView, terms: DeadlineTerms, newcomers: Collection[int] = ()) -> _Table:
    jobs, others = view.jobs, {*newcomers, *view.manual_shares}
    hard = [row for row in due(jobs).tolist() if not jobs.soft[row] and row not in others]
    return _Table(view, pools(view), terms, hard)


class _Table:
    """Promises of a view's rows, by pool."""

    def __init__(self, view: ClusterView, found: Pools, terms: DeadlineTerms, hard: Sequence[int]) -> None:
        self.hard = hard  # the rows with promises
        self.pools = found
        self.gpus = _promisable(view, found, terms)  # number of GPUs that may be promised, by pool
        self._view, self._terms = view, terms
        self._free: dict[int, list[int]] = {}  # by pool: GPUs on each server that no promised job has

    def choices(self, row: int, promised: bool = False) -> Choices:
        """Return the job of a row as a promise in each pool that it may use; at least in one, where it can have no GPU
        if it may use none.

        `promised`: as for `promises`.
        """
        allowed = self._allowed(row) or (0,)
        return {number: self.promises(number, [row], promised)[0] for number in allowed}

    def _allowed(self, row: int) -> tuple[int, ...]:
        """Return the numbers of the pools that a job may use. A job with GPUs of one type has begun there."""
        view, allowed = self._view, self.pools.of(self._view, row)
        if len(allowed) > 1 and (has := view.placements.get(row, 0)):
            there = [number for number in allowed if not has & ~self.pools.all[number].gpus]
            return tuple(there) or allowed
        return allowed

    def homes(self, rows: Sequence[int]) -> list[int]:
        """Return the pool of each promised job: that of its GPUs, of its schedule, or the one with the lightest load."""
        if len(self.pools.all) == 1:
            return [0] * len(rows)
        jobs, schedules = self._view.jobs, self._view.jobs.schedules
        numbers = {pool.name: number for number, pool in enumerate(self.pools.all)}
        found: dict[int, int] = {}
        load_gpu_s = [0.0] * len(numbers)
        waiting = []
        for row in rows:
            allowed = self._allowed(row) or (0,)
            schedule = schedules.get(jobs.name(row))
            on = numbers.get(schedule.on) if schedule is not None else None
            if len(allowed) == 1:
                found[row] = allowed[0]
            elif on in allowed:
                found[row] = on
            else:
                waiting.append((float(jobs.deadline_s[row]), row, allowed))
                continue
            load_gpu_s[found[row]] += float(jobs.left_s[row])
        for _, row, allowed in sorted(waiting):
            has = self._view.placements.get(row, 0)

            def rank(number: int, has: Gpus = has) -> tuple[int, float]:
                return -(has & self.pools.all[number].gpus).bit_count(), load_gpu_s[number] / max(self.gpus[number], 1)

            found[row] = min(allowed, key=rank)
            load_gpu_s[found[row]] += float(jobs.left_s[row])
        return [found[row] for row in rows]

    def promises(self, number: int, rows: Sequence[int], promised: bool = False) -> list[Promise]:
        """Return the promises of these rows in a pool. `promised`: they have been admitted, and may use up their
        margins."""
        view, pool, gpus = self._view, self.pools.all[number], self.gpus[number]
        curve_on = view.jobs.curves.on.get(pool.name)
        found = promises(view.jobs, rows, gpus, view.now, self._terms, not promised, curve_on)
        if view.limit_of is None and len(self.pools.all) == 1:
            return found
        return [self._limited(one, number, pool) for one in found]

    def _limited(self, one: Promise, number: int, pool: Pool) -> Promise:
        view, row = self._view, one.key
        if number not in self.pools.of(view, row):
            return structs.replace(one, levels=NO_LEVELS)
        if (
            len(self.pools.all) > 1 and view.placements.get(row, 0) & ~pool.gpus
        ):  # the job would have to move into the pool
            one = structs.replace(one, share=0, lead_s=max(one.lead_s, one.change_s))
        each = self.pools.per_server(view, row)
        if not each:
            return one
        jobs, on = view.jobs, view.jobs.curves.on.get(pool.name)
        most = min(int(jobs.max_gpus[row]), self.gpus[number], each * sum(size >= each for size in pool.sizes))
        curve = int(jobs.curve[row])
        levels = levels_by(jobs.curves, curve if on is None else int(on[curve]), int(jobs.min_gpus[row]), most, each)
        seats = levels.counts[-1] if row in self._hard_rows else self._seats(number, each, row)
        return structs.replace(one, levels=levels, each=each, seats=seats)

    def _seats(self, number: int, each: int, row: int) -> int:
        """Return with how many GPUs a newcomer with a fixed number per server can begin if no promised job moves.

        A promised job that has not begun may take any server.
        """
        view, jobs = self._view, self._view.jobs
        taken = 0
        for other in self.hard:
            if (own := self.pools.per_server(view, other)) and not jobs.share[other]:
                schedule = jobs.schedules.get(jobs.name(other))
                gpus = schedule.pieces[0][2] if schedule is not None and schedule.pieces else int(jobs.max_gpus[other])
                taken += -(-gpus // own)
        free = self._free.get(number)
        if free is None:
            held = union(
                gpus for other, gpus in view.placements.items() if other in self._hard_rows or not jobs.share[other]
            )
            left, begin, free = self.pools.all[number].gpus & ~held, 0, []
            for server in view.servers:
                free.append((left >> begin & ((1 << len(server.gpus)) - 1)).bit_count())
                begin += len(server.gpus)
            self._free[number] = free
        return each * max(0, sum(count >= each for count in free) - taken)

    @cached_property
    def _hard_rows(self) -> frozenset[int]:
        return frozenset(self.hard)


def _promisable(view: ClusterView, found: Pools, terms: DeadlineTerms) -> list[int]:
    """Return the number of GPUs that may be promised, by pool."""
    held = [0] * len(found.all)
    if len(held) == 1:
        held[0] = int(shares_by_hand(view).sum()) if view.manual_shares else 0
    else:
        for row, gpus in view.manual_shares.items():
            has = view.placements.get(row, 0)
            for number in found.of(view, row):
                if not has or has & found.all[number].gpus:
                    held[number] += gpus
    if view.reservation is not None:
        for number in found.of(view, view.reservation.row):
            held[number] += view.reservation.gpus
    return [
        max(0, pool.gpus.bit_count() - held[number] - terms.reserve(pool.sizes))
        for number, pool in enumerate(found.all)
    ]


def schedules(jobs: JobTable, plan: Plan, on: str = "") -> Schedules:
    """Return the schedules of the rows with promises in this plan, from which the next plan may continue.

    `on`: the GPU type for which the plan was made.
    """
    return {
        jobs.name(row): filled.schedule.on_type(on)
        for row, filled in plan.found.items()
        if filled.schedule is not None and not jobs.soft[row]
    }


def told_deadline_s(planned_s: float, terms: DeadlineTerms) -> float:
    """Return a deadline as shown to users, given one of a `Promise` or an `Offer`."""
    return planned_s + terms.margin_s
