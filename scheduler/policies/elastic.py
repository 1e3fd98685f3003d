"""`elastic`: this project's own policy for the least average JCT, with known or unknown lengths
(docs/design/elastic.md).

Like AFS it knows throughput curves. AFS compares jobs two at a time; here every job has a weight, and GPUs go one by
one to the job with the largest rise of weighted throughput. Throughput counts by its hull, the least concave curve
above it. GPUs are given from corner to corner of the hull: between corners a job would get less than the hull promises.
Where throughputs are concave every share is a corner, and no other division has a greater weighted throughput.

*Weights.* `waiting_worth.py` computes the value of a second of work on a job if lengths were known and no further job came. In
reality more jobs come, and then a long job never has the cluster to itself, as that calculation assumes. If the load
stayed the same for ever, no job would be worth more than another of its kind. Reality lies between these extremes, so
the weight is worth^(1 - constancy). `constancy` 0: no further job comes; 1: the load stays as it is for ever, and
throughput alone counts.

*Lengths.* `expected_lengths.py` estimates how long each job is likely to take, as several equally likely values. The
calculation uses as many copies of the cluster as there are values, and every job has another value in each copy; its
weight is the mean. If all jobs have reported their lengths, and these have proved right, all copies are the same, and
one is enough.

*Tail.* The policy aims at the least mean of JCT^(1 + tail); with `tail` 0 that is the average JCT. A second of waiting
raises JCT^(1 + tail) by a multiple of JCT^tail, the job's *urgency*. So the calculation of worths counts each job's
waiting by its urgency, for the JCT that is likely now. The order of ends follows Smith's rule: the time that a job
needs is divided by its urgency. There the urgency depends on the time since the submission alone, as a neighbour in the
order would end at about the same time.

*Order.* The calculation needs the order in which jobs end. With s(k) = k^p the shortest of n jobs gets nearly 1 / (1 -
p) fair shares (heSRPT); training scales with p around 3/4. So jobs are sorted by the time that they need with
`LAST_FAIR_SHARES` fair shares. Of a long queue only those jobs are examined that end soonest for the work invested
(Gittins' index).

*Inertia.* A GPU that a job has already counts a little more for it, so that shares do not change for gains below the
cost of a change. In a long queue neighbours are worth nearly the same, and the same bonus would let a new job pass
hundreds of them and still get nothing. So the bonus shrinks while jobs are more than twice as many as GPUs, and stays
worth about as many places.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np

from ..arrays import Floats, Ints, least_of
from ..curves import Curves
from ..hull import ROUNDING
from ..view import JobTable, Reason
from . import expected_lengths
from .base import Shares, grow, no_shares, relative_gain, smallest, waits_for
from .waiting_worth import Curve, Recursion, with_minimum

LAST_FAIR_SHARES = 4.0  # heSRPT's 1 / (1 - p) for p = 3/4
FULL_INERTIA = 2.0  # jobs per GPU up to which inertia is undiminished
LOOKED_AT = 1.5  # examined jobs per GPU: jobs that end later get no GPU, and only their number counts
LATE = 0.25  # by what part of its work a job may pass the point that a review waits for, so that one serves many jobs
LEAST_JCT_S = 10.0  # a shorter JCT counts as this one for the tail, as in slowdowns
# Least time between two reviews, as a queue of new jobs would cause thousands of decisions: seconds, and a part of the mean
# age of the jobs, as seconds do not count where jobs wait for days.
LEAST_REVIEW_S, PART_OF_AGE = 10.0, 1 / 2000


class ElasticParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`constancy`: how much of the present load will last for ever, from 0 (no further job comes) to 1.

    `inertia`: by what part of its worth a GPU counts more for the job that has it already; less where jobs are more
    than two per GPU.

    `tail`: weight of long JCTs. The policy aims at the least mean of JCT^(1 + tail): 0 for the least average JCT; 1 for
    the least mean square, with which few jobs take very long, and short jobs longer.
    """

    constancy: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.6
    inertia: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.05
    tail: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    # Parameters of earlier versions, which had one mode for known lengths and another, with turns, for unknown ones.
    lengths: Literal["given", "unknown"] | msgspec.UnsetType = msgspec.UNSET
    first_turn_gpu_s: float | msgspec.UnsetType = msgspec.UNSET
    turn_growth: float | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.lengths == "unknown":
            raise ValueError("lengths: unknown is gone: jobs tell their lengths or not, leave it out")


