"""What is recorded of a job: all that a controller needs of it after a crash. Values, replaced as a whole.

What was submitted is large and never changes: it is written once. What becomes of a job changes often: `JobRecord`, and one
`WorkerRecord` for each worker. In which parts these are written, `stored` says. A job that is over is one record with all of it,
in the archive (`archive`).

New fields have defaults, so that a controller reads what an earlier version has written. What equals its default is not
written: a default never changes.
"""

from __future__ import annotations

import enum

from ...protocol.messages import Failure, PromiseState, ShareChange, Withheld
from ...protocol.model import Fault, GpuAddress, JobId, JobPhase, JobSpec, Resize, Roster, Value, WorkerId, held_gpus
from ...scheduler.speedup_curve import Measured
from .account import Account


class WorkerState(enum.Enum):
    """How far the controller has come with a worker's process."""

    ORDERED = "ordered"  # has a place in a roster; its GPU is not free yet
    STARTED = "started"  # its agent was told to start it
    RUNNING = "running"  # its agent has said that it runs
    ENDED = "ended"


class WorkerRecord(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What is recorded of one worker."""

    worker: WorkerId
    gpu: GpuAddress
    generation: int  # of the order that first named it
    state: WorkerState = WorkerState.ORDERED
    stopping: bool = False  # told to stop, or to be told as soon as its agent is back
    trained: bool = False  # has held the job's state
    began_at: int | None = None  # the last step that had been applied when it first did
    held_s: float | None = None  # since when it holds its GPU (Unix time): it was told to start
    started_s: float | None = None  # when its process was first heard to run (Unix time), less what does not count
    joined_s: float | None = None  # when it first spoke (Unix time), less what does not count
    stop_by_s: float | None = None  # its agent kills it then (Unix time), if it has been told
    finished: bool = False  # it ended with exit code 0 after the training loop
    fault: Fault | None = None  # whose its end is; of one that lives, only if it is stopped because of that
    pid: int | None = None
    exit_code: int | None = None
    reason: str = ""
    ended_s: float | None = None
    log: str = ""  # path on its server; of one that did not end as it should
    gpus: tuple[int, ...] = ()  # of its server, where its process has several of them; empty: `gpu` alone
    attempt: int = 0  # of its job, from 1; 0: recorded by an earlier version
    end: int = (
        0  # how many workers of its job had ended when it had; 0: it lives, or an earlier version has recorded its end
    )

    @property
    def all_gpus(self) -> tuple[GpuAddress, ...]:
        return held_gpus(self.gpu, self.gpus)


class OrderKind(enum.Enum):
    """Why an order was given: what must happen before the next one may be."""

    TARGET = "target"  # leads to the GPUs that the scheduler wants; may be superseded at any time
    UNION = "union"  # old and new workers of a migration together, so that the state can be handed on
    RECOVERY = "recovery"  # the survivors of a loss alone: nobody else is waited for


class OrderRecord(Value, frozen=True, kw_only=True):
    """An order that has been given."""

    roster: Roster
    kind: OrderKind
    broken: tuple[int, ...] = ()
    port: int = 0  # where the processes of a gang meet, on the server of the first one

    @property
    def generation(self) -> int:
        return self.roster.generation


class Progress(Value, frozen=True, kw_only=True):
    """How far a job was at its last recorded turn, so that a job that is over can still be shown."""

    step: int | None = None
    total_steps: int | None = None
    epoch: int = 0
    samples_per_s: float = 0.0
    median_step_s: float = 0.0
    metrics: dict[str, float] = {}
    odd_metrics: dict[str, str] = {}  # those that are not finite
    batch_samples: int = 0  # of a global step; 0: not known yet


class Submission(Value, frozen=True, kw_only=True):
    """What was submitted: the part of a job that never changes."""

    job: JobId
    request: str  # id of the request that submitted it: a repetition must not submit it again
    uid: str = ""  # random: tells it from a job that had the same id in a store that is lost
    spec: JobSpec
    submitted_s: float
    owner: str = ""  # the name of the principal who submitted it; "": from before there were owners
    account: str = ""  # the Unix account that it runs as; "": that of the agents


class JobRecord(Value, frozen=True, kw_only=True, omit_defaults=True, rename={"stored_workers": "workers"}):
    """What has become of a job: the durable part of it that changes, without its workers (`Job.workers`)."""

    phase: JobPhase = JobPhase.PENDING
    reason: str = ""  # why it failed
    failure: Failure | None = None  # and where
    started_s: float | None = None
    finished_s: float | None = None
    exit_code: int | None = None
    ended_by: str = ""  # the name of the principal who has cancelled it
    peak_gpus: int = 0  # the most that have trained at once; 0: none, or an earlier version has not recorded it
    generation: int = 0  # newest ordered
    committed: int = 0
    cycle: int = 1  # first generation since the job last (re)started from a checkpoint or from nothing
    begun_cycle: int = 0  # the last one in which a worker has had the state
    orders: tuple[OrderRecord, ...] = ()  # the committed one and all later, ascending
    broken: tuple[int, ...] = ()  # generations that have lost a member, ascending
    target: tuple[GpuAddress, ...] = ()
    target_reason: str = ""  # why the last decision that changed it did so, in words
    target_since_s: float = 0.0  # when that was (Unix time)
    phase_since_s: float | None = None  # since when it has been in its phase (Unix time); None: not recorded
    gpu_name: str = ""  # of the GPUs that it began on, which it stays with (`scheduler.kinds`)
    manual_share: int | None = None
    worker_count: int = 0  # names given out
    overtaken: bool = False  # the store is older than the job: what runs is to make room for a new start (`restored`)
    # Numbers that a lost part of the history may have used (`restored`): of generations, above the first and up to the
    # second, and of workers, from the first on and below the second.
    lost_generations: tuple[int, int] = (0, 0)
    lost_names: tuple[int, int] = (0, 0)
    # In the store alone (`stored`): the workers whose processes may live, or how many of them have records of their own.
    stored_workers: tuple[WorkerRecord, ...] | int = ()
    past: tuple[WorkerRecord, ...] = ()
    shares: tuple[ShareChange, ...] = ()
    resizes: tuple[Resize, ...] = ()
    attained_gpu_s: float = 0.0  # up to `counted_s`
    executed_s: float = 0.0  # time with any GPU, likewise
    counted_s: float | None = None  # both are counted up to then; None: up to the last entry of `shares`
    restarts: int = 0
    restarts_in_vain: int = 0  # since the job last came further than before
    failures_in_vain: int = 0  # in a row, of them: those where every worker ended with an error of the script
    deaths_in_vain: int = 0  # in a row, of them: those where no server had a part in it (`restarts.count_restart`)
    progressed: bool = False  # some step has been applied
    best_at_restart: int = -1
    losses_in_vain: int = 0  # generations in a row that lost a worker by its own fault and came no further (`ends`)
    lost_in: int = 0  # the last of them
    best_at_loss: int = -1  # the furthest step that had been applied then
    hold_s: float = 0.0  # how long growth is held back, or was last time
    held: bool = False
    vain_joins: int = 0  # newcomers in a row that ended before they had taken part (`intake.newcomers`)
    vain_join_share: int = 0  # the workers that had taken part when the last one did
    vain_join_s: float = 0.0  # when that was (Unix time)
    does_not_grow: str = ""  # why no worker may join those that have its state (`reconcile.growth`); "": they may
    progress: Progress | None = None
    by_s: float | None = None  # it is planned with this deadline, before its own (Unix time); None: with its own
    expected_steps: int | None = None  # in all, by what its script reports; None: not known
    measured: tuple[Measured, ...] = ()  # throughput by share and servers
    # Of the generation in use when the job was preempted; it may have come to its end.
    last_leader: WorkerId | None = None
    saved_step: int | None = None  # of the newest checkpoint that a worker has written or loaded
    saved_generation: int = 0  # that it belongs to
    saved_file: str = ""  # its path on the server of who has written it; "": not known
    gpu_account: Account = Account()  # its GPU-seconds
    joined: bool = False  # a worker of it has called `elastic.join()`: from then on it may be resized
    reserved: bool = False  # GPUs are held for it (`scheduler.reservation`)
    promise: PromiseState | None = None  # how it stood with its deadline when that last changed; None: it has none
    withheld: Withheld | None = None  # a user keeps it from running; None: nobody does


class ArchivedJob(Value, frozen=True, kw_only=True):
    """A job that is over, and whose workers have all ended."""

    submission: Submission
    record: JobRecord
