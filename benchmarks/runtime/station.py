"""Substitute for agent and controller toward real workers, for measurements that determine the rosters themselves.

It receives the workers' statuses and gives orders, with the daemons' own messages: the workers are entirely the product's.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import zmq

from elasticd.protocol.codec import Codec
from elasticd.protocol.errors import PeerError
from elasticd.protocol.messages import Order, StatusReceived, ToAgentFromWorker
from elasticd.protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId, WorkerStatus
from elasticd.runtime import transport
from elasticd.runtime.keys import Pair

from .processes import until

POLL_MS = 20


@dataclass
class _Job:
    """A job's newest order, and its workers' last statuses."""

    order: Order | None = None
    statuses: dict[WorkerId, WorkerStatus] = field(default_factory=dict)


class Station:
    """Serves the workers of any number of jobs in a thread; a context manager."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = transport.router(self._context)
        self._directory = tempfile.TemporaryDirectory(prefix="station-")
        self.address = transport.bind(self._router, f"ipc://{self._directory.name}/workers")
        self._key = Pair.new().secret.decode()
        self._from_worker: Codec[ToAgentFromWorker] = Codec(ToAgentFromWorker)
        self._jobs: dict[JobId, _Job] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Station:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._router.close()
        self._context.destroy(linger=0)
        self._directory.cleanup()

    def variables(
        self, job: str, number: int, virtual_workers: int, determinism: str, checkpoints: str
    ) -> dict[str, str]:
        """Return the environment of worker `number` of `job`."""
        return {
            "ELASTICD_JOB": job,
            "ELASTICD_WORKER": _worker(job, number),
            "ELASTICD_AGENT": self.address,
            "ELASTICD_ADDRESS": "127.0.0.1",
            "ELASTICD_KEY": self._key,
            "ELASTICD_GPU_KIND": "cpu",
            "ELASTICD_VIRTUAL_WORKERS": str(virtual_workers),
            "ELASTICD_DETERMINISM": determinism,
            "ELASTICD_CHECKPOINT_DIRECTORY": checkpoints,
            "ELASTICD_CHECKPOINT_EVERY_S": "1e9",
            "ELASTICD_CHECKPOINT_KEEP": "1",
        }

    def order(self, job: str, generation: int, numbers: Sequence[int], leader: int) -> None:
        """Make these workers the next generation, as soon as they are there. The leader must have sent a status already, or be in
        the first generation."""
        members = tuple(
            Member(worker=_worker(job, number), gpu=GpuAddress(server=ServerId("station"), index=number))
            for number in numbers
        )
        roster = Roster(generation=generation, members=members, leader=_worker(job, leader))
        with self._lock:
            self._of(JobId(job)).order = Order(job=JobId(job), roster=roster, leader_address="")

    def until_committed(self, job: str, generation: int, timeout_s: float = 60.0) -> None:
        """Wait until all members of `generation` train in it."""

        def probe() -> bool | None:
            with self._lock:
                known = self._of(JobId(job))
                assert known.order is not None
                members = known.order.roster.workers
                there = all((s := known.statuses.get(m)) is not None and s.generation >= generation for m in members)
                return there or None

        until(f"generation {generation} of {job} trains", probe, timeout_s)

    def _of(self, job: JobId) -> _Job:
        return self._jobs.setdefault(job, _Job())

    def _serve(self) -> None:
        while not self._stop.is_set():
            while self._router.poll(POLL_MS):
                peer, data = self._router.recv_multipart()
                try:
                    status = self._from_worker.decode(data).status
                except PeerError:
                    continue
                with self._lock:
                    self._of(status.job).statuses[status.worker] = status
                received = StatusReceived(sequence=status.sequence)
                transport.send(self._router, peer, self._from_worker.encode(received))
            with self._lock:
                for job in self._jobs.values():
                    self._repeat(job)

    def _repeat(self, job: _Job) -> None:
        """Send the newest order to every worker that lacks it, once the leader's address is known."""
        if job.order is None or (leader := job.statuses.get(job.order.roster.leader)) is None:
            return
        order = Order(job=job.order.job, roster=job.order.roster, leader_address=leader.address)
        for worker, status in job.statuses.items():
            if status.order < order.generation:
                transport.send(self._router, worker.encode(), self._from_worker.encode(order))


def _worker(job: str, number: int) -> WorkerId:
    return WorkerId(f"{job}.{number}")
