"""Agent side of the warm processes: starts and ends them, and requests forked workers from them (`server` is the other side).

`pool` decides which warm processes exist, `key` which workers may use one. No call here waits: a late answer counts as a refusal,
and after a refusal the worker is started in the ordinary way. `task_queues` starts and reaps the warm processes, because their
interpreter may lie on a network file system.

A warm process runs as its workers' account, so that account controls it, through its interpreter and variables. Its messages are
therefore bounded, and trusted only as far as they concern that account: the process that it names as a worker's shim must run as
that account, and enters the worker's cgroup before it continues. A warm process reports once, and is ended if it sends more.

Before Linux 6.16 a warm process can attach an open file to a message. The agent may block for hours in closing that file, whether
it receives the message or closes the socket with the message unread (`transport.take_no_descriptors`). So the loop's thread only
polls sockets to other accounts; threads of `task_queues` read and close them, on that account's budget.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import socket
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...runtime.clock import Clock
from ...runtime.loop import Loop
from ...runtime.transport import take_no_descriptors
from .. import launcher, privileges
from ..accounts import Account, acting_as
from ..cgroups import WARM, Cgroups, remove
from ..devices import Devices
from ..disk import SHIM_ENVIRONMENT, UMASK, Failed, Forkable, drop_orders
from ..environment import DEFAULT_PATH
from ..interpreters import located
from ..task_queues import AGENT_ITSELF, TaskQueues
from ..warm_key import Interpreter, WarmKey, key_of
from . import server
from .pool import End, Make, Stock

log = logging.getLogger(__name__)

PROGRAM = "elasticd.agent.forkserver.server"
PRELUDE = "elasticd.worker.warm"
ANSWER_WITHIN_S = 3.0  # about the time of a start without a warm process
LOADED_WITHIN_S = 10.0  # limit on the wait for a process that is already loading: a cold start would import the same
PADDING_BYTES = 4096  # added to the command line, as room for those of the workers
CLOSE_WITHIN_S = 1.0
WARM_QUEUE = "warm processes"
SHIM_QUEUE = "forked shims"
MAX_STARTING = 4  # processes of one account that are starting, or have ended and are not reaped
MAX_REPORT_BYTES = 1 << 18
MOST_UNREAD = 1024  # messages in a socket: more than the kernel queues
MAX_NAME_BYTES = 64
MAX_WATCHED = 10_000
MAX_LINE = 1000
MAX_LINES = 100  # of output logged per process

Deliver = Callable[
    [tuple[int, int] | None], None
]  # process number and pidfd of a worker's shim; None: the worker has to be started without a warm process
Mounts = Callable[[str], list[tuple[str, str]]]
Admit = Callable[[int, int], bool]  # may that process (number, pidfd) continue as a worker's shim? May block


class _Report(msgspec.Struct, frozen=True):
    """The single report of a warm process, sent when it has loaded."""

    executable: str = ""
    watched: dict[str, int] = {}
    useless: str = ""


@dataclass
class _Process:
    """A running warm process."""

    child: subprocess.Popen[bytes]
    connection: socket.socket
    output: int  # read end of its stdout and stderr
    cgroups: tuple[str, ...] = ()
    lines: int = 0  # of output so far
    reported: bool = False
    watched: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Answer:
    """Answer of a warm process to a request for a worker."""

    shim: tuple[int, int] | None = None  # process number and pidfd; None: no shim, or the agent has too many open files
    may: bool = False  # the shim may continue


@dataclass(eq=False)
class Channel:
    """A request for a worker, sent now or when its warm process has loaded."""

    key: WarmKey
    account: Account
    request: bytes
    admit: Admit | None
    deliver: Deliver
    give_up_at: float
    line: socket.socket | None = None  # None while the process loads
    closed: bool = False


class WarmProcesses:
    """The warm processes of one agent."""

    def __init__(
        self,
        state: Path,
        standard: tuple[Account, Interpreter, Mapping[str, str]] | None,
        loop: Loop,
        clock: Clock,
        tasks: TaskQueues,
        cgroups: Cgroups | None = None,
        devices: Devices | None = None,
        mounts: Mounts | None = None,
    ) -> None:
        """mounts: bind mounts of a room (`Disk.mounts`). standard: account, interpreter and environment that most workers will
        have, if known."""
        self._state = state
        self._loop = loop
        self._clock = clock
        self._tasks = tasks
        self._making: dict[WarmKey, object] = {}  # processes being started
        self._processes: dict[WarmKey, _Process] = {}
        self._cgroups = cgroups
        self._devices = devices
        self._mounts = mounts
        self._count = 0
        self._interpreters: dict[WarmKey, tuple[Account, str]] = {}
        self._unsettled: Counter[str] = Counter()  # by holder: processes that are starting or ending
        self._channels: list[Channel] = []
        key = None
        if standard is not None:
            account, interpreter, variables = standard
            key = key_of(interpreter, variables, account.uid)
            self._interpreters[key] = (account, interpreter.path)
        self._stock = Stock(key)

    def next_deadline(self) -> float | None:
        """Return when `pass_time` has work to do (Unix time, s); None if it has none."""
        deadlines = [channel.give_up_at for channel in self._channels]
        stock = self._stock.next_deadline()
        return min([*deadlines, *([] if stock is None else [stock])], default=None)

    def pass_time(self) -> None:
        now = self._clock.now()
        for channel in [channel for channel in self._channels if now >= channel.give_up_at]:
            if channel.closed:
                continue  # its process was ended with an earlier channel
            if channel.line is not None:
                log.warning("a warm process does not answer and is ended")
                self._drop(channel.key)
            self._settle(channel, None)
        self._perform(self._stock.due(now))

    def watched(self) -> dict[WarmKey, Mapping[str, int]]:
        """Return the files that each warm process has loaded, with their modification times (ns)."""
        return {key: process.watched for key, process in self._processes.items()}

    def fork(
        self,
        account: Account,
        found: Forkable,
        request: Mapping[str, object],
        deliver: Deliver,
        admit: Admit | None = None,
    ) -> Channel | None:
        """Request a worker. Returns None if no process can fork it now; else `deliver` is called once, unless cancelled."""
        key, now = found.key, self._clock.now()
        self._interpreters[key] = (account, found.interpreter.path)
        loading = self._stock.loads(key)
        can, actions = self._stock.want(now, key)
        self._perform(actions)
        channel = Channel(key, account, json.dumps(request).encode(), admit, deliver, now + LOADED_WITHIN_S)
        if loading:
            self._channels.append(channel)
            return channel
        if not can or key not in self._processes:
            return None
        if found.outdated:
            log.info("what a warm process has loaded has changed on the disk: it is made anew")
            self._perform(self._stock.outdated(now, key))
            return None
        if not self._ask(channel):
            return None
        self._channels.append(channel)
        return channel

    def _ask(self, channel: Channel) -> bool:
        """Send a channel's request to its loaded process. Returns False if that is impossible."""
        process, account = self._processes[channel.key], channel.account
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        except OSError as error:  # the agent has too many files open
            log.warning("a warm process cannot be asked: %s", error.strerror)
            return False
        take_no_descriptors(ours)
        with theirs:
            theirs.setblocking(True)
            try:
                socket.send_fds(process.connection, [channel.request], [theirs.fileno()])
            except OSError as error:  # request too long, too many at once, or the process has just ended
                log.info("a warm process cannot be asked: %s", error.strerror)
                self._let_go(account, ours)
                return False
        channel.line, channel.give_up_at = ours, self._clock.now() + ANSWER_WITHIN_S
        self._loop.add_descriptor(ours.fileno(), lambda: self._on_answer(channel, ours))
        return True

    def _on_loaded(self, key: WarmKey, ready: bool) -> None:
        """Send the requests that wait for a process that has loaded; if it failed to, start those workers without it."""
        for channel in [each for each in self._channels if each.key == key and each.line is None]:
            if not channel.closed and not (ready and key in self._processes and self._ask(channel)):
                self._settle(channel, None)

    def cancel(self, channel: Channel) -> None:
        """Withdraw a request: no part of the worker will have run."""
        if channel.closed:
            return
        channel.closed = True
        self._channels.remove(channel)
        if channel.line is not None:
            self._loop.remove_descriptor(channel.line.fileno())
            self._let_go(channel.account, channel.line)

    def _let_go(self, account: Account, line: socket.socket) -> None:
        if account.own:
            line.close()
        else:
            self._tasks.submit(SHIM_QUEUE, lambda: _close(line), lambda done: None, _holder(account))

    def close(self) -> None:
        """End all warm processes and wait up to CLOSE_WITHIN_S for them. Workers forked from them continue."""
        for channel in list(self._channels):
            self.cancel(channel)
        children = [process.child for process in self._processes.values()]
        for key in list(self._processes):
            self._remove(key)
        give_up_at = time.monotonic() + CLOSE_WITHIN_S
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, give_up_at - time.monotonic()))

    # -- answers

    def _on_answer(self, channel: Channel, line: socket.socket) -> None:
        if not _has_news(line):
            return
        if channel.account.own and channel.admit is None:
            self._on_answered(channel, line, _answered(line, None))
            return
        self._loop.remove_descriptor(line.fileno())  # the process answers only once
        self._tasks.submit(
            SHIM_QUEUE,
            lambda: _answered(line, channel.admit),
            lambda answer: self._on_answered(channel, line, answer),
            _holder(channel.account),
        )

    def _on_answered(self, channel: Channel, line: socket.socket, answer: _Answer) -> None:
        shim = answer.shim
        if channel.closed or not answer.may:
            if shim is not None:
                os.close(shim[1])
            if not channel.closed:
                self._settle(channel, None)
            return
        assert shim is not None
        try:
            line.send(server.GO)
        except OSError:  # the shim has ended before its start
            os.close(shim[1])
            self._settle(channel, None)
            return
        self._settle(channel, shim)

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
                    self._on_loaded(key, ready=False)

    def _make(self, key: WarmKey) -> None:
        """Start a warm process; its report arrives later."""
        account, interpreter = self._interpreters[key]
        holder = _holder(account)
        if self._unsettled[holder] >= MAX_STARTING:
            log.warning("no warm process of %s: others of this account neither start nor end", interpreter)
            self._stock.ended(self._clock.now(), key)
            self._on_loaded(key, ready=False)
            return
        this = self._making[key] = object()
        self._count += 1
        self._unsettled[holder] += 1
        name = f"{WARM}{account.uid}-{os.getpid()}-{self._count}"

        def on_made(process: _Process | Failed) -> None:
            self._settled(holder)
            self._on_made(key, this, process)

        self._tasks.submit(
            WARM_QUEUE,
            lambda: _start(self._state, account, interpreter, key, self._cgroups, name, self._devices, self._mounts),
            on_made,
            holder,
        )

    def _settled(self, holder: str) -> None:
        self._unsettled[holder] -= 1
        if not self._unsettled[holder]:
            del self._unsettled[holder]

    def _on_made(self, key: WarmKey, this: object, process: _Process | Failed) -> None:
        wanted = self._making.get(key) is this
        if wanted:
            del self._making[key]
        if isinstance(process, Failed):
            log.warning("no warm process of %s: %s", self._interpreters[key][1], process.reason)
            if wanted:
                self._stock.ended(self._clock.now(), key)
                self._on_loaded(key, ready=False)
        elif not wanted:
            self._end(key, process)
        else:
            self._processes[key] = process
            self._loop.add_descriptor(process.connection.fileno(), lambda: self._on_report(key))
            self._loop.add_descriptor(process.output, lambda: self._on_output(key))

    def _on_report(self, key: WarmKey) -> None:
        """Handle input from a warm process: its report, its end, or more than it may send."""
        process, account = self._processes[key], self._interpreters[key][0]
        if not _has_news(process.connection):
            return
        self._loop.remove_descriptor(process.connection.fileno())
        if process.reported:
            how = "says more than it should and is ended" if _says(process.connection) else "has ended"
            log.info("a warm process %s pid=%d", how, process.child.pid)
            self._drop(key)
            return
        process.reported = True
        self._tasks.submit(
            WARM_QUEUE,
            lambda: _reported(key, account, process.connection),
            lambda report: self._on_judged(key, process, report),
            _holder(account),
        )

    def _on_judged(self, key: WarmKey, process: _Process, report: _Report | None) -> None:
        if self._processes.get(key) is not process:
            return
        if report is None:
            log.info("a warm process has ended pid=%d", process.child.pid)
            self._drop(key)
            return
        if report.useless:
            log.info("no worker is forked from %s: %.300s", self._interpreters[key][1], report.useless)
            self._stock.useless(self._clock.now(), key)
            self._remove(key)
            self._on_loaded(key, ready=False)
            return
        process.watched = report.watched
        self._stock.ready(self._clock.now(), key)
        log.info("workers can be forked from pid=%d", process.child.pid)
        self._loop.add_descriptor(process.connection.fileno(), lambda: self._on_report(key))
        self._on_loaded(key, ready=True)

    def _on_output(self, key: WarmKey) -> None:
        process = self._processes[key]
        try:
            text = os.read(process.output, 1 << 16)
        except BlockingIOError:
            return
        if not text:
            self._loop.remove_descriptor(process.output)
        if process.lines > MAX_LINES:
            return
        for line in text.decode(errors="replace").splitlines():
            process.lines += 1
            if process.lines <= MAX_LINES:
                shown = "".join(each for each in line[:MAX_LINE] if each.isprintable())
                log.info("warm process pid=%d: %s", process.child.pid, shown)
            elif process.lines == MAX_LINES + 1:
                log.warning("warm process pid=%d: what it writes from here on is not logged", process.child.pid)

    def _drop(self, key: WarmKey) -> None:
        """Remove a process that has ended or must be ended."""
        if self._remove(key):
            self._stock.ended(self._clock.now(), key)
            self._on_loaded(key, ready=False)

    def _remove(self, key: WarmKey) -> bool:
        """End a process. Returns whether there was one."""
        starting = self._making.pop(key, None) is not None
        process = self._processes.pop(key, None)
        if process is None:
            return starting
        for descriptor in (process.connection.fileno(), process.output):
            self._loop.remove_descriptor(descriptor)
        self._end(key, process)
        return True

    def _end(self, key: WarmKey, process: _Process) -> None:
        process.child.kill()
        os.close(process.output)
        holder = _holder(self._interpreters[key][0])
        self._unsettled[holder] += 1
        self._tasks.submit(WARM_QUEUE, lambda: _reap(process), lambda done: self._settled(holder), holder)


