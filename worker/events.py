"""The words of a worker's machine (`machine.WorkerMachine`): facts that go in, actions that come out.

Facts come from three sides: from other processes, from the threads that build communicators and write checkpoints, and from the
*training thread*, which runs the user's script. Actions are for the control thread, except for `Instruction`s: those are for the
training thread, which carries them out in the order in which they come, and waits when there is none.
`machine` says which fact answers which instruction.

Steps are counted from 0. `applied` is the step whose update a state contains, -1 for the script's initial values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..protocol.messages import Suspend
from ..protocol.model import JobId, Roster, WorkerId, WorkerStatus
from ..protocol.times import PAUSE_TIMEOUT_S
from .membership.machine import Abandon as Abandon
from .membership.machine import GroupBuilt as GroupBuilt
from .membership.machine import GroupFailed as GroupFailed
from .membership.machine import OrderReceived as OrderReceived
from .membership.machine import PeerSaid as PeerSaid
from .membership.machine import SendFollower as SendFollower
from .membership.machine import SendLeader as SendLeader
from .membership.machine import TimePassed as TimePassed
from .membership.machine import WordRead as WordRead
from .state.transfer_plan import Transfer

# -------------------------------------------------------------------------------------------- facts: from other processes


@dataclass(frozen=True)
class SuspendReceived:
    """The agent says that the job is preempted: this worker is to end between two steps, one of them saves the state."""

    suspend: Suspend


@dataclass(frozen=True)
class CheckpointWanted:
    """Somebody wants a checkpoint of this step or a later one now."""

    step: int


@dataclass(frozen=True)
class StatusAcknowledged:
    """The agent has received the status with this sequence number."""

    sequence: int


# ------------------------------------------------------------------------------------- facts: from the writer of checkpoints


@dataclass(frozen=True)
class CheckpointSaved:
    """What `SaveCheckpoint` of this number asked for is durable."""

    number: int


@dataclass(frozen=True)
class CheckpointFailed:
    """What `SaveCheckpoint` of this number asked for could not be written."""

    number: int
    reason: str


# ------------------------------------------------------------------------------------------ facts: from the training thread


@dataclass(frozen=True)
class Arrived:
    """The script has come to its loop: model, optimizer and data are there."""

    total_steps: int | None  # of the whole job; None: nobody knows
    steps_per_epoch: int | None  # None: nobody knows; the facts then say to which epoch the step to come belongs
    samples_per_step: int = 0
    registers_values: bool = False  # of the script's own, which follow the rest of a state (`ExchangeValues`)
    epochs: int | None = None  # that the script wants, where the number of steps is not known
    state_bytes: int = 0  # about as much is written for a checkpoint
    proves: bool = False  # newcomers are compared with the others before they host anything (`crosscheck`)


@dataclass(frozen=True)
class CheckpointLoaded:
    """The state after `step` has been read, and stands in its places. `epoch`: where the script's loop was."""

    step: int
    epoch: int
    next_epoch: int | None = None  # of the step to come, where epochs have no known number of steps
    total_steps: int | None = None  # of the job, where its script has decided that
    damaged: int | None = None  # step of the newest checkpoint, whose file is there and damaged
    reason: str = ""  # why newer ones cannot be read, if there are any
    others: bool = False  # it is another job's, from which this one goes on


@dataclass(frozen=True)
class CheckpointMissing:
    """There is no checkpoint that can be read. `reason`: why those that are there cannot be, if there are any; `damaged`: step of
    the newest, if its file is there and damaged; `where`: the directory."""

    reason: str = ""
    damaged: int | None = None
    where: str = ""


@dataclass(frozen=True)
class StateArriving:
    """The header of the state is here, and its tensors come from now on: into their places, unless the own state is kept."""

    applied: int
    next_epoch: int | None = None  # as in CheckpointLoaded
    total_steps: int | None = None  # of the job, where its script has decided that


