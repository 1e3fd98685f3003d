"""The values that everyone agrees on: jobs, servers, GPUs, shares, rosters. All frozen.

Units stand last in names (``_s`` seconds, ``_bytes``). Steps are counted from 0; ``applied`` is the number of the last
optimizer update that a worker has applied (``-1``: it holds the initial state; ``None``: it holds no state at all).
"""

from __future__ import annotations

import enum
import re
from typing import NewType

import msgspec

from .limits import COMPARE_EVERY
from .times import LOAD_TIMEOUT_S, PAUSE_TIMEOUT_S, START_TIMEOUT_S

JobId = NewType("JobId", str)  # "digits-3": the job's name and a number that the cluster never uses again
ServerId = NewType("ServerId", str)  # a server's name, unique in the cluster
WorkerId = NewType("WorkerId", str)  # "digits-3.5": job and a number that the job never uses again

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def job_number(job: JobId) -> int:
    """The number at the end of a job's id; 0: there is none."""
    return _number(job.rpartition("-")[2])


def worker_number(worker: WorkerId) -> int:
    """The number at the end of a worker's id; 0: it is the first, or there is none."""
    return _number(worker.rpartition(".")[2])


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


CAPTURED_VARIABLES = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "LANG", "USER")
"""What of the submitter's environment travels with a job; everything else a job needs stands in its file."""


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all values. Unknown fields are ignored on decoding, so that versions can be mixed during an upgrade."""


class GpuKind(enum.Enum):
    """What a worker computes on."""

    CUDA = "cuda"
    CPU = "cpu"  # a CPU slot; or a GPU whose agent is configured to let workers compute on the CPU, for tries


class GpuPlace(Value, frozen=True, kw_only=True):
    """Where a GPU sits in its server, as far as its agent knows. `topology.link` says what lies between two of them.

    Numbers compare only within a server: two GPUs with the same one hang on the same thing.
    """

    socket: int | None = None  # a processor with memory of its own: a NUMA node
    switch: int | None = (
        None  # between these GPUs there are only PCIe switches; a number of its own for a GPU without any
    )
    nvlinks: tuple[int, ...] = ()  # indices of the GPUs that NVLink reaches, directly or through NVSwitches
    rack: str = ""  # of its server; told in rosters alone (an agent tells `Server.rack`)


class Gpu(Value, frozen=True, kw_only=True):
    """One place where a worker can run."""

    index: int  # on its server, from 0; a CUDA GPU keeps the one that it was given first
    kind: GpuKind  # what a worker there computes on
    name: str  # "NVIDIA A100-SXM4-40GB", "CPU slot"
    uuid: str = ""
    memory_bytes: int = 0
    place: GpuPlace = GpuPlace()
    port: int = 0  # its agent keeps it free for the first process of a gang, if that has this GPU; 0: none


class NvLinks(Value, frozen=True, kw_only=True):
    """The NVLinks of a GPU that have the same at their other ends."""

    count: int
    peer: int | None = None  # index of a GPU; None: NVSwitches, which all GPUs with such links share
    bytes_per_s: float = 0.0  # of all of them together, in one direction; 0: not told


class GpuWiring(Value, frozen=True, kw_only=True):
    """How a GPU is plugged in, as far as driver and kernel tell: for people, and for who wants to know more than its place."""

    index: int
    pci: str = ""  # "0000:07:00.0"
    above: tuple[
        str, ...
    ] = ()  # the PCI devices between it and the processor: host bridge, root port, ends of switches
    node: int | None = None  # NUMA node
    cpus: str = ""  # the processors near it: "0-15,64-79"
    pcie: str = ""  # "4.0 x16": the fastest that the GPU and its slot can do
    pcie_bytes_per_s: float = 0.0  # of that, in one direction; 0: not told
    nvlinks: tuple[NvLinks, ...] = ()
    peers: tuple[int, ...] | None = None  # the GPUs whose memory it reads directly (P2P); None: not told
    parent: str = ""  # UUID of the GPU that it is a part of (MIG); "": it is a whole one


class Nic(Value, frozen=True, kw_only=True):
    """A network card of a server."""

    name: str  # of its interface: "eth0", "ib0"
    pci: str = ""
    above: tuple[str, ...] = ()
    node: int | None = None
    bytes_per_s: float = 0.0  # in one direction; 0: not told, or no cable


class Adapter(Value, frozen=True, kw_only=True):
    """A port of an InfiniBand or RoCE adapter."""

    name: str  # "mlx5_0:1"
    link_layer: str = ""  # "InfiniBand", "Ethernet"
    state: str = ""  # "ACTIVE", "DOWN"
    bytes_per_s: float = 0.0


class Wiring(Value, frozen=True, kw_only=True):
    """What hangs where in a server."""

    gpus: tuple[GpuWiring, ...] = ()
    nics: tuple[Nic, ...] = ()
    driver: str = ""  # version of the GPUs' driver
    adapters: tuple[Adapter, ...] | None = None  # None: an earlier agent, which does not tell


class Severity(enum.Enum):
    """What a trouble means for the work on a GPU or a server."""

    NOTE = "note"  # it is shown, nothing more
    NO_NEW_WORK = "no-new-work"  # nothing new is started there; what runs there goes on
    MOVE_AWAY = "move-away"  # likewise, and what runs there and still computes is moved to other GPUs
    STOP = "stop"  # likewise, and what cannot be moved is stopped: the GPU is gone, or what it computes may be wrong

    @property
    def bars(self) -> bool:
        """Is nothing new started there?"""
        return self is not Severity.NOTE

    @property
    def moves(self) -> bool:
        """Is what runs there moved to other GPUs?"""
        return self in (Severity.MOVE_AWAY, Severity.STOP)


class CordonKind(enum.Enum):
    """What becomes of the work on a server, or a GPU, on which an operator wants nothing new."""

    CORDON = "cordon"  # it goes on
    DRAIN = "drain"  # it is moved to other GPUs, as far as that leaves no job without any
    DRAIN_BY_PREEMPTING = "drain-by-preempting"  # likewise, and jobs for which no GPU is left save their state and wait

    @property
    def drains(self) -> bool:
        """Is the work there to go?"""
        return self is not CordonKind.CORDON


class Trouble(Value, frozen=True, kw_only=True):
    """Something that is wrong with a GPU or with a whole server, as its agent has found."""

    code: str  # "xid-79", "gpu-lost", "no-driver", "disk-full": what it is, for programs
    severity: Severity
    text: str  # a sentence for people, with what mends it
    gpu: int | None = None  # index on its server; None: the whole server
    since_s: float = 0.0  # Unix time


class GpuAddress(Value, frozen=True, kw_only=True, order=True):
    """Which GPU of the cluster."""

    server: ServerId
    index: int

    def __str__(self) -> str:
        return f"{self.server}:{self.index}"


def held_gpus(gpu: GpuAddress, indices: tuple[int, ...]) -> tuple[GpuAddress, ...]:
    """All GPUs of a worker's process: these of the server of `gpu`, or `gpu` alone."""
    return tuple([GpuAddress(server=gpu.server, index=index) for index in indices]) if indices else (gpu,)


