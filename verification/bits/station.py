"""The controller and the agent of one job in this process, its workers as real processes.

All decisions are the product's: the controller's `intake` and `reconcile`, the agent's machine. Only the scheduler is left out:
the driver says itself on which GPUs the job is to train. Nothing is lost between the two, and nothing is waited for.
"""

from __future__ import annotations

import os
import random
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import zmq

from elasticd.agent.events import (
    ControllerMessage,
    Event,
    ProcessExited,
    SendController,
    SendWorker,
    SignalProcess,
    Started,
    StartProcess,
    StopSignal,
    TimePassed,
    WorkerStatusReceived,
)
from elasticd.agent.machine import AgentMachine
from elasticd.controller.cluster import Cluster, Settings
from elasticd.controller.events import SendAgent
from elasticd.controller.generations import OVER
from elasticd.controller.intake import on_agent_message
from elasticd.controller.jobs import Job
from elasticd.controller.reconcile import settle, stop_worker
from elasticd.controller.records import Submission
from elasticd.controller.scheduling.scheduler import load_scheduler
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import StartWorker, ToAgentFromWorker
from elasticd.protocol.model import (
    CheckpointSpec,
    Gpu,
    GpuAddress,
    GpuKind,
    GpuPlace,
    GpuRange,
    JobId,
    JobSpec,
    Server,
    ServerId,
    WorkerId,
)
from elasticd.runtime import transport
from elasticd.runtime.clock import SteadyClock
from elasticd.runtime.loop import Loop

from .nursery import Began, Ended, Nursery
from .points import Board
from .worker import Errand

SERVER = ServerId("server")
JOB = JobId("bits-1")
GPUS = 24
HEARTBEAT_INTERVAL_S = 0.5
TICK_S = 0.004  # how often the driver looks at the board


def slot_of(worker: str) -> int:
    """A worker's number is its slot on the board."""
    return int(worker.rpartition(".")[2])


