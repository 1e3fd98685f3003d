"""Durable records of a job, which contain all that a controller needs after a crash.

Records are values, replaced as a whole. The submission is large and never changes, so it is written once. The rest
changes often: a `JobRecord`, and a `WorkerRecord` for each worker. `stored` defines the parts in which these are
written. An ended job is one record with all of it, in the archive (`archive`).

New fields have defaults, so that a controller can read records of an earlier version. A value equal to the default is
not written, so a default must never change.
"""

from __future__ import annotations

import enum

from ...protocol.messages import Failure, PromiseState, ShareChange, Withheld
from ...protocol.model import (
    NO_USE,
    BatchChange,
    Fault,
    GpuAddress,
    JobId,
    JobPhase,
    JobSpec,
    Resize,
    Roster,
    Straggler,
    Use,
    Value,
    WorkerId,
    held_gpus,
)
from ...scheduler.speedup_curve import Measured
from .account import Account

TRANSITIONS: dict[JobPhase, tuple[JobPhase, ...]] = {
    JobPhase.PENDING: (JobPhase.STARTING, JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED),
    JobPhase.STARTING: (
        JobPhase.PENDING,
        JobPhase.RUNNING,
        JobPhase.FINISHED,
        JobPhase.FAILED,
        JobPhase.CANCELLED,
    ),
    JobPhase.RUNNING: (
        JobPhase.PENDING,
        JobPhase.STARTING,
        JobPhase.FINISHED,
        JobPhase.FAILED,
        JobPhase.CANCELLED,
    ),
    JobPhase.FINISHED: (),
    JobPhase.FAILED: (),
    JobPhase.CANCELLED: (),
}

# Fields of the record that scheduling decisions depend on, besides those that a decision itself sets.
SCHEDULED = frozenset(
    {
        "withheld",
        "waits_for",
        "joined",
        "overtaken",
        "by_s",
        "manual_share",
        "does_not_grow",
        "expected_steps",
        "idle_shrunk",
        "slow",
    }
)


class WorkerState(enum.Enum):
    """State of a worker's process, as far as the controller knows."""

    ORDERED = "ordered"  # has a place in a roster; the GPU is not free yet
    STARTED = "started"  # the agent was asked to start the process
    RUNNING = "running"  # the agent has confirmed that the process runs
    ENDED = "ended"


