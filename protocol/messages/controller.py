"""Messages of the controller to agents. Agents forward orders to the workers unchanged."""

from __future__ import annotations

from ..model import JobId, JobSpec, Roster, Value, WorkerId
from ..streams import Input
from .base import Message


class Rendezvous(Value, frozen=True, kw_only=True):
    """Rendezvous of the processes of a job that has not called `elastic.join()`; the processes receive it as
    environment variables.
    """

    process: int  # number of this process, from 0
    processes: int
    server: int  # number of its server among those of the job, from 0
    servers: int
    address: str  # of the first process's server
    port: int  # a free port there
    local: tuple[int, ...]  # indices of the job's GPUs on this server


class Order(Message, frozen=True, kw_only=True):
    """Order to train with `roster` (worker-runtime 4). A greater generation supersedes all lesser ones that are not
    committed.
    """

    job: JobId
    roster: Roster
    leader_address: str  # control socket of the leader; "" until it is known: the order is then repeated
    broken: tuple[int, ...] = ()  # generations that have lost a member: their other members abandon the communicator
    uid: str = ""  # of the job
    batch_factor: int = 0  # let the batch grow to this factor (Elan III); 0: leave it

    @property
    def generation(self) -> int:
        return self.roster.generation


class StartWorker(Message, frozen=True, kw_only=True):
    """Start a worker process, unless this worker of the job has been started before."""

    job: JobId
    worker: WorkerId
    gpu: int  # index on the agent's server
    spec: JobSpec
    generation: int  # of the order that first named the worker
    uid: str = ""  # of the job: distinguishes it from another job that has had the same number
    checkpoint_step: int | None = None  # the job has a checkpoint of this step or a later one; None: it may have none
    session: str = ""  # of the agent's hello to which this message belongs (`AgentHello.session`); "": any
    owner: str = ""  # principal that owns the job
    account: str = ""  # Unix account under which the worker runs; "": the agent's own
    trusted: tuple[str, ...] = ()  # codes of troubles of this GPU or its server that an operator has overruled
    key: str = ""  # secret CURVE key (Z85) shared by all workers of the job, required for every connection among them
    gpus: tuple[int, ...] = ()  # indices on that server, where the process has several GPUs; empty: `gpu` alone
    rendezvous: Rendezvous | None = None  # None: the job has called `elastic.join()`


class StopWorker(Message, frozen=True, kw_only=True):
    """Stop a worker process: SIGTERM, then SIGKILL after `grace_s`. A worker that does not run will not start any more,
    and counts as ended: the agent answers with its `WorkerExit`.

    `save`: a training worker gets `Suspend`, with `saver`, `stand_by` and `saved`, instead of SIGTERM; again, if these
    change.
    """

    job: JobId
    worker: WorkerId
    grace_s: float
    save: bool = False
    saver: WorkerId | None = None
    stand_by: bool = False
    saved: int | None = None  # the step of the state that another worker has saved meanwhile
    uid: str = ""  # of the job; a worker of another job with this number goes on


class WriteCheckpoint(Message, frozen=True, kw_only=True):
    """Save the state after this step or a later one at the next step boundary, unless it is saved. The agent forwards
    the message to the worker, which leads its job.
    """

    job: JobId
    worker: WorkerId
    step: int
    uid: str = ""  # of the job


class WarnWorker(Message, frozen=True, kw_only=True):
    """Send SIGUSR1 to those processes of a worker that handle it: the time of its job is nearly up. Sent once; a warning that
    is lost is not repeated, since the job saves its state in any case.
    """

    job: JobId
    worker: WorkerId
    uid: str = ""  # of the job


class ForgetWorkers(Message, frozen=True, kw_only=True):
    """The controller has recorded these workers' ends: the agent may drop its own records of them."""

    workers: tuple[WorkerId, ...]
    uids: dict[WorkerId, str] = {}  # uids of their jobs, as the workers' exits reported them


class ReadLog(Message, frozen=True, kw_only=True):
    """Send a piece of a worker's log."""

    request: str
    job: JobId
    worker: WorkerId
    offset: int
    limit: int
    uid: str = ""  # of the job


class RunCommand(Message, frozen=True, kw_only=True):
    """Exchange input and output of a command beside a running worker; start it first, where `start` is given and no command of
    this `name` has been started. The agent answers with `CommandOutput`.
    """

    request: str
    name: str  # of the command, unique in the cluster
    job: JobId
    worker: WorkerId
    input: Input
    command: tuple[str, ...] = ()
    start: StartWorker | None = None  # as the worker was started
    agent: str = ""  # incarnation: another agent of this server starts nothing
    uid: str = ""  # of the job


class SnapshotPart(Message, frozen=True, kw_only=True):
    """Answer to ReadSnapshot. `error`: why the part is missing."""

    job: JobId
    part: int
    data: bytes
    uid: str = ""  # of the job
    error: str = ""


class HelloRefused(Message, frozen=True, kw_only=True):
    """Answer to a hello: this agent cannot be part of the cluster now. The agent repeats the hello, slowly."""

    reason: str


class Standby(Message, frozen=True, kw_only=True):
    """Answer to any message of an agent: this controller does not lead. The agent tries its next endpoint."""

    leader: str = ""  # address at which agents reach the leading controller, as far as it is known; for people


class Acknowledged(Message, frozen=True, kw_only=True):
    """Answer to a heartbeat or a hello. `sent` counts the earlier messages to this agent in this session: an agent that
    has received fewer says hello again, and gets all of them again.
    """

    incarnation: str  # of the controller
    sent: int
    cluster: str = ""  # id of the cluster to which the agent belongs now; "": none
    newest_event: int = 0  # number of the newest recorded event of the cluster's history
    session: str = ""  # of the hello that began the session (`AgentHello.session`); "": unknown
    heartbeat_interval_s: float = (
        0.0  # least time between the agent's heartbeats from now on (`times.paced_interval_s`)
    )