class Station:
    """One job. `turn` lets everything that has come in take effect."""

    def __init__(self, nursery: Nursery, directory: Path, model: str, virtual_workers: int, epochs: int) -> None:
        self._nursery = nursery
        self._directory = directory
        self._model = model
        self._epochs = epochs
        self.board = Board(directory / "board")
        self.pids: dict[str, int] = {}  # of processes that run
        self.asked: dict[str, None] = {}  # workers whose process was asked for, whether it runs or has ended
        self.exit_codes: dict[str, int] = {}
        self.told_to_stop: dict[str, None] = {}
        self._clock = SteadyClock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = transport.router(self._context)
        self._address = transport.bind(self._router, f"ipc://{directory}/agent")
        self._codec: Codec[ToAgentFromWorker] = Codec(ToAgentFromWorker)
        self._loop = Loop(self._clock, self._on_turn, self._next_deadline)
        self._loop.add_socket(self._router, self._on_worker)
        self._loop.add_descriptor(nursery.descriptor, self._on_nursery)
        settings = Settings(cluster="bits", incarnation="1", version="0", pid=os.getpid(), max_restarts=1000)
        scheduler = load_scheduler({"policy": "max-min"}, "bits")
        self._cluster = Cluster(settings, scheduler, random.Random(0), self.now())
        self._agent = AgentMachine(_server(), "1", HEARTBEAT_INTERVAL_S)
        self._events: deque[Event] = deque([Started()])
        spec = JobSpec(
            name="bits",
            command=("train",),
            gpus=GpuRange(min=1, max=virtual_workers),
            virtual_workers=virtual_workers,
            workdir="/",
            checkpoint=CheckpointSpec(every_s=1e9, keep=1),
        )
        self.job = Job(Submission(job=JOB, request="1", spec=spec, submitted_s=self.now()))
        self._work_off()
        self._cluster.add_job(self.job)

    def close(self) -> None:
        """End what still runs, and let go of everything."""
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
        """Wait a moment, and let what has come take effect."""
        self._loop.turn()

    # -- what a driver may do and ask

    def aim(self, gpus: Sequence[int]) -> None:
        """The job is to train on these GPUs."""
        self.job.update(target=tuple(GpuAddress(server=SERVER, index=gpu) for gpu in gpus))
        self._cluster.stir(self.job)
        self._settle()
        self._work_off()

    def kill(self, worker: str) -> None:
        """SIGKILL, now."""
        self._signal(worker, signal.SIGKILL)

    def ask_for_stacks(self) -> None:
        """Let every process write to its log where it stands."""
        for worker in list(self.pids):
            self._signal(worker, signal.SIGUSR1)

    def free_gpus(self) -> list[int]:
        """Those without a process and outside the target."""
        taken = {gpu.index for gpu in self.job.kept.target} | {entry.gpu.index for entry in self.job.kept.workers}
        return [gpu for gpu in range(GPUS) if gpu not in taken]

    def holders(self) -> list[WorkerId]:
        """The workers that train with the state, in order of their names. The board knows sooner than the controller."""
        return [
            entry.worker
            for entry in self.job.kept.workers
            if entry.worker in self.pids
            and self.board.has_applied(slot_of(entry.worker))
            and ((status := self.job.statuses.get(entry.worker)) is None or status.phase not in OVER)
        ]

    def story(self) -> list[str]:
        """What the controller has told of the job."""
        return [event.text for event in self._cluster.events]

    # -- facts in

    def _on_worker(self, frames: list[bytes]) -> None:
        self._events.append(WorkerStatusReceived(self._codec.decode(frames[-1]).status))

    def _on_nursery(self) -> None:
        for news in self._nursery.news():
            if isinstance(news, Began):
                self.pids[news.worker] = news.pid
                if news.worker in self.told_to_stop:
                    self._signal(news.worker, signal.SIGTERM)
            elif isinstance(news, Ended):
                del self.pids[news.worker]
                self.exit_codes[news.worker] = news.code
                reason = f"exit code {news.code}" if news.code >= 0 else f"killed by {signal.Signals(-news.code).name}"
                self._events.append(ProcessExited(WorkerId(news.worker), news.code, reason))

    def _next_deadline(self) -> float:
        deadline = self._agent.next_deadline()
        soon = self.now() + TICK_S
        return soon if deadline is None else min(soon, deadline)

    def _on_turn(self) -> None:
        deadline = self._agent.next_deadline()
        if deadline is not None and self.now() >= deadline:
            self._events.append(TimePassed())
        self._work_off()
        if any(timer is not None and self.now() >= timer for timer in (self.job.restart_at, self.job.stop_rest_at)):
            self._pass_time()

    def _pass_time(self) -> None:
        """The timers of the controller that a history can meet: a restart after the loss of all, and a job's end."""
        job = self.job
        if job.stop_rest_at is not None and self.now() >= job.stop_rest_at:
            job.stop_rest_at = None
            for entry in job.kept.workers:
                stop_worker(self._cluster, self.now(), job, entry.worker)
        self._cluster.stir(job)
        self._settle()
        self._work_off()

    # -- effects out

    def _work_off(self) -> None:
        while self._events:
            for action in self._agent.handle(self.now(), self._events.popleft()):
                match action:
                    case SendController(message):
                        on_agent_message(self._cluster, self.now(), SERVER, message)
                        self._settle()
                    case SendWorker(worker, message):
                        transport.send(self._router, worker.encode(), self._codec.encode(message))
                    case StartProcess(start):
                        self._start(start)
                    case SignalProcess(worker, how):
                        self.told_to_stop[worker] = None
                        self._signal(worker, signal.SIGKILL if how is StopSignal.KILL else signal.SIGTERM)

    def _settle(self) -> None:
        self._cluster.schedule_due = False  # the driver is the scheduler
        settle(self._cluster, self.now())
        for effect in self._cluster.take_effects(self.now()):
            if isinstance(effect, SendAgent):
                self._events.append(ControllerMessage(effect.message))

    def _start(self, start: StartWorker) -> None:
        self.asked[start.worker] = None
        variables = {
            "ELASTICD_JOB": start.job,
            "ELASTICD_WORKER": start.worker,
            "ELASTICD_AGENT": self._address,
            "ELASTICD_ADDRESS": "127.0.0.1",
            "ELASTICD_GPU_KIND": "cpu",
            "ELASTICD_VIRTUAL_WORKERS": str(start.spec.virtual_workers),
            "ELASTICD_DETERMINISM": start.spec.determinism.value,
            "ELASTICD_CHECKPOINT_DIRECTORY": str(self._directory / "checkpoints"),
            "ELASTICD_CHECKPOINT_EVERY_S": repr(start.spec.checkpoint.every_s),
            "ELASTICD_CHECKPOINT_KEEP": str(start.spec.checkpoint.keep),
        }
        slot = slot_of(start.worker)
        self._nursery.start(Errand(start.worker, slot, self._model, self._epochs, str(self._directory), variables))

    def _signal(self, worker: str, number: signal.Signals) -> None:
        pid = self.pids.get(worker)
        if pid is None:
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # its end is on its way to us


def _server() -> Server:
    """Two to a switch, four to a socket: so that a joiner has near and far holders, and links to share."""
    gpus = tuple(
        Gpu(index=i, kind=GpuKind.CPU, name="CPU slot", place=GpuPlace(socket=i // 4, switch=i // 2))
        for i in range(GPUS)
    )
    return Server(server=SERVER, address="127.0.0.1", gpus=gpus)
