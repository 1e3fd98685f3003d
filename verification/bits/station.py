"""Controller and agent of one job in this process, with workers as real processes.

All decisions are made by the product's machines of controller and agent. Only the scheduler is replaced: the driver itself
chooses the job's GPUs. No message between the two machines is lost or delayed.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import zmq

from elasticd.agent.accounts import myself
from elasticd.agent.environment import Surroundings, environment
from elasticd.agent.events import (
    AgentTick,
    ControllerMessage,
    Event,
    ProcessExited,
    ProcessStarted,
    SendController,
    SendWorker,
    SignalProcess,
    Started,
    StartProcess,
    StopSignal,
    WorkerStatusReceived,
)
from elasticd.agent.machine import AgentMachine
from elasticd.controller.events import AgentMessage, ClientRequest, ControllerTick, SendAgent
from elasticd.controller.events import Event as ControllerEvent
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.reconcile.orders import send_order
from elasticd.controller.settings import Settings
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import Envelope, Request, Scale, StartWorker, Submit, ToAgentFromWorker
from elasticd.protocol.model import (
    CheckpointSpec,
    Gpu,
    GpuKind,
    GpuPlace,
    GpuRange,
    JobId,
    JobSpec,
    Scaling,
    Server,
    ServerId,
    WorkerId,
)
from elasticd.runtime import transport
from elasticd.runtime.clock import SteadyClock
from elasticd.runtime.keys import Pair
from elasticd.runtime.loop import Loop

from .nursery import Began, Ended, Nursery
from .points import Board
from .steering import Steering
from .worker import Errand

SERVER = ServerId("server")
JOB = JobId("bits-1")
GPUS = 24
HEARTBEAT_INTERVAL_S = 0.5
TICK_S = 0.004  # period at which the driver reads the board


def slot_of(worker: str) -> int:
    """Return a worker's slot on the board, which is its number."""
    return int(worker.rpartition(".")[2])


