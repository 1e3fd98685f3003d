"""The scheduler's view of what the controller knows (scheduling.md): jobs as a table, servers, who holds which GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...protocol.model import GpuAddress, JobId, ServerId
from ...scheduler.measuring import first_share
from ...scheduler.placement.fewest_servers import addresses
from ...scheduler.speedup_curve import fewest_servers
from ...scheduler.view import ClusterView, Gpus, Ints, JobTable, ServerInView
from ..cluster import Cluster
from ..jobs.job import Job
from .rows import Rows

MANY_BEHIND = 100  # jobs that have changed since the last look


@dataclass(frozen=True)
class Snapshot:
    """A view, and what its rows and bits stand for."""

    view: ClusterView
    jobs: tuple[Job, ...]
    rows: Mapping[JobId, int]
    first: Mapping[int, Gpus]  # by row, the GPU of a job's first worker
    running: Mapping[int, Gpus]  # by row, where a job's processes are; of jobs that have GPUs, or processes
    held: Mapping[int, Gpus]  # and where more are to start as soon as the GPUs are free; of jobs that have processes

    @cached_property
    def gpus(self) -> tuple[GpuAddress, ...]:
        """Which GPU each bit of a set stands for."""
        return addresses(self.view.servers)


def snapshot(cluster: Cluster, now: float, without: Collection[JobId] = ()) -> Snapshot:
    """What the scheduler may see. Jobs that are about to end keep their GPUs, which are in nobody's view; so do GPUs that are
    free on a server that cannot start workers. `without`: jobs that have no GPU and are to get none now."""
    rows, there = cluster.rows, cluster.present_gpus
    _catch_up(cluster, now, there)
    servers = _in_view(cluster)
    jobs, chosen = rows.jobs(frozenset(without))
    total = sum([len(server.gpus) for server in servers])
    first = first_share(total, len(jobs)) if cluster.settings.measuring.way_down else None
    columns, curves = rows.columns(chosen, now, total, there, first)
    table = JobTable(columns, np.arange(len(jobs)), curves)
    where = {name: row for row, name in enumerate(columns.names)}
    manual = {where[name]: _manual(job) for name, job in rows.manual.items() if name in where}
    places = _places(rows, where, servers)
    view = ClusterView(now, table, servers, places.own, dict(sorted(manual.items())))
    return Snapshot(view, jobs, where, places.first, places.running, places.held)


def keep_up(cluster: Cluster, now: float) -> None:
    """Between two decisions: do a part of the work for the next one, so that nobody waits for all of it then."""
    if cluster.rows.behind >= MANY_BEHIND:
        _catch_up(cluster, now, cluster.present_gpus)


def _catch_up(cluster: Cluster, now: float, there: int) -> None:
    cluster.rows.catch_up(
        lambda most: fewest(cluster, min(most, max(there, 1))),
        lambda kind: cluster.history.find(kind, now),
        lambda job, servers: cluster.estimate(now, job, servers),
    )


def _in_view(cluster: Cluster) -> tuple[ServerInView, ...]:
    """The servers that are there, with those of their GPUs that the scheduler gives to jobs."""
    busy: dict[ServerId, set[int]] = {}
    for job in cluster.rows.ending.values():
        for gpu in job.own_gpus:  # also those that it left idle to be measured: it may go on after all
            busy.setdefault(gpu.server, set()).add(gpu.index)
    found = []
    for name, session in sorted(cluster.sessions.items()):
        if not session.alive:
            continue
        fit = cluster.fit(name)
        if fit and name not in busy and not session.unknown:
            found.append(session.whole)
            continue
        hidden = busy.get(name, set()) | {local.gpu for local in session.unknown.values()}
        run = None if fit else _running_on(cluster, name)
        seen = tuple(index for index in session.whole.gpus if index not in hidden and (run is None or index in run))
        if seen or fit:
            found.append(ServerInView(server=name, gpus=seen))
    return tuple(found)


def _running_on(cluster: Cluster, server: ServerId) -> set[int]:
    """The GPUs there on which jobs run that are to be there."""
    return {
        gpu.index
        for job in cluster.index.on_server(server)
        if not job.final
        for gpu in set(job.own_gpus).intersection(job.running_gpus)
        if gpu.server == server
    }


@dataclass(frozen=True)
class _Places:
    """By row, of the jobs that have GPUs or processes."""

    own: dict[int, Gpus]
    first: dict[int, Gpus]
    running: dict[int, Gpus]
    held: dict[int, Gpus]


def _places(rows: Rows, where: Mapping[JobId, int], servers: tuple[ServerInView, ...]) -> _Places:
    placed = rows.places(servers)
    found = _Places({}, {}, {}, {})
    for row, name in sorted([(where[name], name) for name in rows.held if name in where]):
        place = placed[name]
        found.running[row] = place.running
        if place.first:
            found.first[row] = place.first
        if place.of.own:
            found.own[row] = place.own
        if place.running:
            found.held[row] = place.held
    return found


def _manual(job: Job) -> int:
    manual = job.record.manual_share
    assert manual is not None
    return min(manual, job.most_gpus) if job.hold_until is not None and job.record.target else manual


def fewest(cluster: Cluster, most: int) -> Ints:
    """On how many servers each share from 0 to `most` is placed."""
    return fewest_servers([len(session.server.gpus) for session in cluster.sessions.values() if session.alive], most)
