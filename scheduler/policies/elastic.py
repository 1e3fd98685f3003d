"""`elastic`: our own policy for the least average JCT, with known lengths or without (docs/design/elastic.md has the numbers).

Like AFS it knows throughput curves, and lengths where they are given. AFS compares jobs two at a time; here every job has a
weight, and GPUs go one by one to the job whose weighted throughput they raise most. Throughput counts by its hull, the least
concave curve above it, and GPUs are given from corner to corner of it: between corners a job would get less than the hull
promises. Where throughputs are concave every share is a corner, and no other division has a greater weighted throughput.

*Lengths given.* The weight follows from what a second of work on the job is worth, as far as the present jobs alone are
concerned (`worth.py`). More will come, and then a long job never has the cluster to itself, as that reckoning has it. Were the
load the same for ever, no job would be worth more than another of its kind. Truth lies between; the weight is
worth^(1 - constancy). `constancy` 0: nobody else comes; 1: as it is now for ever, where throughput alone counts.

The reckoning wants to know in which order jobs end. With s(k) = k^p the shortest of n jobs gets nearly 1 / (1 - p) fair shares
(heSRPT); training scales with p around 3/4. So jobs are put in the order of the time that they need with `LAST_FAIR_SHARES` fair
shares.

A job whose length is not known is expected to take as long again as it has taken so far, which is so of lengths that are as
likely between 1 and 2 minutes as between 1 and 2 days. A new one then counts as short, and is measured soon.

*Lengths unknown.* Nobody is known to be shorter than another, and the price of a GPU is expected to stay: the weight of a job
is what it costs at best, itself and the rent of its GPUs, per unit of work. Then GPUs go to the job that would pay most for
the next one (`_bid`). While not all jobs fit, those that have got least GPU-seconds come first, as lengths are heavy-tailed.
So that jobs do not take turns for ever, service counts in levels, each longer than the one before; within a level those that
run stay, then the first submitted comes first.

*Inertia.* A GPU that a job has already counts a little more for it, so that shares do not change for gains that are less than
changing costs. In a long queue neighbours are worth nearly the same, and the same bonus would let a newcomer pass hundreds of
them and still get nothing: so it shrinks while jobs are more than twice as many as GPUs, and stays worth about as many places.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from ..hull import ROUNDING
from ..view import UNKNOWN_S, Floats, Ints, JobTable, Reason
from .base import Shares, grow, no_shares, relative_gain, rigid, smallest, waits_for
from .reviews import EARLY_S
from .worth import Curve, with_minimum, worths

LAST_FAIR_SHARES = 4.0  # heSRPT's 1 / (1 - p) for p = 3/4
FULL_INERTIA = 2.0  # jobs per GPU up to which inertia is whole
LOOKED_AT = 1.5  # jobs per GPU: who ends behind them gets none, and counts as a number
NEW_GPU_S = 600.0  # a job of unknown length that has got less than this counts as if it had got this

Value = Callable[[int, int], float]  # of the next GPU: of the job at a position, with so many


class ElasticParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lengths`: are the lengths of jobs looked at, where they are known, or never?

    `constancy`: how much of the load that there is now will be there for ever, from 0 (nobody else comes) to 1.

    `inertia`: by what part of its worth a GPU counts more for the job that has it already; less where jobs are more than two
    per GPU.

    `first_turn_gpu_s`: how many GPU-seconds the first level of service lasts, where lengths are unknown.

    `turn_growth`: how many times as long as the one before each next level of service lasts.
    """

    lengths: Literal["given", "unknown"] = "given"
    constancy: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.4
    inertia: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.05
    first_turn_gpu_s: Annotated[float, msgspec.Meta(ge=1)] = 7200.0
    turn_growth: Annotated[float, msgspec.Meta(ge=1.01, le=100)] = 1.1


