"""Facts and actions of a worker's state machine (`machine.WorkerMachine`): facts go in, actions come out.

Facts come from three sides: from other processes, from the threads that build communicators and write checkpoints, and
from the *training thread*, which runs the user's script. Actions are for the control thread, except for `Instruction`s:
those are for the training thread, which carries them out in order, and waits when there is none. `machine` documents
which fact answers which instruction.

Steps are counted from 0. `applied` is the step of which the update is the last one in a state; -1 for the script's
initial values.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..protocol.messages import Suspend
from ..protocol.model import BatchChange, JobId, Roster, WorkerId, WorkerStatus
from ..protocol.times import PAUSE_TIMEOUT_S
from .membership.events import Abandon as Abandon
from .membership.machine import GroupBuilt as GroupBuilt
from .membership.machine import GroupFailed as GroupFailed
from .membership.machine import OrderReceived as OrderReceived
from .membership.machine import PeerSaid as PeerSaid
from .membership.machine import SendFollower as SendFollower
from .membership.machine import SendLeader as SendLeader
from .membership.machine import WorkerTick as WorkerTick
from .transfer_plan import Transfer

# -------------------------------------------------------------------------------------------- facts: from other processes


class Whole(enum.IntEnum):
    """Purpose for which some workers need the whole of a divided optimizer state after a step. The greatest value counts."""

    NOT = 0
    TO_SAVE = 1
    TO_END = 2  # the job is preempted, and ends when the state is saved


@dataclass(frozen=True)
class SuspendReceived:
    """The agent reports that the job is preempted: this worker is to end between two steps, and one worker saves the
    state.
    """

    suspend: Suspend


@dataclass(frozen=True)
class CheckpointWanted:
    """A checkpoint of this step, or of a later one, is requested now."""

    step: int


@dataclass(frozen=True)
class StatusAcknowledged:
    """The agent has received the status with this sequence number."""

    sequence: int


# ------------------------------------------------------------------------------------- facts: from the writer of checkpoints


@dataclass(frozen=True)
class CheckpointSaved:
    """The checkpoint of the `SaveCheckpoint` with this number is durable."""

    number: int


@dataclass(frozen=True)
class CheckpointFailed:
    """The checkpoint of the `SaveCheckpoint` with this number could not be written."""

    number: int
    reason: str


# ------------------------------------------------------------------------------------------ facts: from the training thread


@dataclass(frozen=True)
class Arrived:
    """The script has come to its loop: model, optimizer and data exist."""

    total_steps: int | None  # of the whole job; None: unknown
    steps_per_epoch: int | None  # None: unknown; other facts then give the epoch of the next step
    samples_per_step: int = 0
    # the script has registered values, which follow the rest of a state (`ExchangeValues`)
    registers_values: bool = False
    epochs: int | None = None  # number of epochs, if the number of steps is unknown
    state_bytes: int = 0  # approximate size of a checkpoint in bytes
    proves: bool = False  # new workers are compared with the others before they host a virtual worker (`crosscheck`)
    divided: bool = False  # each worker has a part of the optimizer state (`sharding`)
    together: bool = (
        False  # all members run all loop bodies together, also in a generation's first step (`fully_shard`)
    )


@dataclass(frozen=True)
class CheckpointLoaded:
    """The state after `step` has been read and is in its places. `epoch`: where the script's loop was."""

    step: int
    epoch: int
    next_epoch: int | None = None  # of the next step, if the number of steps in an epoch is unknown
    total_steps: int | None = None  # of the job, if its script has decided when to stop
    damaged: int | None = None  # step of the newest checkpoint, if its file is damaged
    reason: str = ""  # why newer checkpoints cannot be read; "": there are none
    others: bool = False  # the checkpoint is another job's, from which this job resumes


@dataclass(frozen=True)
class CheckpointMissing:
    """No checkpoint can be read.

    `reason`: why the existing ones cannot be read. `damaged`: step of the newest one, if its file is damaged. `where`:
    the directory.
    """

    reason: str = ""
    damaged: int | None = None
    where: str = ""


