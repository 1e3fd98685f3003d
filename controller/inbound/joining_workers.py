"""Reaction to joining workers that end before they have taken part in training.

The job goes on, with a limited number of retries.

Theory of operation
-------------------
A joining worker starts, reaches its training loop, receives the state, and computes its first step. It may end at each
of these stages. Each end costs the job two generations: one without the worker, and one with its successor. Of the ends
that are not a server's fault:

* the first two have no further consequence. After each later one the job does not grow for a while, twice as long as
  the last time;
* a job that has fewer GPUs than its minimum meanwhile waits a moment after each end, like a restarting job. The job
  fails after as many ends as it may restart in vain (`Settings.max_restarts`).

The count starts again once the job has more participating workers than at the last such end, or if no such end has
occurred for long. A worker that joins on another server meanwhile does not reset the count. Otherwise two servers, of
which one fails, would cause generations without end.

A worker that has reached its loop shows that its server works. So its end counts neither against the server nor
against the GPU, but only against that place for this job: for example, the job's data are missing there, or the memory
does not suffice.

A worker with other *code* than the job's (`protocol.exits.OTHER_CODE`) is refused by the workers that have the state.
The job avoids that server, longer each time, and may grow on others.
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
from ..jobs.avoided import Avoidance
from ..jobs.generations import holders, took_part, usable
from ..jobs.job import Job
from ..jobs.records import WorkerRecord
from ..reconcile.gangs import names
from ..reconcile.growth import least_gpus, start_elsewhere
from ..reconcile.restarts import end_job

ENDS_ALLOWED = 2  # consecutive ends without consequence; after a further one the job does not grow for a while


def came_to_its_loop(phase: WorkerPhase | None) -> bool:
    """Return whether a worker in this phase had imported, loaded and prepared all that it needs."""
    return phase in (WorkerPhase.READY, WorkerPhase.TRAINING, WorkerPhase.BROKEN)


def joining_worker_failed(
    cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str, exit_code: int | None, fault: Fault
) -> None:
    """Handle a joining worker that ended before it had taken part, without a server's fault."""
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
    """Count a failed start while no worker has the state. If no other worker can go on either, the job may fail."""
    if fault is not Fault.SCRIPT:
        return
    failures = job.count_start_failure()
    if failures > ENDS_ALLOWED and not any(usable(job, entry.worker) for entry in job.workers):
        text = f"{failures} workers in a row ended before they could train; last: {reason}"
        end_job(cluster, now, job, JobPhase.FAILED, text, exit_code)


def _names(workers: tuple[WorkerRecord, ...]) -> str:
    return ", ".join(f"{entry.worker} on {names(entry)}" for entry in workers[:4])


def hold_back(
    cluster: Cluster, now: float, job: Job, keep: set[GpuAddress], why: str, hold_s: float | None = None
) -> None:
    """Keep the job on its GPUs `keep` for `hold_s` seconds; None: twice as long as the last time."""
    job.hold(now, hold_s if hold_s is not None else min(LONGEST_HOLD_S, max(FIRST_HOLD_S, job.record.hold_s * 2)))
    cluster.history.add(now, EventKind.HELD, job.id, f"does not grow for {job.record.hold_s:.0f} s: {why}")
    if cluster.servers.awaited:
        return  # a controller that has just started changes no shares
    target = tuple(gpu for gpu in job.record.target if gpu in keep) or _unclaimed(cluster, job, keep)
    if target:
        job.set_target(now, target, why)
    else:
        start_elsewhere(cluster, now, job, why)


def _unclaimed(cluster: Cluster, job: Job, gpus: set[GpuAddress]) -> tuple[GpuAddress, ...]:
    """Return those of `gpus`, which the job was to leave, that no other job owns."""
    servers = {gpu.server for gpu in gpus}
    claimed = {
        gpu
        for server in sorted(servers)
        for other in cluster.jobs.index.on_server(server)
        if other is not job
        for gpu in other.own_gpus
    }
    return tuple(sorted(gpus - claimed))


def other_code(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> str:
    """Avoid the server of a worker that ended because its code differs from the job's; return the reason in words."""
    server = entry.gpu.server
    why = f"server {server} has other code than the job began with: {reason.removeprefix(f'exit code {OTHER_CODE}: ')}"
    job.avoid(now, server, why, Avoidance.REFUSED)
    cluster.history.add(now, EventKind.HELD, job.id, f"does not use server {server} for a while: {why}")
    keep = {holder.gpu for holder in holders(job)}
    if cluster.servers.awaited:
        return why
    job.set_target(now, tuple(gpu for gpu in job.record.target if gpu.server != server or gpu in keep), why)
    return why


def refused_alone(cluster: Cluster, now: float, job: Job, why: str) -> None:
    """Count a worker with other code that ended while no worker has the job's state; fail the job after too many."""
    kept = job.record
    job.update(vain_joins=kept.vain_joins + 1, vain_join_s=now)
    if job.record.vain_joins > cluster.settings.max_restarts:
        text = f"given up: {job.record.vain_joins} workers in a row were refused before it could train; last: {why}"
        end_job(cluster, now, job, JobPhase.FAILED, text, OTHER_CODE)
