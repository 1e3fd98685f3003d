"""Messages allowed on each link, by direction."""

from __future__ import annotations

from .agents import (
    AgentHeartbeat,
    AgentHello,
    CommandOutput,
    LogPiece,
    ReadSnapshot,
    StatusReceived,
    Suspend,
    WorkerExit,
    WorkerReport,
)
from .controller import (
    Acknowledged,
    ForgetWorkers,
    HelloRefused,
    Order,
    ReadLog,
    RunCommand,
    SnapshotPart,
    Standby,
    StartWorker,
    StopWorker,
    WarnWorker,
    WriteCheckpoint,
)
from .workers import Commit, Prepare, Prepared, Ready, Status, StoreAdd, StoreGet, StoreSet, StoreValue

ToAgentFromController = (
    Order
    | StartWorker
    | StopWorker
    | WriteCheckpoint
    | WarnWorker
    | ForgetWorkers
    | ReadLog
    | RunCommand
    | SnapshotPart
    | HelloRefused
    | Acknowledged
    | Standby
)  # stamped with a term: `protocol.terms`
ToControllerFromAgent = (
    AgentHello | AgentHeartbeat | WorkerReport | WorkerExit | LogPiece | CommandOutput | ReadSnapshot
)
ToWorkerFromAgent = Order | StatusReceived | Suspend | WriteCheckpoint
ToAgentFromWorker = Status
ToLeader = Ready | Prepared | StoreSet | StoreGet | StoreAdd
ToFollower = Prepare | Commit | StoreValue