class Station:
    """One job. `turn` handles all input that has arrived."""

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        model: str,
        virtual_workers: int,
        epochs: int,
        checkpoint_every_s: float = 1e9,
        scaling: Scaling | None = None,
        tick_s: float = TICK_S,
        gpus: int = GPUS,
    ) -> None:
        self._tick_s = tick_s
        self._nursery = nursery
        self._directory = directory
        self._model = model
        self._epochs = epochs
        self.board = Board(directory / "board")
        self.pids: dict[str, int] = {}  # of running processes
        self.asked: dict[str, None] = {}  # workers with a requested process, running or ended
        self.exit_codes: dict[str, int] = {}
        self.told_to_stop: dict[str, None] = {}
        self._clock = SteadyClock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = transport.router(self._context)
        self._address = transport.bind(self._router, f"ipc://{directory}/agent")
        self._key = Pair.new().secret.decode()
        self._codec: Codec[ToAgentFromWorker] = Codec(ToAgentFromWorker)
        self._loop = Loop(self._clock, self._on_turn, self._next_deadline)
        self._loop.add_socket(self._router, self._on_worker)
        self._loop.add_descriptor(nursery.descriptor, self._on_nursery)
        settings = Settings(cluster="bits", incarnation="1", version="0", pid=os.getpid(), max_restarts=1000)
        self._steering = Steering()
        self._controller = ControllerMachine(settings, self._steering.scheduler(), random.Random(0), self.now())
        self._requests = itertools.count(1)
        self._server = _server(gpus)
        self._agent = AgentMachine(self._server, "1", HEARTBEAT_INTERVAL_S)
        self._events: deque[Event] = deque([Started()])
        spec = JobSpec(
            name="bits",
            command=("train",),
            gpus=GpuRange(min=1, max=virtual_workers),
            virtual_workers=virtual_workers,
            workdir="/",
            checkpoint=CheckpointSpec(every_s=checkpoint_every_s, keep=1),
            scaling=scaling,
        )
        self._ask(Submit(spec=spec))
        self.job = self._controller.cluster.jobs[JOB]  # for observation
        self._work_off()

    def close(self) -> None:
        """Kill all running processes and close everything."""
        for worker in list(self.pids):
            self.kill(worker)
        while self.pids:
            self._loop.turn()
        self._loop.remove_descriptor(self._nursery.descriptor)
        self._loop.close()
        self._router.close()
        self._context.destroy(linger=0)

    def now(self) -> float:
        return self._clock.now()

    def turn(self) -> None:
        """Wait a moment, then handle all input that has arrived."""
        self._loop.turn()

    # -- actions and questions of a driver

    def aim(self, gpus: Sequence[int]) -> None:
        """Set the job's GPUs."""
        self._steering.gpus = tuple(gpus)
        self._ask(Scale(job=JOB, share=None))  # triggers a decision at once
        self._work_off()

    def preempt(self) -> None:
        """Take all GPUs from the job and wait until its workers, which write a checkpoint, have ended."""
        self.aim([])
        while self.pids and not self.job.final:
            self.turn()

    def grow(self, factor: int) -> None:
        """Let the controller ask for this factor of the batch, as if its Algorithm 1 had chosen it."""
        self.job.update(batch_factor=factor)
        send_order(self._controller.cluster, self.job)
        self._ask(Scale(job=JOB, share=None))  # with which the message leaves
        self._work_off()

    def kill(self, worker: str) -> None:
        """Send SIGKILL to a worker."""
        self._signal(worker, signal.SIGKILL)

    def ask_for_stacks(self) -> None:
        """Make every worker write its stack to its log."""
        for worker in list(self.pids):
            self._signal(worker, signal.SIGUSR1)

    def free_gpus(self) -> list[int]:
        """Return the GPUs without a process and outside the target."""
        taken = {gpu.index for gpu in self.job.record.target} | {entry.gpu.index for entry in self.job.workers}
        return [gpu.index for gpu in self._server.gpus if gpu.index not in taken]

    def holders(self) -> list[WorkerId]:
        """Return the workers that train with the state, by name. The board is ahead of the controller's knowledge."""
        return [
            entry.worker
            for entry in self.job.workers
            if entry.worker in self.pids
            and self.board.has_applied(slot_of(entry.worker))
            and ((status := self.job.statuses.get(entry.worker)) is None or not status.phase.over)
        ]

    def story(self) -> list[str]:
        """Return the texts of the controller's events, in order."""
        return [event.text for event in self._controller.cluster.history.events]

    # -- facts in

    def _on_worker(self, frames: list[bytes]) -> None:
        self._events.append(WorkerStatusReceived(self._codec.decode(frames[-1]).status))

    def _on_nursery(self) -> None:
        for news in self._nursery.news():
            if isinstance(news, Began):
                self.pids[news.worker] = news.pid
                self._events.append(ProcessStarted(WorkerId(news.worker)))
                if news.worker in self.told_to_stop:
                    self._signal(news.worker, signal.SIGTERM)
            elif isinstance(news, Ended):
                del self.pids[news.worker]
                self.exit_codes[news.worker] = news.code
                reason = f"exit code {news.code}" if news.code >= 0 else f"killed by {signal.Signals(-news.code).name}"
                self._events.append(ProcessExited(WorkerId(news.worker), news.code, reason))

    def _next_deadline(self) -> float:
        deadline = self._agent.next_deadline()
        soon = self.now() + self._tick_s
        return soon if deadline is None else min(soon, deadline)

    def _on_turn(self) -> None:
        deadline = self._agent.next_deadline()
        if deadline is not None and self.now() >= deadline:
            self._events.append(AgentTick())
        self._work_off()

    # -- the controller

    def _ask(self, request: Request) -> None:
        self._tell_controller(ClientRequest(b"driver", Envelope(id=f"{next(self._requests)}", request=request)))

    def _tell_controller(self, event: ControllerEvent) -> None:
        """Pass an event to the controller. Records are not stored, as this controller is never restarted."""
        for action in self._controller.handle(self.now(), event):
            if isinstance(action, SendAgent):
                self._events.append(ControllerMessage(action.message, self._controller.term))

    def _let_decide(self) -> None:
        deadline = self._controller.next_deadline()
        if deadline is not None and self.now() >= deadline:
            self._tell_controller(ControllerTick())

    # -- effects out

    def _work_off(self) -> None:
        self._let_decide()
        while self._events:
            for action in self._agent.handle(self.now(), self._events.popleft()):
                match action:
                    case SendController(message):
                        self._tell_controller(AgentMessage(SERVER, message))
                        self._let_decide()
                    case SendWorker(worker, message):
                        transport.send(self._router, worker.encode(), self._codec.encode(message))
                    case StartProcess(start):
                        self._start(start)
                    case SignalProcess(worker, how):
                        self.told_to_stop[worker] = None
                        self._signal(worker, signal.SIGKILL if how is StopSignal.KILL else signal.SIGTERM)

    def _start(self, start: StartWorker) -> None:
        self.asked[start.worker] = None
        gpus = self._server.gpus
        around = Surroundings(self._address, self._server.address, self._directory / "checkpoints", gpus)
        scratch = str(self._directory)
        variables = environment(start, gpus[start.gpu], around, myself(), scratch) | {"ELASTICD_KEY": self._key}
        slot = slot_of(start.worker)
        self._nursery.start(Errand(start.worker, slot, self._model, self._epochs, str(self._directory), variables))

    def _signal(self, worker: str, number: signal.Signals) -> None:
        pid = self.pids.get(worker)
        if pid is None:
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # the report of its end is on the way


def _server(gpus: int) -> Server:
    """Return a server with two GPUs per switch and four per socket, so that joiners have near and far holders, and shared
    links."""
    there = tuple(
        Gpu(index=i, kind=GpuKind.CPU, name="CPU slot", place=GpuPlace(socket=i // 4, switch=i // 2))
        for i in range(gpus)
    )
    return Server(server=SERVER, address="127.0.0.1", gpus=there)
