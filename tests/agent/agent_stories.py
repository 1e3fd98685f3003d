"""An agent's state machine with a clock, for tests."""

from __future__ import annotations

import msgspec

from elasticd.agent.events import (
    Action,
    AgentTick,
    ControllerMessage,
    Event,
    SendController,
    SendWorker,
    SignalProcess,
    Started,
    StopSignal,
    WorkerStatusReceived,
)
from elasticd.agent.identity import Identity
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.messages import Acknowledged, AgentHello, LocalWorker, Order, StartWorker, WorkerExit
from elasticd.protocol.model import (
    Fault,
    Gpu,
    GpuAddress,
    GpuKind,
    GpuRange,
    JobId,
    JobSpec,
    Member,
    Roster,
    Server,
    ServerId,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)

JOB = JobId("digits-1")
FIRST, SECOND = WorkerId("digits-1.0"), WorkerId("digits-1.1")
GPUS = tuple(Gpu(index=index, kind=GpuKind.CPU, name="CPU slot") for index in range(2))
SERVER = Server(server=ServerId("s1"), address="127.0.0.1", gpus=GPUS)
SPEC = JobSpec(name="digits", command=("true",), gpus=GpuRange(min=1, max=4), virtual_workers=4, workdir="/tmp")


def order(generation: int, leader_address: str = "", broken: tuple[int, ...] = ()) -> Order:
    member = Member(worker=FIRST, gpu=GpuAddress(server=ServerId("s1"), index=0))
    roster = Roster(generation=generation, members=(member,), leader=FIRST)
    return Order(job=JOB, roster=roster, leader_address=leader_address, broken=broken)


def status(worker: WorkerId = FIRST, sequence: int = 1, **changes: object) -> WorkerStatus:
    base = WorkerStatus(
        job=JOB,
        worker=worker,
        pid=10,
        address="tcp://127.0.0.1:1",
        phase=WorkerPhase.TRAINING,
        generation=1,
        order=1,
        floor=1,
        applied=5,
        sequence=sequence,
    )
    return msgspec.structs.replace(base, **changes)


def start(worker: WorkerId = FIRST, gpu: int = 0, uid: str = "") -> StartWorker:
    return StartWorker(job=JOB, worker=worker, gpu=gpu, spec=SPEC, generation=1, uid=uid)


def local(worker: WorkerId = FIRST, uid: str = "") -> LocalWorker:
    return LocalWorker(worker=worker, job=JOB, uid=uid, gpu=0)


class Driven:
    """A state machine with a clock, and shorthands for its inputs."""

    def __init__(
        self, *workers: WorkerId, adopted: tuple[WorkerId, ...] = (), identity: Identity | None = None
    ) -> None:
        self.now = 1000.0
        self.machine = AgentMachine(SERVER, "agent-1", heartbeat_interval_s=1.0, identity=identity)
        self.first = self.machine.handle(self.now, Started(tuple(map(local, adopted))))
        self.told(Acknowledged(incarnation="c1", sent=0))
        for worker in workers:
            self.told(start(worker))

    def told(self, message: object) -> list[Action]:
        return self.machine.handle(self.now, ControllerMessage(message))  # type: ignore[arg-type]

    def status(self, said: WorkerStatus) -> list[Action]:
        return self.machine.handle(self.now, WorkerStatusReceived(said))

    def hear(self, event: Event) -> list[Action]:
        return self.machine.handle(self.now, event)

    def pass_time(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.machine.handle(self.now, AgentTick())

    def hello(self) -> AgentHello:
        """The agent's next hello."""
        said = sent(self.told(Acknowledged(incarnation="another", sent=0)), AgentHello)
        assert said
        return said[0]


def sent(actions: list[Action], kind: type) -> list:
    return [
        action.message
        for action in actions
        if isinstance(action, SendController | SendWorker) and isinstance(action.message, kind)
    ]


class Silence:
    """An agent that allows its workers 10 s of silence, and one worker."""

    def __init__(self, phase: WorkerPhase = WorkerPhase.TRAINING) -> None:
        self.now = 1000.0
        self.machine = AgentMachine(SERVER, "agent-1", 1.0, worker_silence_s=10.0)
        self.machine.handle(self.now, Started((local(),)))
        self.machine.handle(self.now, WorkerStatusReceived(status(phase=phase)))

    def turn_for(self, seconds: float) -> list[Action]:
        """Take each turn when it is due, as the loop does, at least one per second."""
        actions: list[Action] = []
        end = self.now + seconds
        while self.now < end:
            deadline = self.machine.next_deadline()
            assert deadline is not None
            self.now = min(end, self.now + 1.0, max(deadline, self.now + 0.001))
            actions += self.machine.handle(self.now, AgentTick())
        return [action for action in actions if isinstance(action, SignalProcess)]


HANGS = "could not be started within 60 s: a file system may not answer"


def stuck() -> Driven:
    """An agent that has given up a hanging start with unknown outcome."""
    driven = Driven(FIRST)
    assert driven.hello().starting == (FIRST,)
    driven.told(Acknowledged(incarnation="another", sent=0))
    for _ in range(59):
        assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(1.0)
    actions = driven.pass_time(1.0)
    assert SignalProcess(FIRST, StopSignal.KILL) in actions
    (end,) = sent(actions, WorkerExit)
    assert (end.reason, end.fault) == (HANGS, Fault.SERVER)
    return driven
