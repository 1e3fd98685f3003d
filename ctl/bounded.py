"""Execution of work that may hang or crash: each piece in a process of its own, with a time limit.

A file system without its server, a name service or a driver may hold a call for ever, and no signal ends a process that
waits in the kernel. So a child process does such work, sends the result through a pipe, and is abandoned if
it does not end. The child leads a process group of its own, so that its children end with it. A library
that crashes takes only the child with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..protocol.errors import ElasticError

AT_ONCE = 8
MOST_BYTES = 64 << 20
REAPED_WITHIN_S = 0.5


@dataclass(frozen=True)
class Work:
    """A piece of work. `do` runs in a child process, and returns a value that msgspec can encode."""

    do: Callable[[], Any]
    limit_s: float


@dataclass(frozen=True)
class Done:
    """Outcome of a piece of work. `answer`: in plain values. `hung`: it exceeded its limit. `error`: any other failure,
    in words.
    """

    answer: Any = None
    hung: bool = False
    error: str = ""
    took_s: float = 0.0


class _Child:
    """A child process at work."""

    def __init__(self, number: int, work: Work) -> None:
        self.number = number
        self.began = time.monotonic()
        self.until = self.began + work.limit_s
        self.data = bytearray()
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, reading, writing)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # parent and child both try; the first one succeeds
        os.close(writing)
        self.reading = reading

    def done(self, hung: bool) -> Done:
        took_s = time.monotonic() - self.began
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)  # the child's own children, too
        os.close(self.reading)
        status = _reap(self.pid)
        if hung:
            return Done(hung=True, took_s=took_s)
        if self.data:
            with contextlib.suppress(msgspec.MsgspecError):
                error, answer = msgspec.msgpack.decode(self.data)
                return Done(answer=answer, error=error, took_s=took_s)
        if status is not None and os.WIFSIGNALED(status):
            return Done(error=f"ended by {signal.Signals(os.WTERMSIG(status)).name}", took_s=took_s)
        return Done(error="ended without an answer", took_s=took_s)


def in_order(works: Sequence[Work]) -> Iterator[Done]:
    """Yield the outcomes in the order of `works`, each as soon as it and all earlier ones are known.

    Several run at once.
    """
    waiting = list(enumerate(works))[::-1]
    running: dict[int, _Child] = {}
    finished: dict[int, Done] = {}
    next_number = 0
    try:
        while next_number < len(works):
            while waiting and len(running) < AT_ONCE:
                child = _Child(*waiting.pop())
                running[child.reading] = child
            _turn(running, finished)
            while next_number in finished:
                yield finished.pop(next_number)
                next_number += 1
    finally:
        for child in running.values():
            child.done(hung=True)


def one(do: Callable[[], Any], limit_s: float) -> Done:
    """Return the outcome of a single piece of work."""
    return next(in_order([Work(do, limit_s)]))


def here(do: Callable[[], Any]) -> Done:
    """Do the work in this process, without a time limit, and return its outcome."""
    try:
        return Done(answer=do())
    except Exception as problem:
        return Done(error=_said(problem))


def _said(problem: Exception) -> str:
    return str(problem) if isinstance(problem, ElasticError) else f"{type(problem).__name__}: {problem}"


def _turn(running: dict[int, _Child], finished: dict[int, Done]) -> None:
    """Wait until a child has sent data, or is late."""
    left_s = max(0.0, min(child.until for child in running.values()) - time.monotonic())
    poller = select.poll()
    for descriptor in running:
        poller.register(descriptor, select.POLLIN)
    for descriptor, _ in poller.poll(int(left_s * 1000) + 1):
        child = running[descriptor]
        data = os.read(descriptor, 1 << 20)
        child.data += data
        if not data or len(child.data) > MOST_BYTES:
            finished[running.pop(descriptor).number] = child.done(hung=False)
    now = time.monotonic()
    for descriptor in [each for each, child in running.items() if now >= child.until]:
        child = running.pop(descriptor)
        finished[child.number] = child.done(hung=True)


def _work(work: Work, reading: int, writing: int) -> None:
    """Run the work in the child, and end the process."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(reading)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # a library's error messages must not disturb the screen
            os.dup2(nothing, descriptor)
        try:
            answer, error = work.do(), ""
        except Exception as problem:  # the edge of this process: the parent gets the error
            answer, error = None, _said(problem)
        data = msgspec.msgpack.encode((error, answer))
        while data:
            data = data[os.write(writing, data) :]
        code = 0
    finally:
        os._exit(code)


def _reap(pid: int) -> int | None:
    """Return the child's exit status; None: the child does not end, and is abandoned."""
    until = time.monotonic() + REAPED_WITHIN_S
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.005)
