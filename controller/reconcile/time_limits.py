"""Ends of jobs at their time limits (`JobSpec.time_limit_s`): a warning, then the saving of the state, then the end.

A job with a state is preempted as by a user who cancels it: one worker saves the state, and the job ends when no
process is left (`restarts.end_cancelled`). A command without `elastic.join()` gets SIGTERM. Both count as failed jobs,
since they have not done their work.
"""

from __future__ import annotations

from ...protocol.messages import EventKind, WarnWorker, Withheld, Withholding
from ...protocol.model import JobPhase
from ...protocol.texts import span
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import WorkerState
from ..jobs.time_limit import end_s, warning_s
from .deadline_admission import not_planned
from .restarts import end_job
from .targets import retarget


def keep_time(cluster: Cluster, now: float, job: Job) -> None:
    """Warn or end the job if its time limit is near or has passed."""
    end, warning = end_s(job), warning_s(job)
    if end is not None and now >= end:
        _end(cluster, now, job)
    elif warning is not None and end is not None and now >= warning:
        job.update(warned=True)
        cluster.jobs.mark_dirty(job)
        text = f"is warned by SIGUSR1: its time is up in {span(end - now)}"
        cluster.history.add(now, EventKind.WARNED, job.id, text)
        for entry in job.workers:
            if entry.state is not WorkerState.ORDERED and not entry.stopping:
                cluster.servers.send(entry.gpu.server, WarnWorker(job=job.id, worker=entry.worker, uid=job.uid))


def _end(cluster: Cluster, now: float, job: Job) -> None:
    job.update(timed_out=True)
    why = f"it has run for {span(job.spec.time_limit_s or 0.0)}, its time limit"
    cancelled = job.record.withheld is not None and job.record.withheld.how is Withholding.CANCEL
    if cancelled:
        return
    if not (job.elastic and any(entry.trained for entry in job.workers)):
        end_job(cluster, now, job, JobPhase.FAILED, why)
        return
    withheld = Withheld(how=Withholding.CANCEL, since_s=now, by=" at its time limit", operator=True)
    job.update(withheld=withheld)
    cluster.history.add(now, EventKind.TIMED_OUT, job.id, f"{why}: its state is saved, and it ends")
    retarget(cluster, now, job, (), why)
    not_planned(cluster, now, job, "at its time limit")
    cluster.jobs.mark_dirty(job)
