"""The simulated workload: jobs, their throughput by number of GPUs, and the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..protocol.model import JobId, ServerId
from ..scheduler.arrays import Floats, Ints
from ..scheduler.curves import Curves
from ..scheduler.kinds import Demand
from ..scheduler.view import Gpus, ServerInView
from .owners import By


@dataclass(frozen=True)
class Workload:
    """Jobs in the order of submission. All columns have one entry per job.

    Times are seconds from the first submission.
    """

    names: Sequence[JobId]
    submit_s: Floats
    min_gpus: Ints
    max_gpus: Ints
    requested_gpus: Ints
    work_s: Floats  # seconds of the job on one GPU
    curve: Ints  # row of `curves` and of `models`
    curves: Curves  # as measured
    models: tuple[str, ...]
    told_s: Floats | None = None  # the report of each job's `work_s`; nan: none; None: all are true
    deadline_s: Floats | None = None  # nan: none; None: no job has one
    soft: Ints | None = None  # 1: the deadline is soft; None: none is
    priority: Ints | None = None  # a greater one goes first; None: all are equal
    demands: Sequence[Demand] | None = None  # the GPUs that each job may use; None: any, but of one type
    owners: Mapping[By, Sequence[str]] = field(default_factory=dict)  # user and account of each job, if known

    def __len__(self) -> int:
        return len(self.submit_s)


@dataclass(frozen=True)
class Begun:
    """State of the first jobs of a workload, all submitted by now, where a simulation runs forward from a real cluster.
    Columns have an entry per job of the workload.
    """

    share: Ints
    left_s: Floats  # of `Workload.work_s`
    executed_s: Floats
    attained_gpu_s: Floats
    waiting_since_s: Floats  # nan while the job has GPUs
    changes: Ints
    fixed: Ints  # 1: the job cannot be resized or preempted once it has GPUs
    by_hand: Ints  # shares that were set by hand; 0: none
    gpus: Sequence[Gpus] | None = None  # of each job, where demands are given; None: any


def servers(count: int, gpus: int) -> tuple[ServerInView, ...]:
    """Return `count` servers of equal size."""
    width = len(str(count))
    return tuple(ServerInView(ServerId(f"server-{i:0{width}d}"), tuple(range(gpus))) for i in range(count))
