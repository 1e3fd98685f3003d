"""Every message between processes. One tagged struct each; MessagePack on the wire; nothing is ever unpickled.

Who talks to whom (cluster 2)::

    elasticctl --DEALER--> ROUTER controller ROUTER <--DEALER-- agent ROUTER <--DEALER-- worker
                                                                worker ROUTER <--DEALER-- worker   (leader, followers)

Messages that concern a job carry the job and, where it matters, the generation; stale ones are dropped by the receiver.
Requests of a client carry an id and are answered exactly once; a repeated id gets the first answer again (Elan V-D).
Everything else is idempotent: orders are numbered by generation, statuses by a sequence, and both sides repeat what the
other one seems not to have.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from .model import (
    Fault,
    JobId,
    JobPhase,
    JobSpec,
    Resize,
    Roster,
    Server,
    ServerId,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)

PROTOCOL_VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class name."""


# ---------------------------------------------------------------------------------------------- controller -> agent -> worker


class Order(Message, frozen=True, kw_only=True):
    """Train as `roster` (worker-runtime 4). A greater generation supersedes all lesser ones that are not committed."""

    job: JobId
    roster: Roster
    leader_address: str  # control socket of the leader; "" until it is known: the order is then repeated
    broken: tuple[int, ...] = ()  # generations that have lost a member: whoever is in one abandons its communicator
    uid: str = ""  # of the job

    @property
    def generation(self) -> int:
        return self.roster.generation


def session_name(incarnation: str, hello: int) -> str:
    """Of the session that begins with the hello of this number, of this incarnation of an agent."""
    return f"{incarnation}/{hello}"


class StartWorker(Message, frozen=True, kw_only=True):
    """Start a worker process, unless this worker of the job has been started before."""

    job: JobId
    worker: WorkerId
    gpu: int  # index on the agent's server
    spec: JobSpec
    generation: int  # of the order that first named it
    uid: str = ""  # of the job: tells it from another job that has had the same number
    checkpoint_step: int | None = None  # the job has a checkpoint of this step or a later one; None: it may have none
    session: str = ""  # of the agent's hello that this belongs to (`AgentHello.session`); "": any


class StopWorker(Message, frozen=True, kw_only=True):
    """Stop a worker process: SIGTERM, SIGKILL after `grace_s`. One that does not run will not be started any more,
    and counts as ended: the agent answers with its `WorkerExit`.

    `save`: one that trains gets `Suspend`, with `saver`, `stand_by` and `saved`, instead of SIGTERM; again, if these change.
    """

    job: JobId
    worker: WorkerId
    grace_s: float
    save: bool = False
    saver: WorkerId | None = None
    stand_by: bool = False
    saved: int | None = None  # the step whose state another worker has saved meanwhile
    uid: str = ""  # of the job; a worker of another job with this number goes on


class ForgetWorkers(Message, frozen=True, kw_only=True):
    """The controller has recorded these workers' ends: the agent may drop its own records of them."""

    workers: tuple[WorkerId, ...]
    uids: dict[WorkerId, str] = {}  # of their jobs, as their ends told them


class ReadLog(Message, frozen=True, kw_only=True):
    """Send a piece of a worker's log."""

    request: str
    job: JobId
    worker: WorkerId
    offset: int
    limit: int
    uid: str = ""  # of the job


class HelloRefused(Message, frozen=True, kw_only=True):
    """Answer to a hello: this agent cannot be part of the cluster now. It says hello again, slowly."""

    reason: str


class Acknowledged(Message, frozen=True, kw_only=True):
    """Answer to a heartbeat or a hello. `sent` counts the messages sent to this agent in this session, this one not
    included: an agent that has received fewer says hello again, and gets everything anew."""

    incarnation: str  # of the controller
    sent: int
    cluster: str = ""  # id of the cluster that the agent is a member of now; "": it is no member
    newest_event: int = 0  # how far the cluster's history is recorded
    session: str = ""  # of the hello that has begun it (`AgentHello.session`); "": not told


# ---------------------------------------------------------------------------------------------- agent -> controller


class WorkerExit(Message, frozen=True, kw_only=True):
    """A worker's process has ended. Repeated until forgotten."""

    job: JobId
    worker: WorkerId
    exit_code: int | None  # None: unknown; negative: killed by that signal
    reason: str  # for people: "killed by SIGKILL", "exit code 1: ValueError: ..."
    phase: WorkerPhase | None = None  # the last it reported
    status: WorkerStatus | None = None  # likewise: a controller that was away has not heard it
    fault: Fault = Fault.KILLED  # whose it is, as far as the agent can know
    uid: str = ""  # of the job


class LocalWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's process that an agent keeps, and the GPU that it holds."""

    worker: WorkerId
    job: JobId
    uid: str  # of the job
    gpu: int  # index on the agent's server


class AgentHello(Message, frozen=True, kw_only=True):
    """First message of a session, with everything that the agent knows."""

    server: Server
    incarnation: str  # new for each start of the agent
    workers: tuple[WorkerStatus, ...]  # as last reported
    starting: tuple[WorkerId, ...]  # processes that run but have not reported yet
    exited: tuple[WorkerExit, ...]  # not yet forgotten
    number: int = 0  # of this hello within the incarnation, from 1; a lower one than the last is stale. 0: not numbered
    agent: str = ""  # identity of the agent: made once, kept in its state directory
    start: int = 0  # of the agent: which of its incarnations this is, counted from 1 (see `number`)
    cluster: str = ""  # id of the cluster that the agent has been a member of last; "": none yet
    highest_job: int = 0  # greatest number of a job that it has ever been told to start
    newest_event: int = 0  # greatest number of an event of its cluster that it has heard of
    heartbeat_interval_s: float = 0.0  # between the heartbeats that will follow; 0: not told
    processes: tuple[LocalWorker, ...] = ()  # where each of `workers` and `starting` runs

    @property
    def session(self) -> str:
        """Names the session that this hello begins."""
        return session_name(self.incarnation, self.number)


class WorkerReport(Message, frozen=True, kw_only=True):
    """A worker's status has changed in more than how far the worker is."""

    status: WorkerStatus
    uid: str = ""  # of the job


class AgentHeartbeat(Message, frozen=True, kw_only=True):
    """Renews the server's lease, and tells how far its workers are."""

    server: ServerId
    starting: tuple[WorkerId, ...] = ()  # processes that run but have not reported yet
    reports: tuple[WorkerReport, ...] = ()  # what has not been told yet


class LogPiece(Message, frozen=True, kw_only=True):
    """Answer to ReadLog. `data` are whole lines, see agent/shim.py for their form; `end`: nothing more will come."""

    request: str
    data: bytes
    next_offset: int
    end: bool
    error: str = ""


# ---------------------------------------------------------------------------------------------- worker -> agent


class Status(Message, frozen=True, kw_only=True):
    """A worker's status; also its heartbeat."""

    status: WorkerStatus


class StatusReceived(Message, frozen=True, kw_only=True):
    """The agent's answer to a status, so that the worker knows that it is there."""

    sequence: int


class Suspend(Message, frozen=True, kw_only=True):
    """Agent -> worker: the job is preempted. End between two steps; `saver` writes a checkpoint before it does.

    stand_by: one worker on each server holds on to the state until that is done, which `saved` tells.
    """

    job: JobId
    saver: WorkerId | None = None  # None: the leader, as each worker knows it
    stand_by: bool = False
    saved: int | None = None  # the step whose state somebody has saved


# ---------------------------------------------------------------------------------------------- among the workers of a job


class Ready(Message, frozen=True, kw_only=True):
    """Follower -> leader: I act under order `generation`, and this is how far I am."""

    job: JobId
    generation: int
    worker: WorkerId
    base: int  # the generation that I am training in; 0: in none (newcomer, or my communicator is broken)
    applied: int | None


class Prepare(Message, frozen=True, kw_only=True):
    """Leader -> follower: build communicator (`generation`, `attempt`). `holders` have the state of step `applied`."""

    job: JobId
    generation: int
    attempt: int
    base: int  # the generation that the switch starts from; 0: from none, all commit by message
    holders: tuple[WorkerId, ...]


class Prepared(Message, frozen=True, kw_only=True):
    """Follower -> leader: my communicator (`generation`, `attempt`) stands, or `error` says why not."""

    job: JobId
    generation: int
    attempt: int
    worker: WorkerId
    base: int  # as in Ready, and what it says now: it may have moved since
    applied: int | None
    error: str = ""


class Commit(Message, frozen=True, kw_only=True):
    """Leader -> those who are not in the collective that carried the decision: switch now."""

    job: JobId
    generation: int
    attempt: int