@dataclass(frozen=True)
class StateTaken:
    """All tensors of the state stand in their places."""

    applied: int
    epoch: int
    next_epoch: int | None = None  # as in CheckpointLoaded
    settled: int = 0  # decisions taken together since that step, which came with the state


@dataclass(frozen=True)
class PartComputed:
    """This worker's part of the step is computed. What is left of the step waits for the other workers."""


@dataclass(frozen=True)
class Evaluated:
    """The others' parts have come, and the optimizer evaluates the step's loss once more: this worker's part begins again."""


@dataclass(frozen=True)
class StepApplied:
    """The optimizer has applied the step."""

    step: int
    next_epoch: int | None = None  # as in CheckpointLoaded


@dataclass(frozen=True)
class StepWanted:
    """A step is over, or whatever else was instructed: the script asks for its next batch. `epoch`: of its loop."""

    epoch: int


@dataclass(frozen=True)
class ValuesExchanged:
    """The script's registered values have been handed over to joiners, or taken over. `epoch`: where the job's loop is."""

    epoch: int


@dataclass(frozen=True)
class CollectiveFailed:
    """The communicator failed, or was abandoned: what was instructed has not been done, and nothing was changed by it."""

    reason: str


@dataclass(frozen=True)
class Diverged:
    """This worker's state or code differs from that of the others, and it has to end; the step in progress is not applied, unless
    it is the last one."""

    code: int  # one of `protocol.exits`
    reason: str


@dataclass(frozen=True)
class LoopEnded:
    """The script's loop has come to its end, or was left by `break` by a script that then ran to its end."""

    epochs: int  # that the script wanted


@dataclass(frozen=True)
class TransfersCompleted:
    """All that this worker had to send of the state is sent; or its target is gone."""


@dataclass(frozen=True)
class ScriptEnded:
    """The script's process ends without having finished its loop: an exception, `sys.exit`."""

    reason: str


@dataclass(frozen=True)
class Progressed:
    """The script's own code between two steps goes on, and does not hang. Answer: Resume, or what ends this worker.

    interruptible: the job may be saved as it was when that code began. It then runs again.
    """

    interruptible: bool


@dataclass(frozen=True)
class SharingBegun:
    """The script's own code between two steps waits for the others. No answer; what follows: SharingEnded or CollectiveFailed.

    resumes: after CollectiveFailed that code goes on where it stands (Resume), even if this worker gets another's state.
    Otherwise it does only where this worker keeps its own.
    """

    resumes: bool


@dataclass(frozen=True)
class SharingEnded:
    """It waits no longer. No answer. `settled`: a decision has been taken together, which is part of the state from now on."""

    settled: bool = False


@dataclass(frozen=True)
class EndDecided:
    """The script has decided, alike on all workers, that the last applied step is the job's last. No answer."""


@dataclass(frozen=True)
class MetricsReported:
    """The script has numbers for people."""

    metrics: dict[str, float]


@dataclass(frozen=True)
class Noticed:
    """Something that people should find among the job's events. `text`: a sentence."""

    text: str


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
    | ThreadFact
    | TimePassed
)


# -------------------------------------------------------------------------------------- actions: for the control thread


@dataclass(frozen=True)
class SendStatus:
    """Send to the agent."""

    status: WorkerStatus


@dataclass(frozen=True)
class BuildGroup:
    """Build the communicator of (`roster.generation`, `attempt`) in the background. Told back: GroupBuilt or GroupFailed."""

    roster: Roster
    attempt: int
    leader_address: str  # "" at the leader itself
    timeout_s: float  # after that long the machine takes it for failed, and drops it


@dataclass(frozen=True)
class DropGroup:
    """This communicator, built or being built, is not wanted: destroy it, cancel its building. Nothing is told back."""

    generation: int
    attempt: int


@dataclass(frozen=True)
class CloseRendezvous:
    """At the leader: the meeting of this attempt is over. Who still waits there is told that it is cancelled."""

    generation: int
    attempt: int


