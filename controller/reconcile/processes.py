"""Worker processes: which ones to start and to stop, and how many seconds a stop may take."""

from __future__ import annotations

from msgspec.structs import replace

from ...protocol.messages import Rendezvous, StartWorker, StopWorker
from ...protocol.model import GpuAddress, WorkerId, WorkerPhase
from ...protocol.times import LEAST_SAVE_S, LEAVING_PATIENCE_S, MOST_SAVE_S, SAVE_MARGIN, STOP_GRACE_S
from ..cluster import Cluster
from ..jobs.generations import complete, unneeded
from ..jobs.job import Job
from ..jobs.records import WorkerRecord, WorkerState

FIRST_PORT = 29_500  # rendezvous port of a gang if its first server's agent is too old to reserve one


def start_waiting(cluster: Cluster, now: float) -> None:
    """Start the ordered workers of which all GPUs are free, and for which there are cores and memory; a gang starts only when
    all its workers can.
    """
    for job in cluster.jobs.index.unstarted():
        waiting = [entry for entry in job.workers if entry.state is WorkerState.ORDERED]
        able = [entry for entry in waiting if all(map(cluster.gpu_free, entry.all_gpus))]
        while able and not cluster.has_room(job, able):
            able.pop()
        if not job.elastic and not (len(able) == len(waiting) and complete(job)):
            continue
        if not job.elastic:
            _renew_port(cluster, job)
        for entry in able:
            job.orders_sent(now)
            job.update_worker(entry.worker, state=WorkerState.STARTED, held_s=now)
        for entry in able:
            cluster.jobs.mark_dirty(job)
            send_start(cluster, job, entry)


def meeting_port(cluster: Cluster, gpu: GpuAddress) -> int:
    """Return the rendezvous port that the agent of the GPU's server reserves for `gpu`."""
    session = cluster.servers.sessions.get(gpu.server)
    found = (each.port for each in session.server.gpus if each.index == gpu.index) if session is not None else iter(())
    return next(found, 0) or FIRST_PORT + gpu.index


def _renew_port(cluster: Cluster, job: Job) -> None:
    """Update the rendezvous port of a gang that is about to start.

    Since the order, the agent of the first worker may have been restarted, and may reserve another port.
    """
    newest = job.newest
    if newest is None:
        return
    port = meeting_port(cluster, newest.roster.members[0].gpu)
    if port != newest.port:
        job.update(orders=(*job.record.orders[:-1], replace(newest, port=port)))


def may_start(cluster: Cluster, job: Job, entry: WorkerRecord) -> bool:
    """Return whether a worker's start may be sent again: no GPU of it is tainted by now."""
    return not entry.stopping and not job.final and not any(map(cluster.servers.taint, entry.all_gpus))


def send_start(cluster: Cluster, job: Job, entry: WorkerRecord) -> None:
    """Send the start of a worker to the agent of its server."""
    cluster.servers.send(entry.gpu.server, start_message(cluster, job, entry))


def start_message(cluster: Cluster, job: Job, entry: WorkerRecord) -> StartWorker:
    """Return the message that starts a worker, for its server's agent."""
    return StartWorker(
        job=job.id,
        worker=entry.worker,
        gpu=entry.gpu.index,
        spec=job.spec,
        generation=entry.generation,
        checkpoint_step=job.record.saved_step,
        uid=job.uid,
        session=cluster.servers.sessions[entry.gpu.server].name,
        owner=job.submission.owner,
        account=job.submission.account,
        trusted=tuple(dict.fromkeys(code for gpu in entry.all_gpus for code in cluster.servers.trusted(gpu))),
        gpus=entry.gpus,
        rendezvous=None if job.elastic else _rendezvous(cluster, job, entry),
    )


def _rendezvous(cluster: Cluster, job: Job, entry: WorkerRecord) -> Rendezvous | None:
    """Return the rendezvous of a gang's process: the server of rank 0, and the port that the agent there reserves.

    None if the worker has no rank (it is about to be stopped), or if the server of rank 0 is forgotten.
    """
    meeting = job.meeting
    if meeting is None or entry.worker not in meeting.ranks:
        return None  # the worker is about to be stopped
    servers, here = list(meeting.servers), entry.gpu.server
    session = cluster.servers.sessions.get(servers[0])
    if session is None:
        return None  # rank 0 has ended, and its server is forgotten: no rendezvous is possible
    return Rendezvous(
        process=meeting.ranks[entry.worker],
        processes=len(meeting.ranks),
        server=servers.index(here),
        servers=len(servers),
        address=session.server.address,
        port=meeting.order.port,
        local=meeting.servers[here],
    )


def stop_unneeded(cluster: Cluster, now: float, job: Job) -> None:
    """Stop the workers that no roster names. Workers that are leaving get LEAVING_PATIENCE_S seconds to exit first."""
    found = unneeded(job)
    job.let_leave(now, [entry.worker for entry in found])
    for entry in found:
        status = job.statuses.get(entry.worker)
        leaving = status is not None and status.phase in (WorkerPhase.TRAINING, WorkerPhase.LEFT, WorkerPhase.FINISHED)
        if not leaving or now >= job.leaving_since[entry.worker] + LEAVING_PATIENCE_S:
            job.end_leave(entry.worker)
            stop_worker(cluster, now, job, entry.worker)


def stop_worker(cluster: Cluster, now: float, job: Job, worker: WorkerId) -> None:
    """Stop a worker's process, or drop a worker that was never started.

    The job's state is saved first if the job is elastic, has not ended, and has no GPUs any more. A stop that is repeated never
    extends the deadline of the first one.
    """
    entry = job.worker(worker)
    if entry is None:
        return
    cluster.jobs.mark_dirty(job)
    if entry.state is WorkerState.ORDERED:
        job.drop_unstarted(worker)
        return
    still_saves = entry.stopping and job.newest is None  # the job may have got GPUs again meanwhile
    save = not job.final and job.elastic and (still_saves or not job.record.target)
    grace_s = save_grace_s(job) if save else STOP_GRACE_S
    by_s = now + grace_s if entry.stop_by_s is None else min(entry.stop_by_s, now + grace_s)
    job.update_worker(worker, stopping=True, stop_by_s=by_s)
    saved = job.saving.dismissed.get(worker) if save else None
    send_stop(cluster, job, entry, grace_s, save, saved)


def send_stop(cluster: Cluster, job: Job, entry: WorkerRecord, grace_s: float, save: bool, saved: int | None) -> None:
    """Send the stop of a worker to the agent of its server.

    `grace_s`: seconds until the process is killed; `save`: the job's state is saved first; `saved`: step of a state that is
    saved already.
    """
    message = StopWorker(
        job=job.id,
        worker=entry.worker,
        grace_s=grace_s,
        save=save,
        saver=job.saving.saver if save else None,
        stand_by=save,
        saved=saved,
        uid=job.uid,
    )
    cluster.servers.send(entry.gpu.server, message)


def save_grace_s(job: Job) -> float:
    """Return how many seconds the workers may take to save the job's state; the step in progress has to end first.

    A timeout set in the job's spec takes precedence over the estimate from measured step and save times.
    """
    timeout_s = job.spec.checkpoint.save_timeout_s
    if timeout_s is not None:
        return timeout_s
    statuses = job.statuses.values()
    saving_s = max((status.saving_s for status in statuses), default=0.0)
    step_s = max((max(status.longest_step_s, status.median_step_s) for status in statuses), default=0.0)
    return min(MOST_SAVE_S, max(LEAST_SAVE_S, SAVE_MARGIN * (saving_s + step_s)))
