"""The agent's side of its warm processes: starts and ends them, and asks them for workers (`server` is the other side).

Which ones there are is decided in `pool`, who may use which in `key`. Nothing here waits: an answer that does not come in
time is as good as a refusal, and a refusal only means that the worker is started in the ordinary way. A warm process itself is
started, and reaped, by `errands`: its interpreter may lie on a network.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...runtime.clock import Clock
from ...runtime.loop import Loop
from ..disk import Failed, Forkable, located
from ..environment import DEFAULT_PATH
from ..errands import Errands
from . import server
from .key import Interpreter, WarmKey, key_of
from .pool import End, Make, Stock

log = logging.getLogger(__name__)

PROGRAM = "elasticd.agent.forkserver.server"
PRELUDE = "elasticd.worker.warm"
ANSWER_WITHIN_S = 3.0  # as long as a start without a warm process takes
PADDING_BYTES = 4096  # of the command line: room for those of the workers
CLOSE_WITHIN_S = 1.0
LANE = "warm processes"

Deliver = Callable[
    [tuple[int, int] | None], None
]  # number and pidfd of a worker's shim; None: start the worker yourself


class _Report(msgspec.Struct, frozen=True):
    """What a warm process says of itself once."""

    executable: str = ""
    watched: dict[str, int] = {}
    useless: str = ""


@dataclass
class _Process:
    """A warm process that runs."""

    child: subprocess.Popen[bytes]
    connection: socket.socket
    output: int  # what it writes to stdout and stderr
    watched: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Channel:
    """A worker that has been asked for."""

    key: WarmKey
    line: socket.socket
    deliver: Deliver
    give_up_at: float


class WarmProcesses:
    """The warm processes of one agent."""

    def __init__(
        self,
        state: Path,
        standard: tuple[Interpreter, Mapping[str, str]] | None,
        loop: Loop,
        clock: Clock,
        errands: Errands,
    ) -> None:
        """`standard`: the interpreter and the environment that most workers will have."""
        self._state = state
        self._loop = loop
        self._clock = clock
        self._errands = errands
        self._making: dict[WarmKey, object] = {}  # being started
        self._processes: dict[WarmKey, _Process] = {}
        self._interpreters: dict[WarmKey, str] = {}
        self._channels: list[Channel] = []
        key = None
        if standard is not None:
            key = key_of(*standard)
            self._interpreters[key] = standard[0].path
        self._stock = Stock(key)

    def next_deadline(self) -> float | None:
        """When `pass_time` has something to do."""
        deadlines = [channel.give_up_at for channel in self._channels]
        stock = self._stock.next_deadline()
        return min([*deadlines, *([] if stock is None else [stock])], default=None)

    def pass_time(self) -> None:
        now = self._clock.now()
        for channel in [channel for channel in self._channels if now >= channel.give_up_at]:
            log.warning("a warm process does not answer and is ended")
            self._drop(channel.key)
            self._settle(channel, None)
        self._perform(self._stock.due(now))

    def watched(self) -> dict[WarmKey, Mapping[str, int]]:
        """What each warm process has loaded: modification times (ns) of files."""
        return {key: process.watched for key, process in self._processes.items()}

    def fork(self, found: Forkable, request: Mapping[str, object], deliver: Deliver) -> Channel | None:
        """Ask for a worker. None: there is no process for it now. Otherwise `deliver` is called, once, unless cancelled."""
        key = found.key
        self._interpreters[key] = found.interpreter.path
        can, actions = self._stock.want(self._clock.now(), key)
        self._perform(actions)
        process = self._processes.get(key)
        if not can or process is None:
            return None
        if found.outdated:
            log.info("what a warm process has loaded has changed on the disk: it is made anew")
            self._perform(self._stock.outdated(self._clock.now(), key))
            return None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        except OSError as error:  # the agent has too many files open
            log.warning("a warm process cannot be asked: %s", error.strerror)
            return None
        with theirs:
            theirs.setblocking(True)
            try:
                socket.send_fds(process.connection, [json.dumps(request).encode()], [theirs.fileno()])
            except OSError as error:  # too long, too many at once, or it has just ended
                log.info("a warm process cannot be asked: %s", error.strerror)
                ours.close()
                return None
        channel = Channel(key, ours, deliver, self._clock.now() + ANSWER_WITHIN_S)
        self._channels.append(channel)
        self._loop.add_descriptor(ours.fileno(), lambda: self._on_answer(channel))
        return channel

    def cancel(self, channel: Channel) -> None:
        """The worker is not wanted any more: nothing of it will have run."""
        self._channels.remove(channel)
        self._loop.remove_descriptor(channel.line.fileno())
        channel.line.close()

    def close(self) -> None:
        """End all warm processes, and wait a moment until they have. What has been forked from them goes on."""
        for channel in list(self._channels):
            self.cancel(channel)
        children = [process.child for process in self._processes.values()]
        for key in list(self._processes):
            self._remove(key)
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(CLOSE_WITHIN_S)

    # -- answers

    def _on_answer(self, channel: Channel) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(channel.line, 64, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data or not descriptors:  # it has ended; or this agent has too many files open to take one more
            self._settle(channel, None)
            return
        try:
            channel.line.send(server.GO)
        except OSError:  # the shim is gone, and has not begun
            os.close(descriptors[0])
            self._settle(channel, None)
            return
        self._settle(channel, (int(data), descriptors[0]))

    def _settle(self, channel: Channel, shim: tuple[int, int] | None) -> None:
        self.cancel(channel)
        channel.deliver(shim)

    # -- the processes

    def _perform(self, actions: list[Make | End]) -> None:
        for action in actions:
            match action:
                case Make(key):
                    self._make(key)
                case End(key):
                    self._remove(key)

    def _make(self, key: WarmKey) -> None:
        """Start one; what comes of it is heard later."""
        this = self._making[key] = object()
        interpreter = self._interpreters[key]
        self._errands.ask(
            LANE,
            lambda: _start(self._state, interpreter, key),
            lambda process: self._on_made(key, this, process),
        )

    def _on_made(self, key: WarmKey, this: object, process: _Process | Failed) -> None:
        wanted = self._making.get(key) is this
        if wanted:
            del self._making[key]
        if isinstance(process, Failed):
            log.warning("no warm process of %s: %s", self._interpreters[key], process.reason)
            if wanted:
                self._stock.ended(self._clock.now(), key)
        elif not wanted:
            self._end(process)
        else:
            self._processes[key] = process
            self._loop.add_descriptor(process.connection.fileno(), lambda: self._on_report(key))
            self._loop.add_descriptor(process.output, lambda: self._on_output(key))

    def _on_report(self, key: WarmKey) -> None:
        process = self._processes[key]
        try:
            data = process.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            log.info("a warm process has ended pid=%d", process.child.pid)
            self._drop(key)
            return
        report = msgspec.json.decode(data, type=_Report)
        problem = report.useless or _difference(key, report.executable)
        if problem:
            log.info("no worker is forked from %s: %s", self._interpreters[key], problem)
            self._stock.useless(self._clock.now(), key)
            self._remove(key)
            return
        process.watched = report.watched
        self._stock.ready(self._clock.now(), key)
        log.info("workers can be forked from pid=%d", process.child.pid)

    def _on_output(self, key: WarmKey) -> None:
        process = self._processes[key]
        try:
            text = os.read(process.output, 1 << 16)
        except BlockingIOError:
            return
        if not text:
            self._loop.remove_descriptor(process.output)
        for line in text.decode(errors="replace").splitlines():
            log.info("warm process pid=%d: %s", process.child.pid, line)

    def _drop(self, key: WarmKey) -> None:
        """It has ended, or has to be."""
        if self._remove(key):
            self._stock.ended(self._clock.now(), key)

    def _remove(self, key: WarmKey) -> bool:
        """End one. Whether it was there."""
        starting = self._making.pop(key, None) is not None
        process = self._processes.pop(key, None)
        if process is None:
            return starting
        for descriptor in (process.connection.fileno(), process.output):
            self._loop.remove_descriptor(descriptor)
        self._end(process)
        return True

    def _end(self, process: _Process) -> None:
        process.child.kill()
        process.connection.close()
        os.close(process.output)
        self._errands.ask(LANE, process.child.wait, lambda code: None)


def _start(state: Path, interpreter: str, key: WarmKey) -> _Process | Failed:
    """A new warm process, and the agent's ends of its lines."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:  # the agent has too many files open
        return Failed(f"{error.strerror}")
    try:
        output, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        ours.close()
        theirs.close()
        return Failed(f"{error.strerror}")
    os.set_blocking(write, True)
    arguments = [str(state), str(theirs.fileno()), str(os.getpid()), PRELUDE, " " * PADDING_BYTES]
    try:
        child = subprocess.Popen(
            [interpreter, "-m", PROGRAM, *arguments],
            env={"PATH": DEFAULT_PATH, **dict(key.variables)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        os.close(output)
        return Failed(f"{error.strerror}")
    finally:
        theirs.close()
        os.close(write)
    ours.setblocking(False)
    return _Process(child, ours, output)


def _difference(key: WarmKey, executable: str) -> str:
    """Why a process that calls itself `executable` is not one of `key`: "" if it is one."""
    found = located(executable)
    same = (found.directory, found.binary) == (key.directory, key.binary)
    return "" if same else f"it starts {executable}"
