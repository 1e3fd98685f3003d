"""The workers of one job, by id, by GPU and by server: a worker is found, and changed, without looking at the others.

A job has one table, which nobody else writes to (`Job.update_worker`, `Job.add_worker`, `Job.end_worker`). The records in it are
values. The table counts its changes, so that whoever has derived something from it knows whether that still holds, and keeps the
names of the workers whose records the store does not have yet (`stored`).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from ...protocol.model import GpuAddress, ServerId, WorkerId
from .records import WorkerRecord, WorkerState

At = TypeVar("At", GpuAddress, ServerId)
NOBODY: dict[WorkerId, None] = {}


class WorkerTable:
    """Workers whose processes may live, in the order in which they were named."""

    def __init__(self, entries: Iterable[WorkerRecord] = ()) -> None:
        self.version = 0  # grows with each change
        self.membership = 0  # likewise with each worker that comes or goes
        self.holdings = 0  # likewise with each GPU that is taken or left
        self.unwritten: dict[WorkerId, None] = {}  # have changed since `stored` has last looked
        self.news: dict[WorkerId, None] = {}  # have changed since `standing` has last looked
        self.moved: dict[GpuAddress, None] = {}  # GPUs that have been taken or left since `index` has last looked
        self.ordered: dict[WorkerId, None] = {}  # in the state ORDERED
        self.stopping: dict[WorkerId, None] = {}
        self._entries: dict[WorkerId, WorkerRecord] = {}
        self._on_gpu: dict[GpuAddress, dict[WorkerId, None]] = {}
        self._on_server: dict[ServerId, dict[WorkerId, None]] = {}
        self._held: dict[GpuAddress, int] = {}  # by so many processes
        self._running = 0  # in the state RUNNING
        for entry in entries:
            self.put(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[WorkerRecord]:
        """All as they are now, whatever changes meanwhile."""
        return iter(tuple(self._entries.values()))

    def __contains__(self, worker: object) -> bool:
        return worker in self._entries

    def __repr__(self) -> str:
        return f"WorkerTable({', '.join(self._entries)})"

    def get(self, worker: WorkerId) -> WorkerRecord | None:
        """The record of `worker`; None: it is not here."""
        return self._entries.get(worker)

    def on_gpu(self, gpu: GpuAddress) -> tuple[WorkerRecord, ...]:
        """The workers whose first GPU is `gpu`, in their order."""
        return tuple([self._entries[worker] for worker in self._on_gpu.get(gpu, NOBODY)])

    def on_server(self, server: ServerId) -> tuple[WorkerRecord, ...]:
        """The workers on `server`, in their order."""
        return tuple([self._entries[worker] for worker in self._on_server.get(server, NOBODY)])

    @property
    def servers(self) -> Collection[ServerId]:
        """The servers with workers; that of the first worker is first."""
        return self._on_server.keys()

    @property
    def held(self) -> Collection[GpuAddress]:
        """The GPUs with a process, or about to have one."""
        return self._held.keys()

    @property
    def begun(self) -> bool:
        """Has any process been asked for?"""
        return len(self.ordered) < len(self._entries)

    @property
    def all_run(self) -> bool:
        """Has each process been heard to run?"""
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
        _mark(self.ordered, worker, entry.state is WorkerState.ORDERED)
        _mark(self.stopping, worker, entry.stopping)
        self._entries[worker] = entry
        self._note(worker)

    def remove(self, worker: WorkerId) -> WorkerRecord | None:
        """Take a worker out. None: it is not here."""
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

    def copy(self) -> WorkerTable:
        """A table of its own with the same records, at which nobody has looked yet."""
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


def _mark(table: dict[WorkerId, None], worker: WorkerId, there: bool) -> None:
    if there:
        table[worker] = None
    else:
        table.pop(worker, None)


def _take(table: dict[At, dict[WorkerId, None]], at: At, worker: WorkerId) -> None:
    del table[at][worker]
    if not table[at]:
        del table[at]
