"""What the agent's machine hears (facts) and what it asks for (imperatives)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..protocol.messages import (
    LocalWorker,
    LogPiece,
    ReadLog,
    SnapshotPart,
    StartWorker,
    ToAgentFromController,
    ToControllerFromAgent,
    ToWorkerFromAgent,
    WorkerExit,
)
from ..protocol.model import Fault, JobId, Server, Trouble, WorkerId, WorkerStatus
from ..protocol.terms import NO_TERM
from .identity import Identity

# ------------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Started:
    """The agent has started and found these on its disk: processes of an earlier agent that run, and ends not yet forgotten."""

    running: tuple[LocalWorker, ...] = ()
    exited: tuple[WorkerExit, ...] = ()


@dataclass(frozen=True)
class ControllerMessage:
    """The controller at this endpoint has said something, in this term of its reign; `NO_TERM`: its version knows none."""

    message: ToAgentFromController
    term: int = NO_TERM
    endpoint: int = 0


@dataclass(frozen=True)
class Connected:
    """A connection to the controller at this endpoint stands, for the first time or anew."""

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
    """A worker has told its status."""

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
    """A worker's process has ended, and nothing of its process group is left."""

    worker: WorkerId
    exit_code: int | None
    reason: str
    fault: Fault | None = None  # None: as the exit code tells
    log: str = ""  # path of its log


@dataclass(frozen=True)
class LogRead:
    """A piece of a log that was asked for has been read."""

    piece: LogPiece


@dataclass(frozen=True)
class IdentityWritten:
    """The last `KeepIdentity` has been carried out. `error`: why it could not be; "": it is on the disk."""

    error: str = ""


@dataclass(frozen=True)
class ServerChanged:
    """The server offers something else than before, or is wired otherwise."""

    server: Server


@dataclass(frozen=True)
class HealthChanged:
    """These are the troubles of this server and its GPUs now, all of them."""

    troubles: tuple[Trouble, ...]


@dataclass(frozen=True)
class TimePassed:
    """The deadline of `next_deadline` may have come."""


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
    | IdentityWritten
    | HealthChanged
    | ServerChanged
    | TimePassed
)

# ------------------------------------------------------------------------------------------------------------------ actions


class StopSignal(enum.Enum):
    """How to end a worker."""

    TERMINATE = "terminate"  # SIGTERM to its process group
    KILL = "kill"  # SIGKILL


@dataclass(frozen=True)
class SendController:
    """Send to the controller at this endpoint, or drop it where no connection stands: everything is repeated until it has
    arrived."""

    message: ToControllerFromAgent
    endpoint: int = 0


@dataclass(frozen=True)
class SendWorker:
    """Send to a local worker."""

    worker: WorkerId
    message: ToWorkerFromAgent


@dataclass(frozen=True)
class StartProcess:
    """Write down that this worker is started here, then start it. `ProcessStarted` or `ProcessFailed` follows."""

    start: StartWorker


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
    """A part of a snapshot has come, for which a start waits."""

    part: SnapshotPart


@dataclass(frozen=True)
class ReadLogPiece:
    """Read a piece of a log; `LogRead` follows. `growing`: the worker still runs."""

    request: ReadLog
    growing: bool


@dataclass(frozen=True)
class KeepIdentity:
    """Write the agent's identity down; `IdentityWritten` follows."""

    identity: Identity


@dataclass(frozen=True)
class Warn:
    """Tell the operator of this server, in the log."""

    text: str


Action = (
    SendController
    | SendWorker
    | StartProcess
    | SignalProcess
    | ForgetWorker
    | ReadLogPiece
    | TakeSnapshotPart
    | KeepIdentity
    | Warn
)
