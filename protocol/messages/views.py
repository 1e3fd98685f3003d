"""What a client is shown of jobs, servers, events and policies."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ..model import (
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
    WorkerId,
    WorkerPhase,
)


class WorkerStage(enum.Enum):
    """How far a worker is, for people: what it says of itself (`WorkerPhase`), and what the controller knows before and after."""

    ORDERED = "ordered"  # its GPU is not free yet
    STARTING = "starting"
    READY = "ready"
    TRAINING = "training"
    BROKEN = "broken"
    LEFT = "left"
    FINISHED = "finished"
    ENDED = "ended"  # its process
    RUNNING = "running"  # a process of a gang, of which nothing else is known

    @classmethod
    def of(cls, phase: WorkerPhase) -> WorkerStage:
        """That of a worker which speaks."""
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
    gpus: tuple[int, ...] = ()  # where its process has several; empty: `gpu` alone
    attempt: int = 0  # of its job, from 1; 0: not known


class ShareChange(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a job's share over time."""

    time_s: float  # seconds since the epoch (Unix time)
    share: int
    generation: int
    reason: str = ""  # why, in words; "": not known, or too long ago


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of a job with one share on so many servers, as far as it is known."""

    share_gpus: int
    servers: int | None  # None: a table or a job file that does not say; taken for the fewest
    steps_per_s: float
    samples_per_s: float | None  # None: the job has not said yet how large a step is
    source: str  # measured, history, stated (in the job file), profile, assumed (from the others)
    times: int = 0  # measured so often
    age_s: float | None = None  # since it was measured last


class LengthSource(enum.Enum):
    """Where it is known from how many steps a job takes."""

    MAX_STEPS = "max-steps"  # its specification tells
    EPOCHS = "epochs"  # its loop tells: so many epochs, over data of known length
    ENDED_JOBS = "ended-jobs"  # it is an estimate, from jobs with about as many GPUs that are over
    UNKNOWN = "unknown"


class JobLength(msgspec.Struct, frozen=True, kw_only=True):
    """How many steps a job takes in all, as far as is known. An estimate is the median, between the 1/6 and 5/6 quantiles."""

    source: LengthSource
    steps: float | None = None
    least_steps: float | None = None  # of an estimate
    most_steps: float | None = None
    by_reports: str = ""  # it is an estimate, from what the script reports, until that is so: "accuracy >= 0.95"


class PromiseState(enum.Enum):
    """How it stands with a job's deadline."""

    HOLDS = "holds"  # with the GPUs that are kept for it the job ends in time
    PROVISIONAL = "provisional"  # its throughput or its length is not known yet
    BREAKS = "breaks"  # as things are it ends late
    NONE = "none"  # soft, and beside the promises to others there is no room for it

    @classmethod
    def _missing_(cls, value: object) -> PromiseState:
        return cls.PROVISIONAL  # of a later version


class PromiseView(msgspec.Struct, frozen=True, kw_only=True):
    """A job's deadline, and what is planned for it. Times are Unix times in seconds."""

    state: PromiseState
    deadline_s: float
    soft: bool
    planned_s: float | None = None  # when it ends with the GPUs that are kept for it; None: not known
    least_gpus: int = 0  # the most that it needs at a time to end in time: its minimum satisfactory share
    waits_for: str = ""  # of a provisional one: what is to be known first
    final_by_s: float | None = None  # likewise: by when it is known, if it begins now
    saved_by: str = ""  # of one that breaks: what would save it


class CounterOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What would hold in place of a deadline that does not; each by itself."""

    deadline_s: float | None = None  # the earliest one that would (Unix time); None: none
    steps: int | None = None  # so many would be done in time; None: not known, or none
    more_gpus: int | None = None  # that the cluster would have to have; None: more do not help
    consent: tuple[JobId, ...] = ()  # jobs that would have to go on without their promises


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job has failed: what `status` and `wait` say besides why."""

    attempt: int  # from 1: each begins from the last checkpoint, or from the start
    steps_done: int  # at most, in all attempts; 0: none, or the job never trained
    worker: WorkerId | None = None  # that brought it about; None: none did
    server: ServerId | None = None
    error: str = ""  # what came of that worker: "exit code 1: ValueError: the loss is nan"
    log: str = ""  # path of its log on that server


