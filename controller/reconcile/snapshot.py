"""The scheduler's view of what the controller knows (scheduling.md): jobs as a table, servers, who holds which GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...protocol.model import GpuAddress, JobId, JobPhase, ServerId, Severity
from ...scheduler.measuring import first_share
from ...scheduler.placement.fewest_servers import addresses
from ...scheduler.quotas.dividing import Tenancy
from ...scheduler.quotas.terms import Quotas
from ...scheduler.scheduler import Scheduler
from ...scheduler.speedup_curve import fewest_servers
from ...scheduler.view import Aside, ClusterView, Gpus, Ints, JobTable, ServerInView, Use
from ..cluster import Cluster
from ..jobs.job import Job
from ..loans import use_of
from ..sessions import Session
from .reserving import reserved
from .rows import Rows

MANY_BEHIND = 100  # jobs that have changed since the last look


@dataclass(frozen=True)
class Snapshot:
    """A view, and what its rows and bits stand for."""

    view: ClusterView
    jobs: tuple[Job, ...]
    first: Mapping[int, Gpus]  # by row, the GPU of a job's first worker
    running: Mapping[int, Gpus]  # by row, where a job's processes are; of jobs that have GPUs, or processes
    held: Mapping[int, Gpus]  # and where more are to start as soon as the GPUs are free; of jobs that have processes
    fixed: tuple[Job, ...] = ()  # that keep their GPUs, in nobody's view
    tenancy: Tenancy | None = None  # whose jobs these are, where there are quotas
    review_s: float = math.inf  # somebody may get a reservation then (Unix time)

    @cached_property
    def rows(self) -> Mapping[JobId, int]:
        """By job."""
        return {job.id: row for row, job in enumerate(self.jobs)}

    @cached_property
    def gpus(self) -> tuple[GpuAddress, ...]:
        """Which GPU each bit of a set stands for."""
        return addresses(self.view.servers)


def snapshot(
    cluster: Cluster,
    now: float,
    without: Collection[JobId] = (),
    staying: Collection[JobId] = (),
    scheduler: Scheduler | None = None,
) -> Snapshot:
    """What the scheduler may see. Jobs that are about to end, and gangs (`gangs`), keep their GPUs, which are in nobody's view;
    nor are GPUs that are free and take no new work, and those that are to be left. `without`: jobs that have no GPU and are to
    get none now; `staying`: jobs that keep GPUs that are to be left. `scheduler`: which is to decide; None: the one in use.

    So no policy can resize, move or preempt a gang: what it divides is what the gangs leave."""
    rows, there = cluster.rows, cluster.present_gpus
    _catch_up(cluster, now, there)
    sessions = sorted(cluster.sessions.items())
    servers = _in_view(cluster, sessions, staying)
    jobs, chosen = rows.jobs(frozenset(without))
    total = sum([len(server.gpus) for server in servers])
    first = first_share(total, len(jobs)) if cluster.settings.measuring.way_down else None
    there_now = tuple([session.whole for _, session in sessions if session.alive])
    columns, curves = rows.columns(chosen, now, total, there_now, first)
    table = JobTable(columns, np.arange(len(jobs)), curves, ended=cluster.ended)
    table.schedules = cluster.schedules
    manual = {row: _manual(rows.manual[name]) for row, name in rows.where(rows.manual, chosen)}
    places = _places(rows, chosen, servers)
    limits, limit_of = rows.limits(chosen, servers)
    absent = tuple(session.whole for _, session in sessions if not session.alive)
    aside = _aside(cluster, sessions, servers)
    whole = there_now if aside else ()
    view = ClusterView(now, table, servers, places.own, manual, limits, limit_of, absent, whole, aside=aside)
    scheduler = scheduler or cluster.decider.scheduler
    tenancy = _tenancy(cluster, scheduler.stages.quotas, jobs, chosen)
    review_s = math.inf
    if not rows.any_promise:  # what is kept for deadlines is held for nobody else
        name = scheduler.policy.name
        view, review_s = reserved(cluster, view, chosen, there_now, places.running, name, tenancy)
    fixed = tuple(rows.fixed.values())
    return Snapshot(view, jobs, places.first, places.running, places.held, fixed, tenancy, review_s)


def _tenancy(cluster: Cluster, quotas: Quotas, jobs: tuple[Job, ...], chosen: Ints) -> Tenancy | None:
    """Whose jobs are seen, and what is guaranteed to whom; None: there are no quotas."""
    if not quotas.any:
        return None
    held: dict[str, int] = {}
    for job in cluster.rows.fixed.values():
        tenant = quotas.tenant(job.user)
        held[tenant] = held.get(tenant, 0) + len(job.own_gpus)
    stays = frozenset(np.flatnonzero(cluster.rows.unjoined(chosen, expected=False)).tolist())
    return Tenancy(quotas, [job.user for job in jobs], held, stays)


def falls_behind(cluster: Cluster) -> bool:
    """Have so many jobs changed since the last look that a part of them had better be looked at before the next decision?"""
    return cluster.rows.behind >= MANY_BEHIND


def keep_up(cluster: Cluster, now: float) -> None:
    """Between two decisions: do a part of the work for the next one, so that nobody waits for all of it then.

    A controller that has just started takes it that all servers which it knows will come back.
    """
    if falls_behind(cluster):
        there = cluster.known_gpus if cluster.awaited else cluster.present_gpus
        _catch_up(cluster, now, there, bool(cluster.awaited), MANY_BEHIND)


def _catch_up(cluster: Cluster, now: float, there: int, absent_too: bool = False, limit: int | None = None) -> None:
    cluster.rows.catch_up(
        lambda most: fewest(cluster, min(most, max(there, 1)), absent_too),
        lambda kind: cluster.history.find(kind, now),
        lambda job, servers: cluster.estimate(now, job, servers),
        limit,
    )


def _in_view(
    cluster: Cluster, sessions: Sequence[tuple[ServerId, Session]], staying: Collection[JobId]
) -> tuple[ServerInView, ...]:
    """The servers that are there, with those of their GPUs that the scheduler gives to jobs."""
    busy: dict[ServerId, set[int]] = {}
    for job in cluster.rows.fixed.values():
        for gpu in job.own_gpus:  # also those that it left idle to be measured: it may go on after all
            busy.setdefault(gpu.server, set()).add(gpu.index)
    found = []
    for name, session in sessions:
        if not session.alive:
            continue
        fit, barred = cluster.fit(name), cluster.barred.get(name)
        if fit and not barred and name not in busy and not session.unknown:
            found.append(session.whole)
            continue
        hidden = busy.get(name, set()) | {index for local in session.unknown.values() for index in local.all_gpus}
        if not fit or barred:
            hidden |= _not_to_be_had(cluster, session, staying)
        seen = [at for at, index in enumerate(session.whole.gpus) if index not in hidden]
        if seen or fit:
            found.append(session.whole.only(seen))
    return tuple(found)


def _aside(
    cluster: Cluster, sessions: Sequence[tuple[ServerId, Session]], servers: Sequence[ServerInView]
) -> tuple[Aside, ...]:
    """The GPUs of servers that are there and that nobody in view can have, by why that is."""
    in_view = {server.server: server for server in servers}
    fixed = {gpu: job for job in cluster.rows.fixed.values() for gpu in job.own_gpus}
    found: dict[Use, list[ServerInView]] = {}
    for name, session in sessions:
        if not session.alive or in_view.get(name) is session.whole:
            continue
        seen = set(in_view[name].gpus) if name in in_view else set()
        unknown = {index for local in session.unknown.values() for index in local.all_gpus}
        by_use: dict[Use, list[int]] = {}
        for at, index in enumerate(session.whole.gpus):
            if index not in seen:
                gpu = GpuAddress(server=name, index=index)
                if (job := fixed.get(gpu)) is not None:
                    use = Use.STARTING if job.gang and _may_join(job) else Use.FIXED
                else:
                    use = Use.UNKNOWN if index in unknown else use_of(cluster, gpu)
                by_use.setdefault(use, []).append(at)
        for use, kept in by_use.items():
            found.setdefault(use, []).append(session.whole.only(kept))
    return tuple(Aside(use, tuple(found[use])) for use in Use if use in found)


def _may_join(job: Job) -> bool:
    """Is it expected to call `elastic.join()` in a moment?"""
    return job.spec.expected_to_join and job.record.phase is not JobPhase.RUNNING


def _not_to_be_had(cluster: Cluster, session: Session, staying: Collection[JobId]) -> set[int]:
    """The GPUs of a server that take no new work, but for those that a job has there, runs on, and need not leave."""
    server, hidden = session.server.server, set()
    there = {
        gpu.index: job.id
        for job in cluster.index.on_server(server)
        if not job.final
        for gpu in set(job.own_gpus).intersection(job.running_gpus)
        if gpu.server == server
    }
    for index in session.whole.gpus:
        gpu = GpuAddress(server=server, index=index)
        if cluster.usable(gpu):
            continue
        bar, job = cluster.bar(gpu), there.get(index)
        severity = bar.severity if bar is not None else Severity.NO_NEW_WORK
        stays = bar is not None and bar.may_stay and job in staying
        if job is None or (severity.moves and not stays):
            hidden.add(index)
    return hidden


@dataclass(frozen=True)
class _Places:
    """By row, of the jobs that have GPUs or processes."""

    own: dict[int, Gpus]
    first: dict[int, Gpus]
    running: dict[int, Gpus]
    held: dict[int, Gpus]


def _places(rows: Rows, chosen: Ints, servers: tuple[ServerInView, ...]) -> _Places:
    placed = rows.places(servers)
    found = [(row, placed[name]) for row, name in rows.where(rows.held, chosen)]
    return _Places(
        own={row: place.own for row, place in found if place.of.own},
        first={row: place.first for row, place in found if place.first},
        running={row: place.running for row, place in found},
        held={row: place.held for row, place in found if place.running},
    )


def _manual(job: Job) -> int:
    manual = job.record.manual_share
    assert manual is not None
    return min(manual, job.bound)


def fewest(cluster: Cluster, most: int, absent_too: bool = False) -> Ints:
    """On how many servers each share from 0 to `most` is placed. `absent_too`: reckon with all servers that are known."""
    sessions = cluster.sessions.values()
    return fewest_servers([len(session.server.gpus) for session in sessions if session.alive or absent_too], most)