class Elastic:
    """GPUs one by one to where they raise weighted throughput most; the weights are chosen for the least average JCT."""

    name = "elastic"
    Parameters = ElasticParameters

    def __init__(self, parameters: ElasticParameters) -> None:
        self.parameters = parameters
        self.needs_lengths = parameters.lengths == "given"

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, review_s = no_shares(jobs), math.inf
        fitting = np.flatnonzero(jobs.min_gpus <= gpus)
        if len(fitting) and self.needs_lengths:
            self._by_worth(jobs, fitting, given, gpus)
        elif len(fitting):
            review_s = self._by_service(jobs, given, gpus, now)
        free = gpus - int(given.sum())

        def why(row: int) -> Reason | None:
            return waits_for(int(jobs.min_gpus[row]), free, gpus) if not given[row] else None

        return Shares(given, why, review_s)

    def _by_worth(self, jobs: JobTable, fitting: Ints, given: Ints, gpus: int) -> None:
        """Lengths are given. Changes `given`."""
        fair = gpus / len(fitting)
        looked_at = math.ceil(LOOKED_AT * gpus)
        ends_after_s = self._ends_after_s(jobs, fitting, LAST_FAIR_SHARES * fair)
        order = fitting[smallest(ends_after_s, looked_at)]
        curves = _curves(jobs, order, gpus)
        power = 1.0 - self.parameters.constancy
        weight: list[float] = [worth**power for worth in worths(curves, gpus, len(fitting) - len(order))]

        def value(at: int, share: int) -> float:
            curve = curves[at]
            return weight[at] * (curve[share + 1] - curve[share])

        self._hand_out(jobs, order, curves, given, gpus, value)
        self._fill(jobs, fitting, ends_after_s, given, gpus)

    def _fill(self, jobs: JobTable, fitting: Ints, ends_after_s: Floats, given: Ints, gpus: int) -> None:
        """What those that were looked at cannot use, as their minimums are larger, goes to the others. Changes `given`."""
        free = gpus - int(given.sum())
        others = np.flatnonzero((given[fitting] == 0) & (jobs.min_gpus[fitting] <= free))
        if len(others):
            order = fitting[others[smallest(ends_after_s[others], free)]]
            curves = _curves(jobs, order, gpus)
            self._hand_out(jobs, order, curves, given, gpus, lambda at, has: curves[at][has + 1] - curves[at][has])

    def _ends_after_s(self, jobs: JobTable, rows: Ints, share: float) -> Floats:
        """How long jobs still take with so many GPUs each, or what they can use."""
        left_s = jobs.left_s[rows]
        so_far = np.maximum(jobs.attained_gpu_s[rows], NEW_GPU_S)
        left_s = np.where(left_s < UNKNOWN_S, left_s, so_far)
        if share <= 1:
            return np.asarray(left_s / jobs.hull(rows, jobs.min_gpus[rows]))
        most = np.minimum(jobs.max_gpus, jobs.curves.most)[rows]
        used = np.clip(share, jobs.min_gpus[rows], most)
        below = used.astype(np.int64)
        above = np.minimum(below + 1, most)
        low, high = jobs.hull(rows, below), jobs.hull(rows, above)
        return np.asarray(left_s / (low + (used - below) * (high - low)))

    def _by_service(self, jobs: JobTable, given: Ints, gpus: int, now: float) -> float:
        """Lengths are not given. Changes `given`. Returns when somebody's turn is over."""
        attained_gpu_s = jobs.attained_gpu_s + EARLY_S * jobs.share
        growth = self.parameters.turn_growth
        unit_gpu_s = self.parameters.first_turn_gpu_s / (growth - 1)  # level n begins at unit * (growth^n - 1)
        level = np.floor(np.log1p(attained_gpu_s / unit_gpu_s) / math.log(growth))
        given[:] = rigid(jobs, gpus, 2 * level + (jobs.share == 0), jobs.min_gpus)
        order = np.flatnonzero(given)
        curves = _curves(jobs, order, gpus)
        self._hand_out(jobs, order, curves, given, gpus, lambda at, share: _bid(curves[at], share))
        if not np.any((given == 0) & (jobs.min_gpus <= gpus)):
            return math.inf
        ends_gpu_s = np.maximum(unit_gpu_s * (growth ** (level[order] + 1) - 1), attained_gpu_s[order])
        turn_s = (ends_gpu_s - jobs.attained_gpu_s[order]) / given[order]
        return now + max(float(turn_s.min()), EARLY_S)

    def _hand_out(
        self, jobs: JobTable, order: Ints, curves: Sequence[Curve], given: Ints, gpus: int, value: Value
    ) -> None:
        """What is left of `gpus` goes to whom it is most worth. A job without GPUs takes its minimum at once, the others go
        from corner to corner of their hulls, or get nothing where that does not fit. Changes `given`.

        Of equal values the smaller share comes first, then the first in `order`.
        """
        corners = _corners(jobs, order, curves)
        free = gpus - int(given.sum())
        share: list[int] = given[order].tolist()
        least: list[int] = jobs.min_gpus[order].tolist()
        present: list[int] = jobs.share[order].tolist()
        most = [len(curve) - 1 for curve in curves]
        stays = 1.0 + self.parameters.inertia * min(1.0, FULL_INERTIA * gpus / len(jobs))
        heap = []
        for at, has in enumerate(share):
            if has < most[at]:
                worth = value(at, has)
                if worth > 0:
                    heap.append((-worth * stays if has < present[at] else -worth, has, at))
        heapq.heapify(heap)
        while free and heap:
            _, has, at = heap[0]
            takes = corners[at][has] - has if has else least[at]
            has += takes
            worth = 0.0
            if takes <= free:
                free -= takes
                share[at] = has
                if has < most[at]:
                    worth = value(at, has)
            if worth > 0:
                heapq.heapreplace(heap, (-worth * stays if has < present[at] else -worth, has, at))
            else:
                heapq.heappop(heap)
        given[order] = share
        if free:
            grow(jobs, given, gpus, relative_gain)


