"""Requests of a client (`elasticctl`) to the controller."""

from __future__ import annotations

import enum
from typing import Any

from ..model import CordonKind, JobSpec, ServerId, Snapshot, WorkerId
from ..streams import Input
from .base import Message


class Submit(Message, frozen=True, kw_only=True):
    spec: JobSpec


class Forecast(Message, frozen=True, kw_only=True):
    """Request for the predicted outcome of a submission. The cluster does not change."""

    spec: JobSpec


class GetOutlook(Message, frozen=True, kw_only=True):
    """Request for the facts from which a simulation can run forward: when does a waiting job start?"""


class OfferSnapshot(Message, frozen=True, kw_only=True):
    """Request for the parts of the caller's own snapshot (`protocol.snapshots`) that the controller lacks."""

    snapshot: Snapshot


class PutSnapshot(Message, frozen=True, kw_only=True):
    """One part of a snapshot that has been offered."""

    snapshot: Snapshot
    part: int
    data: bytes


class GetJobs(Message, frozen=True, kw_only=True):
    """A page of the unfinished jobs, in order of submission; after the last of them (`final_too`) the finished ones,
    the latest first. Answers are bounded in bytes, so a page may hold fewer than `limit` jobs.
    """

    final_too: bool = False
    after: str = ""  # where the last page ended (`Jobs.next`); "": from the start
    limit: int = 200  # bounded, since all other clients wait while the controller makes a page
    mine: bool = False  # only the caller's jobs; a page may be empty and still have a `next`


class GetEnded(Message, frozen=True, kw_only=True):
    """A page of the finished jobs, the latest first: by the day on which they ended, and within a day by submission."""

    after: str = ""  # where the last page ended (`Jobs.next`); "": from the start
    before_job: str = ""  # only jobs listed after this finished one; ignored if `after` is set
    limit: int = 500
    mine: bool = False  # only the caller's jobs


class GetJob(Message, frozen=True, kw_only=True):
    job: str  # id, or a name that exactly one unfinished job has (otherwise exactly one job)
    explain: bool = (
        False  # also explain the job's GPUs, and changes that would alter them; older controllers ignore this
    )


class Scale(Message, frozen=True, kw_only=True):
    """Fix a job's share; None returns the decision to the policy."""

    job: str
    share: int | None


class Profile(Message, frozen=True, kw_only=True):
    """Measure a running job's throughput with ever smaller shares, and then restore its GPUs (EDL Table 1).

    `least`, `most`: with all shares from the one to the other; None: with ever halved ones. Older controllers ignore
    them.
    """

    job: str
    least: int | None = None
    most: int | None = None


class Cancel(Message, frozen=True, kw_only=True):
    """End a job. `save`: save its state first, if it has any; an older `elasticctl` does not ask for that."""

    job: str
    save: bool = False


class Pause(Message, frozen=True, kw_only=True):
    """Make a job save its state and return its GPUs; it does not run before `Resume`. `hold`: a running job goes on,
    and does not start again once it has lost its GPUs; a waiting job goes on waiting.
    """

    job: str
    hold: bool = False


class Resume(Message, frozen=True, kw_only=True):
    """Let a paused or held job run again. The job has kept its place in the queue."""

    job: str


class Requeue(Message, frozen=True, kw_only=True):
    """Make a job save its state, return its GPUs, and wait for its turn by its time of submission."""

    job: str


class Checkpoint(Message, frozen=True, kw_only=True):
    """Make a running job write a checkpoint at its next step boundary. `step`: of the state after this step or a later
    one; None: after the last known step. To learn whether the checkpoint is written, a client asks again with the
    answered step.
    """

    job: str
    step: int | None = None


class SaveAll(Message, frozen=True, kw_only=True):
    """Preempt every job that can save its state, and give no job GPUs for `for_s` seconds: the cluster is about to
    stop.

    To extend the time, the client sends the request again. A controller that starts later does not know of it.
    """

    for_s: float


class GetServers(Message, frozen=True, kw_only=True):
    """A page of the servers, by name."""

    server: ServerId | None = None  # only this one; older controllers ignore this and answer with a page
    after: str = ""  # the last name of the page before
    limit: int = 250


class AdoptServer(Message, frozen=True, kw_only=True):
    """Take over a server with workers of another cluster's jobs: the workers save their state and end."""

    server: ServerId


