"""Consequences of the end of a worker for its job: the fault that caused the end, and the controller's reaction.

Theory of operation
-------------------
Each end has a `Fault`. The agent reports it (it could not start the worker, it stopped the worker, an exit code, a
signal), or this controller determines it (the server is lost). Only the script's own fault counts against a job:

* an error before any step has been applied, or after the training, fails the job at once;
* an error that recurs at each restart, without a new step, fails the job (`restarts.count_restart`);
* workers that end in one generation after the other, without a new step, fail the job (`_count_loss`);
* joining workers that end before they have taken part are not replaced for a while (`joining_workers`).

If a GPU must be left, or takes no new work, the end of a worker there is attributed to the GPU (`taints`). Of a job
that has not called `elastic.join()` only exit codes are known; `reconcile.gangs` interprets them.

A worker ends itself when its training state differs from the others' (`worker.comparison`). The job avoids its GPU for
a while and goes on. If it is not clear which worker is right, or if the difference recurs on other GPUs, the job fails.

A joining worker that computes other samples or gradients than the workers with the state ends itself and does not
join. That is the script's fault alone: the job goes on without that worker, and does not grow (`reconcile.growth`).

A server's fault counts against the server (`health`), and the job is tried elsewhere. If a script that has run
elsewhere fails where other jobs fail too, the server is blamed: its driver or its file system may be missing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ...protocol.exits import DISAGREED, DIVERGED, NO_CHECKPOINT, OTHER_CODE, UNLIKE
from ...protocol.messages import EventKind
from ...protocol.model import Fault, JobPhase, ServerId, WorkerId, WorkerPhase
from ...protocol.texts import RELEASED
from ...protocol.times import CUT_OFF_TIMEOUT_S
from .. import accounting
from ..cluster import Cluster
from ..jobs.avoided import Avoidance
from ..jobs.generations import anyone_holds, broken_by_loss, cut_off, ending, took_part, unconnected
from ..jobs.job import Job
from ..jobs.records import WorkerRecord
from ..reconcile.gangs import fall, names, not_to_start, process_ended
from ..reconcile.growth import joining_worker_differs
from ..reconcile.health import diverged, script_is_innocent, second_opinion, start_failed
from ..reconcile.orders import order_message
from ..reconcile.processes import may_start, send_start, stop_worker
from ..reconcile.restarts import end_job
from .joining_workers import came_to_its_loop, hold_back, joining_worker_failed, other_code, refused_alone

KEPT_BROKEN = 64
DIVERGENCES_S = 86400.0  # period in which a job's divergences are counted (s)
DIVERGENCES_ALLOWED = 4  # most divergences in that period
DIVERGED_GPUS_ALLOWED = 2  # most GPUs with divergences in that period; on more GPUs the hardware is not the cause


def worker_ended(
    cluster: Cluster,
    now: float,
    job: Job,
    entry: WorkerRecord,
    exit_code: int | None,
    reason: str,
    phase: WorkerPhase | None,
    fault: Fault,
    log: str = "",
    begun: bool = True,
) -> None:
    """Handle the end of a worker's process.

    `phase`: the last phase that the agent knew. `log`: path of the worker's log on its server. `begun`: False if the
    agent refused to start the worker.
    """
    worker = entry.worker
    status = job.statuses.get(worker)
    last = phase if phase is not None else status.phase if status is not None else None
    broken = broken_by_loss(job, worker)
    over = exit_code == 0 and last in (WorkerPhase.FINISHED, WorkerPhase.LEFT)
    started = entry.trained or (status is not None and status.applied is not None)
    of_gang = not job.elastic
    if of_gang and exit_code == 0 and not entry.stopping:
        fault = Fault.NONE
    elif exit_code == 0 and not entry.stopping and not over:
        reason = "ended in the middle of training (exit code 0)" if entry.trained else "ended without training"
    if over or entry.stopping:
        fault = Fault.NONE if over else entry.fault or Fault.STOPPED
        if exit_code == -signal.SIGTERM:
            reason = RELEASED  # the controller had asked the worker to end this way
    elif fault in (Fault.SCRIPT, Fault.KILLED, Fault.SILENT, Fault.SERVER) and (
        why := _gpu_at_fault(cluster, job, entry, fault)
    ):
        fault, reason = Fault.SERVER, f"{reason} ({entry.gpu}: {why})"
        cluster.planning.request()
    elif exit_code == DIVERGED and started and job.elastic:
        fault = Fault.SERVER
        for gpu in entry.all_gpus:
            diverged(cluster, now, gpu, worker)
    elif exit_code == UNLIKE and job.elastic:
        fault = Fault.SCRIPT  # independent of the hardware
    elif exit_code == OTHER_CODE and job.elastic:
        fault, reason = Fault.SERVER, other_code(cluster, now, job, entry, reason)
    elif came_to_its_loop(last) and not started and anyone_holds(job) and fault is not Fault.SERVER:
        pass  # the server works, so the end does not count against it
    elif fault is not Fault.NONE and not started and last is not WorkerPhase.FINISHED:
        fault, reason = _at_the_start(cluster, now, job, entry, exit_code, reason, fault)
    if exit_code == 0 and last is WorkerPhase.FINISHED:
        job.update_worker(worker, finished=True)
    accounting.ends(cluster.jobs.usage, now, job, entry, fault)
    applied = status.applied if status is not None else None
    job.end_worker(worker, now, exit_code, entry.reason or reason, fault, log)
    cluster.jobs.mark_dirty(job)
    cluster.jobs.mark_waiting_dirty()
    if any(map(cluster.servers.taint, entry.all_gpus)):
        cluster.planning.request()  # no worker may follow on that GPU
    if entry.stopping and not job.record.target:
        cluster.planning.request()  # a preempted job that seemed to be at its end waits again
    if over and last is WorkerPhase.FINISHED and worker == job.record.last_leader and not job.final:
        end_job(cluster, now, job, JobPhase.FINISHED, "", 0)  # the job finished while it was being preempted
    if job.final or entry.stopping or last is WorkerPhase.LEFT:
        return
    if over:
        if speaks_for(job, worker):
            end_job(cluster, now, job, JobPhase.FINISHED, "", 0)
        return
    if of_gang:
        process_ended(cluster, now, job, entry, exit_code, reason, fault, begun)
        return
    cluster.history.add(now, EventKind.LOST, job.id, f"{worker} on {entry.gpu}: {reason}")
    add_broken(job, broken)
    if exit_code == DISAGREED or (exit_code == DIVERGED and _diverges_everywhere(job, now)):
        end_job(cluster, now, job, JobPhase.FAILED, reason, exit_code)
        return
    if ending(job):
        return  # another worker has reached the end of the training already, and decides
    if (
        exit_code in (UNLIKE, OTHER_CODE)
        and job.spec.resume is not None
        and not (job.record.progressed or anyone_holds(job))
    ):
        end_job(
            cluster,
            now,
            job,
            JobPhase.FAILED,
            f"cannot go on from {job.spec.resume.job or job.spec.resume.directory}: {reason}",
            exit_code,
        )
        return
    if exit_code == UNLIKE:
        joining_worker_differs(cluster, now, job, entry, reason)
        return
    if exit_code == OTHER_CODE and not anyone_holds(job):
        refused_alone(cluster, now, job, reason)
        return
    # If others have reached their loop, or give the state to this worker, only the joining worker is affected.
    alone = started or not (anyone_holds(job) or last in (WorkerPhase.TRAINING, WorkerPhase.BROKEN))
    if fault is Fault.SCRIPT and broken and (last is WorkerPhase.FINISHED or (alone and not job.record.progressed)):
        end_job(cluster, now, job, JobPhase.FAILED, reason, exit_code)
    elif not started and fault in (Fault.SCRIPT, Fault.KILLED, Fault.SILENT):
        joining_worker_failed(cluster, now, job, entry, reason, exit_code, fault)
    elif fault in (Fault.SCRIPT, Fault.KILLED, Fault.SILENT) and anyone_holds(job):
        _count_loss(cluster, now, job, f"{worker}: {reason}", exit_code)
        if not job.final and not took_part(job, entry, applied):
            joining_worker_failed(cluster, now, job, entry, reason, exit_code, fault)


def _diverges_everywhere(job: Job, now: float) -> bool:
    """Return whether workers have diverged too often, or on too many GPUs, for the hardware to be the cause."""
    found = [
        entry.gpu
        for entry in job.record.past
        if entry.exit_code == DIVERGED and entry.ended_s is not None and entry.ended_s > now - DIVERGENCES_S
    ]
    return len(found) > DIVERGENCES_ALLOWED or len(set(found)) > DIVERGED_GPUS_ALLOWED


def _gpu_at_fault(cluster: Cluster, job: Job, entry: WorkerRecord, fault: Fault) -> str:
    """Return the taint of a worker's GPU, in words, if it may have caused the worker's end; "" otherwise.

    It may if the GPU has to be left, or if the worker had not trained there.
    """
    has_begun = fault is not Fault.SERVER and (entry.trained or job.gang)
    found = [
        taint.fault
        for taint in map(cluster.servers.taint, entry.all_gpus)
        if taint is not None and taint.fault is not None
    ]
    return next((wrong.text for wrong in found if wrong.severity.moves or not has_begun), "")


def _at_the_start(
    cluster: Cluster, now: float, job: Job, entry: WorkerRecord, exit_code: int | None, reason: str, fault: Fault
) -> tuple[Fault, str]:
    """Return the fault and the reason of a worker's end before it trained. The job may avoid the server for it."""
    server = entry.gpu.server
    if exit_code == NO_CHECKPOINT and job.record.saved_step is not None:
        reason = _sees_no_checkpoint(job, entry, reason)
        job.avoid(now, server, reason, Avoidance.BEGIN)
        return Fault.SERVER, reason
    if fault is Fault.SERVER:
        start_failed(cluster, now, server, reason)
    elif fault is Fault.SCRIPT and (job.elastic or job.spec.restarts is None):
        fault = _judged(cluster, now, job, entry, reason)
        alone = fault is Fault.SCRIPT and not anyone_holds(job)
        if alone and exit_code and second_opinion(cluster, now, job, entry, reason):
            return Fault.SERVER, reason
    return fault, reason