def _reap(process: _Process) -> None:
    process.child.wait()
    remove(process.cgroups)
    _close(process.connection)


def _close(line: socket.socket) -> None:
    """Close a socket to another account, in a thread that may block.

    Reads and discards unread messages first. A process that is being forked at this moment holds a copy of the socket, and would
    otherwise be the one that blocks in closing it.
    """
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
        for _ in range(MOST_UNREAD):  # not until end-of-file, since an empty message looks the same
            line.recv(1)
    line.close()


def _holder(account: Account) -> str:
    """Return the account that can make tasks on a warm process of this account hang."""
    return AGENT_ITSELF if account.own else account.name


def _has_news(line: socket.socket) -> bool:
    """Return whether the socket has input. If not, the event was a late one of an earlier user of its descriptor number."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(0))


def _says(line: socket.socket) -> bool:
    """Return whether a socket with input has a message, and not just end-of-file. Receives nothing."""
    try:
        return fcntl.ioctl(line, termios.FIONREAD, bytes(4)) != bytes(4)
    except OSError:
        return False


def _answered(line: socket.socket, admit: Admit | None) -> _Answer:
    """Receive a warm process's answer to a request for a worker, and admit the shim that it names."""
    try:
        data = line.recv(MAX_NAME_BYTES)
    except OSError:  # the process has ended
        return _Answer()
    shim = _named(data)
    return _Answer(shim, shim is not None and (admit is None or admit(*shim)))


