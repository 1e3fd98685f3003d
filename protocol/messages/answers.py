"""Answers of the controller to a client."""

from __future__ import annotations

from typing import Any

import msgspec

from ..model import CordonKind, GpuAddress, JobId, ResumeFrom, ServerId, WorkerId
from ..streams import Output
from .base import Message
from .views import (
    ControllerView,
    CounterOffer,
    EventView,
    Explanation,
    JobView,
    PromiseView,
    QuotaView,
    RefusedJob,
    ReservationView,
    ServerView,
    ShareForecast,
    StageView,
    UsageRow,
    Withheld,
)


class Submitted(Message, frozen=True, kw_only=True):
    job: JobId
    promise: PromiseView | None = None  # of a job with a deadline
    notes: tuple[str, ...] = ()  # settings of its specification that have no effect or an unexpected one, as sentences


class Forecasted(Message, frozen=True, kw_only=True):
    """The predicted outcome of a submission. `reason`: why the submission would be refused; "": it would be accepted."""

    time_s: float
    reason: str = ""
    promise: PromiseView | None = None  # of a job with a deadline that would be admitted
    offer: CounterOffer | None = None  # for a job with a deadline that cannot be kept
    # The checkpoint that the job would go on from, with all that the controller knows of it; None from older controllers
    resume: ResumeFrom | None = None
    notes: tuple[str, ...] = ()  # as those of `Submitted`


