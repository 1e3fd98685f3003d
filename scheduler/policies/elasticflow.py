"""`elasticflow`: promised deadlines are kept, and the remaining GPUs go where they save most (ElasticFlow 4).

`scheduler.deadlines` has the algorithms. This policy plans from the beginning at each decision, from the work that is
really left and the GPUs that are really present. So each decision accounts for pauses, faults and wrong forecasts that
have become visible.
"""

from __future__ import annotations

import math
import random

import numpy as np

from ...protocol.texts import gpu_count
from ..arrays import Ints
from ..deadlines.admitting import ElasticflowAdmission
from ..deadlines.allocation import allocate, soft_too
from ..deadlines.messages import duration
from ..deadlines.promises import INSTANT_S, Plan, Promise, settle
from ..deadlines.table import DeadlineTerms, due, promises, schedules, told_deadline_s
from ..deadlines.timeline import Timeline
from ..view import JobTable, Reason, ReasonCode
from .base import Shares, no_shares, smallest, waits_for


class Elasticflow:
    """Each promised job gets what it needs at least, in the order of deadlines; the rest goes where it saves most GPU
    time.

    Jobs without deadlines get a GPU each before any promised one gets more than it needs. Its own admission refuses
    deadlines that cannot be kept; without an admission such jobs are late, and go first with the GPUs that promises
    leave.
    """

    name = "elasticflow"
    needs_lengths = True
    Parameters = DeadlineTerms

    def __init__(self, parameters: DeadlineTerms) -> None:
        self.parameters = parameters

    def own_admission(self) -> ElasticflowAdmission:
        """Return the admission that is used with this policy where none is named, with the same terms."""
        return ElasticflowAdmission(self.parameters)

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        terms = self.parameters
        bound = due(jobs)
        promised = promises(jobs, bound.tolist(), gpus, now, terms)
        plan, unpromised = self._plan(promised, Timeline(now, gpus))
        others = promises(jobs, _looked_at(jobs, bound, gpus), gpus, now, terms)
        by_key = {one.key: one for one in promised}
        share = allocate(plan, by_key, [*unpromised, *others], gpus)
        given = no_shares(jobs)
        given[list(share)] = list(share.values())
        review_s = max(plan.next_s(now), now + INSTANT_S)
        stay = [row for row, filled in plan.found.items() if not filled.spare]
        why = _Reasons(jobs, given, plan, by_key, gpus, now, terms)
        return Shares(given, why, review_s, stay=stay, schedules=schedules(jobs, plan))

    def _plan(self, promised: list[Promise], timeline: Timeline) -> tuple[Plan, list[Promise]]:
        """Return the plan of the jobs with deadlines, and the jobs with soft deadlines that cannot be kept."""
        plan = settle([one for one in promised if not one.soft], timeline)
        return plan, soft_too(plan, [one for one in promised if one.soft])


class _Reasons:
    """Reasons why jobs have fewer GPUs than they could use."""

    def __init__(
        self,
        jobs: JobTable,
        given: Ints,
        plan: Plan,
        promised: dict[int, Promise],
        gpus: int,
        now: float,
        terms: DeadlineTerms,
    ) -> None:
        self._jobs, self._given, self._plan = jobs, given, plan
        self._gpus, self._now, self._terms = gpus, now, terms
        self._broken = {one.key: one for one in plan.broken}
        self._promised = promised

    def __call__(self, row: int) -> Reason | None:
        if row in self._broken:
            return self._late(self._broken[row])
        if row in self._plan.found:
            filled = self._plan.found[row]
            left_s = told_deadline_s(self._promised[row].deadline_s, self._terms) - self._now
            needs = gpu_count(self._promised[row].levels.counts[filled.level])
            if not self._given[row]:
                text = f"its deadline, in {duration(left_s)}, will be kept: it begins later, with up to {needs}"
                return Reason(ReasonCode.PROMISED, text)
            return None
        if self._given[row]:
            return None
        free = self._gpus - int(self._given.sum())
        return waits_for(
            int(self._jobs.min_gpus[row]), free, self._gpus, "left by jobs with deadlines and shorter ones"
        )

    def _late(self, one: Promise) -> Reason:
        best = one.levels.rates[one.levels.at_most(self._gpus)] if len(one.levels) else 0.0
        deadline_s = told_deadline_s(one.deadline_s, self._terms)
        if not best:
            return waits_for(int(self._jobs.min_gpus[one.key]), self._gpus, self._gpus)
        text = f"its deadline, in {duration(deadline_s - self._now)}," if deadline_s > self._now else "its deadline"
        soonest = f"it ends in {duration(one.left_s / best)} at the soonest"
        return Reason(ReasonCode.PROMISE_BROKEN, f"{text} cannot be kept beside the others any more; {soonest}")


def _looked_at(jobs: JobTable, bound: Ints, gpus: int) -> list[int]:
    """Return the jobs without deadlines that can get GPUs: as many as there are GPUs, those with the least remaining
    work first."""
    free = np.ones(len(jobs), dtype=np.bool_)
    free[bound] = False
    rows = np.flatnonzero(free)
    if len(rows) > gpus:
        left_s = np.where(np.isnan(jobs.left_s[rows]), math.inf, jobs.left_s[rows])
        rows = rows[np.sort(smallest(left_s, gpus))]
    return rows.tolist()
