"""view -> admission (manual shares) -> policy -> regulation -> placement. Each stage is a pure function."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ...protocol.model import GpuAddress, JobId
from .placement import place
from .policies import Policy, Shares
from .policies.base import count
from .view import ClusterView, Reason, ReasonCode, ServerInView


@dataclass(frozen=True)
class Decision:
    """Shares and placements of all jobs that get GPUs, and reasons for those that wait or get less."""

    shares: dict[JobId, int]
    placements: dict[JobId, tuple[GpuAddress, ...]]
    reasons: dict[JobId, Reason]


def decide(view: ClusterView, policy: Policy, rng: random.Random) -> Decision:
    """Who gets which GPUs."""
    fixed = _manual_shares(view)
    shares = policy.shares(_without(view, fixed), rng)
    merged = regulate({**fixed.by_job, **shares.by_job})
    return Decision(merged, place(view, merged), {**fixed.reasons, **shares.reasons})


def regulate(shares: dict[JobId, int]) -> dict[JobId, int]:
    """Restrict shares to those that can be placed well. Without network packing (AFS 4.4) any share is allowed."""
    return {job: share for job, share in shares.items() if share > 0}


def _manual_shares(view: ClusterView) -> Shares:
    """Shares set by hand come first, in the order of submission, as large as they fit."""
    by_job: dict[JobId, int] = {}
    reasons: dict[JobId, Reason] = {}
    free = view.total_gpus
    for job in view.jobs:
        if job.manual_share is None:
            continue
        by_job[job.job] = min(job.manual_share, free)
        free -= by_job[job.job]
        if by_job[job.job] < job.manual_share:
            text = f"set to {count(job.manual_share)} by hand, {by_job[job.job]} of {view.total_gpus} could be had"
            reasons[job.job] = Reason(ReasonCode.MANUAL, text)
    return Shares(by_job, reasons)


def _without(view: ClusterView, fixed: Shares) -> ClusterView:
    """What is left for the policy to divide: which GPUs does not matter to it, only how many."""
    taken = sum(fixed.by_job.values())
    servers: list[ServerInView] = []
    for server in reversed(view.servers):
        gone = min(taken, len(server.gpus))
        taken -= gone
        servers.append(replace(server, gpus=server.gpus[: len(server.gpus) - gone]))
    jobs = tuple(job for job in view.jobs if job.job not in fixed.by_job)
    return replace(view, jobs=jobs, servers=tuple(reversed(servers)))
