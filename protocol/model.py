"""Values that all processes share: jobs, servers, GPUs, shares, rosters. All of them are frozen.

Units stand last in names (``_s`` seconds, ``_bytes``). Steps are counted from 0. ``applied`` is the number of the last
optimizer update that a worker has applied (``-1``: the worker holds the initial state; ``None``: it holds no state at
all).
"""

from __future__ import annotations

import enum
import re
from typing import NewType

import msgspec

from .limits import COMPARE_EVERY, DEFAULT_MAX_FACTOR, DEFAULT_RAMP_STEPS
from .times import LOAD_TIMEOUT_S, PAUSE_TIMEOUT_S, START_TIMEOUT_S

JobId = NewType("JobId", str)  # "digits-3": the job's name and a number that the cluster never reuses
ServerId = NewType("ServerId", str)  # a server's name, unique in the cluster
WorkerId = NewType("WorkerId", str)  # "digits-3.5": the job's id and a number that the job never reuses

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def job_number(job: JobId) -> int:
    """Return the number at the end of a job's id, or 0 if the id has none."""
    return _number(job.rpartition("-")[2])


def worker_number(worker: WorkerId) -> int:
    """Return the number at the end of a worker's id. 0: the job's first worker, or an id without a number."""
    return _number(worker.rpartition(".")[2])


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


CAPTURED_VARIABLES = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "LANG", "USER")
"""Variables of the submitter's environment that travel with a job. All other settings of a job stand in its file."""


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all values. Unknown fields are ignored on decoding, so that versions can be mixed during an upgrade."""


class GpuKind(enum.Enum):
    """Device type on which a worker computes."""

    CUDA = "cuda"
    CPU = "cpu"  # a CPU slot; or a GPU on which the agent's configuration makes workers compute on the CPU, for trials


class GpuPlace(Value, frozen=True, kw_only=True):
    """Position of a GPU in its server, as far as its agent knows. `topology.link` returns the link between two
    positions.

    Numbers compare only within a server: two GPUs with the same number share the same socket or switch.
    """

    socket: int | None = None  # a processor with memory of its own: a NUMA node
    switch: int | None = (
        # GPUs with one number have only PCIe switches between them; a GPU without a switch has a number of its own
        None
    )
    nvlinks: tuple[int, ...] = ()  # indices of the GPUs that NVLink reaches, directly or through NVSwitches
    rack: str = ""  # rack of its server; set in rosters alone (an agent reports `Server.rack`)


class Gpu(Value, frozen=True, kw_only=True):
    """One slot on which a worker can run."""

    index: int  # on its server, from 0; a CUDA GPU keeps the index of its first discovery
    kind: GpuKind  # device type on which a worker of this slot computes
    name: str  # "NVIDIA A100-SXM4-40GB", "CPU slot"
    uuid: str = ""
    memory_bytes: int = 0
    place: GpuPlace = GpuPlace()
    port: int = 0  # kept free by the agent for a gang's first process, if that process has this GPU; 0: none


class NvLinks(Value, frozen=True, kw_only=True):
    """NVLinks of a GPU with the same peer at their other ends."""

    count: int
    peer: int | None = None  # index of a GPU; None: NVSwitches, shared by all GPUs with such links
    bytes_per_s: float = 0.0  # of all these links together, in one direction; 0: unknown


class GpuWiring(Value, frozen=True, kw_only=True):
    """Connections of a GPU in its server, as driver and kernel report them: for display and diagnosis.

    Decisions use `GpuPlace`.
    """

    index: int
    pci: str = ""  # "0000:07:00.0"
    above: tuple[
        str, ...
    ] = ()  # the PCI devices between the GPU and the processor: host bridge, root port, ends of switches
    node: int | None = None  # NUMA node
    cpus: str = ""  # the processors near the GPU: "0-15,64-79"
    pcie: str = ""  # "4.0 x16": the fastest mode that both the GPU and its slot support
    pcie_bytes_per_s: float = 0.0  # bandwidth of that mode, in one direction; 0: unknown
    nvlinks: tuple[NvLinks, ...] = ()
    peers: tuple[int, ...] | None = None  # GPUs whose memory this GPU reads directly (P2P); None: unknown
    parent: str = ""  # UUID of the GPU that contains this MIG instance; "": a whole GPU


class Nic(Value, frozen=True, kw_only=True):
    """A network interface card of a server."""

    name: str  # of its interface: "eth0", "ib0"
    pci: str = ""
    above: tuple[str, ...] = ()
    node: int | None = None
    bytes_per_s: float = 0.0  # in one direction; 0: unknown, or no cable


class Adapter(Value, frozen=True, kw_only=True):
    """A port of an InfiniBand or RoCE adapter."""

    name: str  # "mlx5_0:1"
    link_layer: str = ""  # "InfiniBand", "Ethernet"
    state: str = ""  # "ACTIVE", "DOWN"
    bytes_per_s: float = 0.0


class Wiring(Value, frozen=True, kw_only=True):
    """Connections of a server's GPUs, network cards and adapters."""

    gpus: tuple[GpuWiring, ...] = ()
    nics: tuple[Nic, ...] = ()
    driver: str = ""  # version of the GPUs' driver
    adapters: tuple[Adapter, ...] | None = None  # None: an earlier version of the agent, which does not report them