class Storage(Value, frozen=True, kw_only=True):
    """A directory, and what it lies on. Two servers see the same one if `place` is the same."""

    path: str
    kind: str = ""  # of the file system: "nfs4", "ext4"; "": it has not answered
    place: str = ""  # "nas:/data/checkpoints"; on a disk of the server's own it holds this boot of the machine
    shared: bool = False  # other machines can have it, too


class Server(Value, frozen=True, kw_only=True):
    """What an agent reports of its server."""

    server: ServerId
    address: str  # where its workers listen for each other: an IP address
    gpus: tuple[Gpu, ...]
    cpu_cores: int = 0
    memory_bytes: int = 0
    version: str = ""
    rack: str = ""  # from the agent's configuration: servers of one rack share a network switch; "": not told
    wiring: Wiring = Wiring()
    checkpoints: Storage | None = None  # None: not told


class GpuRange(Value, frozen=True, kw_only=True):
    """How many GPUs a job can use."""

    min: int
    max: int


class CheckpointSpec(Value, frozen=True, kw_only=True):
    """When checkpoints are written and how many are kept."""

    every_s: float = 600.0
    keep: int = 2
    save_timeout_s: float | None = None  # for the state to be saved before a stop; None: by what steps and saving took


class Determinism(enum.Enum):
    """How far the result is independent of where and on how many GPUs the job runs (EasyScale 3.3, D0 to D2)."""

    NONE = "none"
    STATIC = "static"
    ELASTIC = "elastic"
    HETEROGENEOUS = "heterogeneous"


class OnDivergence(enum.Enum):
    """What becomes of a worker whose training state differs from that of the others."""

    REPLACE = "replace"  # it is replaced where most workers agree; else the job fails
    FAIL = "fail"  # the job fails


class Processes(enum.Enum):
    """How many processes run a job's command."""

    PER_GPU = "per-gpu"  # one for each GPU: what `elastic.join()` and most distributed scripts expect
    PER_SERVER = "per-server"  # one for each server, which sees all of the job's GPUs there: torchrun and its like


