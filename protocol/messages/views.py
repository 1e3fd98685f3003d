"""Views of jobs, servers, events and policies, as clients display them."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ..model import (
    BatchChange,
    CordonKind,
    GpuAddress,
    GpuSeconds,
    JobId,
    JobPhase,
    JobSpec,
    Resize,
    Server,
    ServerId,
    Trouble,
    Use,
    WorkerId,
    WorkerPhase,
)


class WorkerStage(enum.Enum):
    """Stage of a worker, for people: its own phase (`WorkerPhase`), and the stages before and after that the controller
    knows.
    """

    ORDERED = "ordered"  # its GPU is not free yet
    STARTING = "starting"
    READY = "ready"
    TRAINING = "training"
    BROKEN = "broken"
    LEFT = "left"
    FINISHED = "finished"
    ENDED = "ended"  # its process has ended
    RUNNING = "running"  # a process of a gang, which reports no phase

    @classmethod
    def of(cls, phase: WorkerPhase) -> WorkerStage:
        """Return the stage of a worker that reports `phase`."""
        return cls(phase.value)


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as `status JOB` shows it."""

    worker: WorkerId
    server: ServerId
    gpu: int
    phase: WorkerStage
    pid: int | None
    exit_code: int | None = None
    reason: str = ""
    gpus: tuple[int, ...] = ()  # indices where its process has several GPUs; empty: `gpu` alone
    attempt: int = 0  # number of the job's attempt, from 1; 0: unknown
    busy: float | None = None  # part of the last minute or so in which its GPUs computed; None: unknown
    use: Use | None = None  # by the samples of its agent so far; None: there are none


class ShareChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a job's share over time."""

    time_s: float  # seconds since the epoch (Unix time)
    share: int
    generation: int
    reason: str = ""  # in words; "": unknown, or too long ago


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of a job with one share on a given number of servers, as far as it is known."""

    share_gpus: int
    servers: int | None  # None: unknown from a table or a job file; the fewest servers are assumed
    steps_per_s: float
    samples_per_s: float | None  # None: the job has not reported the size of a step yet
    source: str  # measured, history, stated (in the job file), profile, assumed (from the others)
    times: int = 0  # number of measurements
    age_s: float | None = None  # time since the last measurement


class LengthSource(enum.Enum):
    """Source of a job's number of steps."""

    MAX_STEPS = "max-steps"  # the job's specification
    EPOCHS = "epochs"  # the training loop: a number of epochs over data of known length
    ENDED_JOBS = "ended-jobs"  # an estimate, from finished jobs with about as many GPUs
    UNKNOWN = "unknown"


class JobLength(msgspec.Struct, frozen=True, kw_only=True):
    """Total number of steps of a job, as far as it is known. An estimate is the median, between the 1/6 and 5/6
    quantiles.
    """

    source: LengthSource
    steps: float | None = None
    least_steps: float | None = None  # of an estimate
    most_steps: float | None = None
    by_reports: str = ""  # an estimate from the script's reports, until this condition holds: "accuracy >= 0.95"


class PromiseState(enum.Enum):
    """State of a job's deadline."""

    HOLDS = "holds"  # with the GPUs that are reserved for it the job ends in time
    PROVISIONAL = "provisional"  # its throughput or its length is not known yet
    BREAKS = "breaks"  # by the present forecast the job ends late
    NONE = "none"  # a soft or provisional deadline without room beside the promises to other jobs

    @classmethod
    def _missing_(cls, value: object) -> PromiseState:
        return cls.PROVISIONAL  # a state of a later version


class PromiseView(msgspec.Struct, frozen=True, kw_only=True):
    """A job's deadline, and the plan for it. Times are Unix times in seconds."""

    state: PromiseState
    deadline_s: float
    soft: bool
    planned_s: float | None = None  # end of the job with the GPUs that are reserved for it; None: unknown
    least_gpus: int = 0  # its minimum satisfactory share: the most GPUs that it needs at a time to end in time
    waits_for: str = ""  # missing knowledge behind a provisional promise
    final_by_s: float | None = None  # when that knowledge will be complete, if the job starts now
    saved_by: str = ""  # remedy for a promise that breaks; the obstacle to one that is not given
    # For a hard deadline that is not promised: changes with which it would be, and when that was so. Steps are of those left
    offer: CounterOffer | None = None
    offered_s: float | None = None


class CounterOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Alternatives to a deadline that cannot be kept; each one suffices alone."""

    deadline_s: float | None = None  # the earliest deadline that would hold (Unix time); None: none
    steps: int | None = None  # number of steps that would be done in time; None: unknown, or none
    more_gpus: int | None = None  # GPUs that the cluster lacks; None: more GPUs do not help
    consent: tuple[JobId, ...] = ()  # jobs that would have to give up their promises


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a job's failure, shown by `status` and `wait` beside the reason."""

    attempt: int  # from 1: each attempt begins from the last checkpoint, or from the start
    steps_done: int  # at most, in all attempts; 0: none, or the job never trained
    worker: WorkerId | None = None  # the worker that caused the failure; None: no worker did
    server: ServerId | None = None
    error: str = ""  # end of that worker: "exit code 1: ValueError: the loss is nan"
    log: str = ""  # path of its log on that server


