"""Workers of one job by id, by GPU and by server, so that finding or changing one does not examine the others.

Each job has one table, which only the job writes to (`Job.update_worker`, `Job.put_worker`, `Job.end_worker`). Its
records are values. The table counts its changes, so that users of derived data know whether these are still valid. It
also keeps the names of workers with records that the store lacks (`stored`).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from ...protocol.model import GpuAddress, ServerId, WorkerId
from .records import WorkerRecord, WorkerState

At = TypeVar("At", GpuAddress, ServerId)
K = TypeVar("K")
V = TypeVar("V")


class WorkerTable:
    """Workers with processes that may be alive, in the order in which they were named."""

    def __init__(self, entries: Iterable[WorkerRecord] = ()) -> None:
        self.version = 0  # grows with each change
        self.membership = 0  # grows with each worker that is added or removed
        self.holdings = 0  # grows with each GPU that is taken or released
        self.unwritten: dict[WorkerId, None] = {}  # changed since `stored` last examined the table
        self.news: dict[WorkerId, None] = {}  # changed since `worker_sets` last examined the table
        self.moved: dict[GpuAddress, None] = {}  # GPUs taken or released since `index` last examined the table
        self.ordered: dict[WorkerId, None] = {}  # workers in the state ORDERED
        self.stopping: dict[WorkerId, None] = {}
        self._entries: dict[WorkerId, WorkerRecord] = {}
        self._on_gpu: dict[GpuAddress, dict[WorkerId, None]] = {}
        self._on_server: dict[ServerId, dict[WorkerId, None]] = {}
        self._held: dict[GpuAddress, int] = {}  # number of processes on each GPU
        self._running = 0  # number of workers in the state RUNNING
        for entry in entries:
            self.put(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[WorkerRecord]:
        """Iterate over the present workers; changes during the iteration have no effect on it."""
        return iter(tuple(self._entries.values()))

    def __contains__(self, worker: object) -> bool:
        return worker in self._entries

    def __repr__(self) -> str:
        return f"WorkerTable({', '.join(self._entries)})"

    def get(self, worker: WorkerId) -> WorkerRecord | None:
        """Return the record of `worker`; None if the table has none."""
        return self._entries.get(worker)

    def on_gpu(self, gpu: GpuAddress) -> tuple[WorkerRecord, ...]:
        """Return the workers with `gpu` as their first GPU, in the table's order."""
        return tuple([self._entries[worker] for worker in self._on_gpu.get(gpu, ())])

    def on_server(self, server: ServerId) -> tuple[WorkerRecord, ...]:
        """Return the workers on `server`, in the table's order."""
        return tuple([self._entries[worker] for worker in self._on_server.get(server, ())])

    @property
    def servers(self) -> Collection[ServerId]:
        """Servers with workers, starting with that of the first worker."""
        return self._on_server.keys()

    @property
    def held(self) -> Collection[GpuAddress]:
        """GPUs that have a process, or are about to have one."""
        return self._held.keys()

    @property
    def begun(self) -> bool:
        """Return whether any process has been requested."""
        return len(self.ordered) < len(self._entries)

    @property
    def all_run(self) -> bool:
        """Return whether each process has been reported as running."""
        return self._running == len(self._entries)

    def put(self, entry: WorkerRecord) -> None:
        """Add a worker, or replace its record. A worker never moves to other GPUs."""
        worker, before = entry.worker, self._entries.get(entry.worker)
        if before is None:
            self.membership += 1
            self._on_gpu.setdefault(entry.gpu, {})[worker] = None
            self._on_server.setdefault(entry.gpu.server, {})[worker] = None
        held = before is not None and before.state is not WorkerState.ORDERED
        if held is not (entry.state is not WorkerState.ORDERED):
            self._hold(entry, -1 if held else 1)
        self._running += (entry.state is WorkerState.RUNNING) - (
            before is not None and before.state is WorkerState.RUNNING
        )
        mark(self.ordered, worker, None, entry.state is WorkerState.ORDERED)
        mark(self.stopping, worker, None, entry.stopping)
        self._entries[worker] = entry
        self._note(worker)

    def remove(self, worker: WorkerId) -> WorkerRecord | None:
        """Remove a worker and return its record; None if the table has none."""
        entry = self._entries.pop(worker, None)
        if entry is None:
            return None
        _take(self._on_gpu, entry.gpu, worker)
        _take(self._on_server, entry.gpu.server, worker)
        if entry.state is not WorkerState.ORDERED:
            self._hold(entry, -1)
        self._running -= entry.state is WorkerState.RUNNING
        self.membership += 1
        self.ordered.pop(worker, None)
        self.stopping.pop(worker, None)
        self._note(worker)
        return entry

    def examine_again(self, worker: WorkerId) -> None:
        """Let `worker_sets` examine a worker with an unchanged record, because a time limit of it has moved."""
        self.news[worker] = None

    def take_unwritten(self) -> dict[WorkerId, None]:
        """Return the workers that have changed since the last call."""
        found, self.unwritten = self.unwritten, {}
        return found

    def take_moved(self) -> dict[GpuAddress, None]:
        """Return the GPUs that were taken or released since the last call."""
        found, self.moved = self.moved, {}
        return found

    def copy(self) -> WorkerTable:
        """Return an independent table with the same records, which no reader has examined yet."""
        found = copy.copy(self)
        found.unwritten, found.moved, found.news = {}, dict.fromkeys(self._held), {}
        found.ordered, found.stopping = dict(self.ordered), dict(self.stopping)
        found._entries, found._held = dict(self._entries), dict(self._held)
        found._on_gpu = {gpu: dict(here) for gpu, here in self._on_gpu.items()}
        found._on_server = {server: dict(here) for server, here in self._on_server.items()}
        return found

    def _hold(self, entry: WorkerRecord, by: int) -> None:
        self.holdings += 1
        for gpu in entry.all_gpus:
            self.moved[gpu] = None
            self._held[gpu] = self._held.get(gpu, 0) + by
            if not self._held[gpu]:
                del self._held[gpu]

    def _note(self, worker: WorkerId) -> None:
        self.version += 1
        self.unwritten[worker] = self.news[worker] = None


def mark(table: dict[K, V], key: K, value: V, there: bool) -> None:
    """Store `value` under `key` in `table`, or remove the key."""
    if there:
        table[key] = value
    else:
        table.pop(key, None)


def _take(table: dict[At, dict[WorkerId, None]], at: At, worker: WorkerId) -> None:
    del table[at][worker]
    if not table[at]:
        del table[at]
