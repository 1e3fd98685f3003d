"""Lists for clients, in pages: no answer exceeds some hundred kilobytes, for any number of jobs and servers.

Pages follow a stable order: unfinished jobs by number, ended ones by their key in the archive (also those still in
memory), servers by name. So an entry that exists during the whole listing is listed exactly once, despite concurrent
changes.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ...protocol.errors import UserError
from ...protocol.messages import GetEnded, GetJobs, GetServers, Jobs, JobView, Servers
from ...protocol.model import JobId, ServerId
from ...protocol.principals import Principal
from ..cluster import Cluster
from ..inbound.foreign import present
from ..jobs.archive import PREFIX
from ..jobs.job import Job
from ..jobs.records import ArchivedJob
from .views import job_view, server_view, troubles_of

MAX_ON_PAGE = 1000
MOST_BYTES = 512 << 10  # approximate size of a page; a single job may exceed it
ENDED = "ended"  # cursor at which the ended jobs begin

_ARCHIVED = msgspec.msgpack.Decoder(ArchivedJob)

Fetched = Mapping[str, bytes | None]


class NotAtHand(Exception):
    """Records of the archive must be fetched before the request can be answered."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys


def jobs_page(cluster: Cluster, now: float, who: Principal, request: GetJobs, fetched: Fetched) -> Jobs:
    """Return a page of jobs, as `who` may see them. Raises NotAtHand, UserError."""
    limit = _limit(request.limit)
    if request.after.startswith((ENDED, PREFIX)):
        return _ended(cluster, now, who, request.after, limit, fetched, request.mine)
    if not (request.after == "" or request.after.isdecimal()):
        raise UserError(f"after: {request.after[:80]!r} is not where a page has ended")
    numbers = cluster.jobs.index.live_numbers
    first = bisect.bisect_right(numbers, int(request.after)) if request.after else 0
    views, bytes_, at, troubles = [], 0, first, troubles_of(cluster, now)
    for job in cluster.jobs.index.live_from(first, limit):
        at += 1
        if request.mine and not _is_of(who, job):
            continue
        views.append(job_view(cluster, now, who, job, troubles))
        bytes_ += _weight(views[-1])
        if bytes_ >= MOST_BYTES:
            break
    if at < len(numbers) or not request.final_too:
        following = str(numbers[at - 1]) if at < len(numbers) else ""
    elif len(views) == limit:
        following = ENDED
    else:
        over = _ended(cluster, now, who, ENDED, limit - len(views), fetched, request.mine)
        views, following = [*views, *over.jobs], over.next
    return Jobs(
        jobs=tuple(views), time_s=now, policy=cluster.planning.policy.name, next=following, refused=cluster.refused_jobs
    )


def ended_page(cluster: Cluster, now: float, who: Principal, request: GetEnded, fetched: Fetched) -> Jobs:
    """Return a page of ended jobs, as `who` may see them. Raises NotAtHand, UserError."""
    after = request.after
    if not after and request.before_job:
        after = _ended_key(cluster, request.before_job)
    if after and not after.startswith((ENDED, PREFIX)):
        raise UserError(f"after: {after[:80]!r} is not where a page has ended")
    return _ended(cluster, now, who, after, _limit(request.limit), fetched, request.mine)


def servers_page(cluster: Cluster, now: float, request: GetServers) -> Servers:
    """Return a page of servers."""
    foreign = [name for name in cluster.servers.foreign if present(cluster, now, name) is not None]
    names = sorted({*cluster.servers.sessions, *foreign})
    if request.server is not None:
        names = [name for name in names if name == request.server]
    first = bisect.bisect_right(names, request.after)
    page = names[first : first + _limit(request.limit)]
    following = page[-1] if first + len(page) < len(names) else ""
    return Servers(
        servers=tuple(server_view(cluster, now, ServerId(name)) for name in page), time_s=now, next=following
    )


def archived(key: str, fetched: Fetched) -> Job | None:
    """Return the job that is archived under `key`; None if it is not there any more. Raises NotAtHand."""
    if key not in fetched:
        raise NotAtHand((key,))
    value = fetched[key]
    if value is None:
        return None
    kept = _ARCHIVED.decode(value)
    return Job(kept.submission, kept.record)


# ------------------------------------------------------------------------------------------------------- jobs that are over


def _ended(cluster: Cluster, now: float, who: Principal, after: str, limit: int, fetched: Fetched, mine: bool) -> Jobs:
    last = "" if after == ENDED else after
    in_memory = {job.ended_key: job for job in cluster.jobs.index.over.values()}
    keys = [key for key in in_memory if not last or key < last]
    keys = sorted((*keys, *cluster.jobs.archive.before(last, limit)), reverse=True)[:limit]
    missing = tuple(key for key in keys if key not in in_memory and key not in fetched)
    if missing:
        raise NotAtHand(missing)
    views, bytes_, at, troubles = [], 0, 0, troubles_of(cluster, now)
    for job in _known(keys, in_memory, fetched):
        at += 1
        if job is not None and not (mine and not _is_of(who, job)):
            views.append(job_view(cluster, now, who, job, troubles))
            bytes_ += _weight(views[-1])
        if bytes_ >= MOST_BYTES:
            break
    following = keys[at - 1] if at and (at < len(keys) or len(keys) == limit) else ""
    return Jobs(jobs=tuple(views), time_s=now, policy=cluster.planning.policy.name, next=following)


def _known(keys: Iterable[str], in_memory: Mapping[str, Job], fetched: Fetched) -> Iterator[Job | None]:
    for key in keys:
        yield in_memory[key] if key in in_memory else archived(key, fetched)


def _is_of(who: Principal, job: Job) -> bool:
    """Return whether `who` has submitted the job."""
    return job.submission.owner == who.name


def _ended_key(cluster: Cluster, name: str) -> str:
    job = cluster.jobs.get(JobId(name))
    if job is not None and job.final:
        return job.ended_key
    found = cluster.jobs.archive.find(JobId(name))
    if found is None:
        raise UserError(f"there is no job {name[:80]!r} that is over")
    return found.key


def _limit(limit: int) -> int:
    return max(1, min(limit, MAX_ON_PAGE))


def _weight(view: JobView) -> int:
    """Return the approximate size of a view in bytes."""
    env = sum(len(name) + len(value) for name, value in view.spec.env.items()) + sum(map(len, view.spec.command))
    parts = 150 * (len(view.workers) + len(view.past_workers)) + 40 * len(view.shares) + 150 * len(view.resizes)
    reasons = len(view.reason) + sum(len(change.reason) for change in view.shares)
    return 800 + env + parts + reasons + 60 * len(view.metrics)