@dataclass(frozen=True)
class StateArriving:
    """The header of the state has arrived. Its tensors follow: into their places, unless the own state is kept."""

    applied: int
    next_epoch: int | None = None  # as in CheckpointLoaded
    total_steps: int | None = None  # of the job, if its script has decided when to stop


@dataclass(frozen=True)
class StateTaken:
    """All tensors of the state are in their places."""

    applied: int
    epoch: int
    next_epoch: int | None = None  # as in CheckpointLoaded
    settled: int = 0  # decisions of the script since that step, which came with the state


@dataclass(frozen=True)
class PartComputed:
    """This worker's part of the step is computed. The rest of the step waits for the other workers."""


@dataclass(frozen=True)
class Evaluated:
    """The other workers' parts have arrived, and the optimizer evaluates the step's loss again: this worker's part
    begins again.
    """


@dataclass(frozen=True)
class WordRead:
    """The control word of the step has come: the step is going to be applied by all workers."""

    generation: int  # the greatest proposal of all workers; 0: none
    times: Sequence[
        int
    ] = ()  # of all workers, by rank, for the step before (`training.stragglers.packed`); negative: does not count
    hosting: tuple[
        int, ...
    ] = ()  # virtual workers of each rank from the next step on, as the leader wants it; empty: as before


@dataclass(frozen=True)
class StepApplied:
    """The optimizer has applied the step."""

    step: int
    next_epoch: int | None = None  # as in CheckpointLoaded
    proof_goes_on: bool = False  # new workers host nothing in the next step either (`crosscheck`)
    whole: Whole = Whole.TO_END  # which workers have the whole state after the step


@dataclass(frozen=True)
class StepWanted:
    """A step or another instruction has ended: the script requests its next batch. `epoch`: of its loop."""

    epoch: int


@dataclass(frozen=True)
class ValuesExchanged:
    """The script's registered values have been sent to joining workers, or received. `epoch`: of the job's loop."""

    epoch: int


@dataclass(frozen=True)
class CollectiveFailed:
    """The communicator failed or was abandoned: the instruction was not carried out, and it has changed nothing."""

    reason: str


@dataclass(frozen=True)
class Diverged:
    """This worker's state or code differs from that of the others, and the worker has to end.

    The step in progress is not applied, unless it is the last one.
    """

    code: int  # one of `protocol.exits`
    reason: str


@dataclass(frozen=True)
class LoopEnded:
    """The script's loop has come to its end; or a script that left it by `break` has come to its end."""

    epochs: int  # number of epochs of the script's loop


@dataclass(frozen=True)
class TransfersCompleted:
    """This worker has sent all its transfers of the state, or their targets are lost."""


@dataclass(frozen=True)
class ScriptEnded:
    """The script's process ends without having finished its loop: an exception, `sys.exit`."""

    reason: str


@dataclass(frozen=True)
class Progressed:
    """The script's own code between two steps makes progress. Answer: Resume, or an instruction that ends this worker.

    interruptible: the job may be saved in the state at which that code began; the code then runs again.
    """

    interruptible: bool


@dataclass(frozen=True)
class SharingBegun:
    """The script's own code between two steps waits for other workers.

    No answer; SharingEnded or CollectiveFailed follows.

    resumes: after CollectiveFailed that code continues where it is (Resume), even if this worker gets another worker's
    state. Otherwise it continues only if this worker keeps its own state.
    """

    resumes: bool


@dataclass(frozen=True)
class SharingEnded:
    """The wait of SharingBegun is over.

    No answer. `settled`: the workers have taken a decision, which is part of the state from now on.
    """

    settled: bool = False


@dataclass(frozen=True)
class EndDecided:
    """The script has decided, alike on all workers, that the last applied step is the job's last. No answer."""


@dataclass(frozen=True)
class MetricsReported:
    """The script reports numbers for people."""

    metrics: dict[str, float]


@dataclass(frozen=True)
class Noticed:
    """A notice for people, to be added to the job's events. `text`: a sentence."""

    text: str


@dataclass(frozen=True)
class OperatorsTraced:
    """The operators of the first loop body are known (`operators`), before any update. `agnostic`: each has one algorithm on all
    hardware. `text`: a sentence for people."""

    agnostic: bool
    text: str


