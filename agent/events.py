"""Events (facts) that the agent's state machine takes, and actions (imperatives) that it returns."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..protocol.messages import (
    CommandOutput,
    LocalWorker,
    LogPiece,
    ReadLog,
    RunCommand,
    SnapshotPart,
    StartWorker,
    ToAgentFromController,
    ToControllerFromAgent,
    ToWorkerFromAgent,
    WorkerExit,
    WorkerUse,
)
from ..protocol.model import Fault, JobId, Server, Trouble, WorkerId, WorkerStatus
from ..protocol.terms import NO_TERM
from .identity import Identity

# ------------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Started:
    """The agent has started, with the state on its disk: running processes of an earlier agent, and unacknowledged
    ends.
    """

    running: tuple[LocalWorker, ...] = ()
    exited: tuple[WorkerExit, ...] = ()


@dataclass(frozen=True)
class ControllerMessage:
    """The controller at this endpoint has sent a message, stamped with its term; `NO_TERM`: its version has none."""

    message: ToAgentFromController
    term: int = NO_TERM
    endpoint: int = 0


@dataclass(frozen=True)
class Connected:
    """A connection to the controller at this endpoint stands, for the first time or again."""

    endpoint: int = 0


@dataclass(frozen=True)
class Disconnected:
    """The connection to the controller at this endpoint has ended."""

    endpoint: int = 0


@dataclass(frozen=True)
class HelloNotSent:
    """No connection stood when `SendController` with a hello was carried out."""


@dataclass(frozen=True)
class WorkerStatusReceived:
    """A worker has reported its status."""

    status: WorkerStatus


@dataclass(frozen=True)
class ProcessStarted:
    """A worker's process has been started."""

    worker: WorkerId


@dataclass(frozen=True)
class ProcessFailed:
    """A worker's process could not be started."""

    worker: WorkerId
    reason: str
    fault: Fault = Fault.SERVER


@dataclass(frozen=True)
class ProcessExited:
    """A worker's process has ended, and no process of its group is left."""

    worker: WorkerId
    exit_code: int | None
    reason: str
    fault: Fault | None = None  # None: as the exit code implies
    log: str = ""  # path of its log


@dataclass(frozen=True)
class LogRead:
    """A requested piece of a log has been read."""

    piece: LogPiece


@dataclass(frozen=True)
class CommandExchanged:
    """Input and output of a command beside a worker have been exchanged."""

    answer: CommandOutput


@dataclass(frozen=True)
class IdentityWritten:
    """The last `KeepIdentity` has been carried out. `error`: why it failed; "": the identity is on the disk."""

    error: str = ""


@dataclass(frozen=True)
class ServerChanged:
    """The server's devices or its wiring have changed."""

    server: Server


@dataclass(frozen=True)
class HealthChanged:
    """The troubles of this server and its GPUs have changed; these are all present ones."""

    troubles: tuple[Trouble, ...]


@dataclass(frozen=True)
class UseSampled:
    """LatestTask sample of what the workers use."""

    uses: tuple[WorkerUse, ...]


@dataclass(frozen=True)
class AgentTick:
    """The deadline of `next_deadline` may have passed."""


Event = (
    Started
    | ControllerMessage
    | Connected
    | Disconnected
    | HelloNotSent
    | WorkerStatusReceived
    | ProcessStarted
    | ProcessFailed
    | ProcessExited
    | LogRead
    | CommandExchanged
    | IdentityWritten
    | HealthChanged
    | ServerChanged
    | UseSampled
    | AgentTick
)

# ------------------------------------------------------------------------------------------------------------------ actions


class StopSignal(enum.Enum):
    """Signal with which a worker is ended."""

    TERMINATE = "terminate"  # SIGTERM to its process group
    KILL = "kill"  # SIGKILL


@dataclass(frozen=True)
class SendController:
    """Send to the controller at this endpoint, or drop the message where no connection stands: the machine repeats
    every message until it has arrived.
    """

    message: ToControllerFromAgent
    endpoint: int = 0


@dataclass(frozen=True)
class SendWorker:
    """Send to a local worker."""

    worker: WorkerId
    message: ToWorkerFromAgent


@dataclass(frozen=True)
class StartProcess:
    """Record that this worker is started here, then start it. `ProcessStarted` or `ProcessFailed` follows."""

    start: StartWorker


@dataclass(frozen=True)
class WarnProcess:
    """Send SIGUSR1 to those processes of a worker that handle it."""

    worker: WorkerId


@dataclass(frozen=True)
class SignalProcess:
    """Signal a worker's process group."""

    worker: WorkerId
    signal: StopSignal


@dataclass(frozen=True)
class ForgetWorker:
    """Remove the records of an ended worker; its log stays."""

    job: JobId
    worker: WorkerId
    uid: str = ""  # of the job


@dataclass(frozen=True)
class TakeSnapshotPart:
    """Take a part of a snapshot, for which a start waits."""

    part: SnapshotPart


@dataclass(frozen=True)
class ReadLogPiece:
    """Read a piece of a log; `LogRead` follows. `growing`: the worker still runs."""

    request: ReadLog
    growing: bool


@dataclass(frozen=True)
class ExchangeCommand:
    """Exchange input and output with a command beside a worker; `CommandExchanged` follows. `may_start`: start it first, if it
    has not been started."""

    request: RunCommand
    may_start: bool


@dataclass(frozen=True)
class KeepIdentity:
    """Write the agent's identity to the disk; `IdentityWritten` follows."""

    identity: Identity


@dataclass(frozen=True)
class Warn:
    """Warn the operator of this server, in the log."""

    text: str


Action = (
    SendController
    | SendWorker
    | StartProcess
    | SignalProcess
    | WarnProcess
    | ForgetWorker
    | ReadLogPiece
    | ExchangeCommand
    | TakeSnapshotPart
    | KeepIdentity
    | Warn
)
