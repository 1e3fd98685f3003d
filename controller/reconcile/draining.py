"""Drains of servers and GPUs: the work that is still there, why it stays, and the end of a drain.

Theory of operation
-------------------
A drain is a cordon (`records.Cordon`) with the order to move the work away. Its GPUs count as GPUs to be left (`taints`), so jobs
are moved off them as off a faulty GPU (`tainted`): by migration, without a lost step. In addition,

* a plain drain stops no job. A job that would lose all its GPUs stays (`tainted.cornered`). So does a job if its move would
  leave another job without GPUs (`pushing`). Both may shrink. Each change in the cluster leads to a new decision, so a job
  that stays is moved as soon as there is room;
* a drain by preemption reduces the GPUs of the cluster at any cost: a job that gets no GPU saves its state and waits, as the
  policy decides;
* a gang is never moved or stopped for a drain: it has no state that could be saved.

A drain is over when the server's agent reports no process there. For a lost server this is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec

from ...protocol.messages import EventKind, StillThere
from ...protocol.model import CordonKind, GpuAddress, JobId, JobPhase, ServerId
from ...protocol.texts import gpu_count
from ...scheduler.kinds import Demand, most_gpus
from ...scheduler.pipeline import Decision
from ..cluster import Cluster
from ..jobs.generations import ending, holders
from ..jobs.job import Job
from ..jobs.records import WorkerState
from ..jobs.rows import demand_of
from ..records import Cordon, OverruleRecord
from ..sessions import Session
from ..state.planning import Snapshot

GPUS_TOLD = 8
MOST_UNKNOWN, MOST_NAME = 64, 80  # limits of an answer: workers of unknown jobs, and characters of a job's name


def pushing(cluster: Cluster, seen: Snapshot, decision: Decision, staying: Mapping[JobId, str]) -> dict[JobId, str]:
    """Return the job that has to stay on a drained GPU, as its move would leave another job without GPUs, with the reason.

    Of several such jobs the last submitted one stays, as the others may then find room. In a cluster with very many jobs a
    decision takes long, so all of them stay at once. Empty if there is none.
    """
    candidates = [job for job in _to_be_moved(cluster, seen) if job.id not in staying]
    if not candidates:
        return {}
    pushed = next(
        (
            seen.jobs[row]
            for row in sorted(seen.view.placements)
            if not decision.shares[row] and seen.jobs[row].record.target and seen.jobs[row].id not in staying
        ),
        None,
    )
    if pushed is None:
        return {}
    chosen = candidates if cluster.jobs.many else [max(candidates, key=lambda job: seen.rows[job.id])]
    return {job.id: f"moving it would leave {pushed.id} without a GPU" for job in chosen}


def _to_be_moved(cluster: Cluster, seen: Snapshot) -> Iterator[Job]:
    """Yield the jobs in view that run on GPUs of plain drains."""
    for server, record in cluster.servers.overruled.items():
        for job in cluster.jobs.index.on_server(server) if record.drains else ():
            there = set(job.record.target).intersection(job.running_gpus)
            if job.id in seen.rows and any(gpu.server == server and _drained(cluster, gpu) for gpu in there):
                yield job


def _drained(cluster: Cluster, gpu: GpuAddress) -> bool:
    taint = cluster.servers.taint(gpu)
    return taint is not None and taint.may_stay and taint.drain is CordonKind.DRAIN


# -- workers that still run


def still_there(cluster: Cluster, server: ServerId) -> tuple[StillThere, ...]:
    """Return the jobs and processes on the GPUs of `server` that are being drained."""
    session, drains = (
        cluster.servers.sessions.get(server),
        cluster.servers.overruled.get(server, OverruleRecord()).drains,
    )
    if session is None or not drains:
        return ()
    return tuple(found for found in _all(cluster, session) if _concerns(drains, found.gpus))


def _concerns(drains: tuple[Cordon, ...], gpus: tuple[int, ...]) -> bool:
    """Return whether one of the drains covers some of `gpus`; empty `gpus` are unknown, and count as covered."""
    return not gpus or any(cordon.covers(gpu) for cordon in drains for gpu in gpus)


def _all(cluster: Cluster, session: Session) -> Iterator[StillThere]:
    server = session.server.server
    for job in cluster.jobs.index.on_server(server):
        gpus = tuple(
            gpu.index
            for entry in job.workers
            for gpu in entry.all_gpus
            if gpu.server == server and entry.state is not WorkerState.ORDERED
        )
        if gpus:
            stays, why = _why(cluster, job)
            yield StillThere(job=job.id, gpus=gpus, stays=stays, why=why)
    for orphan in session.orphans.values():
        why = "a process that nobody needs any more is being stopped"
        yield StillThere(job=orphan.stop.job, gpus=tuple(gpu.index for gpu in orphan.gpus), stays=False, why=why)
    for local in list(session.unknown.values())[:MOST_UNKNOWN]:
        why = f"no such job is known here; `elasticctl servers adopt {server}` has it save its state and end"
        yield StillThere(job=JobId(local.job[:MOST_NAME]), gpus=local.all_gpus, stays=True, why=why)


def _why(cluster: Cluster, job: Job) -> tuple[bool, str]:
    """Return whether `job` stays, for now, on the GPUs that it has to leave, and why it is still there."""
    if cluster.servers.awaited:
        return False, "the controller has just started, and waits for its servers"
    if job.final or ending(job) or all(entry.stopping for entry in job.workers):
        return False, "is about to end" if job.record.target or job.final else "saves its state, and ends"
    if job.gang:
        if job.spec.expected_to_join and job.record.phase is JobPhase.STARTING:
            return False, "has just started, and cannot be moved before it has called elastic.join()"
        return True, f"a fixed gang of {gpu_count(len(job.running_gpus))} cannot be moved; `elasticctl cancel` ends it"
    if cluster.planning.policy_trouble:
        return True, cluster.planning.policy_trouble
    if cluster.planning.due:
        return False, "is about to be moved"
    if job.id in cluster.planning.cornered:
        return True, cluster.planning.cornered[job.id] or _no_room(cluster, job)
    return False, _way(cluster, job)


def _way(cluster: Cluster, job: Job) -> str:
    """Return in words how the job leaves its drained GPUs."""
    target = [
        gpu for gpu in job.record.target if (taint := cluster.servers.taint(gpu)) is None or not taint.severity.moves
    ]
    if not target:
        return "waits until others have made room"
    there = ", ".join(map(str, target[:GPUS_TOLD])) + (", ..." if len(target) > GPUS_TOLD else "")
    moves = not set(target) <= {entry.gpu for entry in holders(job)}
    return f"is being moved to {there}" if moves else f"goes on with {gpu_count(len(target))}, {there}"


def _no_room(cluster: Cluster, job: Job) -> str:
    """Return why a job that would lose all its GPUs gets none on other servers."""
    demand = demand_of(job, cluster.servers.gpu_name)
    least = min(job.spec.gpus.min, job.record.manual_share or job.spec.gpus.min)
    stocks = [
        session.whole.only(
            [at for at, index in enumerate(session.whole.gpus) if _usable(cluster, session, index)]
        ).stock
        for _, session in sorted(cluster.servers.sessions.items())
        if session.alive
    ]
    plain: Demand = replace(demand, began_on="")
    needed = gpu_count(least) if plain.what == "GPUs" else f"{least} {plain.what}"
    most = most_gpus(demand, stocks)
    if most >= least:
        return f"it needs at least {needed}, and those elsewhere are in use"
    alike = f" of the type that it began on, {demand.began_on}" if most_gpus(plain, stocks) >= least else ""
    return f"it needs at least {needed}{alike}, and elsewhere {most} can be had"


def _usable(cluster: Cluster, session: Session, index: int) -> bool:
    return cluster.servers.usable(GpuAddress(server=session.server.server, index=index))


# --------------------------------------------------------------------------------------------------------------- when it ends


def note_drained(cluster: Cluster, now: float) -> None:
    """Record and report the drains that are over, once each."""
    for server, record in list(cluster.servers.overruled.items()):
        session = cluster.servers.sessions.get(server)
        if session is None or not session.alive or all(cordon.drained_s is not None for cordon in record.drains):
            continue
        busy = [found.gpus for found in _all(cluster, session)]
        over = [
            cordon
            for cordon in record.drains
            if cordon.drained_s is None and not any(_concerns((cordon,), gpus) for gpus in busy)
        ]
        if not over:
            continue
        noted = tuple(
            msgspec.structs.replace(cordon, drained_s=now) if cordon in over else cordon for cordon in record.cordons
        )
        cluster.servers.record_overruled(server, msgspec.structs.replace(record, cordons=noted))
        for cordon in over:
            where = f"server {server}" if cordon.gpu is None else f"GPU {server}:{cordon.gpu}"
            cluster.history.add(now, EventKind.DRAINED, None, f"{where} is drained: nothing runs there any more")
