"""A server: its agent's process, its disk and its workers' processes. The agent's state machine is the product's."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, assert_never

import msgspec

from elasticd.agent.adoption import ExitRecord, Found, Record, adopt
from elasticd.agent.events import (
    Action,
    AgentTick,
    CommandExchanged,
    ControllerMessage,
    Event,
    ExchangeCommand,
    ForgetWorker,
    HealthChanged,
    HelloNotSent,
    IdentityWritten,
    KeepIdentity,
    LogRead,
    ProcessExited,
    ProcessFailed,
    ProcessStarted,
    ReadLogPiece,
    SendController,
    SendWorker,
    SignalProcess,
    Started,
    StartProcess,
    StopSignal,
    TakeSnapshotPart,
    UseSampled,
    Warn,
    WarnProcess,
    WorkerStatusReceived,
)
from elasticd.agent.identity import Identity
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.messages import (
    AgentHello,
    CommandOutput,
    LogPiece,
    Order,
    StartWorker,
    ToAgentFromController,
    WorkerUse,
    session_name,
)
from elasticd.protocol.model import (
    Allocatable,
    Gpu,
    GpuAddress,
    GpuKind,
    JobId,
    Server,
    ServerId,
    Trouble,
    Use,
    WorkerId,
    WorkerStatus,
    job_number,
)

from . import doubles
from .ground import Ground
from .operations import PROCESS, Crashed
from .plan import Moment
from .process import Process, State
from .violation import Violation
from .worker import Worker

T = TypeVar("T")

START_S = 0.05  # to start a process
NOTICE_S = 0.002  # until an agent notices that a process has ended
HANG_LOOK_S = 0.5  # between two checks whether a file system still hangs
SAMPLED_EACH_S = 0.3
IDLE_STRETCH_S = 40.0  # in which the GPUs of a job either compute or do nothing
RESTART_S = 3.0  # until systemd restarts an agent that has crashed
KEPT_WORDS = 10_000  # statuses of workers, buffered while their agent is away


@dataclass
class _Record:
    """The durable record of a worker on the server's disk."""

    start: StartWorker
    begun: bool = False  # False: the start is recorded, no process has run yet
    end: tuple[int | None, str] | None = None

    def found(self, runs: bool) -> Found:
        """Return the view of a restarting agent. Simulated shims never end before their workers."""
        start = self.start
        shim, worker = (1, 2) if self.begun else (None, None)
        record = Record(
            start.job, start.worker, start.gpu, start.spec.command, start.uid, shim, shim, worker, worker, "boot",
            gpus=start.gpus,
        )  # fmt: skip
        end = ExitRecord(*self.end) if self.end is not None else None
        return Found(record, same_boot=True, shim_runs=runs, worker_runs=runs, end=end)