class Deadline(Value, frozen=True, kw_only=True):
    """When a job is to be over: one of the two times is told."""

    at_s: float | None = None  # Unix time
    in_s: float | None = None  # from its submission on
    soft: bool = False  # rather late than refused (ElasticFlow 4.4)

    def of(self, submitted_s: float) -> float:
        """Unix time (s) for a job that was submitted then."""
        return self.at_s if self.at_s is not None else submitted_s + (self.in_s or 0.0)


class Until(Value, frozen=True, kw_only=True):
    """A job trains until a figure that its script reports is so much. The script ends by itself: this tells how long it is."""

    metric: str  # as `run.report` names it
    bound: float
    at_least: bool = True  # else at most

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.at_least else '<='} {self.bound:g}"


class Snapshot(Value, frozen=True, kw_only=True):
    """What the packed files of a working directory are known by (`protocol.snapshots`)."""

    digest: str  # SHA-256, in hex
    bytes: int  # packed


class ResumeFrom(Value, frozen=True, kw_only=True):
    """The checkpoint that a new job begins with: that of a job which is over, or one in a directory."""

    job: JobId = JobId("")
    uid: str = ""  # of that job, as the controller knows it
    directory: str = ""  # of checkpoints, if it is no job of this cluster
    step: int = 0  # the newest one there contains the state after this step
    any_code: bool = False  # though it was trained with other code or data
    gpu_name: str = ""  # of the GPUs that it was trained on, whose type it stays with; "": whatever comes
    seeds: str = ""  # what names the seeds that a script has before `elastic.join()`: the first job of all that went on


class JobSpec(Value, frozen=True, kw_only=True):
    """What a user asks for. Validated where it enters the system (``elasticctl`` and again the controller)."""

    name: str
    command: tuple[str, ...]  # argv; no shell
    gpus: GpuRange
    virtual_workers: int  # N: what the result depends on
    workdir: str
    env: dict[str, str] = {}
    max_steps: int | None = None
    until: Until | None = None
    deadline: Deadline | None = None  # None: as soon as it can be had
    checkpoint: CheckpointSpec = CheckpointSpec()
    determinism: Determinism = Determinism.ELASTIC
    compare_every: int = COMPARE_EVERY  # in one of so many steps each element of the workers' states is compared
    on_divergence: OnDivergence = OnDivergence.REPLACE
    priority: int = 0  # greater goes first where a policy looks at it
    model: str = ""  # as the tables of throughputs call it; jobs of one model and command are of one kind
    throughput: dict[int, float] = {}  # steps per second by share, as far as the user knows them
    user: str = ""
    start_timeout_s: float = START_TIMEOUT_S  # from a worker's start to its `elastic.join()`
    load_timeout_s: float = LOAD_TIMEOUT_S  # from there to its training loop: model, data
    step_timeout_s: float | None = None  # for a worker's own part of a step; None: by what its parts took so far
    pause_timeout_s: float = PAUSE_TIMEOUT_S  # for the script's own code between two steps
    processes: Processes = Processes.PER_GPU
    gpus_per_server: int | None = None  # exactly so many on each of its servers; None: as they come
    gpu_types: tuple[str, ...] = ()  # it runs only on GPUs whose name has one of these words in it; empty: on any
    gpu_memory_bytes: int = 0  # each of its GPUs has so much at least
    snapshot: Snapshot | None = None  # it runs in a copy of these files; None: in `workdir` itself
    resume: ResumeFrom | None = None  # it goes on from there; None: it begins anew
    # As long as no worker of it has called `elastic.join()`:
    restarts: int | None = None  # so often its command may be run again from the start; None: as often as it takes
    must_join: bool = False  # `start_timeout_s` counts, since its user has set it; else a command may run for ever

    @property
    def expected_to_join(self) -> bool:
        """Does it look like a job that calls `elastic.join()`? It has asked for a range, or its script imports the library."""
        one_each = self.processes is Processes.PER_GPU
        return one_each and (self.restarts is None or self.gpus.min < self.gpus.max)


class JobPhase(enum.Enum):
    """Where a job is in its life. FINISHED, FAILED and CANCELLED are final."""

    PENDING = "pending"  # has no workers
    STARTING = "starting"  # has workers ordered, none has trained yet
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED)


class Member(Value, frozen=True, kw_only=True):
    """A worker's place in a roster."""

    worker: WorkerId
    gpu: GpuAddress
    place: GpuPlace = GpuPlace()  # of that GPU
    gpus: tuple[int, ...] = ()  # of its server, where one process has several of them; empty: `gpu` alone

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
        return tuple([member.worker for member in self.members])  # asked for with each status

    def rank(self, worker: WorkerId) -> int:
        """Rank of `worker`. Raises ValueError if it is not in the roster."""
        return self.workers.index(worker)


