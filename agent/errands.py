"""Blocking work in threads: a file system that does not answer must not stop the agent's heartbeats.

Work is requested in *lanes*, named by the resource that it waits for (the directory of a job, say). The work of one
lane is done in the order of the requests, one after the other; lanes do not wait for each other, unless there are more
of them than threads. The result of a piece of work is handed over in the loop's thread, by `deliver`.

An account can make its own resources hang: its home, a file system that it has mounted, a socket that it holds. So each
lane has a *holder*, and the lanes of one holder have only some of the threads at a time; the others wait until one of
these is free. Work for the agent alone has no holder, and may use all threads.

The threads last as long as the process: a process that one of them has started may have asked the kernel to end with
it. The agent does not wait for them at its end, for the same reason that they exist.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

MAX_THREADS = 64
MAX_THREADS_OF_ONE = 6  # holder
MAX_WAITING = 1000  # pieces of work, beyond which an offer is refused
MAX_WAITING_OF_ONE = 200
NOBODY = ""  # the holder of the agent's own work

R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True)
class _Errand:
    work: Callable[[], Any]
    then: Callable[[Any], None]


@dataclass(frozen=True)
class _Done:
    errand: _Errand
    result: Any
    error: BaseException | None  # a bug: the work itself turns expected failures into results


@dataclass
class _Lane:
    """A lane with work; the first piece of it may be in progress."""

    holder: str
    errands: deque[_Errand]


@dataclass
class _Holder:
    """A holder with lanes that have work."""

    waiting: int = 0  # pieces of work, those in progress included
    threads: int = 0  # that work for it, or are about to
    held_back: deque[str] = field(default_factory=deque)  # lanes that wait for one of these threads


class Errands:
    """The threads, and the work that waits for them. All methods are for the loop's thread."""

    def __init__(self, wake: Callable[[], None], threads: int = MAX_THREADS, waiting: int = MAX_WAITING) -> None:
        """`wake` makes the loop turn, from any thread."""
        self._wake = wake
        self._most_threads = threads
        self._most_waiting = waiting
        self._lock = threading.Lock()  # protects the attributes below
        self._lanes: dict[str, _Lane] = {}
        self._holders: dict[str, _Holder] = {}
        self._waiting = 0
        self._busy = 0  # lanes on which a thread works, or is about to
        self._threads = 0
        self._closed = False
        self._ready: SimpleQueue[str] = SimpleQueue()  # lanes with a first piece of work that no thread has taken yet
        self._done: deque[_Done] = deque()

    def ask(self, lane: str, work: Callable[[], R], then: Callable[[R], None], holder: str = NOBODY) -> None:
        """Do `work` in its turn, then hand its result to `then`. For work with a bound of its own: so many pieces for
        each worker.

        `holder`: the account that can make the work hang. Lanes with one name and several holders are different lanes.
        """
        lane = f"{holder}\0{lane}"
        with self._lock:
            self._waiting += 1
            of = self._holders.setdefault(holder, _Holder())
            of.waiting += 1
            found = self._lanes.setdefault(lane, _Lane(holder, deque()))
            found.errands.append(_Errand(work, then))
            if len(found.errands) == 1:
                self._begin(lane, found)

    def offer(self, lane: str, work: Callable[[], R], then: Callable[[R], None], holder: str = NOBODY) -> bool:
        """Do the work as `ask` does, unless too much waits already. Return whether it will be done."""
        of = self._holders.get(holder)
        most = MAX_WAITING_OF_ONE if holder else self._most_waiting
        if self._waiting >= self._most_waiting or (of is not None and of.waiting >= most):
            return False
        self.ask(lane, work, then, holder)
        return True

    def _begin(self, lane: str, found: _Lane) -> None:
        """Let a thread do the first piece of work of a lane, if its holder may have one more thread."""
        of = self._holders[found.holder]
        if found.holder and of.threads >= MAX_THREADS_OF_ONE:
            of.held_back.append(lane)
            return
        of.threads += 1
        self._busy += 1
        if self._busy > self._threads and self._threads < self._most_threads:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"errands-{self._threads}", daemon=True).start()
        self._ready.put(lane)

    def deliver(self) -> None:
        """Hand results over. Raises the exception of a piece of work, which only a bug causes."""
        while self._done:
            done = self._done.popleft()
            if done.error is not None:
                raise done.error
            done.errand.then(done.result)

    def close(self) -> None:
        """Stop delivering results."""
        with self._lock:
            self._closed = True
        self._done.clear()

    def _serve(self) -> None:
        while True:
            lane = self._ready.get()
            with self._lock:
                errand = self._lanes[lane].errands[0]
            done = _do(errand)
            with self._lock:
                self._ended(lane)
                if not self._closed:
                    self._done.append(done)
                    self._wake()

    def _ended(self, lane: str) -> None:
        """Remove the first piece of work of a lane, which is done; its next one waits behind the other lanes of its
        holder.
        """
        found = self._lanes[lane]
        found.errands.popleft()
        of = self._holders[found.holder]
        self._waiting -= 1
        self._busy -= 1
        of.waiting -= 1
        of.threads -= 1
        if found.errands:
            of.held_back.append(lane)
        else:
            del self._lanes[lane]
        if of.held_back:
            following = of.held_back.popleft()
            self._begin(following, self._lanes[following])
        if not of.waiting:
            del self._holders[found.holder]


def _do(errand: _Errand) -> _Done:
    try:
        return _Done(errand, errand.work(), None)
    except BaseException as error:  # the edge of the thread: the loop's thread raises the error
        return _Done(errand, None, error)


class Newest(Generic[V]):
    """Work on the newest of many values: values that arrive during one piece of work, except the last, are skipped."""

    def __init__(self, errands: Errands, lane: str, work: Callable[[V], R], then: Callable[[R], None]) -> None:
        self._errands, self._lane, self._work, self._then = errands, lane, work, then
        self._next: list[V] = []  # at most one
        self._busy = False

    def ask(self, value: V) -> None:
        """Work on `value`, at once or as soon as the work in progress is done."""
        self._next = [value]
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        value = self._next.pop()
        self._busy = True
        self._errands.ask(self._lane, lambda: self._work(value), self._done)

    def _done(self, result: Any) -> None:
        self._busy = False
        self._then(result)
        if self._next:
            self._begin()
