"""What a policy is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

from ....protocol.model import JobId
from ..view import ClusterView, JobInView, Reason, ReasonCode


@dataclass(frozen=True)
class Shares:
    """How many GPUs each job gets (jobs that are not named get none), and why some get less than they could use."""

    by_job: dict[JobId, int]
    reasons: dict[JobId, Reason] = field(default_factory=dict)


class Policy(Protocol):
    """A rule that divides the GPUs. Pure: the same view and random source give the same shares."""

    name: str

    def shares(self, view: ClusterView, rng: random.Random) -> Shares: ...


def too_large(job: JobInView, needed: int, view: ClusterView) -> Reason:
    return Reason(
        ReasonCode.CLUSTER_TOO_SMALL,
        f"needs {count(needed)}, the cluster has {view.total_gpus} that this policy may give",
    )


def count(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