class StoreSet(Message, frozen=True, kw_only=True):
    """Rendezvous: set `key`."""

    scope: str
    key: str
    value: bytes


class StoreGet(Message, frozen=True, kw_only=True):
    """Rendezvous: answer with the value of `key` as soon as it is there."""

    scope: str
    key: str


class StoreAdd(Message, frozen=True, kw_only=True):
    """Rendezvous: add to the counter `key`, answer with its new value in decimal digits."""

    scope: str
    key: str
    amount: int


class StoreValue(Message, frozen=True, kw_only=True):
    """Answer of the rendezvous. `cancelled`: the scope has been given up."""

    key: str
    value: bytes
    cancelled: bool = False


# ---------------------------------------------------------------------------------------------- elasticctl -> controller


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


# ---------------------------------------------------------------------------------------------- controller -> elasticctl


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as `status JOB` shows it."""

    worker: WorkerId
    server: ServerId
    gpu: int
    phase: str  # a WorkerPhase value, or "ordered", "ended"
    pid: int | None
    exit_code: int | None = None
    reason: str = ""


class ShareChange(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a job's share over time."""

    time_s: float  # seconds since the epoch (Unix time)
    share: int
    generation: int


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of a job with one share on so many servers, as far as it is known."""

    share_gpus: int
    servers: int | None  # None: a table or a job file that does not say; taken for the fewest
    steps_per_s: float
    samples_per_s: float | None  # None: the job has not said yet how large a step is
    source: str  # measured, history, stated (in the job file), profile, assumed (from the others)
    times: int = 0  # measured so often
    age_s: float | None = None  # since it was measured last


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is shown. Times are Unix times in seconds."""

    job: JobId
    spec: JobSpec
    phase: JobPhase
    reason: str  # why it is pending, failed, or what it waits for
    submitted_s: float
    started_s: float | None
    finished_s: float | None
    share_gpus: int  # that train now (committed)
    wanted_gpus: int  # by the newest order
    manual_share: int | None
    generation: int  # committed
    ordered_generation: int
    step: int | None  # last applied
    total_steps: int | None
    epoch: int
    samples_per_s: float
    median_step_s: float
    metrics: dict[str, float]
    workers: tuple[WorkerView, ...]
    past_workers: tuple[WorkerView, ...]
    shares: tuple[ShareChange, ...]
    resizes: tuple[Resize, ...]
    restarts: int
    exit_code: int | None
    measuring_gpus: int | None = None  # it is being measured with so many of its GPUs
    curve: tuple[CurvePoint, ...] = ()  # by share; only in the answer to GetJob


class ServerState(enum.Enum):
    """How a server stands, for people."""

    ALIVE = "alive"
    LOST = "lost"
    UNFIT = "unfit"  # it cannot start workers for now
    FOREIGN = "foreign"  # it belongs to another cluster


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    server: Server
    alive: bool
    last_heard_s: float
    used: dict[int, JobId]  # GPU index -> job
    state: ServerState = ServerState.ALIVE
    trouble: str = ""  # why no worker is started there for now, or what an operator has to decide; in words


