"""Process with many agents: the product's own `AgentMachine` and sockets, with workers that only report their progress.

    python -m benchmarks.control.agents ADDRESS KEYS FIRST COUNT GPUS

Commands on stdin: `report SECONDS` (interval of each worker's progress reports; 0: never), `tell` (answer with one line of JSON
on the messages sent). The process exits at the end of its stdin.

A worker obeys each order at once, and trains one step per second. It has no rendezvous and no state. That is enough for the
controller, which receives statuses alone.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from benchmarks.control.keys import Keys
from benchmarks.control.store import CLUSTER, identity, server
from elasticd.agent.events import (
    AgentTick,
    Connected,
    ControllerMessage,
    Event,
    HelloNotSent,
    IdentityWritten,
    KeepIdentity,
    LogRead,
    ProcessExited,
    ProcessStarted,
    ReadLogPiece,
    SendController,
    SendWorker,
    SignalProcess,
    Started,
    StartProcess,
    WorkerStatusReceived,
)
from elasticd.agent.identity import Identity
from elasticd.agent.logfiles import not_read
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    Order,
    StartWorker,
    Suspend,
    ToAgentFromController,
    WorkerReport,
)
from elasticd.protocol.model import JobId, Steady, WorkerId, WorkerPhase, WorkerStatus
from elasticd.protocol.terms import unstamped
from elasticd.runtime import transport

HEARTBEAT_S = 1.0
WORKER_SILENCE_S = 3600.0
LOADING_S = 0.5  # from a worker's start to its first message
STEP_S = 1.0
TICK_S = 0.005
STATUSES = "messages with a worker's status"  # counted beside the kinds of messages


@dataclass
class Worker:
    """State that a worker reports."""

    start: StartWorker
    order: Order | None = None
    generation: int = 0
    phase: WorkerPhase = WorkerPhase.STARTING
    sequence: int = 0
    saved: int | None = None
    alive: bool = True

    def status(self, applied: int | None) -> WorkerStatus:
        self.sequence += 1
        number = self.order.generation if self.order is not None else 0
        share = len(self.order.roster.members) if self.order is not None else 1
        trains = self.phase is WorkerPhase.TRAINING
        return WorkerStatus(
            job=self.start.job,
            worker=self.start.worker,
            pid=4711,
            address="tcp://127.0.0.1:43117",
            phase=self.phase,
            generation=self.generation,
            order=number,
            floor=number,
            applied=applied if self.generation else None,
            sequence=self.sequence,
            total_steps=self.start.spec.max_steps,
            samples_per_s=64.0 * share if trains else 0.0,
            median_step_s=STEP_S,
            steady=Steady(generation=self.generation, step_s=1.0 / share**0.8, steps=32) if trains else Steady(),
            metrics={"loss": 0.1} if trains else {},
            longest_step_s=STEP_S,
            saved=self.saved,
        )


class Agent:
    """One agent: its machine, its socket, its workers."""

    def __init__(self, fleet: Fleet, number: int, gpus: int) -> None:
        who = Identity(agent=identity(number), cluster=CLUSTER)
        here = server(number, gpus)
        self._fleet = fleet
        self.machine = AgentMachine(here, f"{number}-{os.getpid()}", HEARTBEAT_S, WORKER_SILENCE_S, who)
        pair = fleet.keys.pairs[number]
        self.socket, self.handshakes = transport.to_controller(
            fleet.context, fleet.address, pair, fleet.keys.controller
        )
        self._name = f"{here.server}#{who.agent}".encode()
        self.workers: dict[WorkerId, Worker] = {}
        self.due = 0.0

    def handle(self, event: Event) -> None:
        events = [event]
        for each in events:
            for action in self.machine.handle(time.time(), each):
                match action:
                    case SendController(message):
                        sent = transport.send(self.socket, self._name, msgspec.msgpack.encode(message))
                        self._fleet.count(type(message).__name__, sent)
                        if isinstance(message, WorkerReport) or (
                            isinstance(message, AgentHeartbeat) and message.reports
                        ):
                            self._fleet.count(STATUSES, sent)
                        if isinstance(message, AgentHello) and not sent:
                            events.append(HelloNotSent())
                    case StartProcess(start):
                        events.append(ProcessStarted(start.worker))
                        self._start(start)
                    case SendWorker(worker, Order() as order):
                        self._obey(self.workers[worker], order)
                    case SendWorker(worker, Suspend(saver=saver)):
                        self._suspend(self.workers[worker], saver)
                    case SignalProcess(worker, _):
                        self._fleet.later(0.05, self.end, self.workers[worker], -15)
                    case KeepIdentity():
                        events.append(IdentityWritten())
                    case ReadLogPiece(request, _):
                        events.append(LogRead(not_read(request, "a worker of a benchmark has no log")))
        self.due = self.machine.next_deadline() or float("inf")

    def receive(self) -> None:
        while True:
            try:
                term, data = unstamped(self.socket.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return
            self.handle(ControllerMessage(self._fleet.codec.decode(data), term))

    def connect(self) -> None:
        while True:
            try:
                frames = self.handshakes.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if transport.stands(frames):
                self.handle(Connected())

    # -- workers

    def _start(self, start: StartWorker) -> None:
        worker = self.workers[start.worker] = Worker(start)
        self._fleet.later(LOADING_S, self._ready, worker)

    def _ready(self, worker: Worker) -> None:
        if worker.alive and worker.phase is WorkerPhase.STARTING:
            worker.phase = WorkerPhase.READY
            self._say(worker)

    def _obey(self, worker: Worker, order: Order) -> None:
        if worker.order is None or order.generation >= worker.order.generation:
            worker.order = order
            self._fleet.later(0.02, self._switch, worker)

    def _switch(self, worker: Worker) -> None:
        order = worker.order
        if not worker.alive or order is None or worker.phase in (WorkerPhase.LEFT, WorkerPhase.FINISHED):
            return
        if worker.start.worker not in order.roster.workers:
            worker.phase = WorkerPhase.LEFT
            self._say(worker)
            self._fleet.later(0.05, self.end, worker, 0)
        elif worker.generation < order.generation and worker.phase is not WorkerPhase.STARTING:
            first = worker.generation == 0
            worker.generation, worker.phase = order.generation, WorkerPhase.TRAINING
            self._say(worker)
            if first:
                self._fleet.later(random.uniform(0, 1), self._go_on, worker)

    def _go_on(self, worker: Worker) -> None:
        """Advance a worker, each second or at its reporting interval."""
        if not worker.alive or worker.phase is not WorkerPhase.TRAINING:
            return
        if self._fleet.applied(worker.start) >= (worker.start.spec.max_steps or 0) - 1:
            worker.phase = WorkerPhase.FINISHED
            self._say(worker)
            self._fleet.later(0.1, self.end, worker, 0)
            return
        if self._fleet.report_s:
            self._say(worker)
        self._fleet.later(self._fleet.report_s or 1.0, self._go_on, worker)

    def _suspend(self, worker: Worker, saver: WorkerId | None) -> None:
        if saver == worker.start.worker:
            worker.saved = self._fleet.applied(worker.start)
        worker.phase = WorkerPhase.LEFT
        self._say(worker)
        self._fleet.later(0.1, self.end, worker, 0)

    def end(self, worker: Worker, exit_code: int) -> None:
        if worker.alive:
            worker.alive = False
            self.workers.pop(worker.start.worker, None)
            self.handle(ProcessExited(worker.start.worker, exit_code, f"exit code {exit_code}"))

    def _say(self, worker: Worker) -> None:
        self.handle(WorkerStatusReceived(worker.status(self._fleet.applied(worker.start))))


@dataclass
class Fleet:
    """All agents of this process, and their clock."""

    address: str
    keys: Keys
    context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)
    codec: Codec[ToAgentFromController] = field(default_factory=lambda: Codec(ToAgentFromController))
    report_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    _timers: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _began: dict[JobId, float] = field(default_factory=dict)

    def count(self, what: str, sent: bool) -> None:
        what = what if sent else f"{what}, not sent"
        self.counts[what] = self.counts.get(what, 0) + 1

    def applied(self, start: StartWorker) -> int:
        """Return the number of steps that a job has done."""
        began = self._began.setdefault(start.job, time.monotonic())
        return int((time.monotonic() - began) / STEP_S)

    def later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), call, arguments))

    def run(self, first: int, count: int, gpus: int) -> None:
        self.context.setsockopt(zmq.IMMEDIATE, 1)
        self.context.set(zmq.MAX_SOCKETS, 3 * count + 16)
        agents = [Agent(self, first + i, gpus) for i in range(count)]
        poller = zmq.Poller()
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        by_socket = {agent.socket: agent.receive for agent in agents}
        by_socket |= {agent.handshakes: agent.connect for agent in agents}
        for socket in by_socket:
            poller.register(socket, zmq.POLLIN)
        for agent in agents:
            agent.handle(Started())
        while True:
            began = time.monotonic()
            for ready, _ in poller.poll(1):
                if isinstance(ready, int):
                    if not self._told(sys.stdin.readline()):
                        return
                else:
                    by_socket[ready]()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                _, _, call, arguments = heapq.heappop(self._timers)
                call(*arguments)
            unix = time.time()
            for agent in agents:
                if agent.due <= unix:
                    agent.handle(AgentTick())
            time.sleep(max(0.0, began + TICK_S - time.monotonic()))

    def _told(self, line: str) -> bool:
        match line.split():
            case ["report", seconds]:
                self.report_s = float(seconds)
            case ["tell"]:
                print(json.dumps({"sent": self.counts, "cpu_s": time.process_time()}), flush=True)
            case []:
                return False
        return True


if __name__ == "__main__":
    Fleet(sys.argv[1], Keys.read(Path(sys.argv[2]))).run(*map(int, sys.argv[3:6]))
    os._exit(0)