class Agent(Process):
    """One server with its agent."""

    def __init__(
        self, world: Ground, name: str, server: str, gpus: int, identity: str, kind: str = "", cores: int = 0
    ) -> None:
        """`server`: the agent's name in the protocol; `name`: the simulation's name of this machine; `kind`: the model of its
        GPUs, empty: CPU slots. `cores`: and as many GiB of memory, that it tells of; 0: none.
        """
        super().__init__(world, name, name)
        self._world = world
        self.gpu_name = kind or "CPU slot"
        slots = tuple(Gpu(index=i, kind=GpuKind.CPU, name=self.gpu_name) for i in range(gpus))
        there = Allocatable(cpus=float(cores), memory_bytes=cores << 30) if cores else None
        self.server = Server(server=ServerId(server), address="127.0.0.1", gpus=slots, allocatable=there)
        self.record = Identity(agent=identity, start=0)  # on the server's disk
        self.workers: dict[WorkerId, Worker] = {}
        self.powered = True
        self.disk_full = False
        self.black_hole = False
        self.storage_hidden = False  # checkpoint directories are not visible on this server
        self.storage_hangs = False  # reads and writes never return on this server
        self.clock_of_new_s = 0.0  # clock offset that processes started from now on read once
        self._troubled_until = 0.0
        self.troubles: tuple[Trouble, ...] = ()
        self._disk: dict[tuple[str, WorkerId], _Record] = {}  # by uid and worker
        # start times (s) of starts that have been ordered and have not finished
        self._starting: dict[WorkerId, float] = {}
        self.session = ""  # the session that the newest hello asks for
        self._heard: dict[JobId, Order] = {}  # the newest order of each job
        self._words: list[WorkerStatus] = []  # statuses of workers, sent while the agent was away
        self._kept_term = 0  # the highest term that is written to disk
        self.highest_term = 0  # the highest term heard since the start, or read from disk at it
        self._sample_at = 0.0  # when its workers' use is sampled next
        self._unwritten: Identity | None = None  # an identity that waits for a hanging file system
        self._kept_in_vain = False  # the last attempt to write the identity failed
        self._doubles = random.Random(f"{world.seed}/doubles/{name}")
        self._machine: AgentMachine

    def boot(self) -> None:
        """Start the agent, unless it runs or its server is off."""
        if self.alive or not self.powered:
            return
        self.born()
        self.clock_ahead_s = self.clock_of_new_s
        self._starting.clear()
        self._heard.clear()
        self._unwritten, self.highest_term = None, self._kept_term
        who = msgspec.structs.replace(self.record, start=self.record.start + 1)
        self._machine = AgentMachine(self.server, f"{self.name}.{self.life}", 1.0, 10.0, who, self.troubles)
        found = adopt(record.found(self._runs(*name)) for name, record in sorted(self._disk.items()))
        self._world.story.say(f"agent {self.name} starts, finds {len(found.running)} workers")
        self._dispatch(Started(found.running, found.exited))
        if self.state is not State.RUNNING:
            return
        words, self._words = self._words, []
        for status in words:
            self.later(0.01, self.from_worker, status)
        self.settle()

    @property
    def identity(self) -> str:
        return self.record.agent

    def _runs(self, uid: str, worker: WorkerId) -> bool:
        return worker in self.workers and self.workers[worker].uid == uid

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the agent's tables."""
        return self._machine.sizes

    def deadline(self) -> float | None:
        return self._machine.next_deadline()

    def turn(self) -> None:
        if self.timeline.now >= self._sample_at:
            self._sample_at = self.timeline.now + SAMPLED_EACH_S
            self._dispatch(UseSampled(tuple(self._use_of(name, worker) for name, worker in self.workers.items())))
        self._dispatch(AgentTick())

    def _use_of(self, name: WorkerId, worker: Worker) -> WorkerUse:
        """Return a worker's use. A job's GPUs are idle for some stretches of time, the same on all servers."""
        now = self.timeline.now
        idle_s = now % IDLE_STRETCH_S
        chance = random.Random(f"{self._world.seed}/idle/{worker.job}/{now // IDLE_STRETCH_S}").random()
        use = Use(gpu_s=now, busy_gpu_s=now / 2, cpu_s=now, wall_s=now)
        return WorkerUse(worker=name, uid=worker.uid, use=use, idle_s=idle_s if chance < self._world.plan.idle else 0.0)

    def go_on(self, life: int) -> None:
        if self.state is State.STOPPED:  # a stopped agent does not watch its starts
            self._starting = dict.fromkeys(self._starting, self.timeline.now)
        super().go_on(life)
        self._tell_troubles()

    def hanging(self, patience_s: float) -> int:
        """Number of starts that have taken longer than `patience_s`."""
        return sum(self.timeline.now - since > patience_s for since in self._starting.values())

    # -- events in

    def from_controller(self, message: ToAgentFromController, term: int) -> None:
        if term < self.highest_term:
            self._refuses(message, term)
            return
        self.highest_term = term
        if not self.disk_full and not self.storage_hangs:
            self._kept_term = term
        if isinstance(message, Order):
            heard = self._heard.get(message.job)
            if heard is None or heard.uid != message.uid or heard.roster.generation < message.roster.generation:
                self._heard[message.job] = message
        self._dispatch(ControllerMessage(message, term))

    def _refuses(self, message: ToAgentFromController, term: int) -> None:
        """Check that the agent answers a message of a deposed controller with a warning, and does nothing else."""
        sizes = self.sizes
        actions = self._machine.handle(self.now, ControllerMessage(message, term))
        done = [type(action).__name__ for action in actions if not isinstance(action, Warn)]
        if done or self.sizes != sizes:
            what = f"{type(message).__name__} of term {term}"
            text = f"{what} reaches {self.name}, which has heard of term {self.highest_term}: {', '.join(done)}"
            raise Violation("a reign that is over is not obeyed", text)
        for action in actions:
            self._perform(action)

    def from_worker(self, status: WorkerStatus) -> None:
        self._dispatch(WorkerStatusReceived(status))
        if self.state is State.RUNNING and self._doubles.random() < self._world.network.weather.copies:
            again = WorkerStatusReceived(doubles.other_contents(status))
            doubles.heard_again(self.name, status, self._machine.handle(self.now, again))

    def hear(self, worker: Worker, status: WorkerStatus) -> None:
        """Receive a worker's status; while the agent is away, the socket buffers it."""
        if self.alive:
            self._world.network.send(worker, self, self.from_worker, status)
        elif len(self._words) < KEPT_WORDS:
            self._words.append(status)

    # -- actions out

    def _dispatch(self, event: Event) -> None:
        events = deque([event])
        try:
            while events:
                for action in self._machine.handle(self.now, events.popleft()):
                    follows = self._perform(action)
                    if follows is not None:
                        events.append(follows)
        except Crashed:
            self._crash()

    def _durably(self, what: str, act: Callable[[], T]) -> T:
        """Make a durable change. Raises Crashed if the plan kills the process at this operation."""
        operations = self._world.operations
        return act() if operations is None else operations.run(self.name, what, PROCESS, act)

    def _crash(self) -> None:
        self._world.story.say(f"agent {self.name} dies")
        self.die()
        self._world.after(RESTART_S, self.boot)

    def _perform(self, action: Action) -> Event | None:
        match action:
            case SendController(message):
                sent = self._world.to_controller(self, self.server.server, message, self.identity)
                if isinstance(message, AgentHello):
                    self.session = session_name(message.incarnation, message.number)
                    self._world.moment(Moment.HELLO)
                    return None if sent else HelloNotSent()
            case SendWorker(worker, word):
                if isinstance(word, Order):
                    self._world.oracle.passed_on(self.name, word, self._heard.get(word.job, word))
                target = self.workers.get(worker)
                if target is not None:
                    self._world.network.send(self, target, target.from_agent, word)
            case StartProcess(start):
                self._check_written(start)
                self._starting[start.worker] = self.timeline.now
                for index in start.gpus or (start.gpu,):
                    self._world.oracle.start_asked(f"{self.host}/{index}", start.worker)
                self.later(START_S * (0.2 + self.chance.random()), self._start, start)
            case SignalProcess(worker, how):
                self._signal(worker, how)
            case WarnProcess():
                pass
            case ForgetWorker(_, worker, uid):
                self._durably(f"forgets {worker}", lambda: self._disk.pop((uid, worker), None))
            case ReadLogPiece(request):
                return LogRead(LogPiece(request=request.request, data=b"", next_offset=request.offset, end=True))
            case ExchangeCommand(request):
                return CommandExchanged(CommandOutput(request=request.request, error="no command runs in this world"))
            case TakeSnapshotPart():
                raise AssertionError("no job of this world has a snapshot")
            case KeepIdentity(who):
                self._kept_in_vain = self.disk_full or self.storage_hangs or self._unwritten is not None
                if not self.storage_hangs and self._unwritten is None:
                    return self._keep(who)
                if self._unwritten is None:
                    self.later(HANG_LOOK_S, self._keep_later)
                self._unwritten = who
            case Warn(text):
                self._world.story.say(f"agent {self.name} warns: {text}")
            case _:
                assert_never(action)
        return None

    def _keep(self, who: Identity) -> IdentityWritten:
        if self.disk_full:
            return IdentityWritten("identity.json cannot be written: No space left on device")
        self._durably("writes its identity", lambda: self._become(who))
        return IdentityWritten()

    def _become(self, who: Identity) -> None:
        self.record = who

    def _keep_later(self) -> None:
        if self.storage_hangs:
            self.later(HANG_LOOK_S, self._keep_later)
        elif self._unwritten is not None:
            who, self._unwritten = self._unwritten, None
            try:
                written = self._keep(who)
            except Crashed:
                self._crash()
            else:
                self._dispatch(written)

    # -- processes

    def _check_written(self, start: StartWorker) -> None:
        """Before a worker starts, the disk must hold all that a restarted agent needs to know of it."""
        known = self.record
        if not self._kept_in_vain and (known.highest_job < job_number(start.job) or known.term < self.highest_term):
            text = f"{self.name} starts {start.worker}, and has written down job {known.highest_job}, term {known.term}"
            raise Violation("an agent writes down what it has been told before it acts", text)

    def _signal(self, worker: WorkerId, how: StopSignal) -> None:
        if worker in self._starting:  # starts and stops of one worker are serialized
            self.later(START_S, self._signal, worker, how)
        elif worker in self.workers:
            self.workers[worker].signalled(how)

    def _start(self, start: StartWorker) -> None:
        if self.storage_hangs:
            self.later(HANG_LOOK_S, self._start, start)
            return
        self._starting.pop(start.worker, None)
        if self.disk_full:
            self._world.oracle.disturbed(start.job)
            self._dispatch(ProcessFailed(start.worker, "cannot be started: [Errno 28] No space left on device"))
            return
        record = _Record(start)
        try:
            self._durably(f"writes the record of {start.worker}", lambda: self._write(record))
            self._durably(f"starts {start.worker}", lambda: self._begin(record))
        except Crashed:
            self._crash()
        else:
            self.later(NOTICE_S, self._dispatch, ProcessStarted(start.worker))

    def _write(self, record: _Record) -> None:
        self._disk[record.start.uid, record.start.worker] = record

    def _begin(self, record: _Record) -> None:
        """Start the process; its shim records it on disk."""
        start, record.begun = record.start, True
        worker = Worker(self._world, self, start)
        self.workers[start.worker] = worker
        self._world.oracle.process_started(worker.devices, start.worker, self.gpu_name)
        if self.timeline.now <= self._troubled_until:
            self._world.oracle.disturbed(start.job, self._troubled_until - self.timeline.now)
            self._world.oracle.hit(start.worker, self._troubled_until - self.timeline.now)
        worker.born()
        worker.slow, worker.clock_ahead_s = self.slow, self.clock_of_new_s
        if self.black_hole:
            worker.later(0.3, worker.exits, 1, "exit code 1: RuntimeError: no driver")
        else:
            worker.begin()

    def process_ended(self, worker: Worker, code: int | None, reason: str) -> None:
        """End a worker's process. The agent notices now, or when it runs again."""
        name = WorkerId(worker.name)
        del self.workers[name]
        self._world.oracle.process_ended(worker.devices, name, code)
        record = self._disk.get((worker.uid, name))
        if record is not None:
            record.end = (code, reason)
        if self.alive:
            self.later(NOTICE_S, self._dispatch, ProcessExited(name, code, reason))

    # -- faults of the server

    def trouble(self, for_s: float) -> None:
        """Note for the oracle: a fault hits this server, so its jobs, and jobs placed here during `for_s`, may have to repeat
        steps.
        """
        self._troubled_until = max(self._troubled_until, self.timeline.now + for_s)
        self._world.oracle.hit(self.name, for_s)
        for worker in self.workers.values():
            self._world.oracle.disturbed(worker.job, for_s)
            self._world.oracle.hit(worker.name, for_s)

    def begin_trouble(self, trouble: Trouble) -> None:
        """Report a hardware trouble as soon as the agent runs."""
        self.troubles = (*self.troubles, trouble)
        self._tell_troubles()

    def end_trouble(self, trouble: Trouble) -> None:
        self.troubles = tuple(other for other in self.troubles if other != trouble)
        self._tell_troubles()

    def _tell_troubles(self) -> None:
        if self.state is State.RUNNING:
            self._dispatch(HealthChanged(self.troubles))
            if self.state is State.RUNNING:
                self.settle()

    def power_off(self) -> None:
        """Power off: all processes of the server end without resetting their connections."""
        self.powered = False
        self.die()
        self._words.clear()
        for worker in list(self.workers.values()):
            worker.vanishes()
            self._world.oracle.process_ended(worker.devices, WorkerId(worker.name), None)
        self.workers.clear()

    def power_on(self) -> None:
        self.powered = True
        self.boot()

    def empty_disk(self) -> None:
        self.disk_full = False

    def close_black_hole(self) -> None:
        self.black_hole = False

    def show_storage(self) -> None:
        self.storage_hidden = False

    def free_storage(self) -> None:
        self.storage_hangs = False

    def slow_down(self, factor: float) -> None:
        self.slow = factor
        for worker in self.workers.values():
            worker.slow = factor

    def gpu(self, index: int) -> GpuAddress:
        return GpuAddress(server=self.server.server, index=index)
