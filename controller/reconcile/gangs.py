"""Gangs: jobs that have not called `elastic.join()`, which may be any command.

Theory of operation ------------------- The controller knows only that a gang's processes run, and how they end. So the
processes start, restart and end together:

* They are started together, when all their GPUs are free, and never resized, moved or preempted: the scheduler does not
  see them (`snapshot`). A gang that asked for a range of GPUs keeps the share that the policy gave it at the start.
* The job has finished when all processes have ended with exit code 0.
* A process that ends with another exit code fails the job; the others are stopped.
* If a process is killed, or its server is lost, the others are stopped, and all restart from the beginning. A command
  may not be safe to run twice, so the job limits its restarts (`JobSpec.restarts`). Each one is counted when it is
  decided.
* A process on a silent server may still run, and is not fenced as workers are by generations. If it must not run twice,
  the job waits for the server for a while (`SILENT_SERVER_S`).

If the only process of a gang was never created, the command has not run: that start does not count as a restart.

Once a worker has called `elastic.join()`, none of this applies any more; most scripts call it within seconds. If a gang
was expected to call it, and has not after `JOIN_NOTICE_S`, it is shown as running.
"""

from __future__ import annotations

from ...protocol.messages import EventKind
from ...protocol.model import Fault, JobPhase, ServerId, Severity
from ...protocol.texts import gpu_count
from ...protocol.times import SILENT_SERVER_S
from .. import accounting
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import WorkerRecord, WorkerState
from .health import worked
from .processes import stop_worker
from .restarts import count_restart, end_job


def may_run_again(job: Job) -> bool:
    """Return whether the job's limit on restarts allows its command to run from the start once more."""
    return job.spec.restarts is None or job.record.restarts < job.spec.restarts


def note_running(cluster: Cluster, now: float, job: Job) -> None:
    """Report a gang as running if all its processes run, and no call of `elastic.join()` is expected any more."""
    if not job.gang or job.record.phase is not JobPhase.STARTING or not job.all_run or job.spec.must_join:
        return
    notice_s = job.join_notice_s
    if notice_s is not None and now < notice_s:
        return
    job.enter(JobPhase.RUNNING, now)
    job.change_share(now, job.share_gpus)
    text = f"runs on {gpu_count(job.share_gpus)}, as a fixed gang"
    if job.spec.expected_to_join:
        text += ": it has not called elastic.join()"
    cluster.history.add(now, EventKind.STARTED, job.id, text)
    cluster.jobs.mark_dirty(job)


def process_ended(
    cluster: Cluster,
    now: float,
    job: Job,
    entry: WorkerRecord,
    exit_code: int | None,
    reason: str,
    fault: Fault,
    begun: bool = True,
) -> None:
    """Handle the end of a gang's process that was not stopped by the controller, and is a past worker by now."""
    if exit_code == 0:
        for gpu in entry.all_gpus:
            worked(cluster, now, gpu)
        if not job.workers:
            end_job(cluster, now, job, JobPhase.FINISHED, "", 0)
        note_running(cluster, now, job)  # the process may have ended before it was reported to run
        return
    what = f"{entry.worker} on {names(entry)}: {reason}"
    cluster.history.add(now, EventKind.LOST, job.id, what)
    if fault is Fault.SCRIPT or (exit_code and exit_code > 0 and fault is not Fault.SERVER):
        end_job(cluster, now, job, JobPhase.FAILED, what, exit_code)
    else:
        fall(cluster, now, job, what, exit_code, begun=_has_begun(job, entry, fault, begun))


def _has_begun(job: Job, entry: WorkerRecord, fault: Fault, begun: bool) -> bool:
    """Return whether a process of the gang may have run: others, started at the same time, may have ended already."""
    never_ran = entry.state is not WorkerState.RUNNING and (fault is Fault.SERVER or not begun)
    return not never_ran or _has_fellows(job)


def _has_fellows(job: Job) -> bool:
    return job.newest is None or len(job.newest.roster.members) > 1


