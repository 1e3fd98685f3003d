"""A controller's state machine with a store, agents and workers as plain values: every promise is checked when it is sent."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticd.controller.events import (
    Action,
    AgentMessage,
    Audit,
    ClientRequest,
    ControllerTick,
    Event,
    Fetch,
    Fetched,
    Record,
    ReplyClient,
    SendAgent,
)
from elasticd.controller.jobs.archive import PREFIX, job_of
from elasticd.controller.jobs.generations import FIRST_STEPS
from elasticd.controller.jobs.job import Job
from elasticd.controller.jobs.records import OrderKind
from elasticd.controller.jobs.stored import States
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.records import state_key, submission_key
from elasticd.controller.settings import Settings
from elasticd.controller.store import Delete, If, Limits, Listing, Put, StoreUnavailable
from elasticd.controller.store import Record as StoredRecord
from elasticd.protocol.exits import fault_of
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    Answer,
    Envelope,
    EventKind,
    ForgetWorkers,
    HelloRefused,
    LocalWorker,
    Order,
    Request,
    Scale,
    StartWorker,
    StopWorker,
    Submit,
    Submitted,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import (
    Allocatable,
    BatchChange,
    Fault,
    Gpu,
    GpuAddress,
    GpuKind,
    GpuRange,
    JobId,
    JobPhase,
    JobSpec,
    Resize,
    Server,
    ServerId,
    Severity,
    Steady,
    Straggler,
    Trouble,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
    job_number,
)
from elasticd.protocol.principals import LOCAL_OPERATOR, Principal
from elasticd.scheduler.scheduler import Stages, load_scheduler


def job_spec(name: str = "digits", low: int = 1, high: int = 4, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "name": name,
        "command": ("python", "train.py"),
        "gpus": GpuRange(min=low, max=high),
        "virtual_workers": max(8, high),
        "workdir": "/tmp",
    }
    return JobSpec(**{**values, **changes})


@dataclass
class Process:
    """A worker's process on a server, as its agent knows it."""

    job: JobId
    gpu: GpuAddress
    uid: str = ""
    status: WorkerStatus | None = None
    order: Order | None = None
    stopping: bool = False


@dataclass
class Agent:
    """State of an agent, without its daemon."""

    server: Server
    running: dict[WorkerId, Process] = field(default_factory=dict)
    exited: dict[WorkerId, WorkerExit] = field(default_factory=dict)
    seen: set[WorkerId] = field(default_factory=set)
    orders: dict[JobId, Order] = field(default_factory=dict)
    untold: list[WorkerExit] = field(default_factory=list)  # ends that are in flight
    identity: str = ""
    start: int = 1
    cluster: str = ""
    highest_job: int = 0
    newest_event: int = 0
    refused: str = ""
    received: int = 0
    hellos: int = 0
    connected: bool = True
    troubles: tuple[Trouble, ...] = ()