class EventKind(enum.Enum):
    """What an event tells of: first of jobs, then of servers, then of the controller itself."""

    SUBMITTED = "submitted"
    ORDERED = "ordered"  # a new roster
    STARTED = "started"
    SCALED = "scaled"  # its share was set by hand, or given back to the policy
    RESIZED = "resized"  # what a switch of rosters has cost
    MEASURING = "measuring"  # it goes through smaller shares
    PREEMPTED = "preempted"
    SAVER = "saver"  # another worker is to save its state
    RESTARTED = "restarted"  # from its last checkpoint
    LOST = "lost"  # a worker
    LATE = "late"  # a worker takes longer to start than it may
    CUT_OFF = "cut-off"  # it goes on without those that its leader does not reach
    HELD = "held"  # it does not grow for a while
    STALLED = "stalled"
    ODD_FIGURE = "odd-figure"  # a worker reports what cannot be
    OVERTAKEN = "overtaken"  # it is further than a restored store says
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SERVER_JOINED = "server-joined"
    SERVER_BACK = "server-back"
    SERVER_LOST = "server-lost"
    SERVER_UNFIT = "server-unfit"
    SERVER_REFUSED = "server-refused"
    SERVER_FOREIGN = "server-foreign"
    SERVER_ADOPTED = "server-adopted"
    SERVER_FORGOTTEN = "server-forgotten"
    WORKERS_UNKNOWN = "workers-unknown"  # it has workers that belong to no job
    CONTROLLER_AWAY = "controller-away"  # it has not listened for a while
    POLICY = "policy"  # set, or not to be had any more
    POLICY_FAILED = "policy-failed"
    STORE_BACK = "store-back"
    STORE_OLD = "store-old"  # restored from a backup
    OTHER = "other"  # of a later version, which knows more kinds: its text says what it is

    @classmethod
    def _missing_(cls, value: object) -> EventKind:
        return cls.OTHER


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, and why."""

    number: int
    time_s: float
    kind: EventKind
    job: JobId | None
    text: str


class Submitted(Message, frozen=True, kw_only=True):
    job: JobId


class Jobs(Message, frozen=True, kw_only=True):
    """A page of jobs."""

    jobs: tuple[JobView, ...]
    time_s: float
    policy: str
    next: str = ""  # `after` of the next page; "": this was the last one


class JobFound(Message, frozen=True, kw_only=True):
    job: JobView
    time_s: float


class Scaled(Message, frozen=True, kw_only=True):
    """`generation` is the order that carries the new share out; it may be committed already."""

    job: JobId
    generation: int
    share: int


class Profiling(Message, frozen=True, kw_only=True):
    """The job is on its way down through `shares`."""

    job: JobId
    shares: tuple[int, ...]


class Cancelled(Message, frozen=True, kw_only=True):
    job: JobId


class Servers(Message, frozen=True, kw_only=True):
    """A page of servers."""

    servers: tuple[ServerView, ...]
    time_s: float
    next: str = ""  # `after` of the next page; "": this was the last one


class ServerAdopted(Message, frozen=True, kw_only=True):
    """`workers` have been asked to save and end; the server is used as soon as they have."""

    server: ServerId
    workers: int


class ServerForgotten(Message, frozen=True, kw_only=True):
    """Should its agent say hello again, it joins as a new server."""

    server: ServerId


class Events(Message, frozen=True, kw_only=True):
    events: tuple[EventView, ...]


class Log(Message, frozen=True, kw_only=True):
    data: bytes
    next_offset: int
    end: bool


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy or a stage around it, with its parameters as they are in use."""

    name: str
    parameters: dict[str, Any] = {}


class PolicyInUse(Message, frozen=True, kw_only=True):
    """What decides, and the file or name that it came from (`source`).

    `at_run_time`: it has been set by `user` while the cluster ran; else it is the configuration's.
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


class ShareForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose share another policy changes. `reason`: why it gets no more."""

    job: JobId
    before_gpus: int
    after_gpus: int
    reason: str


class PolicySet(Message, frozen=True, kw_only=True):
    """What decided before and what does after it, and the shares that differ; of a dry run what would be so."""

    before: PolicyInUse
    after: PolicyInUse
    shares: tuple[ShareForecast, ...]
    time_s: float


class Pong(Message, frozen=True, kw_only=True):
    version: str
    protocol: int
    cluster: str
    policy: str
    servers: int
    pid: int


class Refused(Message, frozen=True, kw_only=True):
    """No, and why. `bad_input`: the request itself is wrong (exit code 2), else the cluster says no (exit code 1)."""

    reason: str
    bad_input: bool = False


Answer = (
    Submitted
    | Jobs
    | JobFound
    | Scaled
    | Profiling
    | Cancelled
    | Servers
    | ServerAdopted
    | ServerForgotten
    | Events
    | Log
    | PolicyInUse
    | PolicySet
    | Pong
    | Refused
)


class Reply(Message, frozen=True, kw_only=True):
    id: str
    answer: Answer


# ---------------------------------------------------------------------------------------------- the links, by direction

ToAgentFromController = Order | StartWorker | StopWorker | ForgetWorkers | ReadLog | HelloRefused | Acknowledged
ToControllerFromAgent = AgentHello | AgentHeartbeat | WorkerReport | WorkerExit | LogPiece
ToWorkerFromAgent = Order | StatusReceived | Suspend
ToAgentFromWorker = Status
ToLeader = Ready | Prepared | StoreSet | StoreGet | StoreAdd
ToFollower = Prepare | Commit | StoreValue
