"""Which job is meant: by its id, or by a name that says enough."""

from __future__ import annotations

from ...protocol.errors import UserError
from ...protocol.model import JobId
from ..cluster import Cluster
from ..jobs.job import Job
from .pages import Fetched, archived


def find_job(cluster: Cluster, name: str, fetched: Fetched) -> Job:
    """The job with this id, or the only (unfinished) one with this name. Raises UserError, NotAtHand."""
    found = cluster.jobs.get(find_id(cluster, name))
    if found is not None:
        return found
    over = cluster.archive.find(find_id(cluster, name))
    job = archived(over.key, fetched) if over is not None else None
    if job is None:
        raise UserError(f"there is no job {name[:80]!r}")
    return job


def find_id(cluster: Cluster, name: str) -> JobId:
    """The same, and it need not be at hand. Raises UserError."""
    if JobId(name) in cluster.jobs or cluster.archive.find(JobId(name)) is not None:
        return JobId(name)
    named = cluster.index.named(name)
    unfinished = [job.id for job in named if not job.final]
    archived_too, newest = cluster.archive.named(name)
    over = [*(job.id for job in named if job.final), *((newest,) if newest is not None else ())]
    for count, candidates in ((len(unfinished), unfinished), (len(named) + archived_too, over)):
        if count == 1:
            return candidates[0]
        if count:
            names = ", ".join(candidates[:5])
            raise UserError(f"{count} jobs are called {name!r}: name one of {names}")
    raise UserError(f"there is no job {name[:80]!r}")
