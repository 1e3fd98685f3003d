"""What the controller answers to a client."""

from __future__ import annotations

from typing import Any

from ..model import CordonKind, GpuAddress, JobId, ServerId
from .base import Message
from .views import (
    ControllerView,
    CounterOffer,
    EventView,
    Explanation,
    JobView,
    PromiseView,
    QuotaView,
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
    notes: tuple[str, ...] = ()  # what of its specification does not do what it seems to, in sentences


class Forecasted(Message, frozen=True, kw_only=True):
    """What would come of a submission. `reason`: why it would be refused; "": it would not."""

    time_s: float
    reason: str = ""
    promise: PromiseView | None = None  # of a job with a deadline that would be admitted
    offer: CounterOffer | None = None  # of one whose deadline does not hold


class Jobs(Message, frozen=True, kw_only=True):
    """A page of jobs."""

    jobs: tuple[JobView, ...]
    time_s: float
    policy: str
    next: str = ""  # `after` of the next page; "": this was the last one


class JobFound(Message, frozen=True, kw_only=True):
    job: JobView
    time_s: float
    explanation: Explanation | None = None  # if it was asked for; of an older controller: None


class Scaled(Message, frozen=True, kw_only=True):
    """`generation` is the order that carries the new share out; it may be committed already. `pushed`: the jobs that lose GPUs
    by it, the first of them."""

    job: JobId
    generation: int
    share: int
    pushed: tuple[ShareForecast, ...] = ()


class Profiling(Message, frozen=True, kw_only=True):
    """The job is on its way down through `shares`."""

    job: JobId
    shares: tuple[int, ...]


class Cancelled(Message, frozen=True, kw_only=True):
    """`saving`: it is over as soon as its state is saved."""

    job: JobId
    saving: bool = False


class Paused(Message, frozen=True, kw_only=True):
    """`before`: it was withheld already, by whom and how; None: it was not. `runs`: it has GPUs, and keeps them (a hold)."""

    job: JobId
    before: Withheld | None = None
    runs: bool = False


class Resumed(Message, frozen=True, kw_only=True):
    """`before`: how it was withheld; None: it was not."""

    job: JobId
    before: Withheld | None = None


class Requeued(Message, frozen=True, kw_only=True):
    job: JobId


class Checkpointed(Message, frozen=True, kw_only=True):
    """`step`: of the state that is to be saved, or a later one; `saved`: of the newest that is. `file`: its path on the server of
    who has written it; "": not known."""

    job: JobId
    step: int
    saved: int | None = None
    file: str = ""


class Saving(Message, frozen=True, kw_only=True):
    """These jobs still have workers that save their state; none: all is saved that can be."""

    jobs: tuple[JobId, ...]


class Servers(Message, frozen=True, kw_only=True):
    """A page of servers."""

    servers: tuple[ServerView, ...]
    time_s: float
    next: str = ""  # `after` of the next page; "": this was the last one


class ServerAdopted(Message, frozen=True, kw_only=True):
    """`workers` have been asked to save and end; the server is used as soon as they have."""

    server: ServerId
    workers: int


class ServerRemoved(Message, frozen=True, kw_only=True, tag="ServerForgotten"):
    """Should its agent be started again, it joins as a new server."""

    server: ServerId


class ServerCordoned(Message, frozen=True, kw_only=True, tag="ServerExcluded"):
    """Nothing new is started there; `kind`: what becomes of what runs there (an older controller only cordons)."""

    server: ServerId
    gpu: int | None = None
    kind: CordonKind = CordonKind.CORDON


class ServerUncordoned(Message, frozen=True, kw_only=True, tag="ServerIncluded"):
    """`trusted`: what is wrong there all the same, in words; `still`: why something there takes no new work even so."""

    server: ServerId
    gpu: int | None = None
    trusted: tuple[str, ...] = ()
    still: tuple[str, ...] = ()


class GpusLent(Message, frozen=True, kw_only=True):
    """They are free as soon as the jobs there have left them (`ServerView.still_there`)."""

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


class PolicyInUse(Message, frozen=True, kw_only=True):
    """What decides, and the file or name that it came from (`source`).

    `at_run_time`: it has been set by `user` while the cluster ran; else it is the configuration's. `deadlines`, `quotas`,
    `reservations`: as in a policy file; None: of a version that does not tell.
    """

    policy: StageView
    admission: StageView
    packing: str
    placement: StageView
    needs_lengths: bool
    at_run_time: bool
    source: str
    user: str
    since_s: float  # Unix time; of the configuration's policy since when this controller has used it
    configured_policy: str
    trouble: str = ""  # what it raised when it was asked last; the plan before that is kept
    deadlines: dict[str, Any] | None = None
    quotas: dict[str, Any] | None = None
    reservations: tuple[dict[str, Any], ...] | None = None


class PolicySet(Message, frozen=True, kw_only=True):
    """What decided before and what does after it, and the shares that differ; of a dry run what would be so."""

    before: PolicyInUse
    after: PolicyInUse
    shares: tuple[ShareForecast, ...]
    time_s: float


class QuotasFound(Message, frozen=True, kw_only=True):
    """`quotas`: groups, users who are named or have jobs; none, where there are no quotas. `total_gpus`: that can be had.

    `left_out`: so many users more have jobs."""

    quotas: tuple[QuotaView, ...]
    total_gpus: int
    time_s: float
    left_out: int = 0
    reservations: tuple[ReservationView, ...] = ()  # that are not over


class UsageReport(Message, frozen=True, kw_only=True):
    """A page of a report."""

    rows: tuple[UsageRow, ...]
    since_s: float  # the beginning of the first day (Unix time)
    until_s: float  # the end of the last one
    time_s: float
    next: str = ""  # `after` of the next page; "": this was the last one


class Controllers(Message, frozen=True, kw_only=True):
    """The controllers that run, by name, as far as the one that answers knows. `trouble`: why it may not know."""

    controllers: tuple[ControllerView, ...]
    asked: str  # the name of the one that answers
    term: int  # the highest that it knows
    time_s: float
    trouble: str = ""


class SnapshotWanted(Message, frozen=True, kw_only=True):
    """The parts that are still to be sent, in their order. Empty: it is whole, and jobs can be submitted with it for a while."""

    parts: tuple[int, ...]


class Pong(Message, frozen=True, kw_only=True):
    version: str
    protocol: int
    cluster: str
    policy: str
    servers: int
    pid: int
    time_s: float = 0.0  # of the controller's clock (Unix time); 0: not told


class Refused(Message, frozen=True, kw_only=True):
    """No, and why. Exit code 1: the cluster says no; 2 (`bad_input`): the request itself is wrong; 4 (`not_allowed`): the caller
    may not do this.

    `standby`: whoever answers stands by, has done nothing, and another controller may do it."""

    reason: str
    bad_input: bool = False
    not_allowed: bool = False
    standby: bool = False
    leader: str = ""  # where clients reach the controller that leads, as far as the standby knows


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
    | PolicyInUse
    | PolicySet
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
    note: str = ""  # what is to be known of the answer, for people: how old it is
