"""Lookup of jobs by id, by a name that identifies one job, or by the number at the end of an id.

Among jobs of one name, those of the requesting principal come first.
"""

from __future__ import annotations

from ...protocol.errors import RequestRefused, UserError
from ...protocol.model import JobId
from ...protocol.principals import Principal
from ...protocol.texts import many
from ..cluster import Cluster
from ..jobs.job import Job
from .pages import Fetched, archived

MOST_DIGITS = 18


def find_job(cluster: Cluster, who: Principal, name: str, fetched: Fetched) -> Job:
    """Return the job with this id, the only one with this name, or the one with this number.

    A name is looked up among the unfinished jobs of `who`, then among all unfinished jobs, then among all jobs. Raises
    UserError, RequestRefused, and NotAtHand if the job must be fetched from the archive.
    """
    meant = find_id(cluster, who, name)
    found = cluster.jobs.get(meant)
    if found is not None:
        return found
    over = cluster.jobs.archive.find(meant)
    job = archived(over.key, fetched) if over is not None else None
    if job is None:
        raise RequestRefused(
            f"{meant} is over; its record in the archive is gone, or was written by another process than a controller and does "
            "not count (`elasticctl events`)"
        )
    return job


def find_id(cluster: Cluster, who: Principal, name: str) -> JobId:
    """Return the id of the job that `find_job` would return, without fetching the job. Raises UserError, RequestRefused."""
    if JobId(name) in cluster.jobs or cluster.jobs.archive.find(JobId(name)) is not None:
        return JobId(name)
    named = cluster.jobs.index.named(name)
    unfinished = [job.id for job in named if not job.final]
    own = [job.id for job in named if not job.final and job.submission.owner == who.name]
    archived_too, newest = cluster.jobs.archive.named(name)
    over = [*(job.id for job in named if job.final), *((newest,) if newest is not None else ())]
    found = ((len(own), own), (len(unfinished), unfinished), (len(named) + archived_too, over))
    for count, candidates in found:
        if count == 1:
            return candidates[0]
        if count:
            whose = "jobs of yours" if candidates is own and len(own) < len(unfinished) else "jobs"
            raise UserError(f"{count} {whose} are called {name!r}: name one of {', '.join(candidates[:5])}")
    if name.isascii() and name.isdecimal() and len(name) <= MOST_DIGITS:
        job = cluster.jobs.index.numbered(int(name))
        if (found_id := job.id if job is not None else cluster.jobs.archive.numbered(int(name))) is not None:
            return found_id
    if refused := next((each for each in cluster.refused_jobs if each.job == name), None):
        raise RequestRefused(f"{refused.job[:80]} is refused, and does not run: {refused.reason}")
    if elements := [
        job.id for job in cluster.jobs.values() if job.spec.array is not None and job.spec.array.name == name
    ]:
        some = ", ".join(elements[:3]) + (", ..." if len(elements) > 3 else "")
        raise UserError(f"{name!r} is an array of {many(len(elements), 'job')}: name one of {some}")
    if any(sign in name for sign in "*?["):
        raise UserError(f"there is no job {name[:80]!r}; a pattern stands for several jobs: name one")
    raise UserError(f"there is no job {name[:80]!r}")
