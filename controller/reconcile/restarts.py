"""Restarts and ends of jobs: a job without workers restarts from its last checkpoint, or ends."""

from __future__ import annotations

from ...protocol.exits import OTHER_CODE
from ...protocol.messages import EventKind, Failure, Withholding
from ...protocol.model import Fault, JobPhase
from ...protocol.texts import span, steps_kept
from .. import accounting
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import WorkerState
from .processes import stop_worker
from .saving import suspend

INNOCENT = (None, Fault.NONE, Fault.STOPPED)  # ends of workers that are no errors


def start_again(cluster: Cluster, now: float, job: Job) -> None:
    """Restart a job that has no workers: wait for the back-off, then clear its orders so that new workers are ordered.

    The job fails if it has restarted in vain too often (`count_restart`); without GPUs it is suspended.
    """
    restart_at = job.restart_at
    if restart_at is None:
        count_restart(cluster, now, job, "no worker is left")
        if job.final:
            return
        restart_at = job.wait_for_restart(now)
        job.enter(JobPhase.STARTING, now)
        cluster.jobs.mark_dirty(job)
    if not job.record.target:
        suspend(cluster, now, job)
    elif now >= restart_at:
        job.end_wait_for_restart()
        job.update(orders=(), broken=())


def count_restart(cluster: Cluster, now: float, job: Job, why: str) -> None:
    """Count a restart of a job that has lost all workers, and fail the job if it has restarted in vain too often.

    Only faults that the script may have caused count, and only while the job makes no progress. A job fails after

    * two restarts in a row after errors of the script alone;
    * more than `max_restarts` restarts in a row (10 by default) after its workers were killed by signals that the agent
      did not send, or for lack of heartbeats. A script that runs out of memory ends so; a few kills by an operator do
      not fail the job.

    If a server was lost or could not start the workers, the script is not to blame, and both counts start again from 0.
    Workers refused because of their code count as killed: the code may be accepted on another server, or on none.
    """
    accounting.restarted(cluster.jobs.usage, now, job)
    kept = job.record
    ended = [entry for entry in kept.past if entry.generation >= kept.cycle and entry.fault not in INNOCENT]
    faults = {entry.fault for entry in ended}
    further = job.reported.best_applied > kept.best_at_restart
    vain = 1 if further else kept.restarts_in_vain + 1
    failures = ((0 if further else kept.failures_in_vain) + 1) if faults == {Fault.SCRIPT} else 0
    # Refused code is left out: it may be refused on every server.
    servers = {entry.fault for entry in ended if entry.exit_code != OTHER_CODE}
    theirs = not faults or bool(servers & {Fault.SERVER, Fault.LOST})
    deaths = 0 if theirs else (0 if further else kept.deaths_in_vain) + 1
    job.update(
        restarts_in_vain=vain,
        failures_in_vain=failures,
        deaths_in_vain=deaths,
        best_at_restart=max(kept.best_at_restart, job.reported.best_applied),
        cycle=kept.generation + 1,
        does_not_grow="",
    )
    if kept.does_not_grow or job.hold_until is not None:
        job.release()  # the restart replaces all its workers
        cluster.planning.request()
    job.forget_lost()
    last = ended[-1] if ended else None
    because = f"{last.worker}: {last.reason}" if last is not None else why
    if failures >= 2 and last is not None:
        end_job(cluster, now, job, JobPhase.FAILED, f"it fails again and again: {because}", last.exit_code)
    elif deaths > cluster.settings.max_restarts and (job.elastic or job.spec.restarts is None):
        how = "refused" if last is not None and last.exit_code == OTHER_CODE else "killed"
        text = f"given up: its workers were {how} {deaths} times in a row and it got no further; last: {because}"
        end_job(cluster, now, job, JobPhase.FAILED, text, last.exit_code if last is not None else None)
    else:
        job.update(restarts=kept.restarts + 1)
        saved = kept.saved_step if job.elastic else None
        where = f"from its last checkpoint, of step {saved}" if saved is not None else "from the beginning"
        cluster.history.add(now, EventKind.RESTARTED, job.id, f"starts again {where}: {because}")


def has_lost_workers(job: Job) -> bool:
    """Return whether the job has lost workers by a fault since its last start: without GPUs it is then not preempted."""
    ended = [entry for entry in job.record.past if entry.generation >= job.record.cycle]
    return job.restart_counted or any(entry.fault not in INNOCENT for entry in ended)


def failure(job: Job) -> Failure:
    """Return where a job that fails now has failed; the cause is its last worker that ended by a fault."""
    kept = job.record
    guilty = next((entry for entry in reversed(kept.past) if entry.fault not in INNOCENT), None)
    done = max(job.reported.best_applied, kept.best_at_restart, kept.best_at_loss) + 1
    if guilty is None:
        return Failure(attempt=kept.restarts + 1, steps_done=done)
    return Failure(
        attempt=kept.restarts + 1,
        steps_done=done,
        worker=guilty.worker,
        server=guilty.gpu.server,
        error=guilty.reason,
        log=guilty.log,
    )


def end_job(cluster: Cluster, now: float, job: Job, phase: JobPhase, reason: str, exit_code: int | None = None) -> None:
    """End a job in `phase` and stop its workers; workers of a finished job get REST_S seconds to exit by themselves."""
    job.enter(phase, now, reason, exit_code)
    if phase is JobPhase.FAILED:
        job.update(failure=failure(job))
    texts = {JobPhase.FINISHED: "finished", JobPhase.FAILED: f"failed: {reason}", JobPhase.CANCELLED: reason}
    cluster.history.add(now, EventKind(phase.value), job.id, texts[phase])
    _tell_of_deadline(cluster, now, job, phase)
    if job.record.measured:
        cluster.experience.record_throughput(now, job)
    cluster.jobs.mark_dirty(job)
    for entry in job.workers:
        if entry.state is WorkerState.ORDERED:
            job.drop_unstarted(entry.worker)
        elif phase is not JobPhase.FINISHED:
            stop_worker(cluster, now, job, entry.worker)
    if phase is JobPhase.FINISHED:
        job.let_rest_end(now)


def end_cancelled(cluster: Cluster, now: float, job: Job) -> None:
    """End a job that is being cancelled, or whose time is up, once it has no workers: its state is saved, or could not be."""
    withheld = job.record.withheld
    if withheld is None or withheld.how is not Withholding.CANCEL or job.final or job.workers:
        return
    saved = job.record.saved_step
    kept_steps = saved + 1 if saved is not None else 0
    kept = steps_kept(job.steps_done, kept_steps)
    if job.record.timed_out:
        ran = span(job.spec.time_limit_s or 0.0)
        end_job(cluster, now, job, JobPhase.FAILED, f"it has run for {ran}, its time limit, {kept}")
    else:
        end_job(cluster, now, job, JobPhase.CANCELLED, f"cancelled{withheld.by}, {kept}")


def _tell_of_deadline(cluster: Cluster, now: float, job: Job, phase: JobPhase) -> None:
    """Report that a job finished after its deadline. Cancelled and failed jobs are not reported as late."""
    late_s = now - job.deadline_s
    if phase is JobPhase.FINISHED and late_s > 0:
        promised = "" if job.promised else ", which was not promised"
        cluster.history.add(now, EventKind.MISSED, job.id, f"finished {span(late_s)} after its deadline{promised}")