class Elastic:
    """GPUs one by one to the job with the largest rise of weighted throughput; the weights are chosen for the least
    average JCT."""

    name = "elastic"
    needs_lengths = True
    Parameters = ElasticParameters

    def __init__(self, parameters: ElasticParameters) -> None:
        self.parameters = parameters
        self._recursion = Recursion()

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        if jobs.most_needed <= gpus:  # the usual case: the pipeline passes only such jobs to a policy
            given, free, after_s = self._divide(jobs, gpus, now)
        else:
            fitting = (jobs.min_gpus <= gpus).nonzero()[0]
            given = no_shares(jobs)
            given[fitting], free, after_s = self._divide(jobs.cut(fitting), gpus, now)

        def why(row: int) -> Reason | None:
            return waits_for(int(jobs.min_gpus[row]), free, gpus) if not given[row] else None

        return Shares(given, why, now + after_s)

    def _divide(self, jobs: JobTable, gpus: int, now: float) -> tuple[Ints, int, float]:
        """Return the shares of jobs with minimums that fit into the GPUs, the number of GPUs left, and the seconds
        until more is known of a job's length."""
        given = no_shares(jobs)
        if not len(jobs):
            return given, gpus, math.inf
        left_s, more_s = expected_lengths.left_s(jobs)
        ends_after_s = left_s * _pace(jobs, LAST_FAIR_SHARES * gpus / len(jobs))
        urgency: Floats | None = None
        if self.parameters.tail:
            age_s = np.maximum(now - jobs.submitted_s, 0.0)
            urgency = _urgency(age_s + ends_after_s, self.parameters.tail)
            ends_after_s = ends_after_s / _urgency(age_s + np.median(ends_after_s), self.parameters.tail)
        soon_s = gittins_index(ends_after_s)
        soon_s[jobs.running] *= 1 - 1e-9
        order = smallest(soon_s, math.ceil(LOOKED_AT * gpus))
        kinds = _kinds(jobs, order, gpus)
        curves, examined = [kind.curve for kind in kinds], ends_after_s[:, order]
        urgency = None if urgency is None else urgency[:, order]
        weight = self._weights(curves, examined, urgency, gpus, len(jobs) - len(order))
        free = self._hand_out(jobs, order, kinds, weight, given, free=gpus, gpus=gpus)
        if free:
            free = self._fill(jobs, soon_s, given, free, gpus)
        return given, free, review_after_s(jobs, given, more_s, now)

    def _weights(
        self, curves: Sequence[Curve], ends_after_s: Floats, urgency: Floats | None, gpus: int, behind: int
    ) -> list[float]:
        """Return the mean of worth^(1 - constancy) over the copies of each job. `urgency`: by copy and job; None: 1.

        All copies are present together, on as many clusters.
        """
        power = 1.0 - self.parameters.constancy
        copies = len(ends_after_s) if (ends_after_s[0] < ends_after_s[-1]).any() else 1
        first = ends_after_s[:copies].ravel().argsort(kind="stable")
        who = first % len(curves)
        ending = [curves[at] for at in who.tolist()]
        own = None if urgency is None else urgency[:copies].ravel()[first].tolist()
        worth = np.array(self._recursion.worths(ending, gpus * copies, behind * copies, copies, own))
        weight = np.bincount(who, worth**power, len(curves)) / copies
        found: list[float] = weight.tolist()
        return found

    def _fill(self, jobs: JobTable, soon_s: Floats, given: Ints, free: int, gpus: int) -> int:
        """Give the GPUs that the examined jobs cannot use, because their minimums are larger, to the other jobs.

        Changes `given`. Return how many GPUs are left.
        """
        others = ((given == 0) & (jobs.min_gpus <= free)).nonzero()[0]
        if not len(others):
            return free
        order = others[smallest(soon_s[others], free)]
        return self._hand_out(jobs, order, _kinds(jobs, order, gpus), [1.0] * len(order), given, free=free, gpus=gpus)

    def _hand_out(
        self,
        jobs: JobTable,
        order: Ints,
        kinds: Sequence[_Kind],
        weight: Sequence[float],
        given: Ints,
        *,
        free: int,
        gpus: int,
    ) -> int:
        """Give the free GPUs to the jobs with the highest worth. Changes `given`. Return how many GPUs are left.

        A job without GPUs takes its minimum at once; the others go from corner to corner of their hulls. A job gets
        nothing where its next step does not fit. Of equal values the smaller share comes first, then the first in
        `order`. All jobs in `order` begin without GPUs.
        """
        share = [0] * len(order)
        needs: list[int] = jobs.min_gpus[order].tolist()
        present: list[int] = jobs.share[order].tolist()
        stays = 1.0 + self.parameters.inertia * min(1.0, FULL_INERTIA * gpus / len(jobs))
        heap = [
            (-worth * stays if has else -worth, 0, at)
            for at, (value, kind, has) in enumerate(zip(weight, kinds, present, strict=True))
            if (worth := value * kind.gains[0]) > 0
        ]
        heapq.heapify(heap)
        while free and heap:
            _, has, at = heap[0]
            kind = kinds[at]
            takes = kind.corners[has] - has if has else needs[at]
            if takes <= free:
                has += takes
                free -= takes
                share[at] = has
                worth = weight[at] * kind.gains[has]
                if worth > 0:
                    heapq.heapreplace(heap, (-worth * stays if has < present[at] else -worth, has, at))
                    continue
            heapq.heappop(heap)
        given[order] = share
        return grow(jobs, given, gpus, relative_gain) if free else 0