class Withholding(enum.Enum):
    """Ways in which a user keeps a job from running."""

    PAUSE = "pause"  # the job saves its state and gives its GPUs back
    HOLD = "hold"  # the job does not start; a running one goes on while it has GPUs
    CANCEL = "cancel"  # as PAUSE, and the job is over as soon as its state is saved

    @property
    def past(self) -> str:
        """Return the participle."""
        return {Withholding.PAUSE: "paused", Withholding.HOLD: "held", Withholding.CANCEL: "cancelled"}[self]

    @property
    def back(self) -> str:
        """Return the command that ends the withholding."""
        return "release" if self is Withholding.HOLD else "resume"


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """A user's or operator's order that a job gets no GPUs until it is lifted."""

    how: Withholding
    since_s: float  # Unix time
    by: str = ""  # " by alice", to follow a verb; "": in a cluster of one machine, with one user
    operator: bool = False  # set by an operator: only operators may lift it


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is displayed. Times are Unix times in seconds. `spec.env` is empty for callers that may not act on
    the job.
    """

    job: JobId
    spec: JobSpec
    phase: JobPhase
    reason: str  # why the job is pending or failed, or which event it waits for
    submitted_s: float
    started_s: float | None
    finished_s: float | None
    share_gpus: int  # that train now (committed)
    wanted_gpus: int  # in the newest order
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
    measuring_gpus: int | None = None  # number of GPUs with which the job is being measured; None: no measurement
    owner: str = ""  # name of the principal that submitted the job; "": older than owners
    account: str = ""  # Unix account under which the job runs; "": that of the agents
    gpu_seconds: GpuSeconds = GpuSeconds()  # used so far
    elastic: bool = True  # the job has called `elastic.join()`; otherwise it is a fixed gang, which cannot be resized
    curve: tuple[CurvePoint, ...] = ()  # by share; only in the answer to GetJob
    length: JobLength | None = None  # only in the answer to GetJob
    batch_changes: tuple[BatchChange, ...] = ()  # changes of the batch while the job trained
    batch_samples: int = 0  # the global batch: samples in a step, all virtual workers together; 0: unknown
    failure: Failure | None = None  # of a job that has failed
    promise: PromiseView | None = None  # of an unfinished job with a deadline
    does_not_grow: str = ""  # why no worker may join those that have its state; "": workers may join
    ended_by: str = ""  # name of the principal that cancelled the job; "": not cancelled, or unknown
    # Reported values that are not finite: "nan", "inf", "-inf"; none of them is in `metrics`
    odd_metrics: dict[str, str] = {}
    peak_gpus: int = 0  # most GPUs that have trained at once; 0: none, or unknown
    withheld: Withheld | None = None  # a user's order not to run the job; None: there is none
    ran_s: float = 0.0  # seconds with any GPUs, in all attempts
    saved_step: int | None = None  # step of the newest known checkpoint; None: there is none
    saved_file: str = ""  # path of that checkpoint on the server of the worker that wrote it; "": unknown
    use: Use | None = None  # of all its workers, by the samples of agents; None: there are none
    busy: float | None = None  # as in WorkerView, of all its workers
    idle_since_s: float | None = None  # since when all its GPUs have done nothing; None: they compute, or it is unknown


class ShareStep(msgspec.Struct, frozen=True, kw_only=True):
    """A job's share after one stage of the decision, in GPUs (`scheduler.decision.Stage`)."""

    stage: str  # by-hand, policy, quotas, promises, packing, excluded-gpus, avoided-servers
    gpus: int


