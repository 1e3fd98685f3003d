"""`max-min`: elastic fair share (the max-min baseline of AFS, section 2)."""

from __future__ import annotations

import heapq
import random

import msgspec

from ....protocol.model import JobId
from ..view import ClusterView, Reason, ReasonCode
from .base import Shares, count, too_large


class MaxMinParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class MaxMin:
    """Every job its minimum, in the order of submission, while that fits; then one GPU at a time to the job that has least.

    No job gets more than its maximum. A job whose minimum does not fit waits; smaller ones behind it may go first.
    """

    name = "max-min"
    Parameters = MaxMinParameters

    def __init__(self, parameters: MaxMinParameters) -> None:
        self.parameters = parameters

    def shares(self, view: ClusterView, rng: random.Random) -> Shares:
        by_job: dict[JobId, int] = {}
        reasons: dict[JobId, Reason] = {}
        free = view.total_gpus
        for job in view.jobs:
            if job.min_gpus <= free:
                by_job[job.job] = job.min_gpus
                free -= job.min_gpus
            elif job.min_gpus > view.total_gpus:
                reasons[job.job] = too_large(job, job.min_gpus, view)
            else:
                text = (
                    f"waits for {count(job.min_gpus)}: {free} of {view.total_gpus} left by the minimums of earlier jobs"
                )
                reasons[job.job] = Reason(ReasonCode.NO_FREE_GPUS, text)
        hungry = [
            (by_job[job.job], place, job.job, job.max_gpus)
            for place, job in enumerate(view.jobs)
            if by_job.get(job.job, job.max_gpus) < job.max_gpus
        ]
        heapq.heapify(hungry)
        while free and hungry:
            share, place, name, most = heapq.heappop(hungry)
            by_job[name] = share + 1
            free -= 1
            if share + 1 < most:
                heapq.heappush(hungry, (share + 1, place, name, most))
        return Shares(by_job, reasons)
