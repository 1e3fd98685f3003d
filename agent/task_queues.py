"""Task queues served by threads, because a file system that does not answer must not stop the agent's heartbeats.

Each queue is named by the resource that its tasks wait for, such as the directory of one job. Tasks of one queue run one after
the other, in the order of their submission; queues do not wait for each other, unless there are more queues than threads. The
result of a task is handed over in the loop's thread, by `deliver`.

An account can block its own resources: its home, a file system that it has mounted, a socket that it holds. So each queue belongs
to an account, and the queues of one account share at most `MAX_THREADS_OF_ONE` threads. Tasks of the agent itself may use all
threads.

The threads last as long as the process: a process that one of them has started may have asked the kernel to end with its parent
thread. The agent does not wait for the threads when it ends, because they may be blocked.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

MAX_THREADS = 64
MAX_THREADS_OF_ONE = 6  # of one account
MAX_WAITING = 1000  # tasks, beyond which `try_submit` refuses
MAX_WAITING_OF_ONE = 200
AGENT_ITSELF = ""  # instead of an account, for tasks that no account can block

R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True)
class _Task:
    work: Callable[[], Any]
    then: Callable[[Any], None]


@dataclass(frozen=True)
class _Done:
    task: _Task
    result: Any
    error: BaseException | None  # a bug: tasks turn expected failures into results


@dataclass
class _Queue:
    """A queue with tasks; the first one may be in progress."""

    account: str
    tasks: deque[_Task]


@dataclass
class _Account:
    """The tasks and threads of one account."""

    waiting: int = 0  # tasks, those in progress included
    threads: int = 0  # that run its tasks, or are about to
    blocked: deque[str] = field(default_factory=deque)  # queues that wait for one of these threads


class TaskQueues:
    """The threads and the queues of tasks. All methods are for the loop's thread."""

    def __init__(self, wake: Callable[[], None], threads: int = MAX_THREADS, waiting: int = MAX_WAITING) -> None:
        """`wake` makes the loop turn, from any thread."""
        self._wake = wake
        self._most_threads = threads
        self._most_waiting = waiting
        self._lock = threading.Lock()  # protects the attributes below
        self._queues: dict[str, _Queue] = {}
        self._accounts: dict[str, _Account] = {}
        self._waiting = 0
        self._busy = 0  # queues that a thread serves, or is about to
        self._threads = 0
        self._closed = False
        self._ready: SimpleQueue[str] = SimpleQueue()  # queues with a first task that no thread has taken yet
        self._done: deque[_Done] = deque()

    def submit(self, queue: str, work: Callable[[], R], then: Callable[[R], None], account: str = AGENT_ITSELF) -> None:
        """Append a task to a queue: call `work` in a thread, then `then` with its result in `deliver`. For callers that bound the
        number of their tasks.

        `account`: the account that can block the task. Queues of the same name and different accounts are different queues.
        """
        queue = f"{account}\0{queue}"
        with self._lock:
            self._waiting += 1
            of = self._accounts.setdefault(account, _Account())
            of.waiting += 1
            found = self._queues.setdefault(queue, _Queue(account, deque()))
            found.tasks.append(_Task(work, then))
            if len(found.tasks) == 1:
                self._begin(queue, found)

    def try_submit(
        self, queue: str, work: Callable[[], R], then: Callable[[R], None], account: str = AGENT_ITSELF
    ) -> bool:
        """Submit a task unless too many wait already. Return whether it was accepted."""
        of = self._accounts.get(account)
        most = MAX_WAITING_OF_ONE if account else self._most_waiting
        if self._waiting >= self._most_waiting or (of is not None and of.waiting >= most):
            return False
        self.submit(queue, work, then, account)
        return True

    def _begin(self, queue: str, found: _Queue) -> None:
        """Let a thread run the first task of a queue, if the queue's account may have one more thread."""
        of = self._accounts[found.account]
        if found.account and of.threads >= MAX_THREADS_OF_ONE:
            of.blocked.append(queue)
            return
        of.threads += 1
        self._busy += 1
        if self._busy > self._threads and self._threads < self._most_threads:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"tasks-{self._threads}", daemon=True).start()
        self._ready.put(queue)

    def deliver(self) -> None:
        """Call `then` for each finished task. Raises the exception of a task, which only a bug causes."""
        while self._done:
            done = self._done.popleft()
            if done.error is not None:
                raise done.error
            done.task.then(done.result)

    def close(self) -> None:
        """Stop delivering results."""
        with self._lock:
            self._closed = True
        self._done.clear()

    def _serve(self) -> None:
        while True:
            queue = self._ready.get()
            with self._lock:
                task = self._queues[queue].tasks[0]
            done = _do(task)
            with self._lock:
                self._ended(queue)
                if not self._closed:
                    self._done.append(done)
                    self._wake()

    def _ended(self, queue: str) -> None:
        """Remove the first task of a queue, which has finished. The next task waits behind the other queues of the account."""
        found = self._queues[queue]
        found.tasks.popleft()
        of = self._accounts[found.account]
        self._waiting -= 1
        self._busy -= 1
        of.waiting -= 1
        of.threads -= 1
        if found.tasks:
            of.blocked.append(queue)
        else:
            del self._queues[queue]
        if of.blocked:
            following = of.blocked.popleft()
            self._begin(following, self._queues[following])
        if not of.waiting:
            del self._accounts[found.account]


def _do(task: _Task) -> _Done:
    try:
        return _Done(task, task.work(), None)
    except BaseException as error:  # the edge of the thread: the loop's thread raises the error
        return _Done(task, None, error)


class LatestTask(Generic[V]):
    """A task for the latest of many values: values that arrive while it runs, except the last, are skipped."""

    def __init__(self, tasks: TaskQueues, queue: str, work: Callable[[V], R], then: Callable[[R], None]) -> None:
        self._tasks, self._queue, self._work, self._then = tasks, queue, work, then
        self._next: list[V] = []  # at most one
        self._busy = False

    def submit(self, value: V) -> None:
        """Run the task on `value`, at once or as soon as the run in progress has ended."""
        self._next = [value]
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        value = self._next.pop()
        self._busy = True
        self._tasks.submit(self._queue, lambda: self._work(value), self._done)

    def _done(self, result: Any) -> None:
        self._busy = False
        self._then(result)
        if self._next:
            self._begin()