class GpusTaken(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs outside the policy's division, and the reason."""

    gpus: tuple[GpuAddress, ...]
    why: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the cluster that would change a job's share. The scheduler has confirmed it: with this change alone
    the job would have `share_gpus` GPUs.
    """

    kind: str  # resume, after, end, server-back, mend, uncordon, reclaim, scale-auto, scale, ask-less, quotas, packing, more-gpus
    text: str  # the condition, phrased to follow "if"
    share_gpus: int  # of the job under that condition
    command: str = ""  # command that makes the change; "": there is none
    by: str = ""  # role allowed to call it; "": the caller
    pushed: tuple[ShareForecast, ...] = ()  # the first of the other jobs that would lose GPUs


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a job's GPUs, as `JobView` shows them. Times are Unix times in seconds."""

    phase_since_s: float
    reasons: tuple[str, ...] = ()  # all reasons; the first one is `JobView.reason`, unless that is empty
    decided_gpus: int | None = None  # its share, if a decision were made now; None: no policy decides about it
    steps: tuple[ShareStep, ...] = ()  # the stages that led to that share
    policy: str = ""
    rule: str = ""  # the policy's rule, in a sentence
    least_gpus: int = 0  # the job trains with at least so many GPUs or with none
    useful_gpus: int = 0  # most GPUs of the cluster that the job can use, as far as its throughput is known
    known_gpus: int = 0  # of all known servers
    divided_gpus: int = 0  # of those, the ones that the policy divides
    among_jobs: int = 0  # number of jobs among which the policy divides them
    free_gpus: int = 0  # of the divided GPUs, those given to no job that this job may use
    taken: tuple[GpusTaken, ...] = ()  # GPUs that the policy does not divide
    holders: tuple[ShareForecast, ...] = ()  # other jobs with GPUs, the largest first: shares now, and as decided now
    before: tuple[JobId, ...] = ()  # waiting jobs that would start with this job or before it if there were more GPUs
    remedies: tuple[Remedy, ...] = ()
    tried: int = 0  # number of changes that were tried
    untried: int = 0  # number of changes left out, since there were too many


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a usage report: the GPU-seconds of a user, a day or a job. The other two fields are empty."""

    gpu_seconds: GpuSeconds
    user: str = ""
    day: str = ""  # "2026-11-23", UTC
    job: JobId = JobId("")
    phase: JobPhase | None = None  # of the job


class ServerState(enum.Enum):
    """State of a server, for people."""

    ALIVE = "alive"
    LOST = "lost"
    UNFIT = "unfit"  # the server cannot start workers for now
    FOREIGN = "foreign"  # the server belongs to another cluster


class CordonView(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's order to start no new work on a server, or on one of its GPUs."""

    gpu: int | None  # index; None: the whole server
    kind: CordonKind
    reason: str
    by: str  # "operator:root"
    since_s: float  # Unix time
    drained_s: float | None = None  # of a drain: when the last worker there ended (Unix time)
    loan: str = ""  # loan to which the cordon belongs
    until_s: float | None = None  # end of that loan (Unix time)


class StillThere(msgspec.Struct, frozen=True, kw_only=True):
    """Work that remains on a server or GPU that is being drained. `stays`: it cannot be moved at present; otherwise it
    is on its way. `why`: the reason, in words.
    """

    job: JobId
    gpus: tuple[int, ...]  # indices
    stays: bool
    why: str


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    server: Server
    alive: bool
    last_heard_s: float
    used: dict[int, JobId]  # GPU index -> job
    state: ServerState = ServerState.ALIVE
    trouble: str = ""  # why no worker is started there for now, or a decision that the operator has to make; in words
    barred: dict[int, str] = {}  # GPU index -> why it takes no new work
    troubles: tuple[Trouble, ...] = ()  # as its agent reports them, including those without consequences
    clock_ahead_s: float | None = None  # difference of its clock from the controller's; None: unknown
    cordons: tuple[CordonView, ...] = ()
    # Work left on draining parts; empty for such a part: no worker runs there any more
    still_there: tuple[StillThere, ...] = ()
    forged: int = 0  # refused reports of its agent, about workers that were never sent to it
    # Kept for workers whose jobs have asked for cores and memory, of `server.allocatable`
    asked_cpus: float = 0.0
    asked_memory_bytes: int = 0
    busy: dict[int, float] = {}  # GPU index -> part of the last minute or so in which it computed, where that is known


class EventKind(enum.Enum):
    """Kind of an event: first events of jobs, then of servers, then of the controller itself."""

    SUBMITTED = "submitted"
    PROMISED = "promised"  # the job's deadline is promised
    ENDANGERED = "endangered"  # by the present forecast the job misses its deadline
    MISSED = "missed"  # the job finished after its deadline
    ORDERED = "ordered"  # a new roster
    STARTED = "started"
    SCALED = "scaled"  # the share was set by hand, or given back to the policy
    RESIZED = "resized"  # cost of a switch of rosters
    BATCH = "batch"  # the batch has another size, with the step, the factor and the learning rate
    MEASURING = "measuring"  # the job runs with smaller shares to be measured
    PREEMPTED = "preempted"
    PAUSED = "paused"  # by hand, until a user resumes the job
    HOLDING = "holding"  # by hand: the job does not start until a user releases it
    RESUMED = "resumed"  # by hand
    RELEASED = "released"  # the jobs that the job has waited for are over
    WARNED = "warned"  # the job's processes got SIGUSR1, since its time is nearly up
    IDLE = "idle"  # the job's GPUs do nothing: a warning, or they are taken back
    TIMED_OUT = "timed-out"  # the job has run for as long as it may, and is over as soon as its state is saved
    REQUEUED = "requeued"  # by hand: the job saves its state, and waits for its turn
    SAVED = "saved"  # by hand: the job writes a checkpoint
    CANCELLING = "cancelling"  # by hand: the job is over as soon as its state is saved
    WAITING = "waiting"  # the job has lost its workers, and gets no GPUs for new ones now
    SAVER = "saver"  # another worker is to save its state
    RESTARTED = "restarted"  # from its last checkpoint
    LOST = "lost"  # of a worker
    LATE = "late"  # a worker exceeds the time allowed for its start
    CUT_OFF = "cut-off"  # the job goes on without the workers that its leader does not reach
    HELD = "held"  # the job does not grow for a while
    STALLED = "stalled"
    SLOW = "slow"  # the job leaves a GPU on which its worker is slow, or may use it again; without a job: of several users' jobs
    TOLD = "told"  # reported by a worker: an operation that took long, or the step from which it had to begin again
    ODD_FIGURE = "odd-figure"  # a worker reports an impossible value
    OVERTAKEN = "overtaken"  # the job is further than a restored store records
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SERVER_JOINED = "server-joined"
    SERVER_BACK = "server-back"
    SERVER_LOST = "server-lost"
    SERVER_UNFIT = "server-unfit"
    TROUBLE = "trouble"  # GPUs of the server take no new work, with the reason
    RECOVERED = "recovered"  # the GPUs take new work again
    CORDONED = "cordoned"  # by an operator: no new work on it
    DRAINING = "draining"  # cordoned, and its work is moved away
    DRAINED = "drained"  # the last worker there has ended
    UNCORDONED = "uncordoned"  # by an operator
    LENT = "lent"  # GPUs, to a user outside the cluster
    LOAN_ENDED = "loan-ended"  # the GPUs are used again
    SERVER_REFUSED = "server-refused"
    SERVER_FOREIGN = "server-foreign"
    SERVER_ADOPTED = "server-adopted"
    SERVER_REMOVED = "server-removed"  # by an operator
    SERVER_FORGED = "server-forged"  # its agent has reported on workers that were never sent to it
    WORKERS_UNKNOWN = "workers-unknown"  # the server has workers that belong to no job
    CONTROLLER_AWAY = "controller-away"  # the controller was stopped for a while, or its clock was set
    POLICY = "policy"  # set, or no longer available
    POLICY_FAILED = "policy-failed"
    STORE_BACK = "store-back"
    STORE_OLD = "store-old"  # restored from a backup
    RECORDS_REFUSED = "records-refused"  # a process other than a controller has written to the store
    OTHER = "other"  # a kind of a later version: the event's text explains it

    @classmethod
    def _missing_(cls, value: object) -> EventKind:
        return _OLDER.get(value, cls.OTHER) if isinstance(value, str) else cls.OTHER


_OLDER = {  # names in the records of older versions
    "excluded": EventKind.CORDONED,
    "included": EventKind.UNCORDONED,
    "server-forgotten": EventKind.SERVER_REMOVED,
}


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the cluster's history, with its reason."""

    number: int
    time_s: float
    kind: EventKind
    job: JobId | None
    text: str


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """Guarantees, limits and present use of a user or a group. GPUs of a group's members count for the group.

    `borrowed_gpus`: the part of `used_gpus` beyond `gpus`; `lent_gpus`: the part of `gpus` that others use.
    """

    name: str
    members: tuple[str, ...] = ()  # of a group; empty for a user
    group: str = ""  # of a user: the group for which the user's GPUs count
    gpus: int = 0  # guaranteed
    most_gpus: int | None = None
    used_gpus: int = 0
    borrowed_gpus: int = 0
    lent_gpus: int = 0
    jobs: int = 0  # unfinished
    most_jobs: int | None = None
    promised_gpu_hours: float = 0.0  # reserved by hard deadlines of its jobs
    most_promised_gpu_hours: float | None = None


class ReservationView(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that are reserved, and so out of use, from one time to another (Unix time, s); `taken_gpus`: those out of
    use now.
    """

    name: str
    gpus: int
    from_s: float
    to_s: float
    taken_gpus: int = 0


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy or a stage around it, with the parameters in use."""

    name: str
    parameters: dict[str, Any] = {}


class RefusedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that does not count, because another process than a controller has written its record in the store."""

    job: JobId
    reason: str


class ShareForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A job with a share that a change would alter. `reason`: why it gets no more."""

    job: JobId
    before_gpus: int
    after_gpus: int
    reason: str


class ControllerView(msgspec.Struct, frozen=True, kw_only=True):
    """A running controller."""

    name: str
    leads: bool
    version: str
    since_s: float  # Unix time of its start, by its own clock
    clients_at: tuple[str, ...] = ()
    agents_at: tuple[str, ...] = ()