@dataclass(frozen=True)
class RetireGroup:
    """The communicator in use, of this generation, is not used again: close its connections, so that the others notice."""

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

    transfers: who sends the state to whom in the first step. No answer: another instruction follows at once.
    """

    roster: Roster
    attempt: int
    rank: int
    transfers: tuple[Transfer, ...] = ()


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
    """Train `step`: `ranges` says which virtual workers each rank hosts. `proposal` is this worker's control word.

    send: begin to send the state to this worker's joiners, which must be done before the update.
    Answers, in this order: PartComputed, WordRead, StepApplied, then StepWanted when the script asks for more. CollectiveFailed
    in place of either of the first two. Before WordRead there may be Evaluated and PartComputed, any number of times.
    """

    step: int
    ranges: tuple[range, ...]
    proposal: int
    send: bool


@dataclass(frozen=True)
class Resume:
    """Go on with the script's own code where it stands. No answer."""


@dataclass(frozen=True)
class EndEpoch:
    """There is no batch left in the script's epoch. Answer: StepWanted in the next one, or LoopEnded."""


@dataclass(frozen=True)
class ReceiveState:
    """Wait for the header of the state that `transfers` brings. Answer: StateArriving before any tensor is received.

    keep_own: receive the tensors in other memory than that of the own state, which must stay whole. CollectiveFailed otherwise.
    """

    keep_own: bool


@dataclass(frozen=True)
class JoinStep:
    """Take part in `step` without a part of one's own, while the state arrives.

    Answers: StateTaken when all of it is in its places (the state is now that of step - 1), WordRead, StepApplied, and
    StepWanted at once. CollectiveFailed in place of either of the first two.
    """

    step: int
    ranges: tuple[range, ...]
    proposal: int


@dataclass(frozen=True)
class TakeState:
    """The job has no step left: receive the state without one. Answers: StateTaken and StepWanted, or CollectiveFailed."""


@dataclass(frozen=True)
class GiveState:
    """The job has no step left: begin to send the state to this worker's joiners. No answer: another instruction follows."""


@dataclass(frozen=True)
class ExchangeValues:
    """Hand the script's registered values to this worker's joiners; as a joiner take them over. Answer: ValuesExchanged."""


@dataclass(frozen=True)
class GiveUpStep:
    """Forget all that was computed of the step in progress. The communicator in use is not used again.

    restore_buffers: the model's buffers become again what they were when the step began. No answer.
    """

    restore_buffers: bool


@dataclass(frozen=True)
class SaveCheckpoint:
    """Begin to write the state of now, which is that after `step`. Answer, from any thread: CheckpointSaved or CheckpointFailed.

    The training goes on meanwhile if another instruction follows. One that still waits for its turn to be written may be left out
    when the next comes.
    """

    number: int  # grows
    step: int
    epoch: int
    generation: int


@dataclass(frozen=True)
class CompleteTransfers:
    """Wait until all of the state is sent that this worker has to send. Answer: TransfersCompleted."""


@dataclass(frozen=True)
class Continue:
    """Let the script go on after its loop. No answer."""


@dataclass(frozen=True)
class ExitScript:
    """Make the script end with this exit code: SystemExit, so that its own last handlers run. No answer."""

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
    """How long the training thread may take."""

    step_timeout_s: float | None = None  # for its own part of a step; None: from the steps measured so far
    pause_timeout_s: float = (
        PAUSE_TIMEOUT_S  # for the script's code between two steps, for reading or writing a checkpoint
    )


@dataclass(frozen=True)
class Place:
    """A worker's place in its job: what its machine knows from the beginning."""

    job: JobId
    worker: WorkerId
    pid: int
    address: str  # of its control socket
    virtual_workers: int
    device: bool = False  # communicators connect accelerators, too, which takes longer
    checkpoint_every_s: float | None = None  # None: there are no checkpoints
    checkpoint_step: int | None = None  # the job has a checkpoint of this step or a later one; None: it may have none
    checkpoint_directory: str = ""  # "": not known
    limits: Limits = field(default_factory=Limits)