def _count_loss(cluster: Cluster, now: float, job: Job, because: str, exit_code: int | None) -> None:
    """Count the loss of a worker that ended by itself during training while others have the state.

    The job goes on with these. It fails if one generation after the other loses a worker without a new step, like a job
    that loses all workers again and again (`restarts.count_restart`).
    """
    kept = job.record
    if kept.lost_in == kept.committed:
        return  # this generation has lost other workers before, and is counted once
    losses = 1 if job.reported.best_applied > kept.best_at_loss else kept.losses_in_vain + 1
    best = max(kept.best_at_loss, job.reported.best_applied)
    job.update(losses_in_vain=losses, lost_in=kept.committed, best_at_loss=best)
    if losses > cluster.settings.max_restarts:
        text = f"given up: {losses} generations in a row have lost a worker, and it got no further; last: {because}"
        end_job(cluster, now, job, JobPhase.FAILED, text, exit_code)


def unknown_there(cluster: Cluster, now: float, job: Job, entry: WorkerRecord) -> None:
    """Give up a worker that its server's agent does not know any more; stop the worker in case it runs."""
    reason = f"server {entry.gpu.server} does not know it any more"
    broken = broken_by_loss(job, entry.worker)
    job.update_worker(entry.worker, stopping=True, fault=Fault.LOST, reason=reason)
    cluster.jobs.mark_dirty(job)
    if job.final:
        return
    cluster.history.add(now, EventKind.LOST, job.id, f"{entry.worker} on {entry.gpu}: {reason}")
    if not job.elastic:
        fall(cluster, now, job, f"{entry.worker} on {names(entry)}: {reason}")
        return
    add_broken(job, broken)


