"""The scheduler's view of what the controller knows (scheduling.md): jobs as a table, servers, who holds which GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..protocol.model import GpuAddress, JobId
from .cluster import Cluster
from .generations import ending
from .jobs import Job
from .scheduling.measuring import first_share
from .scheduling.placement import addresses
from .scheduling.sets import union
from .scheduling.throughput import fewest_servers, peak
from .scheduling.view import UNKNOWN_S, ClusterView, Columns, Curves, Gpus, Ints, JobTable, ServerInView
from .throughput import Estimated


@dataclass(frozen=True)
class Outlook:
    """A view, and what its rows and bits stand for."""

    view: ClusterView
    jobs: tuple[Job, ...]
    first: Mapping[int, Gpus]  # by row, the GPU of a job's first worker
    running: Mapping[int, Gpus]  # by row, where a job's processes are
    held: Mapping[int, Gpus]  # and where more are to start as soon as the GPUs are free; of jobs that have processes

    @cached_property
    def gpus(self) -> tuple[GpuAddress, ...]:
        """Which GPU each bit of a set stands for."""
        return addresses(self.view.servers)


def outlook(cluster: Cluster, now: float, without: Collection[JobId] = ()) -> Outlook:
    """What the scheduler may see. Jobs that are about to end keep their GPUs, which are in nobody's view; so do GPUs that are
    free on a server that cannot start workers. `without`: jobs that have no GPU and are to get none now."""
    jobs = [job for job in cluster.jobs.values() if not job.final]
    busy = {gpu for job in jobs if ending(job) for gpu in job.kept.target} | cluster.held_by_unknown()
    run = {gpu for job in jobs for gpu in set(job.own_gpus).intersection(job.running_gpus)}
    servers = []
    for name, session in sorted(cluster.sessions.items()):
        here = [GpuAddress(server=name, index=gpu.index) for gpu in session.server.gpus]
        seen_here = tuple(gpu.index for gpu in here if gpu not in busy and (gpu in run or cluster.fit(name)))
        if session.alive and (seen_here or cluster.fit(name)):
            servers.append(ServerInView(server=name, gpus=seen_here))
    seen = tuple(job for job in jobs if not ending(job) and job.id not in without)
    bits = {gpu: 1 << bit for bit, gpu in enumerate(addresses(servers))}
    placements: dict[int, Gpus] = {}
    for row, job in enumerate(seen):
        if job.kept.target:
            placements[row] = sum(bits.get(gpu, 0) for gpu in job.own_gpus)
    manual = {row: _manual(job) for row, job in enumerate(seen) if job.kept.manual_share is not None}
    total = sum(len(server.gpus) for server in servers)
    table = JobTable(*_columns(cluster, seen, total, now))
    first = {
        row: bits[job.kept.target[0]] for row, job in enumerate(seen) if job.kept.target and job.kept.target[0] in bits
    }
    running = {row: union(bits.get(gpu, 0) for gpu in job.running_gpus) for row, job in enumerate(seen)}
    held = {
        row: union(bits.get(entry.gpu, 0) for entry in job.kept.workers if not entry.stopping)
        for row, job in enumerate(seen)
        if running[row]
    }
    return Outlook(ClusterView(now, table, tuple(servers), placements, manual), seen, first, running, held)


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


def fewest(cluster: Cluster, most: int) -> Ints:
    """On how many servers each share from 0 to `most` is placed."""
    return fewest_servers([len(session.server.gpus) for session in cluster.sessions.values() if session.alive], most)


def _columns(cluster: Cluster, jobs: tuple[Job, ...], total: int, now: float) -> tuple[Columns, Ints, Curves]:
    most = max([1, *(min(_most(job), max(total, 1)) for job in jobs)])
    servers = fewest(cluster, most)
    told = [cluster.estimate(now, job, servers) for job in jobs]
    first = first_share(total, len(jobs)) if cluster.settings.measuring.way_down else most
    speedup = np.array([each.curve / each.curve[1] for each in told]) if jobs else np.zeros((0, most + 1))
    there = sum(len(session.server.gpus) for session in cluster.sessions.values() if session.alive)
    columns = Columns(
        names=[job.id for job in jobs],
        submitted_s=np.array([min(job.kept.submitted_s, now) for job in jobs], dtype=float),  # clocks are set back
        min_gpus=np.array([min(job.kept.spec.gpus.min, _most(job)) for job in jobs], dtype=np.int64),
        max_gpus=np.array([_limit(job, each, first) for job, each in zip(jobs, told, strict=True)], dtype=np.int64),
        requested_gpus=np.array([_requested(job, there) for job in jobs], dtype=np.int64),
        priority=np.array([job.kept.spec.priority for job in jobs], dtype=np.int64),
        share=np.array([len(job.own_gpus) if job.kept.target else 0 for job in jobs], dtype=np.int64),
        left_s=np.array([left_s(job, each, 1) for job, each in zip(jobs, told, strict=True)], dtype=float),
        attained_gpu_s=np.array([job.attained_gpu_s(now) for job in jobs], dtype=float),
        executed_s=np.array([job.executed_s(now) for job in jobs], dtype=float),
        waiting_since_s=np.array([min(_waiting_since_s(job), now) for job in jobs], dtype=float),
        curve=np.arange(len(jobs)),
    )
    return columns, np.arange(len(jobs)), Curves(speedup)


def _requested(job: Job, there: int) -> int:
    """What a rigid policy gives: all that the job can use, of the GPUs that there are. It must not wait for more."""
    gpus = job.kept.spec.gpus
    return max(gpus.min, min(gpus.max, there))


def _limit(job: Job, told: Estimated, first: int) -> int:
    """The most GPUs that it can use; while nothing is known of it, no more than its fair share, or than it has."""
    least, most = min(job.kept.spec.gpus.min, _most(job)), min(_most(job), len(told.curve) - 1)
    if told.known:
        return peak(told.curve, least, most)
    return max(least, min(most, max(first, len(job.own_gpus))))


def left_s(job: Job, told: Estimated, share: int) -> float:
    """How long it still takes with so many GPUs; UNKNOWN_S: not known."""
    progress = job.progress()
    total = progress.total_steps or job.kept.spec.max_steps
    if total is None or not told.known:
        return UNKNOWN_S
    done = progress.step if progress.step is not None else -1
    return max(0, total - 1 - done) / float(told.curve[share])


def _waiting_since_s(job: Job) -> float:
    if job.kept.target:
        return math.nan
    return job.kept.shares[-1].time_s if job.kept.shares else job.kept.submitted_s
