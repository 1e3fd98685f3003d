"""Jobs that wait for the end of others (`JobSpec.after`), as Slurm's afterok and afterany.

Theory of operation
-------------------
`JobRecord.waits_for` names the jobs whose end is still awaited; as long as there are any, no policy sees the job
(`Job.is_withheld`). An end is judged in the turn in which it is recorded, and both are written in one transaction:

* a job that finished, or whose end was awaited with any outcome (`:any`), is removed from `waits_for`;
* a job that failed or was cancelled, or that the store has lost, can never finish: the waiting job is cancelled, with
  the reason (Slurm's DependencyNeverSatisfied with kill_invalid_depend). Jobs that wait for that one follow.

The index finds the jobs to judge (`Index.take_judged`): those that wait for a job that has just ended, and after a
recovery all that wait. So no judgement is lost in a crash.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.messages import EventKind
from ...protocol.model import After, JobId, JobPhase, JobSpec
from ...protocol.texts import over_words
from ..cluster import Cluster
from ..jobs.job import Job
from .restarts import end_job

NAMES_TOLD = 5


def awaited(cluster: Cluster, spec: JobSpec) -> tuple[JobId, ...]:
    """Return the jobs that a new job has to wait for: those of `spec.after` that are not over."""
    live = cluster.jobs.index.live
    return tuple(after.job for after in spec.after if after.job in live)


def judge_ends(cluster: Cluster, now: float) -> None:
    """Let jobs run that have waited for the end of others, and cancel those that would wait for ever."""
    while judged := cluster.jobs.index.take_judged():  # a job cancelled here may end the wait of further jobs
        for job in judged:
            _judge(cluster, now, job)


def _judge(cluster: Cluster, now: float, job: Job) -> None:
    still: list[JobId] = []
    for after in job.spec.after if not job.final else ():
        if after.job not in job.record.waits_for:
            continue
        other = cluster.jobs.get(after.job)
        if other is not None and not other.final:
            still.append(after.job)
        elif not (after.any if other is None else is_good(after, other)):
            became = over_words(other.record.phase) if other is not None else "is not known any more"
            text = f"never started: {after.job}, which had to finish first, {became} (DependencyNeverSatisfied)"
            end_job(cluster, now, job, JobPhase.CANCELLED, text)
            return
        if other is not None:
            cluster.jobs.touch(other)  # the ended job may leave the memory once no job waits for it
    if len(still) < len(job.record.waits_for):
        job.update(waits_for=tuple(still))
        cluster.jobs.mark_dirty(job)
        if not still:
            cluster.history.add(now, EventKind.RELEASED, job.id, f"may start: {_names(job)} {_over(job)}")


def is_good(after: After, job: Job) -> bool:
    """Return whether a job that waits by `after` may run, now that `job` is over."""
    return after.any or job.record.phase is JobPhase.FINISHED


def _names(job: Job) -> str:
    names = [after.job for after in job.spec.after]
    more = len(names) - NAMES_TOLD
    return ", ".join(names[:NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")


def _over(job: Job) -> str:
    return "is over" if len(job.spec.after) == 1 else "are over"


def sentence(cluster: Cluster, job: Job) -> str:
    """Return the jobs that `job` waits for, with their states, in words; "" if it waits for none."""
    parts = []
    for any_end, what in ((False, "to finish"), (True, "to end")):
        names = [after.job for after in job.spec.after if after.any is any_end and after.job in job.record.waits_for]
        more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
        if names:
            parts.append(f"{', '.join(_standing(cluster, name) for name in names[:NAMES_TOLD])}{more} {what}")
    return f"waits for {'; for '.join(parts)}" if parts else ""


def _standing(cluster: Cluster, name: JobId) -> str:
    other = cluster.jobs.get(name)
    return f"{name} ({other.record.phase.value})" if other is not None else name


def ended_with(cluster: Cluster, job: Job) -> Iterator[JobId]:
    """Yield the waiting jobs that end if `job` does not finish, also those that wait for them."""
    found, queue = {job.id: None}, [job.id]
    while queue:
        name = queue.pop()
        for waiting in cluster.jobs.index.awaiting(name):
            if waiting.id not in found and not next(a.any for a in waiting.spec.after if a.job == name):
                found[waiting.id] = None
                queue.append(waiting.id)
                yield waiting.id
