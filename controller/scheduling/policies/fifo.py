"""`fifo`: rigid, in the order of submission (the baseline of Elan VI-C)."""

from __future__ import annotations

import random

import msgspec

from ....protocol.model import JobId
from ..view import ClusterView, Reason, ReasonCode
from .base import Shares, count, too_large


class FifoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class Fifo:
    """A job gets the GPUs it requested (its maximum), all of them or none, and keeps them until it ends.

    The first job that does not fit holds all later ones back, except where it could not fit into the whole cluster.
    """

    name = "fifo"
    Parameters = FifoParameters

    def __init__(self, parameters: FifoParameters) -> None:
        self.parameters = parameters

    def shares(self, view: ClusterView, rng: random.Random) -> Shares:
        by_job = {job.job: min(job.share, view.total_gpus) for job in view.jobs if job.share}
        free = view.total_gpus - sum(by_job.values())
        reasons: dict[JobId, Reason] = {}
        blocked_by = None
        for job in view.jobs:
            if job.job in by_job:
                continue
            if job.requested_gpus > view.total_gpus:
                reasons[job.job] = too_large(job, job.requested_gpus, view)
            elif blocked_by is not None:
                reasons[job.job] = Reason(ReasonCode.BEHIND_ANOTHER, f"waits behind {blocked_by}")
            elif job.requested_gpus > free:
                blocked_by = job.job
                text = f"waits for {count(job.requested_gpus)}: {free} of {view.total_gpus} free"
                reasons[job.job] = Reason(ReasonCode.NO_FREE_GPUS, text)
            else:
                by_job[job.job] = job.requested_gpus
                free -= job.requested_gpus
        return Shares(by_job, reasons)