class RemoveServer(Message, frozen=True, kw_only=True, tag="ForgetServer"):
    """Remove a server that is lost or has no workers. The tag is that of older versions, as below."""

    server: ServerId


class CordonServer(Message, frozen=True, kw_only=True, tag="ExcludeServer"):
    """Start no new worker on a server, or on one of its GPUs, until `UncordonServer`."""

    server: ServerId
    gpu: int | None = None  # index; None: the whole server
    reason: str = ""
    kind: CordonKind = CordonKind.CORDON


class UncordonServer(Message, frozen=True, kw_only=True, tag="IncludeServer"):
    """Use a server, or one of its GPUs, again. `trust`: in spite of its present troubles. An older `elasticctl` does
    not send `trust`, and means true.
    """

    server: ServerId
    gpu: int | None = None  # index; None: the server and all of its GPUs
    trust: bool = True


class LendGpus(Message, frozen=True, kw_only=True):
    """Lend GPUs to a user outside the cluster for a while (EasyScale 5.3). `force`: even if promises to jobs break."""

    gpus: int
    for_s: float
    reason: str = ""
    force: bool = False


class EndLoan(Message, frozen=True, kw_only=True):
    """Use the GPUs of a loan again."""

    loan: str


class GetEvents(Message, frozen=True, kw_only=True):
    """Events with numbers above `after` (0: from the start), of one job or of all, at most `limit`, oldest first."""

    after: int = 0
    job: str | None = None
    limit: int = 1000


class GetLog(Message, frozen=True, kw_only=True):
    """A piece of the log of one worker."""

    job: str
    worker: WorkerId
    offset: int = 0  # bytes from the log's beginning; negative: back from its present end
    limit: int = 1 << 18


class Exec(Message, frozen=True, kw_only=True):
    """Request for the right to run a command beside a running worker of a job; `ExecIO` runs it. `rank`: of the worker."""

    job: str
    command: tuple[str, ...]
    rank: int = 0
    terminal: bool = False  # the command's input and output are a terminal


class ExecIO(Message, frozen=True, kw_only=True):
    """Start the command that the request with the id `exec` has been allowed, unless it has been started, and exchange its
    input and output.
    """

    exec: str
    input: Input
    command: tuple[
        str, ...
    ] = ()  # as in that request, until the first answer comes; then empty, and nothing is started


class GetPolicy(Message, frozen=True, kw_only=True):
    """Request for the policy that decides over GPUs."""


class SetPolicy(Message, frozen=True, kw_only=True):
    """Put another policy in force, permanently; or only predict its changes (`dry_run`).

    `document`: a policy file as plain values; None restores the policy of the controller's configuration. `source`: its
    origin.
    """

    document: dict[str, Any] | None
    source: str = ""
    user: str = ""
    dry_run: bool = False


class GetQuotas(Message, frozen=True, kw_only=True):
    """Request for the guarantees, limits and present use of users and groups."""


class UsageBy(enum.Enum):
    """Subject of each row of a usage report."""

    USER = "user"
    DAY = "day"
    JOB = "job"


class GetUsage(Message, frozen=True, kw_only=True):
    """A page of a usage report: GPU-seconds of users, days or jobs, from one day (UTC) to another, both included.

    By job, a row counts all GPU-seconds of the job. The report has the jobs submitted before the end of the last day
    and not over before the first day. `job`: only that job, at any time.
    """

    by: UsageBy = UsageBy.USER
    user: str = ""  # only this user's
    job: str = ""
    since_s: float = 0.0  # on the first day (Unix time)
    until_s: float | None = None  # on the last day; None: today
    after: str = ""  # where the last page ended (`UsageReport.next`); "": from the start
    limit: int = 500


class GetControllers(Message, frozen=True, kw_only=True):
    """Request for the controllers of this cluster and the leading one. A standby answers it, too."""


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
    | Exec
    | ExecIO
    | GetPolicy
    | SetPolicy
    | GetOutlook
    | GetQuotas
    | GetUsage
    | GetControllers
    | Ping
)


class Envelope(Message, frozen=True, kw_only=True):
    """A client's request with its id (random, 128 bits in hex): a repeated id gets the first answer again."""

    id: str
    request: Request
    speaks: int = 0  # PROTOCOL_VERSION of the client; 0: a version without this field