@dataclass(frozen=True)
class _Kind:
    """Jobs with the same curve and limits. All lists are by share, from 0 on.

    `curve`: the hull of throughputs up to the maximum. `gains`: the hull's gain by one GPU more, 0 at the maximum.
    `corners`: the next larger share at which the real throughput lies on the hull.
    """

    curve: Curve
    gains: list[float]
    corners: list[int]


def _kinds(jobs: JobTable, rows: Ints, gpus: int) -> list[_Kind]:
    """Return the kind of each of these jobs. Equal jobs share one, which is cached until a curve is corrected."""
    most = np.minimum(np.minimum(jobs.max_gpus[rows], jobs.curves.most), gpus)
    known = jobs.curves.derived.setdefault(_Kind, {})
    keys = list(zip(jobs.curve[rows].tolist(), jobs.min_gpus[rows].tolist(), most.tolist(), strict=True))
    for key in dict.fromkeys(keys):
        if key not in known:
            known[key] = _kind(jobs.curves, *key)
    return [known[key] for key in keys]


def _kind(curves: Curves, number: int, least: int, most: int) -> _Kind:
    curve, real = with_minimum(curves.hull_row(number, most), least), curves.row(number)
    gains = [then - now for now, then in itertools.pairwise(curve)]
    corners, at = [0] * len(curve), len(curve) - 1
    for share in range(len(curve) - 2, -1, -1):
        corners[share] = at
        if real[share] >= curve[share] * (1 - ROUNDING):
            at = share
    return _Kind(curve, [*gains, 0.0], corners)


def _pace(jobs: JobTable, share: float) -> Floats:
    """Return each job's time per unit of work with `share` GPUs within its range, relative to one GPU."""
    everybody = slice(None)
    if share <= 1:
        return np.asarray(1.0 / jobs.hull(everybody, jobs.min_gpus))
    most = np.minimum(jobs.max_gpus, jobs.curves.most)
    used = np.clip(share, jobs.min_gpus, most)
    below = used.astype(np.int64)
    above = np.minimum(below + 1, most)
    low, high = jobs.hull(everybody, below), jobs.hull(everybody, above)
    return np.asarray(1.0 / (low + (used - below) * (high - low)))


def _urgency(jct_s: Floats, tail: float) -> Floats:
    """Return JCT^tail, relative to the mean of all."""
    urgency = np.maximum(jct_s, LEAST_JCT_S) ** tail
    found: Floats = urgency / urgency.mean()
    return found


def gittins_index(ends_after_s: Floats) -> Floats:
    """Return each job's Gittins index: the least expected work that brings it to its end with some probability, divided
    by that probability.

    `ends_after_s`: equally likely values, ascending, in rows.
    """
    copies = len(ends_after_s)
    number = np.arange(1, copies + 1)[:, None]
    worked_s = np.cumsum(ends_after_s, axis=0) + (copies - number) * ends_after_s  # over all copies, to each end
    found: Floats = (worked_s / number).min(axis=0)
    return found


def review_after_s(jobs: JobTable, given: Ints, more_s: Floats, now: float) -> float:
    """Return the seconds until a running job's progress has changed the estimate of its length, and the job has done
    a part `LATE` more; inf if no job waits."""
    running = given.nonzero()[0]
    if len(running) == len(jobs) or not len(running):
        return math.inf
    rate = jobs.speedup(running, np.minimum(given[running], jobs.curves.most))
    more_s = more_s[running] * (1 + LATE) + jobs.done_s[running] * LATE
    least_s = max(LEAST_REVIEW_S, PART_OF_AGE * float((now - jobs.submitted_s).mean()))
    return max(least_of(more_s / rate), least_s)