class Severity(enum.Enum):
    """How severe a trouble is for the work on a GPU or a server."""

    NOTE = "note"  # shown to operators only
    NO_NEW_WORK = "no-new-work"  # no new worker starts there; running workers go on
    MOVE_AWAY = "move-away"  # no new worker starts there; running workers that still compute move to other GPUs
    STOP = "stop"  # likewise, and workers that cannot move are stopped: the GPU is lost, or its results may be wrong

    @property
    def blocks_new_work(self) -> bool:
        """Return whether no new worker starts there."""
        return self is not Severity.NOTE

    @property
    def moves(self) -> bool:
        """Return whether running workers are moved to other GPUs."""
        return self in (Severity.MOVE_AWAY, Severity.STOP)


class CordonKind(enum.Enum):
    """How a cordoned server or GPU treats the workers that already run there. No new worker starts in any case."""

    CORDON = "cordon"  # running workers go on
    DRAIN = "drain"  # running workers move to other GPUs, as long as no job loses its last one
    DRAIN_BY_PREEMPTING = "drain-by-preempting"  # likewise, and jobs for which no GPU is left save their state and wait

    @property
    def drains(self) -> bool:
        """Return whether the running workers have to leave."""
        return self is not CordonKind.CORDON


class Trouble(Value, frozen=True, kw_only=True):
    """A defect of a GPU or of a whole server, as its agent has found it."""

    code: str  # "xid-79", "gpu-lost", "no-driver", "disk-full": the defect, for programs
    severity: Severity
    text: str  # a sentence for people, with the remedy
    gpu: int | None = None  # index on its server; None: the whole server
    since_s: float = 0.0  # Unix time


class GpuAddress(Value, frozen=True, kw_only=True, order=True):
    """Address of one GPU in the cluster."""

    server: ServerId
    index: int

    def __str__(self) -> str:
        return f"{self.server}:{self.index}"


def held_gpus(gpu: GpuAddress, indices: tuple[int, ...]) -> tuple[GpuAddress, ...]:
    """Return all GPUs of a worker's process: `indices` on the server of `gpu`, or `gpu` alone if there are none."""
    return tuple([GpuAddress(server=gpu.server, index=index) for index in indices]) if indices else (gpu,)


class Storage(Value, frozen=True, kw_only=True):
    """A directory and the file system that holds it. Two servers see the same directory if `place` is the same."""

    path: str
    kind: str = ""  # type of the file system: "nfs4", "ext4"; "": the file system has not answered
    place: str = ""  # "nas:/data/checkpoints"; on a local disk it names this boot of the machine
    shared: bool = False  # other machines may mount the file system, too


class Allocatable(Value, frozen=True, kw_only=True):
    """Cores and memory that a server has for its jobs, and the most that one worker may request there.

    0: everything that the server has.
    """

    cpus: float
    memory_bytes: int
    worker_cpus: float = 0.0
    worker_memory_bytes: int = 0
    unheld: str = ""  # why a worker's requested limits cannot be enforced; "": they can be


