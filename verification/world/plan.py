"""The plan of a history: jobs, faults and requests of users, drawn from a seed before anything begins.

The plan uses no random stream of the simulation itself, so that entries can be left out one by one while the rest stays the same.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

from elasticd.protocol.model import JobSpec

STORM_S = 600.0  # how long the weather lasts
SLOWER = 8.0  # factor on all durations of a slow server
CONNECT_S = 0.02
PACES = {"Tesla V100-SXM2-16GB": 2.0}  # times of a virtual worker there; other models: 1
TYPES = {"NVIDIA A100-SXM4-40GB": "A100", "Tesla V100-SXM2-16GB": "V100"}  # models, and users' names of them
POLICIES = (
    "max-min", "fifo", "backfill", "elastic-fifo", "elastic-backfill", "srtf", "srsf", "srtf-e", "srsf-e", "optimus",
    "tiresias-l", "elastic-tiresias", "themis", "afs-l", "afs-p", "afs-s", "gandiva", "yarn-cs", "elastic",
)  # fmt: skip


LIMITS: dict[str, Any] = {  # of all jobs; shorter than the defaults, so that histories are short
    "start_timeout_s": 120.0,
    "must_join": True,
    "load_timeout_s": 240.0,
    "step_timeout_s": 60.0,
    "pause_timeout_s": 240.0,
}


class Ending(enum.Enum):
    """How an undisturbed script ends."""

    TRAINS = "trains to its end"
    RAISES = "raises an exception at a step"
    EXITS = "exits with code 0 at a step"
    EXITS_ON_SIGNAL = "trains to its end, and calls sys.exit(0) when it gets SIGTERM"
    NEVER_JOINS = "runs for ever without calling elastic.join()"
    EXITS_UNJOINED = "exits with code 0 without calling elastic.join()"
    OUT_OF_MEMORY = "is killed by the kernel at a step"
    IGNORES_SIGNAL = "trains to its end, and takes no notice of SIGTERM"
    FAILS_UNJOINED = "exits with code 3 without calling elastic.join()"
    UNLIKE = "trains to its end; its newcomers do not compute what the others do"
    MISFITS = "trains to its end; its state fits only every other server"

    @property
    def joins(self) -> bool:
        """Whether the script calls `elastic.join()`."""
        return self not in (Ending.NEVER_JOINS, Ending.EXITS_UNJOINED, Ending.FAILS_UNJOINED)


@dataclass(frozen=True)
class Script:
    """The model of a user's script."""

    steps: int
    step_s: float  # of a step in which one worker hosts all virtual workers
    start_s: float  # imports, model, data
    save_s: float  # to write one checkpoint
    evaluate_every: int = 0  # steps; 0: never
    evaluate_s: float = 0.0
    ending: Ending = Ending.TRAINS
    ends_at: int = 0  # the step at which it raises, exits or runs out of memory
    registers: bool = False  # has registered values
    after_s: float = 0.2  # of code after the training, where that code does not run on the leader only
    odd_metrics: bool = False  # it reports NaN and infinity
    sequential: bool = False  # the number of steps per epoch is unknown until the last step of the epoch
    agrees_every: int = 0  # steps between two collective decisions; 0: never
    agnostic: bool = False  # its operators have one algorithm on all GPU types


@dataclass(frozen=True)
class JobPlan:
    """A user submits a job."""

    at: float  # seconds since the beginning of the history, as all times here
    spec: JobSpec
    script: Script

    def __str__(self) -> str:
        gpus = self.spec.gpus
        script = f"{self.script.steps} steps, {self.script.ending.value}"
        return f"{self.at:8.3f} submit {self.spec.name}: {gpus.min} to {gpus.max} GPUs, {script}"


class Moment(enum.Enum):
    """The moment that a due fault waits for."""

    AT_ONCE = ""
    START = "just after a worker is told to start"
    ORDER = "just after an order is sent"
    STOP = "just after a worker is told to stop"
    SWITCH = "just after a worker has switched to a new generation"
    STEP = "while the sums of a step arrive"
    DECISION = "while the sums of a step arrive that carries a decision"
    END = "just after a job's end is recorded"
    JOIN = "while a joiner receives the state"
    SAVE = "while a checkpoint is written"
    REQUEST = "just after a user has asked for something"
    HELLO = "just after an agent has said hello"
    AGREE = "while a decision that the workers take together arrives"


