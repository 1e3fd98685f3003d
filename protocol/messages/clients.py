"""What a client (`elasticctl`) asks of the controller."""

from __future__ import annotations

import enum
from typing import Any

from ..model import CordonKind, JobSpec, ServerId, Snapshot, WorkerId
from .base import Message


class Submit(Message, frozen=True, kw_only=True):
    spec: JobSpec


class Forecast(Message, frozen=True, kw_only=True):
    """What would come of a submission? Nothing is changed."""

    spec: JobSpec


class OfferSnapshot(Message, frozen=True, kw_only=True):
    """Which parts of this snapshot (`protocol.snapshots`) has the controller not got? It is the caller's own."""

    snapshot: Snapshot


class PutSnapshot(Message, frozen=True, kw_only=True):
    """One part of a snapshot that has been offered."""

    snapshot: Snapshot
    part: int
    data: bytes


class GetJobs(Message, frozen=True, kw_only=True):
    """A page of the jobs that are not over, in the order of submission; after the last of them (`final_too`) those that are over,
    the last one first. An answer is bounded in bytes, so that there may be fewer than `limit` in it."""

    final_too: bool = False
    after: str = ""  # where the last page ended (`Jobs.next`); "": from the start
    limit: int = 200  # all others wait for the controller while it makes a page
    mine: bool = False  # only those of whoever asks; a page may be empty, and `next` goes on all the same


class GetEnded(Message, frozen=True, kw_only=True):
    """A page of the jobs that are over, the last one first: by the day on which they ended, and within a day by submission."""

    after: str = ""  # likewise
    before_job: str = ""  # only those that come after this one, which is over itself; with `after` it says nothing
    limit: int = 500
    mine: bool = False  # likewise


class GetJob(Message, frozen=True, kw_only=True):
    job: str  # id, or a name that exactly one unfinished job (else exactly one job) has
    explain: bool = (
        False  # why has it the GPUs that it has, and what would change that? An older controller does not know
    )


class Scale(Message, frozen=True, kw_only=True):
    """Fix a job's share; None gives it back to the policy."""

    job: str
    share: int | None


class Profile(Message, frozen=True, kw_only=True):
    """Measure a running job's throughput with smaller shares, one after the other, and give it its GPUs back (EDL 3.1)."""

    job: str


class Cancel(Message, frozen=True, kw_only=True):
    """End a job. `save`: its state is saved first, if it has any; an older `elasticctl` does not ask for that."""

    job: str
    save: bool = False


class Pause(Message, frozen=True, kw_only=True):
    """A job saves its state, gives its GPUs back, and does not run before `Resume`. `hold`: one that runs goes on, and does not
    start again once it has lost its GPUs; one that waits goes on waiting."""

    job: str
    hold: bool = False


class Resume(Message, frozen=True, kw_only=True):
    """A job that was paused or held may run again. It has kept its place in the queue."""

    job: str


class Requeue(Message, frozen=True, kw_only=True):
    """A job saves its state, gives its GPUs back, and waits for its turn, by its submission."""

    job: str


class Checkpoint(Message, frozen=True, kw_only=True):
    """A running job writes a checkpoint at its next step's edge. `step`: of this step or a later one; None: of the last one that
    is known of. Who wants to know whether that is done asks again with the step that was answered."""

    job: str
    step: int | None = None


class SaveAll(Message, frozen=True, kw_only=True):
    """Preempt every job that can save its state, and give nobody GPUs for so many seconds: the cluster is about to be stopped.

    Who wants it to last longer asks again. A controller that is started afterwards knows nothing of it."""

    for_s: float


class GetServers(Message, frozen=True, kw_only=True):
    """A page of the servers, by name."""

    server: ServerId | None = None  # only this one; an older controller does not know that, and answers with a page
    after: str = ""  # the last name of the page before
    limit: int = 250


class AdoptServer(Message, frozen=True, kw_only=True):
    """Take over what runs on a server and does not belong to a job of this cluster: its workers save their state and end."""

    server: ServerId


class RemoveServer(Message, frozen=True, kw_only=True, tag="ForgetServer"):
    """Do not know a server any more that is lost, or on which nothing runs. Its tag is that of older versions, as below."""

    server: ServerId


class CordonServer(Message, frozen=True, kw_only=True, tag="ExcludeServer"):
    """Start nothing new on a server, or on one of its GPUs, until `UncordonServer`."""

    server: ServerId
    gpu: int | None = None  # index; None: the whole server
    reason: str = ""
    kind: CordonKind = CordonKind.CORDON


class UncordonServer(Message, frozen=True, kw_only=True, tag="IncludeServer"):
    """Use a server, or one of its GPUs, again. `trust`: also in spite of the troubles that it has now, which is what an older
    `elasticctl` means, which does not say."""

    server: ServerId
    gpu: int | None = None  # index; None: the server and all of its GPUs
    trust: bool = True


class LendGpus(Message, frozen=True, kw_only=True):
    """Give so many GPUs to somebody outside the cluster for a while (EasyScale 5.3). `force`: though promises break by it."""

    gpus: int
    for_s: float
    reason: str = ""
    force: bool = False


class EndLoan(Message, frozen=True, kw_only=True):
    """Use the GPUs of a loan again."""

    loan: str


class GetEvents(Message, frozen=True, kw_only=True):
    """Events after `after` (a number, 0 from the start), of one job or of all, at most `limit`, oldest first."""

    after: int = 0
    job: str | None = None
    limit: int = 1000


class GetLog(Message, frozen=True, kw_only=True):
    """A piece of the log of one worker."""

    job: str
    worker: WorkerId
    offset: int = 0  # bytes from the log's beginning; negative: back from its present end
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


class GetQuotas(Message, frozen=True, kw_only=True):
    """What users and groups are guaranteed, what they may have, and what they have now."""


class UsageBy(enum.Enum):
    """What each row of a report is about."""

    USER = "user"
    DAY = "day"
    JOB = "job"


class GetUsage(Message, frozen=True, kw_only=True):
    """A page of a report: what users, days or jobs have had in GPU-seconds, from one day (UTC) to another, both included.

    By job it is all that each job has had, of those that were submitted before the end of the last day and were not over before
    the first one. `job`: only that one, whenever it was.
    """

    by: UsageBy = UsageBy.USER
    user: str = ""  # only this one's
    job: str = ""
    since_s: float = 0.0  # on the first day (Unix time)
    until_s: float | None = None  # on the last one; None: today
    after: str = ""  # where the last page ended (`UsageReport.next`); "": from the start
    limit: int = 500


class GetControllers(Message, frozen=True, kw_only=True):
    """Which controllers this cluster has, and which of them leads. One that stands by answers it as well."""


class Ping(Message, frozen=True, kw_only=True):
    pass


Request = (
    Submit
    | Forecast
    | OfferSnapshot
    | PutSnapshot
    | GetJobs
    | GetEnded
    | GetJob
    | Scale
    | Profile
    | Cancel
    | Pause
    | Resume
    | Requeue
    | Checkpoint
    | SaveAll
    | GetServers
    | AdoptServer
    | RemoveServer
    | CordonServer
    | UncordonServer
    | LendGpus
    | EndLoan
    | GetEvents
    | GetLog
    | GetPolicy
    | SetPolicy
    | GetQuotas
    | GetUsage
    | GetControllers
    | Ping
)


class Envelope(Message, frozen=True, kw_only=True):
    """A client's request with its id (random, 128 bits in hex): a repeated id gets the first answer again."""

    id: str
    request: Request
    speaks: int = 0  # PROTOCOL_VERSION of the client; 0: of a version that does not tell