class World:
    """Drives the state machine; `turn` ends a loop turn. All messages are kept in `sent`, answers in `answers`."""

    def __init__(
        self,
        servers: dict[str, int] | None = None,
        policy: str = "max-min",
        seed: int = 0,
        stages: Stages | None = None,
        kinds: dict[str, tuple[str, int]] | None = None,
        amounts: dict[str, tuple[float, int]] | None = None,
        **settings: Any,
    ):
        """`servers`: GPUs per server; `kinds`: model and memory in bytes; without it they are CPU slots;
        `amounts`: cores, and memory in GiB, for jobs."""
        self.now = 1000.0
        self.policy = policy
        self.stages = stages or Stages()
        self.seed = seed
        self.settings = settings
        self.store: dict[str, bytes] = {}
        self.sent: list[tuple[ServerId, Any]] = []
        self.answers: dict[str, Answer] = {}
        self.audits: list[Audit] = []
        self.incarnations = itertools.count(1)
        self.ids = itertools.count(1)
        self.sequences = itertools.count(1)
        self.orders: dict[JobId, int] = {}  # greatest generation ever sent
        self.agents: dict[ServerId, Agent] = {}
        for name, gpus in (servers if servers is not None else {"s1": 4}).items():
            called, memory = (kinds or {}).get(name, ("CPU slot", 0))
            kind = GpuKind.CUDA if name in (kinds or {}) else GpuKind.CPU
            slots = tuple(Gpu(index=i, kind=kind, name=called, memory_bytes=memory) for i in range(gpus))
            there = (amounts or {}).get(name)
            told = Allocatable(cpus=there[0], memory_bytes=there[1] << 30) if there is not None else None
            server = Server(server=ServerId(name), address="127.0.0.1", gpus=slots, allocatable=told)
            self.agents[ServerId(name)] = Agent(server)
        self.machine = self.new_machine()
        for name in self.agents:
            self.hello(name)
        self.turn()

    def new_machine(self) -> ControllerMachine:
        values = {"cluster": "test", "incarnation": f"c{next(self.incarnations)}", "version": "0", "pid": 1}
        settings = Settings(**{**values, **self.settings})  # type: ignore[arg-type]
        configured = load_scheduler({"policy": self.policy}, "test", self.stages)
        records = sorted(self.store.items())
        return ControllerMachine(settings, configured, random.Random(self.seed), self.now, records)

    # -- driving

    def feed(self, event: Event) -> list[Action]:
        actions = self.machine.handle(self.now, event)
        self.carry_out(actions)
        return actions

    def before_record(self) -> None:
        """Called before each record; a test may crash the controller here."""

    def after_record(self) -> None:
        """Called after each record, before any message is sent."""

    def carry_out(self, actions: list[Action]) -> None:
        assert not any(isinstance(action, Record) for action in actions[1:]), "a record comes after a promise"
        for action in actions:
            match action:
                case Record(puts, deletes):
                    self.before_record()
                    self.store.update(puts)
                    for key in deletes:
                        self.store.pop(key, None)
                    self.after_record()
                case Fetch(request, keys):
                    self.feed(Fetched(request, tuple((key, self.store.get(key)) for key in keys)))
                case SendAgent(server, message, agent):
                    self.deliver(server, message, agent)
                case Audit():
                    self.audits.append(action)
                case ReplyClient(_, reply):
                    self.answers[reply.id] = reply.answer
                    if isinstance(reply.answer, Submitted):
                        archived = [job_of(key).job for key in self.store if key.startswith(PREFIX)]
                        recorded = submission_key(reply.answer.job) in self.store or reply.answer.job in archived
                        assert recorded, "a job was promised that is not recorded"

    def turn(self, after_s: float = 0.0) -> None:
        """Let time pass without any message, and handle all that is due."""
        end = self.now + after_s
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            self.come_to_rest()
        self.come_to_rest()

    def come_to_rest(self) -> None:
        for _ in range(100):
            for name, agent in self.agents.items():
                while agent.untold and agent.connected:
                    self.feed(AgentMessage(name, agent.untold.pop(0), agent.identity))
            deadline = self.machine.next_deadline()
            if deadline is None or deadline > self.now:
                return
            self.feed(ControllerTick())
        raise AssertionError("the machine never comes to rest")

    def pass_time(self, seconds: float) -> None:
        """Let time pass with heartbeats of the agents."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for name, agent in self.agents.items():
                if agent.connected:
                    silent = tuple(worker for worker, process in agent.running.items() if process.status is None)
                    self.feed(AgentMessage(name, AgentHeartbeat(server=name, starting=silent), agent.identity))
            self.turn()

    def restart(self, hello: bool = True) -> None:
        """The controller dies and another one recovers from the store."""
        self.machine = self.new_machine()
        if hello:
            for name, agent in self.agents.items():
                if agent.connected:
                    self.hello(name)
            self.turn()

    # -- agents

    def deliver(self, server: ServerId, message: Any, identity: str = "") -> None:
        self.sent.append((server, message))
        agent = self.agents[server]
        if not agent.connected or identity != agent.identity:
            return
        if isinstance(message, Acknowledged):
            if message.sent == 0:
                agent.received = 0
                agent.refused = ""
                agent.cluster = message.cluster or agent.cluster
            agent.newest_event = message.newest_event
            return
        if isinstance(message, HelloRefused):
            agent.refused = message.reason
            return
        agent.received += 1
        match message:
            case Order():
                self.check_order(message)
                agent.orders[message.job] = message
                for process in agent.running.values():
                    if process.job == message.job:
                        process.order = message
            case StartWorker(job=job, worker=worker, gpu=gpu, uid=uid):
                bad = [one for one in agent.troubles if one.gpu in (None, gpu) and one.severity is not Severity.NOTE]
                assert all(one.code in message.trusted for one in bad), f"{worker} is started on {server}:{gpu}: {bad}"
                agent.highest_job = max(agent.highest_job, job_number(job))
                self.start(agent, job, worker, GpuAddress(server=server, index=gpu), uid)
            case StopWorker(worker=worker, uid=uid):
                if worker in agent.running:
                    agent.running[worker].stopping = True
                else:
                    agent.seen.add(worker)  # a start that arrives later is refused
                    gone = WorkerExit(
                        job=message.job, worker=worker, exit_code=None, reason="", fault=Fault.STOPPED, uid=uid
                    )
                    agent.untold.append(agent.exited.setdefault(worker, gone))
            case ForgetWorkers(workers=workers):
                for worker in workers:
                    agent.exited.pop(worker, None)

    def check_order(self, order: Order) -> None:
        state = States(item for item in self.store.items() if item[0].startswith(state_key(order.job))).get(order.job)
        assert state is not None
        recorded = {given.generation: given.roster for given in state.record.orders}
        assert recorded.get(order.generation) == order.roster, "an order was sent that is not recorded"
        assert order.roster.leader in order.roster.workers
        assert len({member.gpu for member in order.roster.members}) == len(order.roster.members)
        assert order.generation >= self.orders.get(order.job, 0), "generations only grow"
        self.orders[order.job] = order.generation

    def start(self, agent: Agent, job: JobId, worker: WorkerId, gpu: GpuAddress, uid: str = "") -> None:
        if worker in agent.seen:
            return
        agent.seen.add(worker)
        holders = [name for name, process in agent.running.items() if process.gpu == gpu]
        assert not holders, f"{worker} is started on {gpu}, where {holders} still run"
        agent.running[worker] = Process(job, gpu, uid, order=agent.orders.get(job))

    def hello(self, server: str) -> None:
        self.agents[ServerId(server)].connected = True
        self.say_hello(self.agents[ServerId(server)])

    def say_hello(self, agent: Agent) -> AgentHello:
        """`agent` sends a hello; it need not be the agent of its server in `agents`."""
        agent.hellos += 1
        hello = AgentHello(
            server=agent.server,
            incarnation=f"agent-{agent.server.server}-{agent.identity}-{agent.start}",
            workers=tuple(p.status for p in agent.running.values() if p.status is not None),
            starting=tuple(worker for worker, p in agent.running.items() if p.status is None),
            exited=tuple(agent.exited.values()),
            number=agent.hellos,
            agent=agent.identity,
            start=agent.start,
            cluster=agent.cluster,
            highest_job=agent.highest_job,
            newest_event=agent.newest_event,
            processes=tuple(
                LocalWorker(worker=worker, job=p.job, uid=p.uid, gpu=p.gpu.index) for worker, p in agent.running.items()
            ),
            troubles=agent.troubles,
        )
        self.feed(AgentMessage(agent.server.server, hello, agent.identity))
        return hello

    def trouble(self, server: str, *troubles: Trouble) -> None:
        """The agent of `server` has these troubles, and no others any more."""
        agent = self.agents[ServerId(server)]
        agent.troubles = troubles
        if agent.connected:
            self.feed(
                AgentMessage(
                    ServerId(server), AgentHeartbeat(server=ServerId(server), troubles=troubles), agent.identity
                )
            )
            self.turn()

    def find(self, worker: str) -> tuple[Agent, Process]:
        for agent in self.agents.values():
            if worker in agent.running:
                return agent, agent.running[WorkerId(worker)]
        raise AssertionError(f"{worker} does not run")

    def report(
        self,
        worker: str,
        phase: WorkerPhase,
        generation: int = 0,
        applied: int | None = None,
        resizes: tuple[Resize, ...] = (),
        floor: int | None = None,
        steady: Steady | None = None,
        saved: int | None = None,
        saved_file: str = "",
        unheard: Sequence[str] = (),
        waits_s: float = 0.0,
        save_failures: int = 0,
        unconnected_s: float = 0.0,
        batch_samples: int = 0,
        total_steps: int | None = None,
        metrics: dict[str, float] | None = None,
        batch_changes: tuple[BatchChange, ...] = (),
        batch_ceiling: int = 0,
        stragglers: tuple[Straggler, ...] = (),
        hardware_agnostic: bool | None = None,
        paces: dict[WorkerId, float] | None = None,
    ) -> None:
        """`worker` reports, with the last order from its agent."""
        agent, process = self.find(worker)
        order = process.order.generation if process.order is not None else 0
        process.status = WorkerStatus(
            job=process.job,
            worker=WorkerId(worker),
            pid=4711,
            address=f"tcp://127.0.0.1:{5000 + int(worker.rpartition('.')[2])}",
            phase=phase,
            generation=generation,
            order=order,
            floor=order if floor is None else floor,
            applied=applied,
            sequence=next(self.sequences),
            resizes=resizes,
            steady=steady or Steady(),
            saved=saved,
            saved_generation=generation if saved is not None else 0,
            saved_file=saved_file,
            unheard=tuple(WorkerId(other) for other in unheard),
            waits_s=waits_s,
            save_failures=save_failures,
            unconnected_s=unconnected_s,
            batch_samples=batch_samples,
            total_steps=total_steps,
            metrics=metrics or {},
            batch_changes=batch_changes,
            batch_ceiling=batch_ceiling,
            stragglers=stragglers,
            hardware_agnostic=hardware_agnostic,
            paces=paces or {},
        )
        self.now += 0.001
        if agent.connected:
            self.feed(
                AgentMessage(agent.server.server, WorkerReport(status=process.status, uid=process.uid), agent.identity)
            )
            self.turn()

    def exit(
        self,
        worker: str,
        code: int | None,
        reason: str = "",
        turn: bool = True,
        fault: Fault | None = None,
        log: str = "",
    ) -> None:
        """`worker` ends; its agent attributes the end by the exit code unless the fault is given."""
        agent, process = self.find(worker)
        if fault is None:
            fault = Fault.STOPPED if process.stopping else fault_of(code)
        del agent.running[WorkerId(worker)]
        phase = process.status.phase if process.status is not None else None
        text = reason or (f"exit code {code}" if code is None or code >= 0 else f"killed by signal {-code}")
        ended = WorkerExit(
            job=process.job,
            worker=WorkerId(worker),
            exit_code=code,
            reason=text,
            phase=phase,
            status=process.status,
            fault=fault,
            uid=process.uid,
            log=log or f"/state/jobs/{process.job}/{worker}.log",
        )
        agent.exited[WorkerId(worker)] = ended
        self.now += 0.001
        if agent.connected:
            self.feed(AgentMessage(agent.server.server, ended, agent.identity))
            if turn:
                self.turn()

    # -- clients

    def ask(self, request: Request, request_id: str = "", turn: bool = True, who: Principal = LOCAL_OPERATOR) -> Any:
        name = request_id or f"r{next(self.ids)}"
        self.feed(ClientRequest(b"client", Envelope(id=name, request=request), who))
        if turn:
            self.turn()
        return self.answers.get(name)

    def submit(self, spec: JobSpec | None = None, who: Principal = LOCAL_OPERATOR) -> Job:
        answer = self.ask(Submit(spec=spec or job_spec()), who=who)
        assert isinstance(answer, Submitted), answer
        return self.job(answer.job)

    def job(self, job: str) -> Job:
        return self.machine.cluster.jobs[JobId(job)]

    # -- well-behaved workers

    def running(self, job: str) -> list[str]:
        agents = [agent for agent in self.agents.values() if agent.connected]
        return [w for agent in agents for w, p in agent.running.items() if p.job == job]

    def arrive(self, job: str) -> None:
        """All starting workers become ready."""
        for worker in self.running(job):
            if self.find(worker)[1].status is None:
                self.report(worker, WorkerPhase.READY)

    def reap(self) -> None:
        """Stopped processes end."""
        for agent in self.agents.values():
            for worker in [worker for worker, process in agent.running.items() if process.stopping]:
                self.exit(worker, -15)

    def commit(self, job: str, step: int = 10) -> None:
        """The newest order is committed: its members train, all others leave. Members of a union roster train until its newcomers
        have taken part.
        """
        newest = self.job(job).newest
        assert newest is not None
        generation = newest.generation
        for applied in (step, step + FIRST_STEPS) if newest.kind is OrderKind.UNION else (step,):
            for worker in newest.roster.workers:
                self.report(worker, WorkerPhase.TRAINING, generation, applied)
        for worker in self.running(job):
            if worker in newest.roster.workers:
                continue
            status = self.find(worker)[1].status
            if status is not None and status.phase is WorkerPhase.TRAINING:
                self.report(worker, WorkerPhase.LEFT, status.generation, step)
                self.exit(worker, 0)

    def settle(self, job: str, step: int = 10, rounds: int = 5) -> None:
        """Workers arrive and commit the current orders, until there are no more."""
        for _ in range(rounds):
            if self.job(job).final or self.job(job).newest is None:
                return
            self.reap()
            self.arrive(job)
            self.reap()
            self.commit(job, step)
            newest = self.job(job).newest
            if newest is None or newest.generation == self.job(job).record.committed:
                return

    def roster(self, job: str) -> list[str]:
        newest = self.job(job).newest
        return list(newest.roster.workers) if newest is not None else []

    def messages(self, kind: type) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def story(self) -> str:
        return "\n".join(f"{e.time_s:.3f} {e.kind.value} {e.job} {e.text}" for e in self.machine.cluster.history.events)

    def kinds(self, job: str | None = None) -> list[EventKind]:
        return [event.kind for event in self.machine.cluster.history.events if job is None or event.job == job]


class FaultyStore:
    """A `Store` in memory with failing commits: the next ones raise `fail`, until it is None again."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.fail: StoreUnavailable | None = None
        self.commits_anyway = False  # a failing commit is applied, with an unknown outcome
        self.probes = 0
        self.limits = Limits()

    def pages(self, first: str, end: str) -> Iterator[Listing]:
        yield self.between(first, end)

    def get(self, key: str) -> StoredRecord | None:
        return StoredRecord(key, self.records[key], 1) if key in self.records else None

    def list(self, prefix: str) -> Listing:
        if self.fail is not None:
            raise self.fail
        found = sorted((key, value) for key, value in self.records.items() if key.startswith(prefix))
        return Listing(tuple(StoredRecord(key, value, 1) for key, value in found), 1)

    def between(self, first: str, end: str) -> Listing:
        if self.fail is not None:
            raise self.fail
        found = sorted((key, value) for key, value in self.records.items() if first <= key < end)
        return Listing(tuple(StoredRecord(key, value, 1) for key, value in found), 1)

    def keys(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(key for key in self.records if key.startswith(prefix)))

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        if self.fail is not None and not self.commits_anyway:
            raise self.fail
        for write in writes:
            if isinstance(write, Put):
                self.records[write.key] = write.value
            else:
                self.records.pop(write.key, None)
        if self.fail is not None:
            raise self.fail
        return 1

    def probe(self, size: int) -> None:
        self.probes += 1
        if self.fail is not None:
            raise self.fail

    def close(self) -> None:
        pass


def one_running(world: World, gpus: int = 1, step: int = 10, **changes: Any) -> Job:
    """A training job on so many GPUs, with one applied step. Earlier messages are forgotten."""
    job = world.submit(job_spec(low=1, high=max(4, gpus), **changes))
    world.ask(Scale(job=job.id, share=gpus))
    world.settle(job.id, step)
    assert job.record.phase is JobPhase.RUNNING
    assert len(world.roster(job.id)) == gpus
    world.reap()
    world.sent.clear()
    return job