class Kind(enum.Enum):
    """The kind of a fault. The prefixes `controller`, `agent`, `server`, `worker`, `link` and `user` name the target."""

    KILL_CONTROLLER = "kill controller"
    CRASH_BEFORE_COMMIT = "kill controller before its next commit"
    CRASH_AFTER_COMMIT = "kill controller after its next commit"
    STOP_CONTROLLER = "stop controller"
    ZOMBIE = "stop controller, let another one begin, and let the stopped one go on"
    JUMP_CLOCK = "jump the controller's clock"
    REBOOT_CONTROLLER = "start the controller's machine anew, with a clock that is half an hour ahead"
    JUMP_SERVER_CLOCK = "jump the clock of server, for processes that start from now on"
    TEAR_COMMIT = "let the controller's next commit fail, done or not done"
    FILL_STORE = "fill the controller's disk"
    LOCK_STORE = "lock the controller's store"
    LOSE_STORE = "lose the controller's store"
    RESTORE_STORE = "restore the controller's store from a backup"
    KILL_AGENT = "kill agent"
    STOP_AGENT = "stop agent"
    LOSE_SERVER = "switch server off"
    FILL_SERVER = "fill the server's disk"
    BLACK_HOLE = "let every start fail on server"
    HIDE_STORAGE = "hide all checkpoints from server"
    HANG_STORAGE = "let the file systems of server hang"
    SLOW_SERVER = "slow server down"
    TWIN_AGENT = "start a second agent under the name of server"
    KILL_WORKER = "kill worker"
    KILL_LEAVER = "kill worker that the newest order does not name"
    KILL_JOB = "kill worker and all others of its job"
    KILL_SAVER = "kill worker that is to save the state of a preempted job"
    BREAK_LINK = "let the communicator of worker fail"
    BREAK_BUILD = "let the next communicator of the job of worker fail at one member"
    STOP_WORKER = "stop worker"
    HANG_WORKER = "hang the training thread of worker"
    CUT_IN = "cut what server hears"
    CUT_OUT = "cut what server says"
    CUT_BOTH = "cut server off"
    CUT_PEERS = "cut server off from the other servers alone"
    GPU_NOTED = "let a GPU of server have an error that is only noted"
    GPU_BARRED = "let a GPU of server take no new work"
    GPU_LEFT = "let a GPU of server compute, though it is to be left"
    GPU_DEAD = "let a GPU of server fall off the bus, with who works there"
    SERVER_BARRED = "let server take no new work"
    LYING_TROUBLES = "let the agent of server tell of troubles of GPUs that are not there"
    CORDON = "let an operator cordon a GPU of server"
    DRAIN = "let an operator drain server"
    LEND = "let an operator lend GPUs"
    REMOVE = "let an operator remove server"
    CUT_DATA = "let no data, but messages, get from server to the others and back"
    STRANGER = "let a stranger speak to the controller"
    FORGE = "let somebody take server over, and forge reports"
    SCALE = "scale a job"
    CANCEL = "cancel a job"
    CANCEL_SAVED = "cancel a job, with its state saved"
    CANCEL_IT = "cancel the job that it happens to"
    SET_POLICY = "set policy"
    REQUEUE = "requeue a job"
    GO_ON = "go on from the checkpoint of a job that is over"
    CHECKPOINT = "have a job write a checkpoint"
    PAUSE = "pause a job, and resume it later"
    HOLD = "hold a job, and release it later"


@dataclass(frozen=True)
class Fault:
    """One fault, or one request of a user."""

    at: float
    kind: Kind
    who: int  # selects the target among possible ones; or the share, or the policy
    for_s: float
    moment: Moment = Moment.AT_ONCE

    def __str__(self) -> str:
        lasting = f" for {self.for_s:.1f} s" if self.for_s else ""
        when = f", {self.moment.value}" if self.moment.value else ""
        return f"{self.at:8.3f} {self.kind.value} ({self.who}){lasting}{when}"


class Contract(enum.Enum):
    """The guarantees of the network between servers."""

    TCP = "tcp"  # between two live processes messages stay in order, and only cuts and deaths lose any
    HOSTILE = "hostile"  # messages may be lost, late, duplicated, out of order


@dataclass(frozen=True)
class Weather:
    """Rates of network faults."""

    contract: Contract = Contract.TCP
    loss: float = 0.0  # per message
    peer_losses: tuple[float, ...] = (0.0,)  # among the workers of a job: one of these is drawn for each history
    late: float = 0.0
    copies: float = 0.0
    faults: int = 0
    without: frozenset[Kind] = frozenset()


WEATHERS: dict[str, Weather] = {
    "calm": Weather(),
    "tcp": Weather(faults=30),
    "hostile": Weather(
        Contract.HOSTILE, loss=0.02, peer_losses=(0.02, 0.02, 0.1, 0.3), late=0.02, copies=0.02, faults=30
    ),
}


@dataclass(frozen=True)
class Plan:
    """The drawn entries and parameters of a history."""

    seed: int
    weather: Weather = WEATHERS["calm"]
    servers: int = 3
    gpus: int = 4
    policy: str = "max-min"
    jobs: tuple[JobPlan, ...] = ()
    faults: tuple[Fault, ...] = ()
    storm_s: float = STORM_S
    peer_loss: float = 0.0  # loss rate of messages among the workers of a job
    clocks_ahead_s: tuple[float, ...] = ()  # offsets of the servers' clocks at the beginning; empty: none
    connect_s: float = CONNECT_S  # until the members of a communicator are connected
    types: tuple[str, ...] = ()  # GPU model of each server; empty: all have CPU slots
    cores: int = 0  # of each server, with as many GiB of memory; 0: its agent does not tell
    users: tuple[str, ...] = ()  # besides an operator; empty: only the administrator
    idle: float = 0.0  # part of the time in which the GPUs of a job do nothing, by the reports of agents

    @property
    def entries(self) -> tuple[JobPlan | Fault, ...]:
        """The entries that can be left out, in a stated order: jobs, then faults."""
        return (*self.jobs, *self.faults)

    def keep(self, kept: frozenset[int]) -> Plan:
        """Return the plan with only these entries."""
        jobs = tuple(job for i, job in enumerate(self.jobs) if i in kept)
        faults = tuple(fault for i, fault in enumerate(self.faults, len(self.jobs)) if i in kept)
        return replace(self, jobs=jobs, faults=faults)
