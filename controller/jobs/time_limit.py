"""The time that a job may run (`JobSpec.time_limit_s`), as Slurm's --time. Pure.

The seconds with any GPUs count (`Job.executed_s`), in all attempts together; waiting does not. They are recorded, so
neither a preemption nor a restart of the controller resets the time.
"""

from __future__ import annotations

from .job import Job


def end_s(job: Job) -> float | None:
    """Return when the time of a running job is up, if it keeps any GPUs (Unix time); None without a limit or GPUs."""
    limit_s, kept = job.spec.time_limit_s, job.record
    if limit_s is None or job.final or kept.timed_out or not kept.shares or not kept.shares[-1].share:
        return None
    since_s = kept.counted_s if kept.counted_s is not None else kept.shares[-1].time_s
    return since_s + limit_s - kept.executed_s


def warning_s(job: Job) -> float | None:
    """Return when to warn the job of its time limit (Unix time); None: no warning is wanted, or it was sent."""
    end, before_s = end_s(job), job.spec.warn_s
    return end - before_s if end is not None and before_s is not None and not job.record.warned else None


def due_s(job: Job) -> float | None:
    """Return when the controller next warns or ends the job (Unix time); None: the job has no limit, or no GPUs."""
    return min((each for each in (warning_s(job), end_s(job)) if each is not None), default=None)
