"""Checks of a GPU just before a worker starts on it (presence, free memory, no other processes), in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.messages import StartWorker
from ..protocol.model import Fault, WorkerId
from .events import ProcessFailed, StopSignal
from .health import CheckFailed
from .monitoring import CHECK_S
from .task_queues import TaskQueues

Check = Callable[[StartWorker], CheckFailed | None]  # None: all GPUs of the worker are fit


@dataclass
class _Pending:
    start: StartWorker
    until: float


class Checks:
    """Pending starts of workers that wait for a check of their GPUs."""

    def __init__(
        self,
        tasks: TaskQueues,
        check: Check,
        begin: Callable[[StartWorker], None],
        fail: Callable[[ProcessFailed, CheckFailed], None],
    ) -> None:
        """`begin`: called if the GPU is fit. `fail`: called if it is not, with the finding."""
        self._tasks = tasks
        self._check = check
        self._begin = begin
        self._fail = fail
        self._pending: dict[WorkerId, _Pending] = {}

    def ask(self, now: float, start: StartWorker) -> None:
        """Check the GPU of `start`, then call `begin` or `fail`."""
        pending = self._pending[start.worker] = _Pending(start, now + CHECK_S)
        offered = self._tasks.try_submit(
            f"gpu {start.gpu}", lambda: self._check(start), lambda found: self._on_checked(pending, found)
        )
        if not offered:
            self._give_up(pending, "too much waits for this server's devices")

    def stop(self, worker: WorkerId, how: StopSignal) -> ProcessFailed | None:
        """Cancel a pending start. None: the worker does not wait here."""
        if self._pending.pop(worker, None) is None:
            return None
        return ProcessFailed(worker, "it was stopped before it began", Fault.STOPPED)

    def deadline(self) -> float | None:
        return min((pending.until for pending in self._pending.values()), default=None)

    def pass_time(self, now: float) -> None:
        for pending in [pending for pending in self._pending.values() if now >= pending.until]:
            self._give_up(pending, f"the driver has not answered within {CHECK_S:g} s")

    def close(self) -> None:
        self._pending.clear()

    def _goes_on(self, pending: _Pending) -> bool:
        return self._pending.get(pending.start.worker) is pending

    def _on_checked(self, pending: _Pending, found: CheckFailed | None) -> None:
        if not self._goes_on(pending):
            return
        if found is not None:
            self._fail_start(pending, found)
            return
        del self._pending[pending.start.worker]
        self._begin(pending.start)

    def _give_up(self, pending: _Pending, why: str) -> None:
        self._fail_start(pending, CheckFailed(pending.start.gpu, "check-hangs", why))

    def _fail_start(self, pending: _Pending, found: CheckFailed) -> None:
        del self._pending[pending.start.worker]
        text = f"cannot be started: GPU {found.gpu}: {found.text}"
        self._fail(ProcessFailed(pending.start.worker, text, Fault.SERVER), found)
