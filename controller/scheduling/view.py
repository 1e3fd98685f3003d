"""What the scheduler sees: a frozen view of the cluster, and the reasons it gives back."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...protocol.model import GpuAddress, JobId, ServerId


@dataclass(frozen=True)
class JobInView:
    """A job that is not over. GPU counts are shares; `placement` is what it has been ordered to use."""

    job: JobId
    submitted_s: float
    min_gpus: int
    max_gpus: int
    requested_gpus: int  # what a rigid policy gives it
    virtual_workers: int
    priority: int
    share: int
    placement: tuple[GpuAddress, ...]
    manual_share: int | None
    attained_gpu_s: float
    steps_done: int | None
    total_steps: int | None
    started: bool


@dataclass(frozen=True)
class ServerInView:
    """A server that works, and its GPUs that may be used."""

    server: ServerId
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class ClusterView:
    """Jobs in submission order, servers by name; `now` is Unix time in seconds."""

    now: float
    jobs: tuple[JobInView, ...]
    servers: tuple[ServerInView, ...]

    @property
    def total_gpus(self) -> int:
        return sum(len(server.gpus) for server in self.servers)


class ReasonCode(enum.Enum):
    """Why a job has not got what it could use."""

    NO_FREE_GPUS = "no-free-gpus"
    BEHIND_ANOTHER = "behind-another"
    CLUSTER_TOO_SMALL = "cluster-too-small"
    MANUAL = "manual"


@dataclass(frozen=True)
class Reason:
    """`text` is a sentence for people."""

    code: ReasonCode
    text: str