class Withholding(enum.Enum):
    """How a user keeps a job from running."""

    PAUSE = "pause"  # it saves its state and gives its GPUs back
    HOLD = "hold"  # it does not start; while it has GPUs, it runs on
    CANCEL = "cancel"  # as PAUSE, and it is over as soon as its state is saved

    @property
    def past(self) -> str:
        """As a participle."""
        return {Withholding.PAUSE: "paused", Withholding.HOLD: "held", Withholding.CANCEL: "cancelled"}[self]

    @property
    def back(self) -> str:
        """The command that takes it back."""
        return "release" if self is Withholding.HOLD else "resume"


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """A job gets no GPUs until somebody takes that back."""

    how: Withholding
    since_s: float  # Unix time
    by: str = ""  # " by alice", to follow a verb; "": in a cluster of one machine, where there is nobody else
    operator: bool = False  # an operator has done it: only operators may take it back


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is shown. Times are Unix times in seconds. `spec.env` is empty for whoever may not act on the job."""

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
    owner: str = ""  # the name of the principal who submitted it; "": it is from before there were owners
    account: str = ""  # the Unix account that it runs as; "": that of the agents
    gpu_seconds: GpuSeconds = GpuSeconds()  # that it has had so far
    elastic: bool = True  # it has called `elastic.join()`; else it is a fixed gang, which cannot be resized
    curve: tuple[CurvePoint, ...] = ()  # by share; only in the answer to GetJob
    length: JobLength | None = None  # likewise
    batch_samples: int = 0  # the global batch: samples in a step, all virtual workers together; 0: not known yet
    failure: Failure | None = None  # of a job that has failed
    promise: PromiseView | None = None  # of a job with a deadline that is not over
    does_not_grow: str = ""  # why no worker may join those that have its state; "": they may
    ended_by: str = ""  # the name of the principal who has cancelled it; "": nobody has, or it is not known
    odd_metrics: dict[str, str] = {}  # reported, and not finite: "nan", "inf", "-inf"; none of them is in `metrics`
    peak_gpus: int = 0  # the most that have trained at once; 0: none, or not known
    withheld: Withheld | None = None  # a user keeps it from running; None: nobody does
    saved_step: int | None = None  # whose state the newest checkpoint contains that is known of; None: there is none
    saved_file: str = ""  # path of that checkpoint on the server of who has written it; "": not known


class ShareStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage of the decision has made of a job's share, in GPUs (`scheduler.decision.Stage`)."""

    stage: str  # by-hand, policy, quotas, promises, packing, excluded-gpus, avoided-servers
    gpus: int