@dataclass(frozen=True)
class BatchesChanged:
    """The job's batch has changed so far (`scaling`). ceiling: to which the cluster may let it grow; 0: it may not."""

    changes: tuple[BatchChange, ...]
    ceiling: int


ThreadFact = (
    Arrived
    | CheckpointLoaded
    | CheckpointMissing
    | StateArriving
    | StateTaken
    | PartComputed
    | Evaluated
    | WordRead
    | StepApplied
    | StepWanted
    | ValuesExchanged
    | CollectiveFailed
    | Diverged
    | LoopEnded
    | TransfersCompleted
    | ScriptEnded
    | Progressed
    | SharingBegun
    | SharingEnded
    | EndDecided
)

Event = (
    OrderReceived
    | PeerSaid
    | SuspendReceived
    | CheckpointWanted
    | StatusAcknowledged
    | GroupBuilt
    | GroupFailed
    | CheckpointSaved
    | CheckpointFailed
    | MetricsReported
    | Noticed
    | OperatorsTraced
    | BatchesChanged
    | ThreadFact
    | WorkerTick
)


# -------------------------------------------------------------------------------------- actions: for the control thread


@dataclass(frozen=True)
class SendStatus:
    """Send the status to the agent."""

    status: WorkerStatus


@dataclass(frozen=True)
class BuildGroup:
    """Build the communicator of (`roster.generation`, `attempt`) in the background. Answer: GroupBuilt or GroupFailed."""

    roster: Roster
    attempt: int
    leader_address: str  # "" on the leader itself
    timeout_s: float  # after this time the machine counts the build as failed and drops it


@dataclass(frozen=True)
class DropGroup:
    """Destroy this communicator, or cancel its building. No answer."""

    generation: int
    attempt: int


@dataclass(frozen=True)
class CloseRendezvous:
    """On the leader: close the rendezvous of this attempt.

    Workers that still wait there get an error that it is cancelled.
    """

    generation: int
    attempt: int


@dataclass(frozen=True)
class RetireGroup:
    """Close the connections of this generation's communicator, which is not used again, so that the other workers
    notice.
    """

    generation: int


@dataclass(frozen=True)
class EndProcess:
    """Write `reason` to stderr and end this process at once: no line of the script runs any more."""

    code: int  # one of `protocol.exits`
    reason: str


# -------------------------------------------------------------------------------------- instructions: the training thread


@dataclass(frozen=True)
class EnterGeneration:
    """Use the communicator of (`roster.generation`, `attempt`) from now on; the one before is not used again.

    transfers: of the state in the first step. extends_proofs: new workers may be compared in more steps than one. No
    answer: another instruction follows at once.
    """

    roster: Roster
    attempt: int
    rank: int
    transfers: tuple[Transfer, ...] = ()
    extends_proofs: bool = True


@dataclass(frozen=True)
class LoadCheckpoint:
    """Read the newest checkpoint, and take it over under `generation`. Answer: CheckpointLoaded or CheckpointMissing."""

    generation: int


@dataclass(frozen=True)
class EnterLoop:
    """Let the script begin its loop, in `epoch`. Answer: StepWanted, or LoopEnded."""

    epoch: int


@dataclass(frozen=True)
class RunStep:
    """Train `step`: `ranges` are the virtual workers that each rank hosts. `proposal` is this worker's control word.

    hosting: numbers of virtual workers by rank that this worker, the leader, wants in the steps to come; empty: the present ones.
    send: begin to send the state to joining workers, which must be done before the update. Answers, in this order:
    PartComputed, WordRead, StepApplied, then StepWanted when the script requests more. CollectiveFailed in place of
    either of the first two. Before WordRead there may be Evaluated and PartComputed, any number of times.
    """

    step: int
    ranges: tuple[range, ...]
    proposal: int
    send: bool
    factor: int = 0  # of the batch, for which the cluster asks; 0: it does not
    hosting: tuple[int, ...] = ()
    whole: Whole = Whole.NOT  # purpose for which this worker needs the whole of a divided state after the step
    next_workers: tuple[WorkerId, ...] = ()  # of the generation of `proposal`


