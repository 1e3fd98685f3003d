"""Deadlines beside any policy that may change shares at any time: promised jobs have what their promises need, whatever it gives.

The policy divides the GPUs as if there were no deadlines. Then each promised job that has less than its plan says for now gets
that, and others give back what is lacking: who loses least by it first, and nobody below his minimum as long as that is enough.
More than the plan says never does harm: whoever is ahead of his plan needs less later (ElasticFlow 4.2). So a policy that
shortens the others' waiting, such as `elastic`, shortens it here too.

A job whose promise breaks comes next, with as many GPUs as it can use. After it come jobs whose throughput or length is still
unknown: they get their minimums, so that they are measured and their deadlines can be looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..manual import shares_by_hand
from ..view import UNKNOWN_S, ClusterView, Ints
from .allocation import soft_too
from .promises import Plan, Promise, settle
from .table import Terms, due, promises, situation

Busy = Sequence[tuple[float, float, int]]


@dataclass(frozen=True)
class Deadlines:
    """On which `terms` deadlines are promised. `wide`: the view, and behind its rows and servers such jobs as no policy decides
    about at present, with their GPUs; None: there are none. `busy`: GPUs that are not free for a while: (from, until, how many).
    """

    terms: Terms
    wide: ClusterView | None = None
    busy: Busy = ()


@dataclass(frozen=True)
class Kept:
    """`shares`: by row. `plan`: of all jobs with promises, soft ones among them; `unkept`: rows whose soft deadlines do not hold.
    `unknown`: rows whose deadlines cannot be looked at yet. `lowered`: rows that got less than the policy gave. Rows are those of
    `Deadlines.wide`, if there is one."""

    shares: Ints
    plan: Plan
    promised: dict[int, Promise]
    unkept: tuple[int, ...]
    unknown: tuple[int, ...]
    lowered: frozenset[int]


def has_any(view: ClusterView, deadlines: Deadlines) -> bool:
    """Has any job a deadline?"""
    return bool(np.isfinite((deadlines.wide or view).jobs.deadline_s).any())


def keep(view: ClusterView, shares: Ints, deadlines: Deadlines) -> Kept:
    """Raise the `shares` that a policy has given, by row of the view, to what the promises need."""
    wide, terms = deadlines.wide or view, deadlines.terms
    jobs = wide.jobs
    asked, _ = situation(wide, (), terms)
    asked = replace(asked, busy=deadlines.busy)
    plan = settle(asked.promised, asked.timeline())
    promised = {one.key: one for one in asked.promised}
    soft = [row for row in due(jobs).tolist() if jobs.soft[row] and row not in wide.manual_shares]
    of_soft = promises(jobs, soft, asked.gpus, view.now, terms)
    unkept = tuple(one.key for one in soft_too(plan, of_soft))
    promised |= {one.key: one for one in of_soft if one.key in plan.found}
    unknown = tuple(
        row
        for row in np.flatnonzero(np.isfinite(jobs.deadline_s) & (jobs.left_s >= UNKNOWN_S)).tolist()
        if row not in wide.manual_shares
    )
    given, lowered = _raised(view, shares, _needed(view, plan, promised, unknown))
    return Kept(given, plan, promised, unkept, unknown, lowered)


def _needed(view: ClusterView, plan: Plan, promised: Mapping[int, Promise], unknown: Sequence[int]) -> dict[int, int]:
    """By row, how many GPUs a job is to have at least."""
    jobs, rows = view.jobs, len(view.jobs)
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
    for row in unknown:
        few = int(jobs.min_gpus[row]) if row < rows else free + 1
        if few <= free:
            least[row] = few
            free -= few
    return least


def _raised(view: ClusterView, shares: Ints, least: dict[int, int]) -> tuple[Ints, frozenset[int]]:
    """The shares, none of these below what it is to have at least; and who gives GPUs back for that."""
    given = shares.copy()
    for row, gpus in least.items():
        given[row] = max(int(given[row]), gpus)
    too_many = int(given.sum()) - view.total_gpus
    if too_many <= 0:
        return given, frozenset()
    jobs = view.jobs
    heap: list[tuple[int, float, int]] = []  # the last ones submitted first, where whole jobs have to stop

    def offer(row: int) -> None:
        share, floor = int(given[row]), least.get(row, int(jobs.min_gpus[row]))
        if share > floor:
            speedup = jobs.curves.row(int(jobs.curve[row]))
            heapq.heappush(heap, (0, (speedup[share] - speedup[share - 1]) / max(speedup[share], 1e-12), row))
        elif share and row not in least:
            heapq.heappush(heap, (1, -float(row), row))

    for row in np.flatnonzero(given).tolist():
        if row not in view.manual_shares:
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


def next_s(kept: Kept, now: float) -> float:
    """When to look again, though nothing has happened (Unix time, s); inf: not before something has."""
    return kept.plan.next_s(now)
