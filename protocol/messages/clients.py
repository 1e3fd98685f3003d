"""What a client (`elasticctl`) asks of the controller."""

from __future__ import annotations

from typing import Any

from ..model import JobSpec, ServerId, WorkerId
from .base import Message


class Submit(Message, frozen=True, kw_only=True):
    spec: JobSpec


class GetJobs(Message, frozen=True, kw_only=True):
    """A page of the jobs that are not over, in the order of submission; after the last of them (`final_too`) those that are over,
    the last one first. An answer is bounded in bytes, so that there may be fewer than `limit` in it."""

    final_too: bool = False
    after: str = ""  # where the last page ended (`Jobs.next`); "": from the start
    limit: int = 500


class GetEnded(Message, frozen=True, kw_only=True):
    """A page of the jobs that are over, the last one first: by the day on which they ended, and within a day by submission."""

    after: str = ""  # likewise
    before_job: str = ""  # only those that come after this one, which is over itself; with `after` it says nothing
    limit: int = 500


class GetJob(Message, frozen=True, kw_only=True):
    job: str  # id, or a name that exactly one unfinished job (else exactly one job) has


class Scale(Message, frozen=True, kw_only=True):
    """Fix a job's share; None gives it back to the policy."""

    job: str
    share: int | None


class Profile(Message, frozen=True, kw_only=True):
    """Measure a running job's throughput with smaller shares, one after the other, and give it its GPUs back (EDL 3.1)."""

    job: str


class Cancel(Message, frozen=True, kw_only=True):
    job: str


class GetServers(Message, frozen=True, kw_only=True):
    """A page of the servers, by name."""

    after: str = ""  # the last name of the page before
    limit: int = 250


class AdoptServer(Message, frozen=True, kw_only=True):
    """Take over what runs on a server and does not belong to a job of this cluster: its workers save their state and end."""

    server: ServerId


class ForgetServer(Message, frozen=True, kw_only=True):
    """A lost server will not come back: do not know it any more."""

    server: ServerId


class GetEvents(Message, frozen=True, kw_only=True):
    """Events after `after` (a number, 0 from the start), of one job or of all, at most `limit`, oldest first."""

    after: int = 0
    job: str | None = None
    limit: int = 1000


class GetLog(Message, frozen=True, kw_only=True):
    """A piece of the log of one worker."""

    job: str
    worker: WorkerId
    offset: int = 0
    limit: int = 1 << 18


class GetPolicy(Message, frozen=True, kw_only=True):
    """What decides who gets which GPUs."""


class SetPolicy(Message, frozen=True, kw_only=True):
    """Let another policy decide, for good; or only tell what that would change (`dry_run`).

    `document`: a policy file as plain values; None gives it back to the controller's configuration. `source`: where it came from.
    """

    document: dict[str, Any] | None
    source: str = ""
    user: str = ""
    dry_run: bool = False


class Ping(Message, frozen=True, kw_only=True):
    pass


Request = (
    Submit
    | GetJobs
    | GetEnded
    | GetJob
    | Scale
    | Profile
    | Cancel
    | GetServers
    | AdoptServer
    | ForgetServer
    | GetEvents
    | GetLog
    | GetPolicy
    | SetPolicy
    | Ping
)


class Envelope(Message, frozen=True, kw_only=True):
    """A client's request with its id (random, 128 bits in hex): a repeated id gets the first answer again."""

    id: str
    request: Request