class GpusTaken(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that the policy does not divide, and why."""

    gpus: tuple[GpuAddress, ...]
    why: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Something that would change a job's share. The scheduler was asked: with this alone it would decide so."""

    kind: str  # resume, end, server-back, mend, uncordon, reclaim, scale-auto, scale, ask-less, quotas, packing, more-gpus
    text: str  # what would have to be, after "if"
    share_gpus: int  # that the job would have then
    command: str = ""  # that brings it about; "": none does
    by: str = ""  # who may call it; "": whoever has asked
    pushed: tuple[ShareForecast, ...] = ()  # other jobs that would lose GPUs by it, the first of them


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job has the GPUs that it has, as `JobView` shows them. Times are Unix times in seconds."""

    phase_since_s: float
    reasons: tuple[str, ...] = ()  # all that there are; the first one is `JobView.reason`, where that tells something
    decided_gpus: int | None = None  # its share, if it was decided now; None: nobody decides about it
    steps: tuple[ShareStep, ...] = ()  # how that came about
    policy: str = ""
    rule: str = ""  # of the policy, in a sentence
    least_gpus: int = 0  # it trains with so many or none
    useful_gpus: int = 0  # the most that it can use, as far as its throughput is known, of those that there are
    known_gpus: int = 0  # of all servers that are known
    divided_gpus: int = 0  # of those, the ones that the policy divides
    among_jobs: int = 0  # among so many jobs
    free_gpus: int = 0  # of those, the ones that nobody is to have, and that the job may use
    taken: tuple[GpusTaken, ...] = ()  # the others
    holders: tuple[ShareForecast, ...] = ()  # other jobs with GPUs, the largest first: shares now, and as decided now
    before: tuple[JobId, ...] = ()  # jobs that wait, too, and would start with it or before it if there were more GPUs
    remedies: tuple[Remedy, ...] = ()
    tried: int = 0  # so many changes were tried
    untried: int = 0  # and so many were not, as there were too many


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a report: a user, a day or a job, and what was had. What it is not about is empty."""

    gpu_seconds: GpuSeconds
    user: str = ""
    day: str = ""  # "2026-11-23", UTC
    job: JobId = JobId("")
    phase: JobPhase | None = None  # of the job


class ServerState(enum.Enum):
    """How a server stands, for people."""

    ALIVE = "alive"
    LOST = "lost"
    UNFIT = "unfit"  # it cannot start workers for now
    FOREIGN = "foreign"  # it belongs to another cluster


class CordonView(msgspec.Struct, frozen=True, kw_only=True):
    """An operator wants no new work on a server, or on one of its GPUs."""

    gpu: int | None  # index; None: the whole server
    kind: CordonKind
    reason: str
    by: str  # "operator:root"
    since_s: float  # Unix time
    drained_s: float | None = None  # of a drain: when nothing ran there any more (Unix time)
    loan: str = ""  # which loan it belongs to
    until_s: float | None = None  # when that ends (Unix time)


class StillThere(msgspec.Struct, frozen=True, kw_only=True):
    """Work on what is being drained. `stays`: it cannot be moved as things are; else it is on its way. `why`: in words."""

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
    trouble: str = ""  # why no worker is started there for now, or what an operator has to decide; in words
    barred: dict[int, str] = {}  # GPU index -> why it takes no new work
    troubles: tuple[Trouble, ...] = ()  # as its agent tells them, also those that bar nothing
    clock_ahead_s: float | None = None  # of its clock, of the controller's; None: not told
    cordons: tuple[CordonView, ...] = ()
    still_there: tuple[StillThere, ...] = ()  # where it is being drained; empty there: nothing runs any more
    forged: int = 0  # reports of its agent that were refused: of workers that were never sent to it


class EventKind(enum.Enum):
    """What an event tells of: first of jobs, then of servers, then of the controller itself."""

    SUBMITTED = "submitted"
    PROMISED = "promised"  # that it ends by its deadline
    ENDANGERED = "endangered"  # as things are it ends after its deadline
    MISSED = "missed"  # it has finished after its deadline
    ORDERED = "ordered"  # a new roster
    STARTED = "started"
    SCALED = "scaled"  # its share was set by hand, or given back to the policy
    RESIZED = "resized"  # what a switch of rosters has cost
    MEASURING = "measuring"  # it goes through smaller shares
    PREEMPTED = "preempted"
    PAUSED = "paused"  # by hand, until somebody resumes it
    HOLDING = "holding"  # by hand: it does not start until somebody releases it
    RESUMED = "resumed"  # by hand
    REQUEUED = "requeued"  # by hand: it saves its state, and waits for its turn
    SAVED = "saved"  # by hand: it writes a checkpoint
    CANCELLING = "cancelling"  # by hand: it is over as soon as its state is saved
    WAITING = "waiting"  # it has lost its workers, and gets no GPUs for others now
    SAVER = "saver"  # another worker is to save its state
    RESTARTED = "restarted"  # from its last checkpoint
    LOST = "lost"  # a worker
    LATE = "late"  # a worker takes longer to start than it may
    CUT_OFF = "cut-off"  # it goes on without those that its leader does not reach
    HELD = "held"  # it does not grow for a while
    STALLED = "stalled"
    TOLD = "told"  # by a worker: what took long, or from which step it had to begin again
    ODD_FIGURE = "odd-figure"  # a worker reports what cannot be
    OVERTAKEN = "overtaken"  # it is further than a restored store says
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SERVER_JOINED = "server-joined"
    SERVER_BACK = "server-back"
    SERVER_LOST = "server-lost"
    SERVER_UNFIT = "server-unfit"
    TROUBLE = "trouble"  # GPUs of it take no new work, and why
    RECOVERED = "recovered"  # they do again
    CORDONED = "cordoned"  # by an operator: no new work on it
    DRAINING = "draining"  # likewise, and its work is moved away
    DRAINED = "drained"  # nothing runs there any more
    UNCORDONED = "uncordoned"  # by an operator
    LENT = "lent"  # GPUs, to somebody outside the cluster
    LOAN_ENDED = "loan-ended"  # they are used again
    SERVER_REFUSED = "server-refused"
    SERVER_FOREIGN = "server-foreign"
    SERVER_ADOPTED = "server-adopted"
    SERVER_REMOVED = "server-removed"  # by an operator
    SERVER_FORGED = "server-forged"  # it has spoken of workers that were never sent to it
    WORKERS_UNKNOWN = "workers-unknown"  # it has workers that belong to no job
    CONTROLLER_AWAY = "controller-away"  # it was stopped for a while, or its clock was set
    POLICY = "policy"  # set, or not to be had any more
    POLICY_FAILED = "policy-failed"
    STORE_BACK = "store-back"
    STORE_OLD = "store-old"  # restored from a backup
    RECORDS_REFUSED = "records-refused"  # somebody else than a controller has written to the store
    OTHER = "other"  # of a later version, which knows more kinds: its text says what it is

    @classmethod
    def _missing_(cls, value: object) -> EventKind:
        return _OLDER.get(value, cls.OTHER) if isinstance(value, str) else cls.OTHER


_OLDER = {  # as older versions have recorded them
    "excluded": EventKind.CORDONED,
    "included": EventKind.UNCORDONED,
    "server-forgotten": EventKind.SERVER_REMOVED,
}


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, and why."""

    number: int
    time_s: float
    kind: EventKind
    job: JobId | None
    text: str


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """What a user, or a group, is guaranteed and may have, and what it has now. GPUs of a group's members count for the group.

    `borrowed_gpus`: so many of `used_gpus` are beyond `gpus`; `lent_gpus`: so many of `gpus` others have.
    """

    name: str
    members: tuple[str, ...] = ()  # of a group; of a user none
    group: str = ""  # of a user: for which its GPUs count
    gpus: int = 0  # guaranteed
    most_gpus: int | None = None
    used_gpus: int = 0
    borrowed_gpus: int = 0
    lent_gpus: int = 0
    jobs: int = 0  # not over
    most_jobs: int | None = None
    promised_gpu_hours: float = 0.0  # that hard deadlines of its jobs hold
    most_promised_gpu_hours: float | None = None


class ReservationView(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that are out of use from one time to another (Unix time, s); `taken_gpus`: so many of them are now."""

    name: str
    gpus: int
    from_s: float
    to_s: float
    taken_gpus: int = 0


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy or a stage around it, with its parameters as they are in use."""

    name: str
    parameters: dict[str, Any] = {}


class ShareForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose share another policy changes. `reason`: why it gets no more."""

    job: JobId
    before_gpus: int
    after_gpus: int
    reason: str


class ControllerView(msgspec.Struct, frozen=True, kw_only=True):
    """A controller that runs."""

    name: str
    leads: bool
    version: str
    since_s: float  # Unix time of its start, by its own clock
    clients_at: tuple[str, ...] = ()
    agents_at: tuple[str, ...] = ()
