"""Work that may block, done by threads: a file system that does not answer must not stop the agent's heartbeats.

Work is asked for in *lanes*, named by what it waits for (the directory of a job, say). The work of one lane is done in the
order in which it was asked for, one after the other; lanes do not wait for each other, unless there are more of them than
threads. What comes of a piece of work is handed over in the loop's thread, by `deliver`.

The threads last as long as the process: a process that one of them has started may have asked the kernel to end with it.
None of them is waited for when the agent ends, for the same reason that they exist.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

MAX_THREADS = 32
MAX_WAITING = 1000  # pieces of work, beyond which an offer is refused

R = TypeVar("R")


@dataclass(frozen=True)
class _Errand:
    work: Callable[[], Any]
    then: Callable[[Any], None]


@dataclass(frozen=True)
class _Done:
    errand: _Errand
    result: Any
    error: BaseException | None  # a bug: what the world can break, the work itself turns into a result


class Errands:
    """The threads, and what waits for them. All methods are for the loop's thread."""

    def __init__(self, wake: Callable[[], None], threads: int = MAX_THREADS, waiting: int = MAX_WAITING) -> None:
        """`wake` makes the loop turn, from any thread."""
        self._wake = wake
        self._most_threads = threads
        self._most_waiting = waiting
        self._lock = threading.Lock()  # of what follows
        self._lanes: dict[str, deque[_Errand]] = {}  # that have work; the first of each may be in progress
        self._waiting = 0
        self._threads = 0
        self._closed = False
        self._ready: SimpleQueue[str] = SimpleQueue()  # lanes whose first piece of work nobody does yet
        self._done: deque[_Done] = deque()

    def ask(self, lane: str, work: Callable[[], R], then: Callable[[R], None]) -> None:
        """Do `work` in its turn, then hand its result to `then`. For what has a bound of its own: so much for each worker."""
        with self._lock:
            self._waiting += 1
            errands = self._lanes.setdefault(lane, deque())
            errands.append(_Errand(work, then))
            if len(errands) > 1:
                return
            if len(self._lanes) > self._threads and self._threads < self._most_threads:
                self._threads += 1
                threading.Thread(target=self._serve, name=f"errands-{self._threads}", daemon=True).start()
            self._ready.put(lane)

    def offer(self, lane: str, work: Callable[[], R], then: Callable[[R], None]) -> bool:
        """As `ask`, unless too much waits already. Whether it will be done."""
        if self._waiting >= self._most_waiting:
            return False
        self.ask(lane, work, then)
        return True

    def deliver(self) -> None:
        """Hand over what has been done. Raises what work has raised: only a bug does."""
        while self._done:
            done = self._done.popleft()
            if done.error is not None:
                raise done.error
            done.errand.then(done.result)

    def close(self) -> None:
        """Nothing is delivered any more."""
        with self._lock:
            self._closed = True
        self._done.clear()

    def _serve(self) -> None:
        while True:
            lane = self._ready.get()
            with self._lock:
                errand = self._lanes[lane][0]
            done = _do(errand)
            with self._lock:
                self._waiting -= 1
                errands = self._lanes[lane]
                errands.popleft()
                if errands:
                    self._ready.put(lane)
                else:
                    del self._lanes[lane]
                if not self._closed:
                    self._done.append(done)
                    self._wake()


def _do(errand: _Errand) -> _Done:
    try:
        return _Done(errand, errand.work(), None)
    except BaseException as error:  # the edge of the thread: the loop's thread raises it
        return _Done(errand, None, error)
