"""Submission of jobs that wait for the end of others: the choice of these jobs, by their names or ids."""

from __future__ import annotations

from msgspec.structs import replace

from ...protocol.errors import RequestRefused
from ...protocol.model import After, JobId, JobSpec
from ...protocol.principals import Principal
from ...protocol.texts import many, over_words
from ..cluster import Cluster
from ..reconcile.dependencies import is_good
from .finding import find_job
from .pages import Fetched


def with_ids(cluster: Cluster, who: Principal, spec: JobSpec, fetched: Fetched) -> JobSpec:
    """Return `spec` with the ids of the jobs that it waits for, each once.

    Raises RequestRefused if one of them is over and has not finished, UserError if there is none of that name, and
    NotAtHand if one must be fetched from the archive.
    """
    found: dict[JobId, After] = {}
    for after in spec.after:
        job = find_job(cluster, who, after.job, fetched)
        if job.final and not is_good(after, job):
            raise RequestRefused(
                f"{job.id} {over_words(job.record.phase)}, so a job that waits for it to finish would never start; "
                f"`--after {job.id}:any` starts it whatever became of that job"
            )
        before = found.get(job.id)
        found[job.id] = After(job=job.id, any=after.any and (before is None or before.any))
    return replace(spec, after=tuple(found.values())) if found else spec


def told(spec: JobSpec) -> str:
    """Describe the awaited jobs, as a suffix of the submission's event."""
    if not spec.after:
        return ""
    return f", after {spec.after[0].job if len(spec.after) == 1 else many(len(spec.after), 'other job')}"