EARLIER_AGENT = "its agent is of an earlier version"


class Server(Value, frozen=True, kw_only=True):
    """A server as its agent reports it."""

    server: ServerId
    address: str  # IP address at which the server's workers listen for each other
    gpus: tuple[Gpu, ...]
    cpu_cores: int = 0
    memory_bytes: int = 0
    version: str = ""
    rack: str = ""  # from the agent's configuration: servers of one rack share a network switch; "": unknown
    wiring: Wiring = Wiring()
    checkpoints: Storage | None = None  # None: unknown
    allocatable: Allocatable | None = None  # None: an earlier version of the agent, which enforces no limits of jobs
    no_containers: str = EARLIER_AGENT  # why no worker is started in a container here; "": workers can be


class GpuRange(Value, frozen=True, kw_only=True):
    """Least and greatest number of GPUs that a job can use."""

    min: int
    max: int


class CheckpointSpec(Value, frozen=True, kw_only=True):
    """When checkpoints are written, and how many are kept."""

    every_s: float = 600.0
    keep: int = 2
    # To save the state before a stop; None: derived from measured times of steps and saves
    save_timeout_s: float | None = None


class Determinism(enum.Enum):
    """How far the result is independent of the number and type of GPUs on which the job runs (EasyScale 3.3, D0 to D2)."""

    NONE = "none"
    STATIC = "static"
    ELASTIC = "elastic"
    HETEROGENEOUS = "heterogeneous"

    @property
    def has_equal_gradients(self) -> bool:
        """Return whether all workers of a job get a step's gradient with the same bits, however many they are."""
        return self in (Determinism.ELASTIC, Determinism.HETEROGENEOUS)


class OnDivergence(enum.Enum):
    """Reaction to a worker with a training state that differs from that of the others."""

    REPLACE = "replace"  # the worker is replaced if most workers agree; otherwise the job fails
    FAIL = "fail"  # the job fails


class Sharding(enum.Enum):
    """Division of a job's training state among its workers (`fully_shard` is FSDP2's; ZeRO: Rajbhandari et al., 2020)."""

    NONE = "none"  # every worker has all of it
    OPTIMIZER = "optimizer"  # ZeRO-1: of the optimizers' state each worker has its part and mirrors that of another


class Processes(enum.Enum):
    """Number of processes that run a job's command."""

    PER_GPU = "per-gpu"  # one process for each GPU, as `elastic.join()` and most distributed scripts expect
    # One process for each server, which sees all of the job's GPUs there: torchrun and similar launchers
    PER_SERVER = "per-server"


class Deadline(Value, frozen=True, kw_only=True):
    """Time by which a job has to finish. Exactly one of `at_s` and `in_s` is set."""

    at_s: float | None = None  # Unix time
    in_s: float | None = None  # counted from the job's submission
    soft: bool = False  # the job is accepted even if it will finish late (ElasticFlow 4.4)

    def of(self, submitted_s: float) -> float:
        """Return the deadline as Unix time (s) for a job submitted at `submitted_s`."""
        return self.at_s if self.at_s is not None else submitted_s + (self.in_s or 0.0)


class Until(Value, frozen=True, kw_only=True):
    """Target value of a metric that ends a job's training. The script stops by itself: the target only predicts the
    job's length.
    """

    metric: str  # as `run.report` names it
    bound: float
    at_least: bool = True  # otherwise: at most

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.at_least else '<='} {self.bound:g}"


class Snapshot(Value, frozen=True, kw_only=True):
    """Identity of a packed working directory (`protocol.snapshots`)."""

    digest: str  # SHA-256, in hex
    bytes: int  # size of the packed files


