"""The scheduler's view of what the controller knows (scheduling.md): jobs as a table, servers, who holds which GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..protocol.model import GpuAddress
from .cluster import Cluster
from .generations import ending
from .jobs import Job
from .scheduling.placement import addresses
from .scheduling.throughput import estimate
from .scheduling.view import UNKNOWN_S, ClusterView, Columns, Curves, Floats, Gpus, Ints, JobTable, ServerInView


@dataclass(frozen=True)
class Outlook:
    """A view, and what its rows and bits stand for."""

    view: ClusterView
    jobs: tuple[Job, ...]
    first: Mapping[int, Gpus]  # by row, the GPU of a job's first worker

    @cached_property
    def gpus(self) -> tuple[GpuAddress, ...]:
        """Which GPU each bit of a set stands for."""
        return addresses(self.view.servers)


def outlook(cluster: Cluster, now: float) -> Outlook:
    """What the scheduler may see. Jobs that are about to end keep their GPUs, which are in nobody's view."""
    jobs = [job for job in cluster.jobs.values() if not job.final]
    busy = {gpu for job in jobs if ending(job) for gpu in job.kept.target}
    servers = tuple(
        ServerInView(
            server=name,
            gpus=tuple(
                gpu.index for gpu in session.server.gpus if GpuAddress(server=name, index=gpu.index) not in busy
            ),
        )
        for name, session in sorted(cluster.sessions.items())
        if session.alive
    )
    seen = tuple(job for job in jobs if not ending(job))
    bits = {gpu: 1 << bit for bit, gpu in enumerate(addresses(servers))}
    placements: dict[int, Gpus] = {}
    for row, job in enumerate(seen):
        if job.kept.target:
            placements[row] = sum(bits.get(gpu, 0) for gpu in job.kept.target)
    manual = {row: _manual(job) for row, job in enumerate(seen) if job.kept.manual_share is not None}
    total = sum(len(server.gpus) for server in servers)
    table = JobTable(*_columns(seen, total, now))
    first = {
        row: bits[job.kept.target[0]] for row, job in enumerate(seen) if job.kept.target and job.kept.target[0] in bits
    }
    return Outlook(ClusterView(now, table, servers, placements, manual), seen, first)


def _held(job: Job) -> bool:
    return job.hold_until is not None and bool(job.kept.target)


def _most(job: Job) -> int:
    """No more than it has while its new workers end at their start."""
    most = job.kept.spec.gpus.max
    return min(most, len(job.kept.target)) if _held(job) else most


def _manual(job: Job) -> int:
    manual = job.kept.manual_share
    assert manual is not None
    return min(manual, len(job.kept.target)) if _held(job) else manual


def _columns(jobs: tuple[Job, ...], total: int, now: float) -> tuple[Columns, Ints, Curves]:
    most = max([1, *(min(_most(job), max(total, 1)) for job in jobs)])
    rates = [estimate(job.kept.rates, most) for job in jobs]
    speedup = np.array([curve / curve[1] for curve in rates]) if jobs else np.zeros((0, most + 1))
    columns = Columns(
        names=[job.id for job in jobs],
        submitted_s=np.array([job.kept.submitted_s for job in jobs], dtype=float),
        min_gpus=np.array([min(job.kept.spec.gpus.min, _most(job)) for job in jobs], dtype=np.int64),
        max_gpus=np.array([_peak(job, curve) for job, curve in zip(jobs, rates, strict=True)], dtype=np.int64),
        requested_gpus=np.array([job.kept.spec.gpus.max for job in jobs], dtype=np.int64),
        priority=np.array([job.kept.spec.priority for job in jobs], dtype=np.int64),
        share=np.array([len(job.kept.target) for job in jobs], dtype=np.int64),
        left_s=np.array([_left_s(job, curve[1]) for job, curve in zip(jobs, rates, strict=True)], dtype=float),
        attained_gpu_s=np.array([job.attained_gpu_s(now) for job in jobs], dtype=float),
        executed_s=np.array([job.executed_s(now) for job in jobs], dtype=float),
        waiting_since_s=np.array([_waiting_since_s(job) for job in jobs], dtype=float),
        curve=np.arange(len(jobs)),
    )
    return columns, np.arange(len(jobs)), Curves(speedup)


def _peak(job: Job, curve: Floats) -> int:
    """The smallest share with the greatest throughput that is expected, within the job's range."""
    return max(min(job.kept.spec.gpus.min, _most(job)), int(np.argmax(curve[: _most(job) + 1])))


def _left_s(job: Job, steps_per_s: float) -> float:
    """With one GPU."""
    progress = job.progress()
    total = progress.total_steps or job.kept.spec.max_steps
    if total is None or not job.kept.rates:
        return UNKNOWN_S
    return max(0, total - 1 - (progress.step if progress.step is not None else -1)) / steps_per_s


def _waiting_since_s(job: Job) -> float:
    if job.kept.target:
        return math.nan
    return job.kept.shares[-1].time_s if job.kept.shares else job.kept.submitted_s