def _reported(key: WarmKey, account: Account, connection: socket.socket) -> _Report | None:
    """Receive a warm process's report; None if the process has ended."""
    try:
        data = connection.recv(MAX_REPORT_BYTES)
    except OSError:
        data = b""
    return _judge(key, account, data) if data else None


def _named(data: bytes) -> tuple[int, int] | None:
    """Return number and pidfd of the process that a message names; None if it names none."""
    try:
        number = int(data[:10]) if data.isdigit() else 0
        return number, os.pidfd_open(number)
    except (OSError, OverflowError):
        return None


def _start(
    state: Path,
    account: Account,
    interpreter: str,
    key: WarmKey,
    cgroups: Cgroups | None,
    name: str,
    devices: Devices | None = None,
    mounts: Mounts | None = None,
) -> _Process | Failed:
    """Start a warm process, and return it with the agent's ends of its sockets."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:  # too many open files
        return Failed(f"{error.strerror}")
    take_no_descriptors(ours)
    try:
        output, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        ours.close()
        theirs.close()
        return Failed(f"{error.strerror}")
    os.set_blocking(write, True)
    arguments = [str(state), str(theirs.fileno()), str(os.getpid()), PRELUDE, " " * PADDING_BYTES]
    command = [interpreter, "-m", PROGRAM, *arguments]
    variables = {"PATH": DEFAULT_PATH, **dict(key.variables)}
    made: tuple[str, ...] = ()
    orders = None
    try:
        made = cgroups.make(name) if cgroups is not None and not account.own else ()
        if made and devices is not None:
            devices.close_all(made[0])
        if not account.own:
            orders = privileges.write_orders(
                {
                    "command": command,
                    "environment": variables,
                    "drop": drop_orders(account),
                    "cgroups": made,
                    "room": mounts(key.room) if mounts is not None else [],
                    "umask": UMASK,
                }
            )
            command, variables = [sys.executable, "-I", "-S", launcher.__file__], SHIM_ENVIRONMENT
        child = subprocess.Popen(
            command,
            env=variables,
            cwd="/",
            stdin=subprocess.DEVNULL if orders is None else orders,
            stdout=write,
            stderr=write,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        os.close(output)
        remove(made)
        return Failed(f"{error.strerror}")
    finally:
        theirs.close()
        os.close(write)
        if orders is not None:
            os.close(orders)
    ours.setblocking(False)
    return _Process(child, ours, output, made)


def _judge(key: WarmKey, account: Account, data: bytes) -> _Report:
    """Decode a report, with any reason against the process in `useless`."""
    try:
        report = msgspec.json.decode(data, type=_Report)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return _Report(useless=f"it reports nonsense: {error}")
    if len(report.watched) > MAX_WATCHED:
        return _Report(useless=f"it has loaded {len(report.watched)} files")
    if report.useless:
        return report
    try:
        with acting_as(account):
            found = located(report.executable)
    except (OSError, ValueError) as error:  # a path with a zero byte
        return _Report(useless=f"it is no program: {error}")
    same = (found.directory, found.binary) == (key.directory, key.binary)
    return report if same else _Report(useless=f"it starts {report.executable}")
