"""What the controller says to agents. Orders go on to the workers as they are."""

from __future__ import annotations

from ..model import JobId, JobSpec, Roster, Value, WorkerId
from .base import Message


class Rendezvous(Value, frozen=True, kw_only=True):
    """How the processes of a job that has not called `elastic.join()` find each other: they get it as variables."""

    process: int  # the number of this one, from 0
    processes: int
    server: int  # the number of its server among those of the job, from 0
    servers: int
    address: str  # of the first process's server
    port: int  # free there
    local: tuple[int, ...]  # indices of the job's GPUs on this server


class Order(Message, frozen=True, kw_only=True):
    """Train as `roster` (worker-runtime 4). A greater generation supersedes all lesser ones that are not committed."""

    job: JobId
    roster: Roster
    leader_address: str  # control socket of the leader; "" until it is known: the order is then repeated
    broken: tuple[int, ...] = ()  # generations that have lost a member: whoever is in one abandons its communicator
    uid: str = ""  # of the job

    @property
    def generation(self) -> int:
        return self.roster.generation


class StartWorker(Message, frozen=True, kw_only=True):
    """Start a worker process, unless this worker of the job has been started before."""

    job: JobId
    worker: WorkerId
    gpu: int  # index on the agent's server
    spec: JobSpec
    generation: int  # of the order that first named it
    uid: str = ""  # of the job: tells it from another job that has had the same number
    checkpoint_step: int | None = None  # the job has a checkpoint of this step or a later one; None: it may have none
    session: str = ""  # of the agent's hello that this belongs to (`AgentHello.session`); "": any
    owner: str = ""  # the principal whose job it is
    account: str = ""  # the Unix account that it runs as; "": the agent's own
    trusted: tuple[str, ...] = ()  # codes of troubles of this GPU or its server that an operator has overruled
    key: str = ""  # secret CURVE key (Z85) that all workers of the job share: they talk to nobody without
    gpus: tuple[int, ...] = ()  # of that server, where the process has several of them; empty: `gpu` alone
    rendezvous: Rendezvous | None = None  # None: the job has called `elastic.join()`


class StopWorker(Message, frozen=True, kw_only=True):
    """Stop a worker process: SIGTERM, SIGKILL after `grace_s`. One that does not run will not be started any more,
    and counts as ended: the agent answers with its `WorkerExit`.

    `save`: one that trains gets `Suspend`, with `saver`, `stand_by` and `saved`, instead of SIGTERM; again, if these change.
    """

    job: JobId
    worker: WorkerId
    grace_s: float
    save: bool = False
    saver: WorkerId | None = None
    stand_by: bool = False
    saved: int | None = None  # the step whose state another worker has saved meanwhile
    uid: str = ""  # of the job; a worker of another job with this number goes on


class WriteCheckpoint(Message, frozen=True, kw_only=True):
    """Save the state after this step or a later one at the next boundary, unless that is done. The agent passes it on to the
    worker, which leads its job."""

    job: JobId
    worker: WorkerId
    step: int
    uid: str = ""  # of the job


class ForgetWorkers(Message, frozen=True, kw_only=True):
    """The controller has recorded these workers' ends: the agent may drop its own records of them."""

    workers: tuple[WorkerId, ...]
    uids: dict[WorkerId, str] = {}  # of their jobs, as their ends told them


class ReadLog(Message, frozen=True, kw_only=True):
    """Send a piece of a worker's log."""

    request: str
    job: JobId
    worker: WorkerId
    offset: int
    limit: int
    uid: str = ""  # of the job


class SnapshotPart(Message, frozen=True, kw_only=True):
    """Answer to ReadSnapshot. `error`: why there is none."""

    job: JobId
    part: int
    data: bytes
    uid: str = ""  # of the job
    error: str = ""


class HelloRefused(Message, frozen=True, kw_only=True):
    """Answer to a hello: this agent cannot be part of the cluster now. It says hello again, slowly."""

    reason: str


class Standby(Message, frozen=True, kw_only=True):
    """Answer to a hello, or to anything else that an agent says: this controller does not lead. The agent asks at its next
    endpoint."""

    leader: str = ""  # where agents reach the controller that leads, as far as it is known here; for people


class Acknowledged(Message, frozen=True, kw_only=True):
    """Answer to a heartbeat or a hello. `sent` counts the messages sent to this agent in this session, this one not
    included: an agent that has received fewer says hello again, and gets everything anew."""

    incarnation: str  # of the controller
    sent: int
    cluster: str = ""  # id of the cluster that the agent is a member of now; "": it is no member
    newest_event: int = 0  # how far the cluster's history is recorded
    session: str = ""  # of the hello that has begun it (`AgentHello.session`); "": not told
    heartbeat_interval_s: float = (
        0.0  # at least, between the heartbeats of the agent from now on (`times.paced_interval_s`)
    )
