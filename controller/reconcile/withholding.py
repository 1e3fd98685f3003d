"""Withholding of jobs: how they give their GPUs back, and which of them can without losing their work."""

from __future__ import annotations

from ...protocol.messages import Withheld
from ...protocol.model import JobPhase
from ..cluster import Cluster
from ..jobs.job import Job
from .deadline_admission import not_planned
from .targets import retarget


def withhold(cluster: Cluster, now: float, job: Job, withheld: Withheld, why: str) -> None:
    """Withhold the job from policies, and preempt it if it has GPUs and `withheld` is not a hold.

    `why`: reason in words.
    """
    job.update(withheld=withheld)
    if job.record.target and job.is_withheld:
        retarget(cluster, now, job, (), why)
    if job.is_withheld:
        not_planned(cluster, now, job, why)
    cluster.jobs.mark_dirty(job)


def stops_whole(job: Job) -> bool:
    """Return whether the job can give up its GPUs without losing its work.

    A running command that has not called `elastic.join()` saves no state, and cannot.
    """
    return not job.gang or (job.spec.restarts is None and job.record.phase is not JobPhase.RUNNING)
