"""Messages of an agent to the controller and to the workers of its server."""

from __future__ import annotations

import msgspec

from ..model import Fault, JobId, Server, ServerId, Trouble, Use, WorkerId, WorkerPhase, WorkerStatus
from ..streams import Output
from .base import Message


def session_name(incarnation: str, hello: int) -> str:
    """Return the name of the session that begins with the hello numbered `hello` of this incarnation of an agent."""
    return f"{incarnation}/{hello}"


class WorkerExit(Message, frozen=True, kw_only=True):
    """The end of a worker's process. The agent repeats the message until the controller answers with `ForgetWorkers`."""

    job: JobId
    worker: WorkerId
    exit_code: int | None  # None: unknown; negative: killed by that signal
    reason: str  # for people: "killed by SIGKILL", "exit code 1: ValueError: ..."
    phase: WorkerPhase | None = None  # the worker's last reported phase
    status: WorkerStatus | None = None  # the worker's last status, for a controller that was down when it was sent
    fault: Fault = Fault.KILLED  # as far as the agent can determine it
    uid: str = ""  # of the job
    log: str = ""  # path of its log on this server, if the agent saw the process end
    begun: bool = True  # False: the start was refused, so the worker has done nothing
    use: Use | None = None  # by all samples of the agent; None: there are none


class LocalWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's process on an agent's server, and the GPU that the process holds."""

    worker: WorkerId
    job: JobId
    uid: str  # of the job
    gpu: int  # index on the agent's server
    gpus: tuple[int, ...] = ()  # indices where the process holds several GPUs; empty: `gpu` alone

    @property
    def all_gpus(self) -> tuple[int, ...]:
        return self.gpus or (self.gpu,)


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Use of a worker since its agent's first sample, and for how long (s) its GPUs have been idle."""

    worker: WorkerId
    uid: str  # of the job
    use: Use
    idle_s: float | None = None  # 0: they compute; None: unknown


class AgentHello(Message, frozen=True, kw_only=True):
    """First message of a session, with the agent's entire knowledge."""

    server: Server
    incarnation: str  # new for each start of the agent
    workers: tuple[WorkerStatus, ...]  # as last reported
    starting: tuple[WorkerId, ...]  # processes that run but have not reported yet
    exited: tuple[WorkerExit, ...]  # ended workers that the controller has not acknowledged
    number: int = 0  # number of this hello within the incarnation, from 1; lower than the last: stale; 0: not numbered
    agent: str = ""  # identity of the agent: made once, kept in its state directory
    start: int = 0  # number of the agent's incarnation, from 1 (see `number`)
    cluster: str = ""  # id of the cluster to which the agent belonged last; "": none yet
    highest_job: int = 0  # greatest number among the jobs that the agent was ever asked to start
    newest_event: int = 0  # greatest number of an event of its cluster that the agent knows of
    heartbeat_interval_s: float = 0.0  # between the heartbeats that will follow; 0: unknown
    processes: tuple[LocalWorker, ...] = ()  # the server's process of each of `workers` and `starting`
    troubles: tuple[Trouble, ...] = ()  # of this server and its GPUs
    clock_s: float = 0.0  # of the server when this was sent (Unix time); 0: unknown
    term: int = 0  # highest term that the agent has received from its controllers; 0: none yet (`protocol.terms`)
    speaks: int = 0  # PROTOCOL_VERSION of the agent; 0: a version without this field

    @property
    def session(self) -> str:
        """Name of the session that this hello begins."""
        return session_name(self.incarnation, self.number)


class WorkerReport(Message, frozen=True, kw_only=True):
    """A changed status of a worker. Changes of its progress alone travel in heartbeats."""

    status: WorkerStatus
    uid: str = ""  # of the job


class AgentHeartbeat(Message, frozen=True, kw_only=True):
    """Renewal of the server's lease, with the progress of its workers."""

    server: ServerId
    starting: tuple[WorkerId, ...] = ()  # processes that run but have not reported yet
    reports: tuple[WorkerReport, ...] = ()  # changes not reported yet
    # All present troubles; None: unchanged since the last report of this session
    troubles: tuple[Trouble, ...] | None = None
    clock_s: float = 0.0  # of the server when this was sent (Unix time); 0: unknown
    use: tuple[WorkerUse, ...] = ()  # of workers sampled since the last report of their use


class LogPiece(Message, frozen=True, kw_only=True):
    """Answer to ReadLog. `data`: whole lines in the format of agent/shim.py; `end`: the log is complete."""

    request: str
    data: bytes
    next_offset: int
    end: bool
    error: str = ""


class CommandOutput(Message, frozen=True, kw_only=True):
    """Answer to RunCommand. `error`: why no such command runs."""

    request: str
    output: Output = Output()
    error: str = ""


class ReadSnapshot(Message, frozen=True, kw_only=True):
    """Request for one part of the snapshot of a job that is to start a worker on this server."""

    job: JobId
    part: int
    uid: str = ""  # of the job


class StatusReceived(Message, frozen=True, kw_only=True):
    """The agent's acknowledgement of a worker's status."""

    sequence: int


class Suspend(Message, frozen=True, kw_only=True):
    """Agent -> worker: the job is preempted. The worker ends between two steps; before that, `saver` writes a
    checkpoint.

    stand_by: one worker on each server keeps the state until the checkpoint is written, as `saved` reports.
    """

    job: JobId
    saver: WorkerId | None = None  # None: the leader, as each worker knows it
    stand_by: bool = False
    saved: int | None = None  # the step of the state that a worker has saved