class ResumeFrom(Value, frozen=True, kw_only=True):
    """Checkpoint from which a new job starts: that of a job which is over, or one in a directory."""

    job: JobId = JobId("")
    uid: str = ""  # of that job, as the controller knows it
    directory: str = ""  # directory of checkpoints that do not belong to a job of this cluster
    step: int = 0  # the newest checkpoint there holds the state after this step
    any_code: bool = False  # accept the checkpoint even if other code or data trained it
    gpu_name: str = ""  # GPU name with which it was trained, which fixes the type of the new job's GPUs; "": any
    # Names the seeds that a script has before `elastic.join()`: the first job of the chain of resumed jobs
    seeds: str = ""


class After(Value, frozen=True, kw_only=True):
    """A job that has to be over before another one starts."""

    job: JobId  # in a client's request also a name
    any: bool = False  # however that job ends; otherwise it must finish


class ArrayElement(Value, frozen=True, kw_only=True):
    """Place of a job among those that were submitted together as an array."""

    array: str  # random; the same for all jobs of the array
    name: str  # of the array
    index: int
    text: str  # the indices and the limit as the user gave them: 0-99%8
    size: int  # number of jobs in the array
    most: int | None = None  # greatest number of them that may have GPUs at a time; None: all
    values: dict[str, str] = {}  # values of a sweep's parameters for this job, by name


class BatchChange(Value, frozen=True, kw_only=True):
    """A change of a job's batch size while it trains (Elan III)."""

    step: int  # the first step with this factor
    factor: int  # size of the batch, relative to that of the job without scaling
    rate: float = 1.0  # factor of the learning rate, at the end of the ramp
    ramp: int = 0  # number of steps in which the factor of the learning rate changes linearly to `rate`


class Scaling(Value, frozen=True, kw_only=True):
    """A job's permission to change its batch size while it trains (Elan III)."""

    hybrid: bool = False  # the cluster may let the batch grow; otherwise the script alone
    max_factor: int = DEFAULT_MAX_FACTOR
    ramp_steps: int = DEFAULT_RAMP_STEPS
    replay: tuple[BatchChange, ...] | None = None  # exactly these changes take place; None: no replay

    @property
    def greatest(self) -> int:
        """Return the greatest factor that the job can have."""
        return max([change.factor for change in self.replay or ()], default=self.max_factor)


class Notify(enum.Enum):
    """Events of a job of which its user is notified, by the operator's channels."""

    START = "start"  # the job trains, or its command runs; also after a pause
    END = "end"  # the job has ended, however
    FAIL = "fail"
    PROMISE = "promise"  # the job's deadline is endangered, or missed
    IDLE = "idle"  # the job's GPUs are idle, or were taken away for that


class Idle(Value, frozen=True, kw_only=True):
    """Rules for a job with idle GPUs: for how long (s) they have been idle before each act; None: never."""

    warn_s: float | None = None  # an event and a notice for the user
    shrink_s: float | None = None  # the job shrinks to its least number of GPUs, until they compute again
    suspend_s: float | None = None  # the job is paused, with its state saved

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.warn_s, self.shrink_s, self.suspend_s))

    def and_(self, other: Idle) -> Idle:
        """Return for each act the earlier of both times."""

        def sooner(a: float | None, b: float | None) -> float | None:
            return min((each for each in (a, b) if each is not None), default=None)

        return Idle(
            warn_s=sooner(self.warn_s, other.warn_s),
            shrink_s=sooner(self.shrink_s, other.shrink_s),
            suspend_s=sooner(self.suspend_s, other.suspend_s),
        )


NEVER_IDLE = Idle()