def not_to_start(cluster: Cluster, now: float, job: Job, entry: WorkerRecord) -> None:
    """Restart a gang of which a process was not reported to run and must not be started: the gang would stay incomplete."""
    reason = next((taint.text for gpu in entry.all_gpus if (taint := cluster.servers.taint(gpu)) is not None), "")
    what = f"{entry.worker} on {names(entry)} has not started, and its GPU takes no new work any more: {reason}"
    fall(cluster, now, job, what, begun=_has_fellows(job))


def fall(
    cluster: Cluster, now: float, job: Job, because: str, exit_code: int | None = None, begun: bool = True
) -> None:
    """Stop the other processes of a gang that has lost one; the gang restarts from the beginning, or fails.

    `begun`: a process may have run, so that the restart counts.
    """
    if job.final or job.restart_counted:
        return
    if begun and not may_run_again(job):
        end_job(cluster, now, job, JobPhase.FAILED, f"{because}; {_not_again(job)}", exit_code)
        return
    before = job.record.restarts
    count_restart(cluster, now, job, because)
    if job.final:
        return
    if not begun:
        job.update(restarts=before)
    job.wait_for_restart(now)
    job.enter(JobPhase.STARTING, now)
    job.change_share(now, 0)
    for entry in job.workers:
        if not entry.stopping:
            stop_worker(cluster, now, job, entry.worker)
    cluster.jobs.mark_dirty(job)
    cluster.planning.request()


def _not_again(job: Job) -> str:
    allowed = job.spec.restarts or 0
    if allowed:
        return f"it has been run again {job.record.restarts} times, as often as `restarts` allows"
    return "it is not run again, since a command may not be safe to run twice: `--restarts N` allows it"


def wait_for_server(cluster: Cluster, now: float, job: Job, server: ServerId) -> bool:
    """Return whether a gang waits for a server that has lost its lease, as the gang's processes there must not run twice."""
    if job.elastic or job.final or job.spec.restarts is None:
        return False
    if not any(entry.gpu.server == server and entry.state is not WorkerState.ORDERED for entry in job.workers):
        return False
    job.await_server(server, now + SILENT_SERVER_S)
    cluster.jobs.mark_dirty(job)
    return True


def watch_silent(cluster: Cluster, now: float, job: Job) -> None:
    """Give up the servers that have been silent for too long."""
    for server, due_s in job.silent.items():
        session = cluster.servers.sessions.get(server)
        if session is not None and session.alive:
            job.end_wait_for_server(server)
        elif now >= due_s:
            job.end_wait_for_server(server)
            _give_up(cluster, now, job, server)
    cluster.jobs.mark_dirty(job)


def _give_up(cluster: Cluster, now: float, job: Job, server: ServerId) -> None:
    stood = job.gang
    reason = f"server {server} is lost: not heard of for more than {SILENT_SERVER_S:.0f} s"
    gone = [entry for entry in job.workers if entry.gpu.server == server]
    job.set_target(now, tuple(gpu for gpu in job.record.target if gpu.server != server), reason)
    for entry in gone:
        accounting.ends(cluster.jobs.usage, now, job, entry, Fault.LOST)
        job.end_worker(entry.worker, now, None, reason, Fault.LOST)
    if stood and gone:
        process_ended(cluster, now, job, gone[0], None, reason, Fault.LOST)
    cluster.jobs.mark_waiting_dirty()
    cluster.planning.request()


def leave_bad_gpus(cluster: Cluster, now: float) -> None:
    """Stop the gangs on GPUs that are gone or may compute wrongly; on GPUs with other taints a gang goes on, as it is not
    moved."""
    for server, taints in list(cluster.servers.tainted.items()):
        bad = {index: taint for index, taint in taints.items() if taint.severity is Severity.STOP}
        for job in cluster.jobs.index.on_server(server) if bad else ():
            held = [gpu for entry in job.workers for gpu in entry.all_gpus if gpu.server == server]
            found = next((gpu for gpu in held if gpu.index in bad), None)
            if found is not None and job.gang:
                fall(cluster, now, job, f"{found}: {bad[found.index].text}")


def names(entry: WorkerRecord) -> str:
    """Return the GPUs of a worker as text for users."""
    if not entry.gpus:
        return str(entry.gpu)
    return f"{entry.gpu.server}:{','.join(str(index) for index in entry.gpus)}"
