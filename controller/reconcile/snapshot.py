"""Snapshot of the cluster for the scheduler (scheduling.md): jobs as a table, servers, and the GPUs that each job holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...protocol.model import GpuAddress, JobId, JobPhase, ServerId, Severity
from ...scheduler.amounts import Amounts, Need
from ...scheduler.arrays import Ints
from ...scheduler.measuring import first_share
from ...scheduler.quotas.dividing import Tenancy
from ...scheduler.quotas.terms import Quotas
from ...scheduler.scheduler import Scheduler
from ...scheduler.speedup_curve import fewest_servers
from ...scheduler.view import ClusterView, Excluded, Gpus, JobTable, ServerInView, Use
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.rows import Rows
from ..loans import use_of
from ..sessions import Session
from ..state.planning import Snapshot
from .reserving import reserved
from .slow_gpus import slow_sets
from .transience import confined

MANY_BEHIND = 100  # from so many outdated rows on, some are updated between decisions


def snapshot(
    cluster: Cluster,
    now: float,
    without: Collection[JobId] = (),
    staying: Collection[JobId] = (),
    scheduler: Scheduler | None = None,
) -> Snapshot:
    """Return the snapshot on which the scheduler decides.

    The view omits the GPUs of jobs that are about to end and of gangs (`gangs`). So no policy can resize, move or preempt a
    gang: a policy divides only the GPUs that gangs leave. The view also omits free GPUs that take no new work, and GPUs that
    their jobs have to leave.

    `without`: jobs that have no GPU and are to get none now. `staying`: jobs that keep GPUs which they should leave.
    `scheduler`: the scheduler that decides; None: the one in use.
    """
    rows, there = cluster.jobs.rows, cluster.servers.present_gpus
    _catch_up(cluster, now, there)
    sessions = sorted(cluster.servers.sessions.items())
    servers = _in_view(cluster, sessions, staying)
    jobs, chosen = rows.jobs(frozenset(without))
    total = sum([len(server.gpus) for server in servers])
    first = first_share(total, len(jobs)) if cluster.settings.measuring.way_down else None
    there_now = tuple([session.whole for _, session in sessions if session.alive])
    columns, curves = rows.columns(chosen, now, total, there_now, first)
    ended, schedules = cluster.experience.lengths, cluster.planning.schedules
    table = JobTable(columns, np.arange(len(jobs)), curves, ended=ended, schedules=schedules)
    manual = {row: _manual(rows.manual[name]) for row, name in rows.where(rows.manual, chosen)}
    places = _places(rows, chosen, servers)
    limits, limit_of = rows.limits(chosen, servers)
    absent = tuple(session.whole for _, session in sessions if not session.alive)
    excluded = _excluded(cluster, sessions, servers)
    whole = there_now if excluded else ()
    view = ClusterView(now, table, servers, places.own, manual, limits, limit_of, absent, whole, excluded=excluded)
    scheduler = scheduler or cluster.planning.decider.scheduler
    tenancy = _tenancy(cluster, scheduler.stages.quotas, jobs, chosen)
    review_s = math.inf
    if not rows.any_promise:  # GPUs kept for promised deadlines cannot be reserved for other jobs
        name = scheduler.policy.name
        view, looks_s = confined(cluster, view, jobs)
        view, review_s = reserved(cluster, view, chosen, there_now, places.running, name, tenancy)
        review_s = min(review_s, looks_s)
    fixed = tuple(rows.fixed.values())
    seen = Snapshot(view, jobs, places.first, places.running, places.held, fixed, tenancy, review_s)
    away = {seen.rows[job.id]: slow_sets(seen, job)[1] for job in cluster.planning.cramped if job.id in seen.rows}
    return replace(seen, away={row: gpus for row, gpus in away.items() if gpus}) if any(away.values()) else seen


def _tenancy(cluster: Cluster, quotas: Quotas, jobs: tuple[Job, ...], chosen: Ints) -> Tenancy | None:
    """Return the tenants of the jobs in view, with their quotas and the GPUs of their fixed jobs; None without quotas."""
    if not quotas.any:
        return None
    held: dict[str, int] = {}
    for job in cluster.jobs.rows.fixed.values():
        tenant = quotas.tenant(job.user)
        held[tenant] = held.get(tenant, 0) + len(job.own_gpus)
    stays = frozenset(np.flatnonzero(cluster.jobs.rows.unjoined(chosen, expected=False)).tolist())
    return Tenancy(quotas, [job.user for job in jobs], held, stays)


def falls_behind(cluster: Cluster) -> bool:
    """Return whether so many rows are out of date that some should be updated before the next decision (`keep_up`)."""
    return cluster.jobs.rows.behind >= MANY_BEHIND


def keep_up(cluster: Cluster, now: float) -> None:
    """Update up to MANY_BEHIND rows between two decisions, so that the next decision does not wait for all of them.

    A controller that has just started assumes that all known servers will reconnect.
    """
    if falls_behind(cluster):
        there = cluster.servers.known_gpus if cluster.servers.awaited else cluster.servers.present_gpus
        _catch_up(cluster, now, there, bool(cluster.servers.awaited), MANY_BEHIND)


def _catch_up(cluster: Cluster, now: float, there: int, absent_too: bool = False, limit: int | None = None) -> None:
    cluster.jobs.rows.catch_up(
        lambda most: fewest(cluster, min(most, max(there, 1)), absent_too),
        lambda kind: cluster.experience.throughput.find(kind, now),
        lambda job, servers: cluster.estimate(now, job, servers),
        limit,
    )


def _in_view(
    cluster: Cluster, sessions: Sequence[tuple[ServerId, Session]], staying: Collection[JobId]
) -> tuple[ServerInView, ...]:
    """Return the connected servers, with those of their GPUs that the scheduler may give to jobs."""
    busy: dict[ServerId, set[int]] = {}
    asked: dict[ServerId, Amounts] = {}
    for job in cluster.jobs.rows.fixed.values():
        for gpu in job.own_gpus:  # also GPUs left idle for a measurement: the job may use them again
            busy.setdefault(gpu.server, set()).add(gpu.index)
        if need := Need.of(job.spec):
            for server, gpus in Counter(gpu.server for gpu in job.own_gpus).items():
                asked[server] = asked.get(server, Amounts()) + need.of_gpus(gpus)
    found = []
    for name, session in sessions:
        if not session.alive:
            continue
        fit, tainted = cluster.servers.fit(name), cluster.servers.tainted.get(name)
        if fit and not tainted and name not in busy and not session.unknown:
            found.append(session.whole)
            continue
        hidden = busy.get(name, set()) | {index for local in session.unknown.values() for index in local.all_gpus}
        if not fit or tainted:
            hidden |= _not_to_be_had(cluster, session, staying)
        seen = [at for at, index in enumerate(session.whole.gpus) if index not in hidden]
        if seen or fit:
            found.append(session.whole.only(seen).less(asked.get(name, Amounts())))
    return tuple(found)


def _excluded(
    cluster: Cluster, sessions: Sequence[tuple[ServerId, Session]], servers: Sequence[ServerInView]
) -> tuple[Excluded, ...]:
    """Return the GPUs of connected servers that are not in view, by reason."""
    in_view = {server.server: server for server in servers}
    fixed = {gpu: job for job in cluster.jobs.rows.fixed.values() for gpu in job.own_gpus}
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
    return tuple(Excluded(use, tuple(found[use])) for use in Use if use in found)


def _may_join(job: Job) -> bool:
    """Return whether the job is expected to call `elastic.join()` soon."""
    return job.spec.expected_to_join and job.record.phase is not JobPhase.RUNNING


def _not_to_be_had(cluster: Cluster, session: Session, staying: Collection[JobId]) -> set[int]:
    """Return the GPUs of a server that the scheduler may not give to jobs.

    They take no new work, or their job has to leave. A tainted GPU that a job holds, runs on and need not leave is not
    among them: the job may keep it.
    """
    server, hidden = session.server.server, set()
    there = {
        gpu.index: job.id
        for job in cluster.jobs.index.on_server(server)
        if not job.final
        for gpu in set(job.own_gpus).intersection(job.running_gpus)
        if gpu.server == server
    }
    for index in session.whole.gpus:
        gpu = GpuAddress(server=server, index=index)
        if cluster.servers.usable(gpu):
            continue
        taint, job = cluster.servers.taint(gpu), there.get(index)
        severity = taint.severity if taint is not None else Severity.NO_NEW_WORK
        stays = taint is not None and taint.may_stay and job in staying
        if job is None or (severity.moves and not stays):
            hidden.add(index)
    return hidden


@dataclass(frozen=True)
class _Places:
    """GPU sets of the jobs that have GPUs or processes, by row."""

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
    """Return the fewest servers that hold a share of n GPUs, for each n from 0 to `most`.

    `absent_too`: count all known servers, also those that are not connected.
    """
    sessions = cluster.servers.sessions.values()
    return fewest_servers([len(session.server.gpus) for session in sessions if session.alive or absent_too], most)
