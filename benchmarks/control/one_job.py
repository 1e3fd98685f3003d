"""What one large job costs the controller's machine alone: without sockets, store or workers.

    python -m benchmarks.control.one_job [WORKERS ...]

Every worker says four things, each in a turn of its own, which is the worst case: its process runs, it has called `join()`, it is
ready, it trains. Then all servers but one say hello to a controller that has just started, a server is lost, the job grows by a
fifth, users look at it, and it is cancelled. Times are processor time of the machine's turns; bytes are what a turn records.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from elasticd.controller.events import Action, AgentMessage, ClientRequest, ControllerTick, Event, Record, SendAgent
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.settings import Settings
from elasticd.protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    Cancel,
    Envelope,
    GetJob,
    GetJobs,
    LocalWorker,
    Order,
    Request,
    Scale,
    StartWorker,
    StopWorker,
    Submit,
    ToControllerFromAgent,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import (
    Fault,
    Gpu,
    GpuKind,
    GpuRange,
    JobId,
    JobSpec,
    Server,
    ServerId,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)
from elasticd.protocol.principals import LOCAL_OPERATOR
from elasticd.scheduler.scheduler import load_scheduler

GPUS = 8  # of a server
JOB = JobId("large-1")
LEASE_S = 60.0  # longer than all turns between two words of a server take on this clock
BEAT_S = 1.0  # between two heartbeats: the controller would take a longer silence for its own absence


@dataclass
class Spent:
    """Cost of some turns."""

    turns: int = 0
    cpu_s: float = 0.0
    longest_s: float = 0.0
    records: int = 0
    written: int = 0  # bytes of keys and values

    def figures(self) -> dict[str, float]:
        each = self.turns or 1
        return {
            "cpu_s": round(self.cpu_s, 3),
            "turns": self.turns,
            "longest_turn_ms": round(self.longest_s * 1000, 1),
            "records": self.records,
            "bytes_per_turn": round(self.written / each),
            "megabytes": round(self.written / 1e6, 2),
        }


@dataclass
class Worker:
    """A process, as its agent knows it."""

    start: StartWorker
    server: ServerId
    phase: WorkerPhase = WorkerPhase.STARTING
    generation: int = 0
    applied: int | None = None
    sequence: int = 0
    stopping: bool = False
    spoke: bool = False


@dataclass
class Bench:
    """The machine, its store as a dictionary, and all agents."""

    servers: int
    now: float = 1_000_000.0
    store: dict[str, bytes] = field(default_factory=dict)
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    orders: dict[ServerId, int] = field(default_factory=dict)  # the newest generation that each agent knows
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    lives: int = 0
    requests: int = 0

    def __post_init__(self) -> None:
        self._spent = Spent()
        self.boot()

    def boot(self) -> None:
        self.lives += 1
        settings = Settings(
            cluster="bench", incarnation=f"c{self.lives}", version="0", pid=1, server_lease_s=LEASE_S
        )  # fmt: skip
        scheduler = load_scheduler({"policy": "max-min"}, "bench")
        records = sorted(self.store.items())
        began_s = time.process_time()
        self.machine = ControllerMachine(settings, scheduler, random.Random(0), self.now, records)
        self._spent.cpu_s += time.process_time() - began_s

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        self._spent = Spent()
        yield
        self.figures[what] = self._spent.figures()

    # -- turns

    def turn(self, *events: Event) -> None:
        """Run one turn with these events, and carry out the resulting actions afterwards."""
        self.now += 0.0005
        done: list[Action] = []
        began_s = time.process_time()
        for event in events:
            done += self.machine.handle(self.now, event)
        while (due_s := self.machine.next_deadline()) is not None and due_s <= self.now:
            done += self.machine.handle(self.now, ControllerTick())
        took_s = time.process_time() - began_s
        spent = self._spent
        spent.turns, spent.cpu_s, spent.longest_s = spent.turns + 1, spent.cpu_s + took_s, max(spent.longest_s, took_s)
        changes: dict[str, bytes | None] = {}
        for action in done:
            if isinstance(action, Record):
                changes.update(action.puts)
                changes.update(dict.fromkeys(action.deletes))
            elif isinstance(action, SendAgent):
                self._obey(action)
        for key, value in changes.items():
            spent.records += 1
            spent.written += len(key) + len(value or b"")
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value

    def _obey(self, action: SendAgent) -> None:
        match action.message:
            case Order(roster=roster):
                self.orders[action.server] = roster.generation
            case StartWorker(worker=worker) as start:
                self.workers.setdefault(worker, Worker(start, action.server))
            case StopWorker(worker=worker) if worker in self.workers:
                self.workers[worker].stopping = True

    def ask(self, *requests: Request) -> None:
        events = []
        for request in requests:
            self.requests += 1
            envelope = Envelope(id=f"r{self.requests}", request=request)
            events.append(ClientRequest(b"user", envelope, LOCAL_OPERATOR))
        self.turn(*events)

    def say(self, worker: Worker, phase: WorkerPhase, applied: int | None = None) -> None:
        worker.phase, worker.applied, worker.spoke = phase, applied, True
        if phase is WorkerPhase.TRAINING:
            worker.generation = self.orders[worker.server]
        self._tell(worker.server, WorkerReport(status=self.status(worker), uid=worker.start.uid))

    def status(self, worker: Worker) -> WorkerStatus:
        worker.sequence += 1
        order = self.orders.get(worker.server, 0)
        return WorkerStatus(
            job=worker.start.job, worker=worker.start.worker, pid=4711, address="tcp://10.1.2.3:43117",
            phase=worker.phase, generation=worker.generation, order=order, floor=order, applied=worker.applied,
            sequence=worker.sequence,
        )  # fmt: skip

    def _tell(self, server: ServerId, message: ToControllerFromAgent) -> None:
        self.turn(AgentMessage(server, message, f"agent-{server}"))

    # -- the life of a job

    def hello(self, number: int) -> None:
        name = _server(number)
        gpus = tuple(Gpu(index=index, kind=GpuKind.CUDA, name="H100", memory_bytes=80 << 30) for index in range(GPUS))
        here = [worker for worker in self.workers.values() if worker.server == name]
        said = AgentHello(
            server=Server(server=name, address="10.1.2.3", gpus=gpus), incarnation="a",
            workers=tuple(self.status(worker) for worker in here if worker.spoke),
            starting=tuple(worker.start.worker for worker in here if not worker.spoke), exited=(),
            number=self.lives, agent=f"agent-{name}",
            processes=tuple(
                LocalWorker(worker=each.start.worker, job=JOB, uid=each.start.uid, gpu=each.start.gpu) for each in here
            ),
        )  # fmt: skip
        self._tell(name, said)

    def newcomers(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if not worker.spoke]

    def begin(self, workers: list[Worker]) -> None:
        """Each process runs, joins, and is ready; all train then."""
        for worker in workers:
            self._tell(worker.server, AgentHeartbeat(server=worker.server, starting=(worker.start.worker,)))
        for phase in (WorkerPhase.STARTING, WorkerPhase.READY):
            for worker in workers:
                self.say(worker, phase)

    def train(self, applied: int) -> None:
        for worker in list(self.workers.values()):
            self.say(worker, WorkerPhase.TRAINING, applied)

    def lose(self, gone: ServerId) -> None:
        """The lease of a server runs out, as all others are heard of meanwhile."""
        others = [name for number in range(self.servers) if (name := _server(number)) != gone]
        heard_s = self.machine.cluster.servers.sessions[gone].last_heard_s
        while self.now < heard_s + LEASE_S - BEAT_S:
            self.now += BEAT_S / 2
            for name in others:
                self._tell(name, AgentHeartbeat(server=name))
        self.now = heard_s + LEASE_S
        with self.measured("a server is lost"):
            self.turn(ControllerTick())
        self.workers = {name: worker for name, worker in self.workers.items() if worker.server != gone}

    def end(self) -> None:
        for name, worker in list(self.workers.items()):
            del self.workers[name]
            ended = WorkerExit(
                job=JOB, worker=name, exit_code=-15, reason="killed by SIGTERM", fault=Fault.STOPPED,
                status=self.status(worker), uid=worker.start.uid,
            )  # fmt: skip
            self._tell(worker.server, ended)


def _server(number: int) -> ServerId:
    return ServerId(f"server-{number:04d}")


def measure(workers: int, with_rest: bool) -> dict[str, dict[str, float]]:
    """A job of so many workers, from its submission to its end."""
    more = max(GPUS, workers // 5 // GPUS * GPUS)
    bench = Bench((workers + more) // GPUS + 1)
    for number in range(bench.servers):
        bench.hello(number)
    spec = JobSpec(
        name="large", command=("python", "train.py"), workdir="/tmp", virtual_workers=workers + more,
        gpus=GpuRange(min=min(workers, GPUS), max=workers + more),
    )  # fmt: skip
    with bench.measured("start"):
        bench.ask(Submit(spec=spec), Scale(job=JOB, share=workers))
        bench.begin(list(bench.workers.values()))
        bench.train(0)
    assert len(bench.workers) == workers, f"{len(bench.workers)} of {workers} workers were started"
    assert bench.machine.cluster.jobs[JOB].share_gpus == workers
    with bench.measured("a status of each that trains"):
        bench.train(5)
    if not with_rest:
        return bench.figures
    with bench.measured("status"):
        bench.ask(GetJobs())
    with bench.measured("status JOB"):
        bench.ask(GetJob(job=JOB))
    _rest(bench, workers, more)
    return bench.figures


def _rest(bench: Bench, workers: int, more: int) -> None:
    with bench.measured("restart: read the store, and a hello of each server"):
        bench.boot()
        for number in range(bench.servers):
            bench.hello(number)
    with bench.measured("a resize"):
        bench.ask(Scale(job=JOB, share=workers + more))
        bench.begin(bench.newcomers())
        bench.train(10)
    assert len(bench.workers) == workers + more
    bench.lose(next(iter(bench.workers.values())).server)
    with bench.measured("the survivors go on"):
        bench.train(11)
    with bench.measured("cancelled: each worker ends"):
        bench.ask(Cancel(job=JOB))
        bench.end()
    assert bench.machine.cluster.jobs[JOB].final


def main(arguments: list[str] | None = None, tell: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.one_job", description=__doc__)
    parser.add_argument("workers", nargs="*", type=int, default=[128, 256, 512], help="how many workers the job has")
    parser.add_argument("--start", action="store_true", help="measure its start alone")
    options = parser.parse_args(arguments)
    for workers in options.workers:
        tell(f"{workers} workers")
        for what, figures in measure(workers, not options.start).items():
            tell(f"  {what:55s} {json.dumps(figures)}")


if __name__ == "__main__":
    main()