class JobSpec(Value, frozen=True, kw_only=True):
    """A user's request for a job. ``elasticctl`` validates it, and the controller validates it again."""

    name: str
    command: tuple[str, ...]  # argv; no shell
    gpus: GpuRange
    virtual_workers: int  # N: the number on which the result depends
    workdir: str
    env: dict[str, str] = {}
    # Variables and the absolute paths of files with their values: the owner's, read on each server when a worker starts
    secrets: dict[str, str] = {}
    max_steps: int | None = None
    until: Until | None = None
    deadline: Deadline | None = None  # None: as early as possible
    checkpoint: CheckpointSpec = CheckpointSpec()
    determinism: Determinism = Determinism.ELASTIC
    # Period of comparisons in steps: in each period every element of the workers' states is compared once
    compare_every: int = COMPARE_EVERY
    on_divergence: OnDivergence = OnDivergence.REPLACE
    sharding: Sharding = Sharding.NONE
    priority: int = 0  # higher priorities go first under policies that consider them
    model: str = ""  # the model's name in the tables of throughputs; jobs of one model and command are of one kind
    throughput: dict[int, float] = {}  # steps per second for each number of GPUs, as far as the user knows them
    user: str = ""
    start_timeout_s: float = START_TIMEOUT_S  # from a worker's start to its `elastic.join()`
    load_timeout_s: float = LOAD_TIMEOUT_S  # from `elastic.join()` to the training loop: model, data
    step_timeout_s: float | None = None  # for a worker's own part of a step; None: derived from its measured parts
    pause_timeout_s: float = PAUSE_TIMEOUT_S  # for the script's own code between two steps
    processes: Processes = Processes.PER_GPU
    gpus_per_server: int | None = None  # exactly so many on each of the job's servers; None: any split
    gpu_types: tuple[str, ...] = ()  # the job runs only on GPUs with one of these words in their names; empty: on any
    gpu_memory_bytes: int = 0  # least memory of each of its GPUs
    cpus: float = 0.0  # processor cores that each worker may use, and that are kept for it; 0: neither
    memory_bytes: int = 0  # of the server, likewise
    image: str = ""  # each worker runs in a container made of this image; "": on the server itself
    snapshot: Snapshot | None = None  # the job runs in a copy of these files; None: in `workdir` itself
    resume: ResumeFrom | None = None  # checkpoint from which the job starts; None: the initial state
    scaling: Scaling | None = None  # None: the batch has one size, unless the script changes it
    after: tuple[After, ...] = ()  # the job starts when these are over
    array: ArrayElement | None = None  # None: the job is not of an array
    time_limit_s: float | None = None  # the job ends when it has run for so long, waiting not counted; None: no limit
    warn_s: float | None = None  # time before that limit at which its processes get SIGUSR1; None: never
    notify: tuple[Notify, ...] = ()
    idle: Idle = NEVER_IDLE  # the earlier of these times and the operator's count
    # Until a worker of the job has called `elastic.join()`:
    restarts: int | None = None  # greatest number of times the command is run again from the start; None: no limit
    # `start_timeout_s` applies, since the user has set it; otherwise a command may run for ever
    must_join: bool = False

    @property
    def expected_to_join(self) -> bool:
        """Return whether the job probably calls `elastic.join()`: it has asked for a range, or its script imports the
        library.
        """
        one_each = self.processes is Processes.PER_GPU
        return one_each and (self.restarts is None or self.gpus.min < self.gpus.max)


class JobPhase(enum.Enum):
    """Phase of a job. FINISHED, FAILED and CANCELLED are final."""

    PENDING = "pending"  # has no workers
    STARTING = "starting"  # has workers ordered; none has trained yet
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED)


class Member(Value, frozen=True, kw_only=True):
    """A worker's entry in a roster."""

    worker: WorkerId
    gpu: GpuAddress
    place: GpuPlace = GpuPlace()  # position of that GPU
    gpus: tuple[int, ...] = ()  # indices on its server, if one process has several GPUs; empty: `gpu` alone
    pace: float = 1.0  # of its GPU type: expected time for one virtual worker, relative to the job's other types

    @property
    def all_gpus(self) -> tuple[GpuAddress, ...]:
        return held_gpus(self.gpu, self.gpus)


class Roster(Value, frozen=True, kw_only=True):
    """The workers of one generation, in rank order. ``leader`` is one of them."""

    generation: int
    members: tuple[Member, ...]
    leader: WorkerId

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        # A list first: faster than a generator, and each status asks for it
        return tuple([member.worker for member in self.members])

    def rank(self, worker: WorkerId) -> int:
        """Return the rank of `worker`. Raises ValueError if the roster does not contain it."""
        return self.workers.index(worker)