class OutlookJob(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An unfinished job in an `Outlook`. Lengths are seconds on one GPU, times are Unix times in seconds."""

    job: JobId
    min_gpus: int
    max_gpus: int  # at most the share with the greatest throughput
    requested_gpus: int
    priority: int
    curve: int  # row of `Outlook.speedups`
    submitted_s: float
    waiting_since_s: float | None  # None: the job has GPUs, or had some until now
    executed_s: float
    attained_gpu_s: float
    changes: int
    done_s: float
    left_s: float | None  # None: unknown
    share: int
    fixed: bool  # the job cannot be resized or preempted once it has GPUs
    by_hand: int | None  # its share, if that was set by hand
    time_left_s: float | None  # with GPUs, until its time limit; None: no limit
    user: str = ""
    demand: int = 0  # place in `Outlook.demands`
    held: tuple[int, ...] = ()  # places of its GPUs among those of all servers
    deadline_s: float | None = None  # for which it is planned
    promised: bool = False  # whether that is a hard deadline with a final promise


class Away(Message, frozen=True, kw_only=True):
    """GPUs out of use for a reservation of the policy file, or for a loan (`reservation` is "")."""

    reservation: str
    until_s: float  # Unix time
    gpus: tuple[int, ...]  # numbers, as `OutlookJob.held`


class Outlook(Message, frozen=True, kw_only=True):
    """The facts from which a simulation can run forward, or why none can."""

    time_s: float
    obstacle: str = ""  # why a simulation would be wrong: "there are more than 5000 jobs"; "": it can be made
    policy: dict[str, Any] = {}  # a policy file
    servers: tuple[
        tuple[ServerId, int], ...
    ] = ()  # connected servers, with their numbers of usable GPUs, and of those that are lent or reserved for a time
    jobs: tuple[OutlookJob, ...] = ()  # in the order of submission, without those that may not have GPUs now
    speedups: tuple[tuple[float, ...], ...] = ()  # T(n) / T(1) for n = 0, 1, ... the largest share that a job may have
    lengths: tuple[
        tuple[int, ...], ...
    ] = ()  # numbers of ended jobs by kind and length (`scheduler.length_statistics`)
    arrivals: tuple[tuple[int, int], ...] = ()  # smallest and largest share of the jobs submitted lately
    arrival_users: tuple[str, ...] = ()  # users that submitted the jobs of `arrivals`
    arrivals_s: float = 0.0  # in so many seconds
    user: str = ""  # the user that asks
    demands: tuple[dict[str, Any], ...] = ()  # distinct demands for GPUs (`scheduler.kinds.Demand`)
    kinds: tuple[dict[str, Any], ...] = ()  # of the GPUs on each server (`scheduler.view.Kinds`)
    arrival_demands: tuple[int, ...] = ()  # of the jobs submitted lately, as `OutlookJob.demand`
    away: tuple[Away, ...] = ()  # GPUs that are lent or reserved now


class Jobs(Message, frozen=True, kw_only=True):
    """A page of jobs."""

    jobs: tuple[JobView, ...]
    time_s: float
    policy: str
    next: str = ""  # `after` of the next page; "": this was the last one
    refused: tuple[RefusedJob, ...] = ()  # of unfinished jobs; the same on all pages


class JobFound(Message, frozen=True, kw_only=True):
    job: JobView
    time_s: float
    explanation: Explanation | None = None  # if requested; None from older controllers


class Scaled(Message, frozen=True, kw_only=True):
    """The new share of a job. `generation`: the order with that share, perhaps already committed. `pushed`: the first
    of the jobs that lose GPUs to this one.
    """

    job: JobId
    generation: int
    share: int
    pushed: tuple[ShareForecast, ...] = ()


class Profiling(Message, frozen=True, kw_only=True):
    """The job is being measured with each of `shares`, from the greatest down."""

    job: JobId
    shares: tuple[int, ...]


class Cancelled(Message, frozen=True, kw_only=True):
    """The job is cancelled. `saving`: it ends as soon as its state is saved."""

    job: JobId
    saving: bool = False
    ends: tuple[JobId, ...] = ()  # the first of the jobs that have waited for it to finish, and end with it


class Paused(Message, frozen=True, kw_only=True):
    """The job is paused or held. `before`: an earlier pause or hold; None: there was none. `runs`: a held job has GPUs
    and keeps them.
    """

    job: JobId
    before: Withheld | None = None
    runs: bool = False


class Resumed(Message, frozen=True, kw_only=True):
    """The job may run again. `before`: its earlier pause or hold; None: there was none."""

    job: JobId
    before: Withheld | None = None


class Requeued(Message, frozen=True, kw_only=True):
    job: JobId


class Checkpointed(Message, frozen=True, kw_only=True):
    """Answer to `Checkpoint`. `step`: the step of the state to save, or a later one; `saved`: the step of the newest
    saved state; `file`: its path on the server of the worker that wrote it; "": unknown.
    """

    job: JobId
    step: int
    saved: int | None = None
    file: str = ""


class Saving(Message, frozen=True, kw_only=True):
    """Jobs with workers that still save their state; empty: every state that can be saved is saved."""

    jobs: tuple[JobId, ...]


class Servers(Message, frozen=True, kw_only=True):
    """A page of servers."""

    servers: tuple[ServerView, ...]
    time_s: float
    next: str = ""  # `after` of the next page; "": this was the last one


class ServerAdopted(Message, frozen=True, kw_only=True):
    """`workers` have been asked to save and end; jobs use the server as soon as all of them have ended."""

    server: ServerId
    workers: int


class ServerRemoved(Message, frozen=True, kw_only=True, tag="ServerForgotten"):
    """The server is removed. If its agent starts again, it joins as a new server."""

    server: ServerId


class ServerCordoned(Message, frozen=True, kw_only=True, tag="ServerExcluded"):
    """No new worker starts there; `kind`: treatment of the running workers (an older controller only cordons)."""

    server: ServerId
    gpu: int | None = None
    kind: CordonKind = CordonKind.CORDON


class ServerUncordoned(Message, frozen=True, kw_only=True, tag="ServerIncluded"):
    """The server or GPU is in use again. `trusted`: its remaining troubles; `still`: reasons why some part takes no new
    work.
    """

    server: ServerId
    gpu: int | None = None
    trusted: tuple[str, ...] = ()
    still: tuple[str, ...] = ()


class GpusLent(Message, frozen=True, kw_only=True):
    """The GPUs are lent; they are free as soon as the jobs there have left them (`ServerView.still_there`)."""

    loan: str
    gpus: tuple[GpuAddress, ...]
    until_s: float  # Unix time
    time_s: float


class LoanEnded(Message, frozen=True, kw_only=True):
    loan: str
    gpus: tuple[GpuAddress, ...]


class Events(Message, frozen=True, kw_only=True):
    events: tuple[EventView, ...]


class Log(Message, frozen=True, kw_only=True):
    data: bytes
    next_offset: int
    end: bool


class ExecAllowed(Message, frozen=True, kw_only=True):
    """Answer to `Exec`: the worker beside which the command may be started, once."""

    exec: str  # id of the request
    job: JobId
    worker: WorkerId
    server: ServerId
    agent: str  # incarnation of the server's agent: the next one starts nothing that this one may have started
    digest: str  # of the command and of `terminal`


class ExecOutput(Message, frozen=True, kw_only=True):
    """Answer to `ExecIO`."""

    output: Output


class PolicyInUse(Message, frozen=True, kw_only=True):
    """The policy in use, with its parameters and its origin (`source`: a file or a name).

    `at_run_time`: `user` has set the policy while the cluster ran; otherwise it is the configuration's. `deadlines`,
    `quotas`, `reservations`: as in a policy file; None: sent by a version without them.
    """

    policy: StageView
    admission: StageView
    packing: str
    placement: StageView
    needs_lengths: bool
    at_run_time: bool
    source: str
    user: str
    since_s: float  # Unix time; of the configuration's policy: since this controller has used it
    configured_policy: str
    trouble: str = ""  # error of the policy's last decision; the plan before that is kept
    deadlines: dict[str, Any] | None = None
    quotas: dict[str, Any] | None = None
    reservations: tuple[dict[str, Any], ...] | None = None


class PolicySet(Message, frozen=True, kw_only=True):
    """The policies before and after a change, and the shares that differ; for a dry run, as they would be."""

    before: PolicyInUse
    after: PolicyInUse
    shares: tuple[ShareForecast, ...]
    time_s: float


class QuotasFound(Message, frozen=True, kw_only=True):
    """Quotas of groups, and of users that are named or have jobs; empty if there are no quotas. `total_gpus`: GPUs
    available to jobs.

    `left_out`: number of further users with jobs.
    """

    quotas: tuple[QuotaView, ...]
    total_gpus: int
    time_s: float
    left_out: int = 0
    reservations: tuple[ReservationView, ...] = ()  # that are not over


class UsageReport(Message, frozen=True, kw_only=True):
    """A page of a usage report."""

    rows: tuple[UsageRow, ...]
    since_s: float  # the beginning of the first day (Unix time)
    until_s: float  # the end of the last one
    time_s: float
    next: str = ""  # `after` of the next page; "": this was the last one


class Controllers(Message, frozen=True, kw_only=True):
    """The running controllers, by name, as far as the answering one knows. `trouble`: why its knowledge may be
    incomplete.
    """

    controllers: tuple[ControllerView, ...]
    asked: str  # name of the answering controller
    term: int  # the highest term that it knows
    time_s: float
    trouble: str = ""


class SnapshotWanted(Message, frozen=True, kw_only=True):
    """Parts of a snapshot still to be sent, in order. Empty: the snapshot is complete, and for a while jobs can be
    submitted with it.
    """

    parts: tuple[int, ...]


class Pong(Message, frozen=True, kw_only=True):
    version: str
    protocol: int
    cluster: str
    policy: str
    servers: int
    pid: int
    time_s: float = 0.0  # of the controller's clock (Unix time); 0: unknown


class Refused(Message, frozen=True, kw_only=True):
    """The request is refused, with the reason. Exit code 1: the cluster says no; 2 (`bad_input`): the request itself is
    wrong; 4 (`not_allowed`): the caller lacks the right to do this.

    `standby`: the answering controller stands by and has done nothing; another controller may accept the request.
    `in_doubt`: it is not known whether the request has been recorded. The answer follows, perhaps after a long time.
    """

    reason: str
    bad_input: bool = False
    not_allowed: bool = False
    standby: bool = False
    in_doubt: bool = False
    leader: str = ""  # address at which clients reach the leading controller, as far as the standby knows


Answer = (
    Submitted
    | Forecasted
    | Jobs
    | JobFound
    | Scaled
    | Profiling
    | Cancelled
    | Paused
    | Resumed
    | Requeued
    | Checkpointed
    | Saving
    | Servers
    | ServerAdopted
    | ServerRemoved
    | ServerCordoned
    | ServerUncordoned
    | GpusLent
    | LoanEnded
    | Events
    | Log
    | ExecAllowed
    | ExecOutput
    | PolicyInUse
    | PolicySet
    | Outlook
    | QuotasFound
    | UsageReport
    | Controllers
    | SnapshotWanted
    | Pong
    | Refused
)


class Reply(Message, frozen=True, kw_only=True):
    id: str
    answer: Answer
    note: str = ""  # remark on the answer for people, such as its age
