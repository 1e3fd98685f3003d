"""The agent's side of its warm processes: starts and ends them, and asks them for workers (`server` is the other side).

Which ones there are is decided in `pool`, who may use which in `key`. Nothing here waits: an answer that does not come in
time is as good as a refusal, and a refusal only means that the worker is started in the ordinary way. A warm process itself is
started, and reaped, by `errands`: its interpreter may lie on a network.

A warm process belongs to the account that its workers run as, and so does whatever its interpreter, or the account's variables,
make of it. What it says is therefore bounded, and believed only as far as it concerns that account: the process that it names
must be one of that account's, and is in the worker's cgroup before it goes on. It reports once, and is ended if it says more.

Before Linux 6.16 it can send an open file along with whatever it says, and whoever receives that, or closes the line with it
unread, lets go of the file and may have to wait for hours (`transport.take_no_descriptors`). So the loop's thread only waits for
lines to other accounts; the threads of `errands` read and close them, in the name of that account.
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
from ..disk import SHIM_ENVIRONMENT, UMASK, Failed, Forkable, drop_orders, located
from ..environment import DEFAULT_PATH
from ..errands import NOBODY, Errands
from . import server
from .key import Interpreter, WarmKey, key_of
from .pool import End, Make, Stock

log = logging.getLogger(__name__)

PROGRAM = "elasticd.agent.forkserver.server"
PRELUDE = "elasticd.worker.warm"
ANSWER_WITHIN_S = 3.0  # as long as a start without a warm process takes
LOADED_WITHIN_S = (
    10.0  # a worker waits so long for a process that was loading before: it would load the same, beside it
)
PADDING_BYTES = 4096  # of the command line: room for those of the workers
CLOSE_WITHIN_S = 1.0
LANE = "warm processes"
LANE_OF_SHIMS = "forked shims"
MAX_STARTING = 4  # processes of one account that are to be started, or have ended and are not gone
MAX_REPORT_BYTES = 1 << 18
MOST_UNREAD = 1024  # messages in a line: more than the kernel keeps
MAX_NAME_BYTES = 64
MAX_WATCHED = 10_000
MAX_LINE = 1000
MAX_LINES = 100  # of output that are logged of one process

Deliver = Callable[
    [tuple[int, int] | None], None
]  # number and pidfd of a worker's shim; None: start the worker yourself
Mounts = Callable[[str], list[tuple[str, str]]]
Admit = Callable[[int, int], bool]  # whether that process (number, pidfd) may go on as a worker's shim; may wait


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
    cgroups: tuple[str, ...] = ()
    lines: int = 0  # that it has written
    reported: bool = False
    watched: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Answer:
    """What a warm process has answered."""

    shim: tuple[int, int] | None = None  # number and pidfd; None: there is none, or this agent has too many files open
    may: bool = False  # that shim go on?


@dataclass(eq=False)
class Channel:
    """A worker that has been asked for, or will be when its warm process has loaded."""

    key: WarmKey
    account: Account
    request: bytes
    admit: Admit | None
    deliver: Deliver
    give_up_at: float
    line: socket.socket | None = None  # None: the process loads
    closed: bool = False


class WarmProcesses:
    """The warm processes of one agent."""

    def __init__(
        self,
        state: Path,
        standard: tuple[Account, Interpreter, Mapping[str, str]] | None,
        loop: Loop,
        clock: Clock,
        errands: Errands,
        cgroups: Cgroups | None = None,
        devices: Devices | None = None,
        mounts: Mounts | None = None,
    ) -> None:
        """`mounts`: of a room (`Disk.mounts`). `standard`: the account, the interpreter and the environment that most
        workers will have, if that is known."""
        self._state = state
        self._loop = loop
        self._clock = clock
        self._errands = errands
        self._making: dict[WarmKey, object] = {}  # being started
        self._processes: dict[WarmKey, _Process] = {}
        self._cgroups = cgroups
        self._devices = devices
        self._mounts = mounts
        self._count = 0
        self._interpreters: dict[WarmKey, tuple[Account, str]] = {}
        self._unsettled: Counter[str] = Counter()  # by holder: processes that are being started, or end
        self._channels: list[Channel] = []
        key = None
        if standard is not None:
            account, interpreter, variables = standard
            key = key_of(interpreter, variables, account.uid)
            self._interpreters[key] = (account, interpreter.path)
        self._stock = Stock(key)

    def next_deadline(self) -> float | None:
        """When `pass_time` has something to do."""
        deadlines = [channel.give_up_at for channel in self._channels]
        stock = self._stock.next_deadline()
        return min([*deadlines, *([] if stock is None else [stock])], default=None)

    def pass_time(self) -> None:
        now = self._clock.now()
        for channel in [channel for channel in self._channels if now >= channel.give_up_at]:
            if channel.closed:
                continue  # an earlier one's process, which was this one's too, has been ended
            if channel.line is not None:
                log.warning("a warm process does not answer and is ended")
                self._drop(channel.key)
            self._settle(channel, None)
        self._perform(self._stock.due(now))

    def watched(self) -> dict[WarmKey, Mapping[str, int]]:
        """What each warm process has loaded: modification times (ns) of files."""
        return {key: process.watched for key, process in self._processes.items()}

    def fork(
        self,
        account: Account,
        found: Forkable,
        request: Mapping[str, object],
        deliver: Deliver,
        admit: Admit | None = None,
    ) -> Channel | None:
        """Ask for a worker. None: there is no process for it now. Otherwise `deliver` is called, once, unless cancelled."""
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
        """Ask the process of a channel, which has loaded, for the worker. False: it cannot be asked."""
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
            except OSError as error:  # too long, too many at once, or it has just ended
                log.info("a warm process cannot be asked: %s", error.strerror)
                self._let_go(account, ours)
                return False
        channel.line, channel.give_up_at = ours, self._clock.now() + ANSWER_WITHIN_S
        self._loop.add_descriptor(ours.fileno(), lambda: self._on_answer(channel, ours))
        return True

    def _on_loaded(self, key: WarmKey, ready: bool) -> None:
        """A process has loaded, or never will: those who waited for it ask it, or start in the ordinary way."""
        for channel in [each for each in self._channels if each.key == key and each.line is None]:
            if not channel.closed and not (ready and key in self._processes and self._ask(channel)):
                self._settle(channel, None)

    def cancel(self, channel: Channel) -> None:
        """The worker is not wanted any more: nothing of it will have run."""
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
            self._errands.ask(LANE_OF_SHIMS, lambda: _close(line), lambda done: None, _holder(account))

    def close(self) -> None:
        """End all warm processes, and wait a moment until they have. What has been forked from them goes on."""
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
        self._loop.remove_descriptor(line.fileno())  # nothing more is expected of it
        self._errands.ask(
            LANE_OF_SHIMS,
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
        except OSError:  # the shim is gone, and has not begun
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
        """Start one; what comes of it is heard later."""
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

        self._errands.ask(
            LANE,
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
        """It reports, which it does once; or it has ended; or it says more than it should."""
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
        self._errands.ask(
            LANE,
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
        """It has ended, or has to be."""
        if self._remove(key):
            self._stock.ended(self._clock.now(), key)
            self._on_loaded(key, ready=False)

    def _remove(self, key: WarmKey) -> bool:
        """End one. Whether it was there."""
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
        self._errands.ask(LANE, lambda: _reap(process), lambda done: self._settled(holder), holder)


def _reap(process: _Process) -> None:
    process.child.wait()
    remove(process.cgroups)
    _close(process.connection)


def _close(line: socket.socket) -> None:
    """Close a line of an account, in a thread that may wait for it.

    What was sent and never read ends here. A process that is being forked at this moment has a copy of the line, and would else
    be the one that waits.
    """
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
        for _ in range(MOST_UNREAD):  # a message without bytes looks like the end
            line.recv(1)
    line.close()


def _holder(account: Account) -> str:
    """Who can make errands hang that concern a warm process of this account."""
    return NOBODY if account.own else account.name


def _has_news(line: socket.socket) -> bool:
    """If not, its descriptor was lately another one's, whose news are late. Nothing is received."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(0))