class WorkerPhase(enum.Enum):
    """Phase of a worker, as the worker reports it."""

    STARTING = "starting"  # imports, model, data
    READY = "ready"  # prepared, waits for its first generation
    TRAINING = "training"
    BROKEN = "broken"  # its communicator failed; the worker keeps its state and waits for the next order
    LEFT = "left"  # no longer in the roster: the worker ends by itself
    FINISHED = "finished"  # the training loop is over; the script's last lines run

    @property
    def may_have_state(self) -> bool:
        """Return whether the worker takes part in the training, so that the job can go on from its state."""
        return self in (WorkerPhase.TRAINING, WorkerPhase.BROKEN)

    @property
    def over(self) -> bool:
        """Return whether the worker's part in the training is over."""
        return self in (WorkerPhase.LEFT, WorkerPhase.FINISHED)


class GpuSeconds(Value, frozen=True, kw_only=True):
    """GPU-seconds held, by use (docs/accounting.md). Each GPU-second held is counted in exactly one column."""

    used_gpu_s: float = 0.0  # a worker trained; for a plain command: the command ran
    idle_gpu_s: float = (
        0.0  # held without training: starting, loading, saving, waiting, kept for a job that is being measured
    )
    paused_gpu_s: float = 0.0  # training stood still in a resize
    lost_gpu_s: float = 0.0  # work discarded by a restart, or a worker ended before it had trained

    @property
    def held_gpu_s(self) -> float:
        """Return the sum of all columns."""
        return self.used_gpu_s + self.idle_gpu_s + self.paused_gpu_s + self.lost_gpu_s


class Use(Value, frozen=True, kw_only=True):
    """What workers have used, by samples of their agents. A CPU slot counts as busy while a core computes for it."""

    gpu_s: float = 0.0  # GPU-seconds in which the use was known
    busy_gpu_s: float = 0.0  # of these, the ones in which the GPUs computed
    cpu_s: float = 0.0  # core-seconds
    wall_s: float = 0.0  # seconds of workers in which `cpu_s` was counted
    memory_bytes: int = 0  # peak of one worker, of the samples; 0: unknown
    gpu_memory_bytes: int = 0  # peak on one GPU, likewise

    def plus(self, other: Use) -> Use:
        """Return the use of both."""
        if other is NO_USE:
            return self
        return Use(
            gpu_s=self.gpu_s + other.gpu_s,
            busy_gpu_s=self.busy_gpu_s + other.busy_gpu_s,
            cpu_s=self.cpu_s + other.cpu_s,
            wall_s=self.wall_s + other.wall_s,
            memory_bytes=max(self.memory_bytes, other.memory_bytes),
            gpu_memory_bytes=max(self.gpu_memory_bytes, other.gpu_memory_bytes),
        )

    @property
    def busy(self) -> float | None:
        """Return the part of the time in which the GPUs computed; None: unknown."""
        return min(1.0, self.busy_gpu_s / self.gpu_s) if self.gpu_s > 0 else None

    @property
    def cores(self) -> float | None:
        """Return the cores that a worker has used on average; None: unknown."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else None


NO_USE = Use()


class Fault(enum.Enum):
    """Fault behind the end of a worker's process. Only faults of the script count against the job."""

    NONE = "none"  # the process ended as intended: it had finished, or had left the roster
    SCRIPT = "script"  # exit code above 0, or an end in the middle of the training
    # The agent could not start the process, or the server made its work impossible: full disk, no memory, no checkpoint
    SERVER = "server"
    LOST = "lost"  # lost with its server, or with the agent's records
    STOPPED = "stopped"  # the cluster requested the end
    SILENT = "silent"  # silent, or without progress, for too long: its agent or the worker itself ended the process
    # Ended without a request of the cluster: out of memory, crash, an operator, no connection to other workers
    KILLED = "killed"


