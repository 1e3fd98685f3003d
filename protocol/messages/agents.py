"""What an agent says: to the controller, and to the workers of its server."""

from __future__ import annotations

import msgspec

from ..model import Fault, JobId, Server, ServerId, Trouble, WorkerId, WorkerPhase, WorkerStatus
from .base import Message


def session_name(incarnation: str, hello: int) -> str:
    """Of the session that begins with the hello of this number, of this incarnation of an agent."""
    return f"{incarnation}/{hello}"


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
    log: str = ""  # path of its log on this server, where the agent has seen it end
    begun: bool = True  # False: its start was refused, so that it has done nothing


class LocalWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's process that an agent keeps, and the GPU that it holds."""

    worker: WorkerId
    job: JobId
    uid: str  # of the job
    gpu: int  # index on the agent's server
    gpus: tuple[int, ...] = ()  # where it holds several of them; empty: `gpu` alone

    @property
    def all_gpus(self) -> tuple[int, ...]:
        return self.gpus or (self.gpu,)


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
    troubles: tuple[Trouble, ...] = ()  # of this server and its GPUs
    clock_s: float = 0.0  # of the server when this was sent (Unix time); 0: not told
    term: int = 0  # the highest that the agent has heard of a controller of its; 0: none yet (`protocol.terms`)
    speaks: int = 0  # PROTOCOL_VERSION of the agent; 0: of a version that does not tell

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
    troubles: tuple[Trouble, ...] | None = None  # all that there are now; None: as told last in this session
    clock_s: float = 0.0  # likewise


class LogPiece(Message, frozen=True, kw_only=True):
    """Answer to ReadLog. `data` are whole lines, see agent/shim.py for their form; `end`: nothing more will come."""

    request: str
    data: bytes
    next_offset: int
    end: bool
    error: str = ""


class ReadSnapshot(Message, frozen=True, kw_only=True):
    """Send a part of the snapshot of a job, of which a worker is to start here."""

    job: JobId
    part: int
    uid: str = ""  # of the job


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
