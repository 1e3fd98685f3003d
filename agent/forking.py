"""The agent's side of its warm processes: starts and ends them, and asks them for workers (`warm` is the other side).

Which ones there are is decided in `stock`, who may use which in `launch`. Nothing here waits: an answer that does not come in
time is as good as a refusal, and a refusal only means that the worker is started in the ordinary way.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..runtime.clock import Clock
from ..runtime.loop import Loop
from . import warm
from .environment import DEFAULT_PATH
from .launch import Interpreter, WarmKey, key_of
from .stock import End, Make, Stock

log = logging.getLogger(__name__)

PROGRAM = "elasticd.agent.warm"
PRELUDE = "elasticd.worker.warm"
ANSWER_WITHIN_S = 3.0  # as long as a start without a warm process takes
PADDING_BYTES = 4096  # of the command line: room for those of the workers

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
        self, state: Path, standard: tuple[Interpreter, Mapping[str, str]] | None, loop: Loop, clock: Clock
    ) -> None:
        """`standard`: the interpreter and the environment that most workers will have."""
        self._state = state
        self._loop = loop
        self._clock = clock
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

    def fork(
        self, interpreter: Interpreter, key: WarmKey, request: Mapping[str, object], deliver: Deliver
    ) -> Channel | None:
        """Ask for a worker. None: there is no process for it now. Otherwise `deliver` is called, once, unless cancelled."""
        self._interpreters[key] = interpreter.path
        can, actions = self._stock.want(self._clock.now(), key)
        self._perform(actions)
        process = self._processes.get(key)
        if not can or process is None:
            return None
        if not _up_to_date(process):
            log.info("what a warm process has loaded has changed on the disk: it is made anew")
            self._perform(self._stock.outdated(self._clock.now(), key))
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
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
        """End all warm processes. What has been forked from them goes on."""
        for channel in list(self._channels):
            self.cancel(channel)
        for key in list(self._processes):
            self._remove(key)

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
            channel.line.send(warm.GO)
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
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        arguments = [str(self._state), str(theirs.fileno()), str(os.getpid()), PRELUDE, " " * PADDING_BYTES]
        try:
            child = subprocess.Popen(
                [self._interpreters[key], "-m", PROGRAM, *arguments],
                env={"PATH": DEFAULT_PATH, **dict(key.variables)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            log.warning("no warm process of %s: %s", self._interpreters[key], error.strerror)
            ours.close()
            os.close(output)
            self._stock.ended(self._clock.now(), key)
            return
        finally:
            theirs.close()
            os.close(write)
        ours.setblocking(False)
        self._processes[key] = _Process(child, ours, output)
        self._loop.add_descriptor(ours.fileno(), lambda: self._on_report(key))
        self._loop.add_descriptor(output, lambda: self._on_output(key))

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
        process = self._processes.pop(key, None)
        if process is None:
            return False
        for descriptor in (process.connection.fileno(), process.output):
            self._loop.remove_descriptor(descriptor)
        process.child.kill()
        process.child.wait()
        process.connection.close()
        os.close(process.output)
        return True


def _up_to_date(process: _Process) -> bool:
    try:
        return all(os.stat(path).st_mtime_ns == changed for path, changed in process.watched.items())
    except OSError:
        return False


def _difference(key: WarmKey, executable: str) -> str:
    """Why a process that calls itself `executable` is not one of `key`: "" if it is one."""
    found = located(executable)
    same = (found.directory, found.binary) == (key.directory, key.binary)
    return "" if same else f"it starts {executable}"


def located(executable: str) -> Interpreter:
    """The interpreter at an absolute path."""
    return Interpreter(executable, os.path.realpath(os.path.dirname(executable)), os.path.realpath(executable))


def find_interpreter(program: str, environment: Mapping[str, str], workdir: str) -> Interpreter | None:
    """The program that exec would find for `program` in `workdir`. None: none, or it depends on more than that."""
    if "/" in program:
        found = os.path.join(workdir, program)
        return located(found) if os.access(found, os.X_OK) else None
    for directory in environment.get("PATH", "").split(":"):
        if not directory.startswith("/"):
            return None
        found = os.path.join(directory, program)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return located(found)
    return None