def _says(line: socket.socket) -> bool:
    """Whether a line that has news has not just ended. Nothing is received."""
    try:
        return fcntl.ioctl(line, termios.FIONREAD, bytes(4)) != bytes(4)
    except OSError:
        return False


def _answered(line: socket.socket, admit: Admit | None) -> _Answer:
    """What a warm process says when it has been asked for a worker."""
    try:
        data = line.recv(MAX_NAME_BYTES)
    except OSError:  # it has ended
        return _Answer()
    shim = _named(data)
    return _Answer(shim, shim is not None and (admit is None or admit(*shim)))


def _reported(key: WarmKey, account: Account, connection: socket.socket) -> _Report | None:
    """What a warm process says of itself; None: it has ended."""
    try:
        data = connection.recv(MAX_REPORT_BYTES)
    except OSError:
        data = b""
    return _judge(key, account, data) if data else None


def _named(data: bytes) -> tuple[int, int] | None:
    """Number and pidfd of the process that a message names; None: it names none."""
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
    """A new warm process, and the agent's ends of its lines."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:  # the agent has too many files open
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
    """What a warm process says of itself, with whatever speaks against it in `useless`."""
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
    except (OSError, ValueError) as error:  # a zero byte in it
        return _Report(useless=f"it is no program: {error}")
    same = (found.directory, found.binary) == (key.directory, key.binary)
    return report if same else _Report(useless=f"it starts {report.executable}")