def stop_late(cluster: Cluster, now: float, job: Job) -> None:
    """Stop the workers that have not reached their loop in time.

    The script is at fault if it is late on other servers as well.
    """
    for late in job.latenesses():
        entry = job.worker(late.worker)
        if entry is None or now < late.until_s:
            continue
        session = cluster.servers.sessions.get(entry.gpu.server)
        # The worker may have reported while its server could not reach the controller.
        if session is None or not session.alive:
            job.allow_more(late.worker, cluster.settings.server_lease_s)
            continue
        broken = broken_by_loss(job, late.worker)
        fault = _judged(cluster, now, job, entry, late.reason)
        alone = fault is Fault.SCRIPT and not anyone_holds(job)
        if alone and second_opinion(cluster, now, job, entry, late.reason, late=True):
            fault = Fault.SERVER  # the server's storage may not answer
        job.update_worker(late.worker, fault=fault, reason=late.reason)
        stop_worker(cluster, now, job, late.worker)
        cluster.history.add(now, EventKind.LATE, job.id, f"{late.reason}, on {entry.gpu}: it is stopped")
        if not job.elastic:
            if fault is Fault.SCRIPT:
                end_job(cluster, now, job, JobPhase.FAILED, late.reason)
            else:
                fall(cluster, now, job, late.reason)
            return
        add_broken(job, broken)
        if fault is Fault.SCRIPT and not job.record.progressed and not anyone_holds(job):
            end_job(cluster, now, job, JobPhase.FAILED, late.reason)
            return
        if fault is Fault.SCRIPT:
            joining_worker_failed(cluster, now, job, entry, late.reason, None, fault)