class WorkerPhase(enum.Enum):
    """Where a worker is in its life, as it reports itself."""

    STARTING = "starting"  # imports, model, data
    READY = "ready"  # prepared, waits for its first generation
    TRAINING = "training"
    BROKEN = "broken"  # its communicator failed; it keeps its state and waits for the next order
    LEFT = "left"  # no longer in the roster: ends by itself
    FINISHED = "finished"  # the training loop is over; the script's last lines run

    @property
    def may_have_state(self) -> bool:
        """Does a worker take part in the training, so that the job can go on from what it has?"""
        return self in (WorkerPhase.TRAINING, WorkerPhase.BROKEN)

    @property
    def over(self) -> bool:
        """Has it nothing more to do with the training?"""
        return self in (WorkerPhase.LEFT, WorkerPhase.FINISHED)


class GpuSeconds(Value, frozen=True, kw_only=True):
    """What GPUs were held for, in GPU-seconds (docs/accounting.md). Each one that was held stands in one of the columns."""

    used_gpu_s: float = 0.0  # a worker trained; of a plain command: it ran
    idle_gpu_s: float = (
        0.0  # held without that: starting, loading, saving, waiting, kept for a job that is being measured
    )
    paused_gpu_s: float = 0.0  # stood still in a resize
    lost_gpu_s: float = 0.0  # was void after a restart, or a worker ended before it had trained

    @property
    def held_gpu_s(self) -> float:
        """All of them."""
        return self.used_gpu_s + self.idle_gpu_s + self.paused_gpu_s + self.lost_gpu_s


class Fault(enum.Enum):
    """Whose fault the end of a worker's process is. Only the script's counts against the job."""

    NONE = "none"  # it ended as it should: it had finished, or had left the roster
    SCRIPT = "script"  # exit code above 0, or an end in the middle of the training
    SERVER = "server"  # the agent could not start it, or it could not work there: a full disk, no memory, no checkpoint
    LOST = "lost"  # with its server, or with all that the agent knew of it
    STOPPED = "stopped"  # the cluster wanted it to end
    SILENT = "silent"  # it had not spoken, or not moved, for too long: its agent or it itself ended it
    KILLED = "killed"  # nobody here wanted it: too little memory, a crash, an operator, no connection to its fellows


class Resize(Value, frozen=True, kw_only=True):
    """What one switch of generations cost, as its leader measured it (worker-runtime 4)."""

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
        """How long training stood still: the longest gap, less the time that a step takes anyway on the fewer workers."""
        return max(0.0, self.longest_gap_s - max(self.median_step_s, self.median_step_after_s))


class Steady(Value, frozen=True, kw_only=True):
    """The pace of a generation: the median time of its last steps, less the switch itself. What the scheduler measures by."""

    generation: int = 0  # 0: nothing is known yet
    step_s: float = 0.0
    steps: int = 0  # of so many


class WorkerStatus(Value, frozen=True, kw_only=True):
    """All that a worker tells about itself. Sent when something changes and at every heartbeat: the newest one is the truth."""

    job: JobId
    worker: WorkerId
    pid: int
    address: str  # of its control socket, for followers: "tcp://127.0.0.1:43117"
    phase: WorkerPhase
    generation: int  # committed; 0 before the first
    order: int  # newest order seen; 0 before the first
    floor: int  # it will never propose a generation below this one that is not committed yet
    applied: int | None
    sequence: int  # grows with every status of this worker
    epoch: int = 0
    total_steps: int | None = None
    samples_per_s: float = 0.0
    median_step_s: float = 0.0
    steady: Steady = Steady()
    metrics: dict[str, float] = {}
    odd_metrics: dict[str, str] = {}  # the controller puts here those that are not finite: "nan", "inf", "-inf"
    resizes: tuple[Resize, ...] = ()  # the last few
    note: str = ""  # why it is broken, for people
    news: str = ""  # the last thing that it has told its job's events, for people
    saving_s: float = 0.0  # how long the last checkpoint took; before the first one, how long it is taken to last
    longest_step_s: float = 0.0  # lately between two steps, what the script did there included; 0: not known yet
    saved: int | None = None  # step of the newest durable checkpoint that it has written or loaded
    saved_generation: int = 0  # that it belongs to: the lineage of the greatest goes on
    saved_file: str = ""  # its path, if this worker has written it
    save_failures: int = 0  # so often it has tried in vain to save the state of its job, which is preempted
    unheard: tuple[
        WorkerId, ...
    ] = ()  # of whom it hears nothing: a leader, of members of its order; a member, of the leader
    unconnected_s: float = 0.0  # for so long it could not connect to the others, though it tried again; 0: it could
    # For so long it has waited for what others of its generation are to send: longer than that should take; 0: it has not.
    waits_s: float = 0.0
    batch_samples: int = 0  # of a global step, all virtual workers together; 0: the script has not said yet