class Resize(Value, frozen=True, kw_only=True):
    """Cost of one switch of generations, as its leader measured it (worker-runtime 4)."""

    generation: int
    step: int  # the last step under the old generation
    workers_before: int
    workers_after: int
    longest_gap_s: float  # longest time between two applied steps, around the switch
    median_step_s: float  # median time between two applied steps before it
    median_step_after_s: float = 0.0  # and after it
    recovery: bool = False  # the switch followed a loss

    @property
    def paused_s(self) -> float:
        """Return how long training stood still: the longest gap less one step's time on the fewer workers."""
        return max(0.0, self.longest_gap_s - max(self.median_step_s, self.median_step_after_s))


class Steady(Value, frozen=True, kw_only=True):
    """Steady pace of a generation: the median time of its last steps, without the switch itself. The scheduler uses it."""

    generation: int = 0  # 0: no measurement yet
    step_s: float = 0.0
    steps: int = 0  # number of steps behind the median


class Straggler(Value, frozen=True, kw_only=True):
    """A worker that computes more slowly than the others of its job (EDL 5.4), with the evidence of the job's leader."""

    worker: WorkerId
    slowdown: float  # how many times longer than the others it takes for a virtual worker
    since_s: float  # Unix time
    samples: int  # measurements in which it was slower, before it was reported; each of one step, or of 50 ms
    hosts: int  # virtual workers that it hosts now
    # Rate of steps, as a part of the rate with sound workers in place of this and all slower ones; 1: not proved to be less.
    kept: float = 1.0
    # How many times more steps there would be without this and all slower ones; 1: not proved to be more.
    without: float = 1.0


class WorkerStatus(Value, frozen=True, kw_only=True):
    """Status of a worker, sent at every change and at every heartbeat. The newest status replaces all earlier ones."""

    job: JobId
    worker: WorkerId
    pid: int
    address: str  # of its control socket, for followers: "tcp://127.0.0.1:43117"
    phase: WorkerPhase
    generation: int  # committed; 0 before the first
    order: int  # newest order seen; 0 before the first
    floor: int  # the worker will never propose an uncommitted generation below this one
    applied: int | None
    sequence: int  # grows with every status of this worker
    epoch: int = 0
    total_steps: int | None = None
    samples_per_s: float = 0.0
    median_step_s: float = 0.0
    steady: Steady = Steady()
    metrics: dict[str, float] = {}
    odd_metrics: dict[str, str] = {}  # metrics that are not finite, moved here by the controller: "nan", "inf", "-inf"
    resizes: tuple[Resize, ...] = ()  # the last few
    note: str = ""  # reason why the worker is broken, for people
    news: str = ""  # the worker's latest entry in its job's events, for people
    saving_s: float = 0.0  # duration of the last checkpoint; before the first one, an estimate
    longest_step_s: float = 0.0  # longest recent time between two steps, the script's own code included; 0: unknown
    saved: int | None = None  # step of the newest durable checkpoint that this worker has written or loaded
    saved_generation: int = 0  # generation of that checkpoint: the lineage of the greatest one continues
    saved_file: str = ""  # path of that checkpoint, if this worker has written it
    save_failures: int = 0  # failed attempts to save the state of its job, which is preempted
    unheard: tuple[
        WorkerId, ...
    ] = ()  # workers not heard from: on a leader, members of its order; on a member, its leader
    unconnected_s: float = 0.0  # how long repeated attempts to connect to the others have failed; 0: connected
    # How long the worker has waited for data from other members beyond the expected time; 0: it does not wait.
    waits_s: float = 0.0
    # Samples of a global step, all virtual workers together; 0: the script has not reported it yet
    batch_samples: int = 0
    batch_changes: tuple[BatchChange, ...] = ()  # all changes of the job's batch
    batch_ceiling: int = 0  # the greatest factor that the cluster may ask for; 0: it may ask for none
    stragglers: tuple[Straggler, ...] = ()  # on a leader: slow members of its generation, the slowest first
    paces: dict[
        WorkerId, float
    ] = {}  # on a leader: times of members for one virtual worker, relative to the usual one; not: 1
    exchange_s: float = (
        0.0  # median time of a step's exchange between the workers, without waiting for slower ones; 0: unknown
    )
    # `determinism: heterogeneous`: all operators of its script have one algorithm on all hardware (`worker.operators`)
    hardware_agnostic: bool | None = None  # None: not known yet
