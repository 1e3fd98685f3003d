"""Reasons why a decision has changed a share: jobs that get or give up GPUs, and GPUs that were added or lost.

The scheduler states why a job has no more GPUs (`Decided.why`). This module adds the changes since the last decision: jobs that
have ended, and GPUs that are unavailable, or available again. These are computed only when a share changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np

from ...protocol.model import GpuAddress
from ...protocol.texts import gpu_count, over_words, ranges
from ..cluster import Cluster
from ..jobs.generations import ending
from ..jobs.job import Job
from ..state.planning import Snapshot
from .deciding import Decided

MOST_TOLD = 3  # jobs, servers or GPUs in one part of a sentence


class Causes:
    """Reasons for the changes of one decision."""

    def __init__(self, cluster: Cluster, before: Snapshot | None, seen: Snapshot, found: Decided) -> None:
        """`before`: snapshot of the last decision; None: the first decision since the controller started."""
        self._cluster, self._before, self._seen, self._found = cluster, before, seen, found

    def of(self, row: int, after: int) -> str:
        """Return why the job of this row now gets `after` GPUs, or different ones, as text for users."""
        job, view = self._seen.jobs[row], self._seen.view
        had = len(job.record.target)
        if row in view.manual_shares:
            return "; ".join([f"set to {gpu_count(view.manual_shares[row])} by hand", *self._why(row)])
        if after > had:
            room = [*self._over, *self._others(row, grow=False), *self._came]
            return "; ".join(room) or ("GPUs are free" if had else "starts: GPUs are free")
        if after == had:
            return "; ".join(self._went) or "moves to other GPUs"
        parts = [*self._others(row, grow=True), *self._went, *self._why(row)]
        return "; ".join(parts) or "the policy gives it fewer"

    def _why(self, row: int) -> list[str]:
        why = self._found.why(row)
        return [why] if why else []

    def _others(self, row: int, grow: bool) -> list[str]:
        """Return the other jobs that get GPUs by the same decision (`grow`), or give some back, as text."""
        texts = [
            f"{self._seen.jobs[other].id} ({has} -> {gets})"
            for other, has, gets in (self._growing if grow else self._shrinking)
            if other != row
        ]
        return [f"{'makes room for' if grow else 'gets GPUs of'} {_some(texts)}"] if texts else []

    @cached_property
    def _growing(self) -> list[tuple[int, int, int]]:
        return self._changing(1)

    @cached_property
    def _shrinking(self) -> list[tuple[int, int, int]]:
        return self._changing(-1)

    def _changing(self, sign: int) -> list[tuple[int, int, int]]:
        has, gets = self._seen.view.jobs.share, self._found.decision.shares
        return [(row, int(has[row]), int(gets[row])) for row in np.flatnonzero((gets - has) * sign > 0).tolist()]

    @cached_property
    def _over(self) -> list[str]:
        """Jobs that had GPUs at the last decision, and have ended since."""
        if self._before is None:
            return []
        jobs = [*(self._before.jobs[row] for row in self._before.view.placements), *self._before.fixed]
        texts = [f"{job.id} {over_words(job.record.phase)}" for job in jobs if job.final]
        return [_some(texts)] if texts else []

    @cached_property
    def _came(self) -> list[str]:
        """GPUs that are available again, or for the first time."""
        fixed = self._before.fixed if self._before is not None else ()
        records = [entry for job in fixed for entry in (*job.workers, *job.record.past)]
        # GPUs that are reported with the jobs that gave them back, or are still held by these.
        theirs = {gpu for entry in records for gpu in entry.all_gpus}
        texts = _gpus(gpu for gpu in self._new(self._seen, self._before) if gpu not in theirs)
        return [f"{_some(texts)} can be used"] if texts else []

    @cached_property
    def _went(self) -> list[str]:
        """GPUs that are not available any more, and why."""
        gone: dict[str, list[GpuAddress]] = {}
        for gpu in self._new(self._before, self._seen):
            gone.setdefault(why_gone(self._cluster, gpu), []).append(gpu)
        texts = [f"{_some(_gpus(gpus))}: {why}" for why, gpus in gone.items()]
        return [_some(texts)] if texts else []

    def _new(self, seen: Snapshot | None, before: Snapshot | None) -> list[GpuAddress]:
        """Return the GPUs in the view of `seen` and not in that of `before`."""
        if seen is None or before is None or seen.view.servers == before.view.servers:
            return []
        known = set(before.gpus)
        return [gpu for gpu in seen.gpus if gpu not in known]


def why_gone(cluster: Cluster, gpu: GpuAddress) -> str:
    """Return why a GPU is not available to the policy, as text for users."""
    session = cluster.servers.sessions.get(gpu.server)
    if session is None or not session.alive:
        return f"server {gpu.server} is lost"
    holder = holder_of(cluster, gpu)
    if holder is not None:
        return f"{holder.id} has it, {'a gang of fixed size' if holder.gang else 'and is about to end'}"
    if (taint := cluster.servers.taint(gpu)) is not None:
        return taint.text
    if not cluster.servers.fit(gpu.server):
        return cluster.servers.health[gpu.server].reason
    if (name := cluster.jobs.index.on_gpu(gpu)) is not None:
        return f"a worker of {name} is still there"
    return "a process of no known job is there"


def holder_of(cluster: Cluster, gpu: GpuAddress) -> Job | None:
    """Return the job outside the policy's view that holds this GPU, also if it left the view since the last decision."""
    known = next((job for job in cluster.jobs.rows.fixed.values() if gpu in job.own_gpus), None)
    name = cluster.jobs.index.on_gpu(gpu) if known is None else None
    job = cluster.jobs.get(name) if name is not None else None
    return job if job is not None and gpu in job.own_gpus and (job.gang or ending(job)) else known


def _gpus(gpus: Iterable[GpuAddress]) -> list[str]:
    """Return the GPUs by server, such as "s1:0-3" and "s2:5"."""
    return [
        f"{server}:{ranges(gpu.index for gpu in here)}" for server, here in groupby(gpus, key=lambda gpu: gpu.server)
    ]


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_TOLD
    return ", ".join([*texts[:MOST_TOLD], *([f"{more} more"] if more > 0 else [])])
