"""Start a command beside a running worker, as a process of the worker's job: with the job's account, room, cgroup and variables.

The calls may block, as those of `disk`, and are made by `task_queues` in threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass

from ..protocol.errors import PeerError
from ..protocol.messages import RunCommand
from ..protocol.streams import Terminal
from . import accounts, cgroups, execshim
from .accounts import Account, NoAccount, acting_as
from .adoption import Record
from .disk import SHIM_ENVIRONMENT, Disk, Failed, check_variables, drop_orders, owner, runs


@dataclass
class Begun:
    """A command that runs. The descriptors are this process's ends of the command's streams, and do not block."""

    process: subprocess.Popen[bytes]
    pidfd: int
    stdin: int
    outputs: dict[int, bool]  # for each stream whether it is standard error; of a terminal: the same as `stdin`
    terminal: bool


def begin(disk: Disk, request: RunCommand, record: Record) -> Begun | Failed:
    """Start the command. `record`: of the worker, as the agent wrote it."""
    start, terminal = request.start, request.input.terminal
    assert start is not None
    if start.spec.image:
        return Failed("the job runs in a container, which `exec` and `attach` cannot enter")
    theirs: list[int] = []
    ours: list[int] = []
    try:
        account = accounts.find(start.account, disk.root_jobs)
        if account.uid != (os.getuid() if owner(record).own else owner(record).uid):
            return Failed(f"{request.worker} does not run as account {account.name}")
        environment, workdir = disk.surroundings_of(start, account, record)
        if terminal is not None:
            environment["TERM"] = terminal.name
        check_variables(environment)
        _open_streams(terminal, account, ours, theirs)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", execshim.__file__],
            env=SHIM_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=sorted(set(theirs)),
        )
        orders = {
            "command": request.command,
            "environment": environment,
            "workdir": workdir,
            "terminal": terminal is not None,
            "streams": theirs,
            "agent": os.getpid(),
            "drop": drop_orders(account),
            "room": disk.mounts(record.room),
            **disk.ways(start, account),
        }
        pidfd = _admit(process, disk, record, json.dumps(orders).encode())
    except (NoAccount, OSError, PeerError, ValueError) as error:
        for descriptor in {*ours, *theirs}:
            os.close(descriptor)
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Failed(f"the command cannot be started: {why}")
    for descriptor in set(theirs):
        os.close(descriptor)
    for descriptor in set(ours):
        os.set_blocking(descriptor, False)
    outputs = {ours[0]: False} if terminal is not None else {ours[1]: False, ours[2]: True}
    return Begun(process, pidfd, ours[0], outputs, terminal is not None)


def _admit(process: subprocess.Popen[bytes], disk: Disk, record: Record, orders: bytes) -> int:
    """Put the new process into the worker's cgroup, and let it go on if the worker lives. Returns its pidfd. Raises OSError.

    In this order: whatever ends the worker's cgroup after the look at the worker finds the process there.
    """
    pidfd = -1
    try:
        with contextlib.suppress(FileNotFoundError):  # the worker has ended, which is seen below
            cgroups.enter(record.cgroups, process.pid)
        pidfd = os.pidfd_open(process.pid)
        settled = disk.settled(record)
        if not runs(settled.pid, settled.start_ticks):
            raise ProcessLookupError(0, f"{record.worker} has ended, or has not begun")
        assert process.stdin is not None
        process.stdin.write(orders)
        process.stdin.close()
    except BaseException:
        process.kill()
        process.wait()
        if pidfd >= 0:
            os.close(pidfd)
        raise
    return pidfd


def _open_streams(terminal: Terminal | None, account: Account, ours: list[int], theirs: list[int]) -> None:
    """Open the streams of a command: each list gets standard input, output and error. Raises OSError."""
    if terminal is None:
        for ends in (os.pipe2(os.O_CLOEXEC)[::-1], os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)):
            ours.append(ends[0])
            theirs.append(ends[1])
        return
    with acting_as(account):  # the terminal belongs to the account
        master, slave = os.openpty()
    ours += [master] * 3
    theirs += [slave] * 3
    resize(master, terminal)


def resize(master: int, terminal: Terminal) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", terminal.rows, terminal.columns, 0, 0))


def end(begun: Begun, at_once: bool) -> None:
    """Have the command killed, or hung up. It is signalled with the agent's rights: the process is its child, and not reaped."""
    try:
        signal.pidfd_send_signal(begun.pidfd, signal.SIGQUIT if at_once else signal.SIGTERM)
    except ProcessLookupError:
        pass