def _curves(jobs: JobTable, rows: Ints, gpus: int) -> list[Curve]:
    """Hulls of throughputs with 0 to the maximum of GPUs over that with one; jobs that are alike share one."""
    most = np.minimum(np.minimum(jobs.max_gpus, jobs.curves.most)[rows], gpus)
    known: dict[tuple[int, int, int], Curve] = {}
    found = []
    for key in zip(jobs.curve[rows].tolist(), jobs.min_gpus[rows].tolist(), most.tolist(), strict=True):
        if key not in known:
            curve, least, end = key
            known[key] = with_minimum(jobs.curves.hull_row(curve, end), least)
        found.append(known[key])
    return found


def _corners(jobs: JobTable, rows: Ints, curves: Sequence[Curve]) -> list[list[int]]:
    """By job and share: the next larger share at which throughput is as the hull has it."""
    known: dict[int, list[int]] = {}
    found = []
    for kind, curve in zip(jobs.curve[rows].tolist(), curves, strict=True):
        if id(curve) not in known:
            real, at, steps = jobs.curves.row(kind), len(curve) - 1, [0] * len(curve)
            for share in range(len(curve) - 2, -1, -1):
                steps[share] = at
                if real[share] >= curve[share] * (1 - ROUNDING):
                    at = share
            known[id(curve)] = steps
        found.append(known[id(curve)])
    return found


def _bid(curve: Curve, share: int) -> float:
    """The price of a GPU up to which a job would take another one: (1 + price * k) / s(k) is the same there for k = `share`
    and for one more."""
    gain = curve[share + 1] - curve[share]
    if gain <= 0:
        return 0.0
    rest = curve[share] - share * gain
    return gain / rest if rest > 1e-12 * curve[share] else math.inf  # whatever it costs: throughput grows like the rent
