"""Admissions by deadlines: `elasticflow` (ElasticFlow 4.1) and `edf` (its baseline "EDF + Admission Control", 6.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from ..admission import AdmissionState, Newcomer
from ..view import UNKNOWN_S, ClusterView, JobTable, Schedules
from .foresee import Job, late
from .messages import refusal_message
from .pool_assignment import chosen, decided, settled
from .table import Busy, DeadlineTerms, schedules, situations


class PromisedTime(Protocol):
    """Bound on the GPU time that may be promised to the owners of jobs (`quotas.hours`). Jobs are given by row."""

    def add(self, row: int, gpu_s: float) -> None:
        """Count promised GPU-seconds."""
        ...

    def beyond(self, row: int, gpu_s: float) -> str:
        """Return why `gpu_s` more may not be promised to the owner, as a sentence; "" if they may."""
        ...


class ElasticflowAdmission:
    """A job with a deadline is admitted if its deadline can be kept beside all promised ones, and refused with a
    counter-offer otherwise. Newcomers of one moment are decided together. Jobs without deadlines, and with soft ones,
    are admitted; a hard deadline of a job without a reported length cannot be promised.

    Its parameters must be those of the policy: promises on other terms than the policy's plans may be broken.
    """

    name = "elasticflow"
    by_view = True
    Parameters = DeadlineTerms

    def __init__(self, parameters: DeadlineTerms, offers: bool = False) -> None:
        """`offers`: whether refusals come with counter-offers, which takes longer."""
        self.parameters = parameters
        self._offers = offers

    def refusal(self, job: Newcomer, situation: AdmissionState) -> str:
        return ""

    def refusals(self, view: ClusterView, newcomers: Sequence[int]) -> Mapping[int, str]:
        return self.answers(view, newcomers)[0]

    def answers(
        self, view: ClusterView, newcomers: Sequence[int], bound: PromisedTime | None = None, busy: Busy = ()
    ) -> tuple[Mapping[int, str], Schedules]:
        """Return the refusals as `refusals`, and the plan of all promised jobs after them, from which the next decision
        continues. `bound`: of the GPU time that may be promised, before any is added; None: there is none. `busy`: as in
        `situations`.
        """
        refused = dict.fromkeys(
            untold(view.jobs, newcomers), "its deadline cannot be promised: how long it takes is not told"
        )
        present, asked = situations(view, newcomers, self.parameters, busy)
        if not asked:
            return refused, view.jobs.schedules
        verdicts, plans = decided(present, asked, self._offers)
        if bound is not None:
            for plan in settled(present)[1]:
                for key, filled in plan.found.items():
                    bound.add(key, filled.gpu_s)
        admitted = False
        for verdict, choices in zip(verdicts, asked, strict=True):
            one = chosen(choices, verdict)
            if not verdict.admitted:
                refused[one.key] = refusal_message(view, present.each[verdict.pool], one, verdict, self.parameters)
            elif not one.soft and bound is not None:
                if why := bound.beyond(one.key, verdict.gpu_s):
                    refused[one.key] = why
                    continue
                bound.add(one.key, verdict.gpu_s)
            admitted |= verdict.admitted and not one.soft
        if not admitted:
            return refused, view.jobs.schedules
        kept = dict(view.jobs.schedules) if len(present.pools) > 1 else {}
        for number, plan in plans.items():
            kept |= schedules(view.jobs, plan, present.pools[number].name)
        return refused, kept


class EdfAdmissionParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Admission by the earliest deadline first takes no parameters."""


class EdfAdmission:
    """A job with a deadline is admitted if it and all others with hard deadlines would keep them under `edf`, if no
    further job came. Newcomers are decided one after the other."""

    name = "edf"
    by_view = True
    Parameters = EdfAdmissionParameters

    def __init__(self, parameters: EdfAdmissionParameters) -> None:
        self.parameters = parameters

    def refusal(self, job: Newcomer, situation: AdmissionState) -> str:
        return ""

    def refusals(self, view: ClusterView, newcomers: Sequence[int]) -> Mapping[int, str]:
        jobs, new = view.jobs, set(newcomers)
        found = dict.fromkeys(untold(jobs, newcomers), "its deadline cannot be promised: how long it takes is not told")
        present = [row for row in range(len(jobs)) if row not in new]
        for row in newcomers:
            if row in found:
                continue
            if jobs.deadline_s[row] < math.inf and not jobs.soft[row]:
                missed = late(_jobs(jobs, [*present, row], view.total_gpus), view.total_gpus, view.now)
                if missed is not None:
                    found[row] = (
                        "its deadline would be missed, or lead to another's being missed, as jobs are served by deadlines"
                    )
                    continue
            present.append(row)
        return found


def untold(jobs: JobTable, rows: Sequence[int]) -> list[int]:
    """Return the rows with hard deadlines and unknown lengths."""
    at = np.asarray(rows, dtype=np.int64)
    found: list[int] = at[
        (jobs.deadline_s[at] < math.inf) & (jobs.soft[at] == 0) & (jobs.left_s[at] >= UNKNOWN_S)
    ].tolist()
    return found


def _jobs(jobs: JobTable, rows: Sequence[int], gpus: int) -> list[Job]:
    at = np.asarray(rows, dtype=np.int64)
    want = np.minimum(jobs.max_gpus[at], jobs.curves.most)
    columns = jobs.left_s[at], jobs.deadline_s[at], jobs.soft[at], want, jobs.speedup(at, want)
    return [
        Job(left_s, deadline_s if deadline_s < math.inf else math.inf, count, rate, not soft)
        for left_s, deadline_s, soft, count, rate in zip(*[column.tolist() for column in columns], strict=True)
        if count <= gpus
    ]
