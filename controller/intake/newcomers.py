"""Newcomers that end before they have taken part in the training: the job goes on with the rest, and does not try for ever.

Theory of operation
-------------------
A newcomer starts, comes to its loop, receives the state, and computes its first step. It may end in each of these, and each end
costs the job two generations: one without the newcomer, and one with the next. Of the ends that are not a server's fault

* the first two cost nothing more. After each further one the job does not grow for a while, twice as long as the last time;
* a job that has fewer GPUs than it needs meanwhile waits a moment after each, like a job that starts again, and is given up after
  as many as it may restart in vain (`Settings.max_restarts`).

They count until the job has more workers that have taken part than it had at the last such end, or none has happened for long.
A newcomer that joins elsewhere meanwhile changes nothing: else two servers, of which one fails, would make generations without
end.

A newcomer that has come to its loop has a server that works. So its end speaks neither against the server nor against the GPU,
but for a job that does not fit there: its model has other parameters, its data are missing, its memory does not suffice.

A newcomer whose *code* is not the job's (`protocol.exits.OTHER_CODE`) is refused by the workers that have the state: its server
is left alone for that job, longer each time, and the job may grow on others.
"""

from __future__ import annotations

from ...protocol.exits import OTHER_CODE
from ...protocol.messages import EventKind
from ...protocol.model import Fault, GpuAddress, JobPhase, WorkerPhase
from ...protocol.times import (
    FIRST_BACK_OFF_S,
    FIRST_HOLD_S,
    LONGEST_BACK_OFF_S,
    LONGEST_HOLD_S,
)
from ..cluster import Cluster
from ..jobs.generations import holders, took_part, usable
from ..jobs.job import Avoidance, Job
from ..jobs.records import WorkerRecord
from ..reconcile.gangs import names
from ..reconcile.growth import least_gpus, start_elsewhere
from ..reconcile.restarts import end_job

ENDS_ALLOWED = 2  # consecutive; one more holds growth back


def came_to_its_loop(phase: WorkerPhase | None) -> bool:
    """Had a worker in this phase imported, loaded and prepared all that it needs?"""
    return phase in (WorkerPhase.READY, WorkerPhase.TRAINING, WorkerPhase.BROKEN)


def newcomer_failed(
    cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str, exit_code: int | None, fault: Fault
) -> None:
    """A newcomer ended before it had taken part, by no server's fault."""
    with_state = holders(job)
    if not with_state:
        _failed_alone(cluster, now, job, reason, exit_code, fault)
        return
    kept, part = job.record, sum(took_part(job, holder) for holder in with_state)
    ago_s = now - kept.vain_join_s
    anew = part > kept.vain_join_share or not 0 <= ago_s <= kept.hold_s + LONGEST_HOLD_S
    ends = 1 if anew else kept.vain_joins + 1
    job.update(vain_joins=ends, vain_join_share=part, vain_join_s=now, hold_s=0.0 if anew else kept.hold_s)
    what = f"{entry.worker} on {names(entry)}: {reason}"
    if len(with_state) < least_gpus(job):
        if ends > cluster.settings.max_restarts:
            text = f"given up: {ends} workers in a row ended before they took part beside {_names(with_state)}; last: {what}"
            end_job(cluster, now, job, JobPhase.FAILED, text, exit_code)
            return
        hold_s = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** min(ends - 1, 30))
    elif ends <= ENDS_ALLOWED:
        return
    else:
        hold_s = min(LONGEST_HOLD_S, max(FIRST_HOLD_S, job.record.hold_s * 2))
    hold_back(
        cluster, now, job, {holder.gpu for holder in with_state}, f"new workers end at their start: {what}", hold_s
    )


def _failed_alone(cluster: Cluster, now: float, job: Job, reason: str, exit_code: int | None, fault: Fault) -> None:
    """Nobody has the state. If nobody else can go on either, it is a restart, and counted as such."""
    if fault is not Fault.SCRIPT:
        return
    job.start_failures += 1
    if job.start_failures > ENDS_ALLOWED and not any(usable(job, entry.worker) for entry in job.workers):
        text = f"{job.start_failures} workers in a row ended before they could train; last: {reason}"
        end_job(cluster, now, job, JobPhase.FAILED, text, exit_code)


def _names(workers: tuple[WorkerRecord, ...]) -> str:
    return ", ".join(f"{entry.worker} on {names(entry)}" for entry in workers[:4])


def hold_back(
    cluster: Cluster, now: float, job: Job, keep: set[GpuAddress], why: str, hold_s: float | None = None
) -> None:
    """The job has these of its GPUs, and no others for a while; `hold_s` None: longer each time."""
    job.hold(now, hold_s if hold_s is not None else min(LONGEST_HOLD_S, max(FIRST_HOLD_S, job.record.hold_s * 2)))
    job.profiling = None
    cluster.schedule_due = True
    cluster.tell(now, EventKind.HELD, job.id, f"does not grow for {job.record.hold_s:.0f} s: {why}")
    if cluster.awaited:
        return  # a controller that has just started disturbs nobody
    target = tuple(gpu for gpu in job.record.target if gpu in keep) or _unclaimed(cluster, job, keep)
    if target:
        job.aim(now, target, why)
    else:
        start_elsewhere(cluster, now, job, why)


def _unclaimed(cluster: Cluster, job: Job, gpus: set[GpuAddress]) -> tuple[GpuAddress, ...]:
    """Those of the GPUs from which the job was to be moved that no other job is to have."""
    servers = {gpu.server for gpu in gpus}
    claimed = {
        gpu
        for server in sorted(servers)
        for other in cluster.index.on_server(server)
        if other is not job
        for gpu in other.own_gpus
    }
    return tuple(sorted(gpus - claimed))


def other_code(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> str:
    """A worker with other code than the job's has ended: its server is left alone for this job. Returns the reason, in words."""
    server = entry.gpu.server
    why = f"server {server} has other code than the job began with: {reason.removeprefix(f'exit code {OTHER_CODE}: ')}"
    job.avoid(now, server, why, Avoidance.REFUSED)
    cluster.tell(now, EventKind.HELD, job.id, f"does not use server {server} for a while: {why}")
    cluster.schedule_due = True
    job.profiling = None
    keep = {holder.gpu for holder in holders(job)}
    if cluster.awaited:
        return why
    job.aim(now, tuple(gpu for gpu in job.record.target if gpu.server != server or gpu in keep), why)
    return why


def refused_alone(cluster: Cluster, now: float, job: Job, why: str) -> None:
    """A worker with other code has ended, and no worker has the job's state: it tries other servers, and is given up at last."""
    kept = job.record
    job.update(vain_joins=kept.vain_joins + 1, vain_join_s=now)
    if job.record.vain_joins > cluster.settings.max_restarts:
        text = f"given up: {job.record.vain_joins} workers in a row were refused before it could train; last: {why}"
        end_job(cluster, now, job, JobPhase.FAILED, text, OTHER_CODE)
