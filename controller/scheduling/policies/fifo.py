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
    """A job gets the GPUs it requested (its maximum), all of them or none, and keeps them until it ends. Only where GPUs are
    lost, or taken by hand, does it go on with fewer, but not with less than its minimum.

    The first job that does not fit holds all later ones back, except where it could not fit into the whole cluster.
    """

    name = "fifo"
    Parameters = FifoParameters

    def __init__(self, parameters: FifoParameters) -> None:
        self.parameters = parameters

    def shares(self, view: ClusterView, rng: random.Random) -> Shares:
        by_job: dict[JobId, int] = {}
        reasons: dict[JobId, Reason] = {}
        free = view.total_gpus
        for job in view.jobs:  # who runs goes on; where GPUs have been lost, or taken by hand, with what is left
            kept = min(job.share, free)
            if kept >= job.min_gpus:
                by_job[job.job] = kept
                free -= kept
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