class WorkerRecord(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Durable record of one worker."""

    worker: WorkerId
    gpu: GpuAddress
    generation: int  # generation of the order that first named the worker
    state: WorkerState = WorkerState.ORDERED
    stopping: bool = False  # stop requested, or to be requested as soon as the agent is back
    trained: bool = False  # has held the job's state
    began_at: int | None = None  # last step applied when the worker first held the state
    held_s: float | None = None  # since when the worker holds its GPU (Unix time), from the request to start it
    started_s: float | None = None  # when the process was first reported as running (Unix time), plus excluded time
    joined_s: float | None = None  # when the worker first reported (Unix time), plus excluded time
    start_s: float | None = None  # seconds from the start request until the worker first held the state
    stop_by_s: float | None = None  # when the agent kills the worker (Unix time), if a stop was requested
    finished: bool = False  # ended with exit code 0 after the training loop
    fault: Fault | None = None  # cause of the end; of a living worker only if it is being stopped for that cause
    pid: int | None = None
    exit_code: int | None = None
    reason: str = ""
    ended_s: float | None = None
    log: str = ""  # path on the server; only of a worker with an error
    gpus: tuple[int, ...] = ()  # indices on the server if the process has several GPUs; empty: `gpu` alone
    attempt: int = 0  # attempt of the job, from 1; 0: recorded by an earlier version
    end: int = 0  # position among the job's ended workers, from 1; 0: alive, or recorded by an earlier version

    @property
    def all_gpus(self) -> tuple[GpuAddress, ...]:
        return held_gpus(self.gpu, self.gpus)


class OrderKind(enum.Enum):
    """Kind of an order, which decides when the next order may follow."""

    TARGET = "target"  # leads to the scheduler's target; may be superseded at any time
    UNION = "union"  # old and new workers of a migration together, for the state transfer
    RECOVERY = "recovery"  # only the survivors of a loss, so that they go on without waiting for a new worker


class OrderRecord(Value, frozen=True, kw_only=True):
    """Order that has been given."""

    roster: Roster
    kind: OrderKind
    broken: tuple[int, ...] = ()
    port: int = 0  # where the processes of a gang meet, on the server of the first process

    @property
    def generation(self) -> int:
        return self.roster.generation


class SlowGpuState(enum.Enum):
    """What a job may do with a GPU that it has left because its worker was slow there."""

    LEFT = "left"  # the job does not use the GPU
    KEPT = "kept"  # the job was slower without the GPU, and does not do without it
    TRIED = "tried"  # the job may use the GPU, and may leave it again


class SlowGpu(Value, frozen=True, kw_only=True, omit_defaults=True):
    """GPU that a job has left because its worker was slow there (`reconcile.slow_findings`)."""

    gpu: GpuAddress
    evidence: Straggler
    left_s: float  # when the job was told to leave (Unix time)
    until_s: float  # end of the states LEFT and KEPT (Unix time)
    share: int  # GPUs of the job, with this one
    generation: int  # the last one with this GPU
    state: SlowGpuState = SlowGpuState.LEFT
    replaced: bool = False  # the job got another GPU for it
    step_s: float = 0.0  # median time of a step before; 0: not known
    step_after_s: float = 0.0  # afterwards; 0: not measured yet


class Progress(Value, frozen=True, kw_only=True):
    """Progress of a job at its last recorded turn, so that an ended job can still be shown."""

    step: int | None = None
    total_steps: int | None = None
    epoch: int = 0
    samples_per_s: float = 0.0
    median_step_s: float = 0.0
    metrics: dict[str, float] = {}
    odd_metrics: dict[str, str] = {}  # words of metrics that are not finite
    batch_samples: int = 0  # samples of a global step; 0: not known yet


class Submission(Value, frozen=True, kw_only=True):
    """Submission of a job: the part that never changes."""

    job: JobId
    request: str  # id of the request that submitted the job, so that a repetition does not submit it again
    uid: str = ""  # random; distinguishes the job from one with the same id in a lost store
    spec: JobSpec
    submitted_s: float
    owner: str = ""  # name of the principal that submitted the job; "": submitted before there were owners
    account: str = ""  # Unix account that runs the job; "": the agents' account


class JobRecord(Value, frozen=True, kw_only=True, omit_defaults=True, rename={"stored_workers": "workers"}):
    """Durable, changing part of a job, without its workers (`Job.workers`)."""

    phase: JobPhase = JobPhase.PENDING
    reason: str = ""  # why the job failed
    failure: Failure | None = None  # where the job failed
    started_s: float | None = None
    finished_s: float | None = None
    exit_code: int | None = None
    ended_by: str = ""  # name of the principal that cancelled the job
    peak_gpus: int = 0  # most GPUs that have trained at once; 0: none, or not recorded by an earlier version
    generation: int = 0  # newest ordered generation
    committed: int = 0
    cycle: int = 1  # first generation since the job last (re)started from a checkpoint or from the start
    begun_cycle: int = 0  # last cycle in which a worker had the state
    orders: tuple[OrderRecord, ...] = ()  # committed and all later orders, ascending
    broken: tuple[int, ...] = ()  # generations that have lost a member, ascending
    target: tuple[GpuAddress, ...] = ()
    target_reason: str = ""  # reason of the last decision that changed the target, in words
    target_since_s: float = 0.0  # when that decision was made (Unix time)
    phase_since_s: float | None = None  # start of the present phase (Unix time); None: not recorded
    gpu_name: str = ""  # name of the GPUs that the job began on and keeps using (`scheduler.kinds`)
    hardware_agnostic: bool = (
        False  # a worker has found that its bits do not depend on the GPU type (`worker.operators`)
    )
    paces: dict[str, float] = {}  # by GPU name (`type_speeds`); a missing name has pace 1
    manual_share: int | None = None
    batch_changes: tuple[BatchChange, ...] = ()  # all changes of the batch in the job's state
    batch_factor: int = 0  # factor last requested from the workers (`batches`); 0: none
    batch_share: int = 0  # greatest number of GPUs for which the factor has been decided; 0: not yet
    worker_count: int = 0  # number of worker names given out
    overtaken: bool = False  # the store is older than the job, so its workers must end before a new start (`restored`)
    # Numbers that a lost part of the history may have used (`restored`). Generations: above the first number, up to the
    # second. Workers: from the first number on, below the second.
    lost_generations: tuple[int, int] = (0, 0)
    lost_names: tuple[int, int] = (0, 0)
    # Only in the store (`stored`): the workers with processes that may be alive, or how many of them have own records.
    stored_workers: tuple[WorkerRecord, ...] | int = ()
    past: tuple[WorkerRecord, ...] = ()
    shares: tuple[ShareChange, ...] = ()
    resizes: tuple[Resize, ...] = ()
    attained_gpu_s: float = 0.0  # up to `counted_s`
    executed_s: float = 0.0  # seconds with any GPU, up to `counted_s`
    counted_s: float | None = None  # Unix time up to which both are counted; None: up to the last entry of `shares`
    restarts: int = 0
    restarts_in_vain: int = 0  # restarts since the job last made progress
    # Of these, the last consecutive ones in which every worker ended with an error of the script.
    failures_in_vain: int = 0
    # Of these, the last consecutive ones in which no server had a part (`restarts.count_restart`).
    deaths_in_vain: int = 0
    progressed: bool = False  # at least one step has been applied
    best_at_restart: int = -1
    losses_in_vain: int = (
        0  # consecutive generations that lost a worker by its own fault, without progress (`worker_ends`)
    )
    lost_in: int = 0  # the last of these generations
    best_at_loss: int = -1  # furthest step that had been applied by that loss
    hold_s: float = 0.0  # seconds for which growth is held back, or was last time
    held: bool = False
    vain_joins: int = 0  # joining workers in a row that ended before they had taken part (`inbound.joining_workers`)
    vain_join_share: int = 0  # number of workers that had taken part when the last of these ended
    vain_join_s: float = 0.0  # time of that end (Unix time)
    does_not_grow: str = ""  # why no further worker may join (`reconcile.growth`); "": workers may join
    progress: Progress | None = None
    by_s: float | None = None  # earlier deadline used for planning (Unix time); None: the job's own deadline is used
    expected_steps: int | None = None  # number of steps in all, by the script's reports; None: not known
    measured: tuple[Measured, ...] = ()  # throughput by share and servers
    # Leader of the committed generation when the job was preempted, which may have finished the training.
    last_leader: WorkerId | None = None
    saved_step: int | None = None  # step of the newest checkpoint that a worker has written or loaded
    saved_generation: int = 0  # generation of that checkpoint
    saved_file: str = ""  # path of that checkpoint on the server of its writer; "": not known
    gpu_account: Account = Account()  # the job's GPU-seconds
    use: Use = NO_USE  # use of resources by the workers that have ended (`usage`)
    idle_warned: bool = False  # the user was notified that the job's GPUs are idle (`reconcile.idle`)
    idle_shrunk: bool = False  # for the same reason the job is limited to its minimum of GPUs, until they compute again
    joined: bool = False  # a worker has called `elastic.join()`; from then on the job may be resized
    reserved: bool = False  # GPUs are held for the job (`scheduler.reservation`)
    promise: PromiseState | None = None  # state of the deadline's promise when it last changed; None: no deadline
    warned: bool = False  # the job's processes were warned that its time limit is near (`reconcile.time_limits`)
    timed_out: bool = False  # the job has exceeded its time limit
    slow: tuple[SlowGpu, ...] = ()  # GPUs that the job has left because its workers were slow there, the last one last
    waits_for: tuple[JobId, ...] = ()  # jobs of `JobSpec.after` that are not over (`reconcile.dependencies`)
    withheld: Withheld | None = None  # a user keeps the job from running; None: no user does


class ArchivedJob(Value, frozen=True, kw_only=True):
    """Ended job, of which all workers have ended."""

    submission: Submission
    record: JobRecord
