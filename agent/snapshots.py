"""Starts of workers that wait for their job's snapshot: its parts come from the controller, and are unpacked as the
job's owner (`protocol.snapshots`).

All workers of a job on a server run in one copy. A start first checks whether that copy exists. If not, the agent
requests the parts one after the other, and again where no answer comes; it verifies digest and size before it unpacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from ..protocol.messages import ReadSnapshot, SnapshotPart, StartWorker
from ..protocol.model import Fault, JobId, Snapshot, WorkerId
from ..protocol.snapshots import part_bytes, parts_of
from .disk import Disk, Failed
from .events import ProcessFailed, StopSignal
from .task_queues import TaskQueues

log = logging.getLogger(__name__)

ASK_AGAIN_S = 5.0
GIVE_UP_S = 120.0  # without a new part
TOO_MUCH_WAITS = "too much waits for this server's file systems"

_Job = tuple[JobId, str]  # with its uid


@dataclass
class _Coming:
    """The snapshot of one job, and the starts that wait for it."""

    snapshot: Snapshot
    starts: dict[WorkerId, StartWorker] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    asked: bool = False  # whether the controller was asked for the next part
    ask_at: float = 0.0
    until: float = 0.0


class Snapshots:
    """Snapshots in progress. For the thread of the agent's loop."""

    def __init__(
        self,
        tasks: TaskQueues,
        disk: Disk,
        now: Callable[[], float],
        send: Callable[[ReadSnapshot], object],
        begin: Callable[[StartWorker], None],
        fail: Callable[[ProcessFailed], None],
        holder: Callable[[StartWorker], str],
    ) -> None:
        """begin: called when the files are there, with their directory as the order's working directory. fail: called
        if they cannot be obtained. holder: of a start (see `task_queues`).
        """
        self._tasks = tasks
        self._disk = disk
        self._now = now
        self._send = send
        self._begin = begin
        self._fail = fail
        self._holder = holder
        self._coming: dict[_Job, _Coming] = {}

    def ask(self, start: StartWorker) -> None:
        """Make sure that the files of the start's job are there, then call `begin`."""
        snapshot, job = start.spec.snapshot, (start.job, start.uid)
        assert snapshot is not None
        coming = self._coming.get(job)
        if coming is not None:
            coming.starts[start.worker] = start
            return
        coming = self._coming[job] = _Coming(snapshot, {start.worker: start})
        self._offer(job, coming, start, lambda: self._disk.snapshot_of(start))

    def take(self, part: SnapshotPart) -> None:
        """Take a part from the controller."""
        job = (part.job, part.uid)
        coming = self._coming.get(job)
        if coming is None or not coming.asked or part.part != len(coming.parts):
            return  # asked for twice
        if part.error or len(part.data) != part_bytes(coming.snapshot, part.part):
            self._give_up(job, part.error or "the controller has sent a part of another size")
            return
        coming.parts.append(part.data)
        if len(coming.parts) < parts_of(coming.snapshot):
            self._ask_next(job, coming)
            return
        coming.asked = False
        data, coming.parts = b"".join(coming.parts), []
        start = next(iter(coming.starts.values()))
        self._offer(job, coming, start, lambda: self._disk.unpack(start, data))

    def stop(self, worker: WorkerId, how: StopSignal) -> ProcessFailed | None:
        """Cancel a pending start. None: the worker does not wait here."""
        for job, coming in self._coming.items():
            if coming.starts.pop(worker, None) is not None:
                if not coming.starts and coming.asked:
                    del self._coming[job]
                return ProcessFailed(worker, "it was stopped before it began", Fault.STOPPED)
        return None

    def remove(self, job: JobId, uid: str, holder: str) -> None:
        """Remove the copy of a job without workers here."""
        if (job, uid) not in self._coming:
            queue = f"checkpoints {job}.{uid}"
            self._tasks.submit(queue, lambda: self._disk.remove_snapshot(job, uid), lambda done: None, holder)

    def deadline(self) -> float | None:
        return min((min(each.ask_at, each.until) for each in self._coming.values() if each.asked), default=None)

    def pass_time(self) -> None:
        now = self._now()
        for job, coming in list(self._coming.items()):
            if coming.asked and now >= coming.until:
                self._give_up(job, f"the controller has not sent the job's snapshot within {GIVE_UP_S:g} s")
            elif coming.asked and now >= coming.ask_at:
                self._ask(job, coming)

    def _offer(self, job: _Job, coming: _Coming, start: StartWorker, work: Callable[[], Path | Failed | None]) -> None:
        offered = self._tasks.try_submit(
            f"checkpoints {start.job}.{start.uid}",
            work,
            lambda found: self._on_done(job, coming, found),
            self._holder(start),
        )
        if not offered:
            self._give_up(job, TOO_MUCH_WAITS)

    def _on_done(self, job: _Job, coming: _Coming, found: Path | Failed | None) -> None:
        if self._coming.get(job) is not coming:
            return
        if found is None and coming.starts:
            self._ask_next(job, coming)
            return
        del self._coming[job]
        for worker, start in coming.starts.items():
            if isinstance(found, Failed):
                self._fail(ProcessFailed(worker, found.reason, found.fault))
            elif found is not None:
                self._begin(replace(start, spec=replace(start.spec, workdir=str(found))))

    def _ask_next(self, job: _Job, coming: _Coming) -> None:
        coming.asked, coming.until = True, self._now() + GIVE_UP_S
        self._ask(job, coming)

    def _ask(self, job: _Job, coming: _Coming) -> None:
        coming.ask_at = self._now() + ASK_AGAIN_S
        self._send(ReadSnapshot(job=job[0], uid=job[1], part=len(coming.parts)))

    def _give_up(self, job: _Job, why: str) -> None:
        for worker in self._coming.pop(job).starts:
            self._fail(ProcessFailed(worker, f"cannot be started: {why}", Fault.SERVER))