def stop_again(cluster: Cluster, now: float, job: Job) -> None:
    """Repeat the stop requests for workers that should have ended.

    An agent that has a request already does not allow more time.
    """
    for worker, due_s in job.overdue().items():
        if now >= due_s:
            job.stop_sent(worker, now)
            stop_worker(cluster, now, job, worker)


def resend_orders(cluster: Cluster, now: float, job: Job) -> None:
    """Repeat the newest order and the starts, for agents that have not confirmed them.

    Other agents ignore the repetition.
    """
    again_s = job.resend_at_s()
    if again_s is None or now < again_s:
        return
    job.orders_sent(now)
    order = order_message(job)
    for server in dict.fromkeys(entry.gpu.server for entry in job.uninformed()):
        if order is not None and _alive(cluster, server):
            cluster.servers.send(server, order)
    for entry in job.unstarted():
        if not _alive(cluster, entry.gpu.server):
            continue
        if may_start(cluster, job, entry):
            send_start(cluster, job, entry)
        elif not job.elastic:
            not_to_start(cluster, now, job, entry)
            return
        else:  # the GPU takes no new work any more; the agent answers that the worker does not run
            stop_worker(cluster, now, job, entry.worker)


def _alive(cluster: Cluster, server: ServerId) -> bool:
    session = cluster.servers.sessions.get(server)
    return session is not None and session.alive


def stop_cut_off(cluster: Cluster, now: float, job: Job) -> None:
    """Continue the job on one side of a network cut between servers that both reach the controller."""
    if job.cut_since is None or now < job.cut_since + CUT_OFF_TIMEOUT_S:
        return
    no_data, newest = unconnected(job), job.newest
    job.note_cut(now, False)
    gone = no_data or cut_off(job)
    if not gone or newest is None:
        return
    lost = {member.gpu for member in newest.roster.members if member.worker in gone}
    here = {member.gpu.server for member in newest.roster.members if member.worker not in gone}
    there = {gpu.server for gpu in lost}
    what = "cannot exchange data" if no_data else f"have not heard of each other for {CUT_OFF_TIMEOUT_S:g} s"
    reason = f"workers on {_names(there)} and on {_names(here)} {what}: is the network between these servers whole?"
    for worker in gone:
        add_broken(job, broken_by_loss(job, worker))
        job.update_worker(worker, fault=Fault.LOST, reason=reason)
        stop_worker(cluster, now, job, worker)
    cluster.history.add(now, EventKind.CUT_OFF, job.id, f"goes on without {_names(gone)}: {reason}")
    keep = {gpu for gpu in job.record.target if gpu not in lost and gpu.server not in there - here}
    if len(keep) >= job.spec.gpus.min:
        hold_back(cluster, now, job, keep, f"workers on {_names(there)} could not be reached")
        return
    for server in there - here:
        job.avoid(now, server, reason, Avoidance.STAY, CUT_OFF_TIMEOUT_S)
    cluster.planning.request()


def _names(found: Iterable[str]) -> str:
    return ", ".join(sorted(set(found)))


def _judged(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> Fault:
    """Return SERVER or SCRIPT for a worker that ended before it trained, with an exit code of its script."""
    return Fault.SERVER if script_is_innocent(cluster, now, job, entry, reason) else Fault.SCRIPT


def _sees_no_checkpoint(job: Job, entry: WorkerRecord, reason: str) -> str:
    """Return the reason in words, with the checkpoint that the worker found instead."""
    _, _, detail = reason.partition(f"exit code {NO_CHECKPOINT}: ")
    found = f" ({detail})" if detail else ""
    return f"server {entry.gpu.server} does not see the checkpoint of step {job.record.saved_step}{found}"


def add_broken(job: Job, generations: tuple[int, ...]) -> None:
    """Note that these generations have lost a member."""
    if not set(generations) <= set(job.record.broken):
        job.update(broken=tuple(sorted({*job.record.broken, *generations}))[-KEPT_BROKEN:])


def speaks_for(job: Job, worker: WorkerId) -> bool:
    """Return whether `worker` is the leader of the committed generation.

    The leader alone does the work after the training (evaluation, saving), so the job is finished when the leader is.
    If the leader is lost before, the job repeats that work from its last checkpoint.
    """
    committed = job.order(job.record.committed)
    return committed is None or committed.roster.leader == worker