@dataclass(frozen=True)
class Resume:
    """Continue the script's own code where it is. No answer."""


@dataclass(frozen=True)
class EndEpoch:
    """End the script's epoch, which has no batch left. Answer: StepWanted in the next one, or LoopEnded."""


@dataclass(frozen=True)
class ReceiveState:
    """Wait for the header of the state that `transfers` brings. Answer: StateArriving before any tensor is received.

    keep_own: receive the tensors into new memory, so that the own state stays whole. On failure: CollectiveFailed.
    """

    keep_own: bool


@dataclass(frozen=True)
class JoinStep:
    """Take part in `step` without hosting a virtual worker, while the state arrives.

    Answers: StateTaken when all of it is in its places (the state is now that of step - 1), WordRead, StepApplied, and
    StepWanted at once. CollectiveFailed in place of either of the first two.
    """

    step: int
    ranges: tuple[range, ...]
    proposal: int


@dataclass(frozen=True)
class TakeState:
    """Receive the state without a step, since the job has none left.

    Answers: StateTaken and StepWanted, or CollectiveFailed.
    """


@dataclass(frozen=True)
class GiveState:
    """Begin to send the state to joining workers; the job has no step left. No answer: another instruction follows."""


@dataclass(frozen=True)
class ExchangeValues:
    """Send the script's registered values to joining workers; on a joining worker receive them.

    Answer: ValuesExchanged.
    """


@dataclass(frozen=True)
class GiveUpStep:
    """Discard the results of the step in progress. The communicator in use is not used again.

    restore_buffers: restore the model's buffers of the step's beginning. No answer.
    """

    restore_buffers: bool


@dataclass(frozen=True)
class SaveCheckpoint:
    """Begin to write the present state, which is that after `step`.

    Answer, from any thread: CheckpointSaved or CheckpointFailed. Training continues meanwhile if another instruction
    follows. A checkpoint that still waits to be written may be left out when the next one comes.
    """

    number: int  # increases with each checkpoint
    step: int
    epoch: int
    generation: int


@dataclass(frozen=True)
class CompleteTransfers:
    """Wait until this worker has sent all its transfers of the state. Answer: TransfersCompleted."""


@dataclass(frozen=True)
class Continue:
    """Let the script continue after its loop. No answer."""


@dataclass(frozen=True)
class ExitScript:
    """End the script with this exit code: SystemExit, so that its own last handlers run. No answer."""

    code: int


Instruction = (
    EnterGeneration
    | LoadCheckpoint
    | EnterLoop
    | RunStep
    | Resume
    | EndEpoch
    | ReceiveState
    | JoinStep
    | TakeState
    | GiveState
    | ExchangeValues
    | GiveUpStep
    | SaveCheckpoint
    | CompleteTransfers
    | Continue
    | ExitScript
)

Action = (
    SendLeader
    | SendFollower
    | SendStatus
    | BuildGroup
    | DropGroup
    | CloseRendezvous
    | Abandon
    | RetireGroup
    | EndProcess
    | Instruction
)


# ---------------------------------------------------------------------------------------------------------------- the place


@dataclass(frozen=True)
class Limits:
    """Time limits of the training thread, in seconds."""

    # for this worker's part of a step; None: derived from the steps measured so far
    step_timeout_s: float | None = None
    pause_timeout_s: float = (
        PAUSE_TIMEOUT_S  # for the script's code between two steps, and for reading or writing a checkpoint
    )


@dataclass(frozen=True)
class WorkerConfig:
    """A worker's place in its job: values that its machine knows from the beginning."""

    job: JobId
    worker: WorkerId
    pid: int
    address: str  # address of its control socket
    virtual_workers: int
    # virtual workers may move away from slow workers: wherever the result does not depend on their hosts
    rehosts: bool = True
    device: bool = False  # communicators also connect accelerators, which takes longer
    checkpoint_every_s: float | None = None  # None: no checkpoints
    # the job has a checkpoint of this step or of a later one; None: it may have none
    checkpoint_step: int | None = None
    checkpoint_directory: str = ""  # "": unknown
    limits: Limits = field(default_factory=Limits)
