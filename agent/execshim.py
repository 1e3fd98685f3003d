"""The process around a command that runs beside a worker: ``python -I -S execshim.py``, with its orders in the standard input.

Its orders come when the agent has put it into the worker's cgroup, and has seen after that that the worker lives: so the end of
the cgroup ends it, too. It enters the job's room, gives up root's rights, and then starts the command in a session of its own,
with the streams that it has inherited. As the shim of a worker (`shim`) it kills what is left of the command's group and its
orphans, and only then ends, with the command's exit code; 128 + N: killed by signal N.

SIGTERM hangs up: SIGHUP for the command's group, and SIGKILL after a grace. SIGQUIT kills at once. The kernel hangs up when the
agent ends, for then nobody reads the command's output any more.
"""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from typing import Any

if __package__:
    from . import privileges, shim
else:  # as a script this file belongs to no package
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import privileges  # type: ignore[import-not-found, no-redef]
    import shim  # type: ignore[import-not-found, no-redef]

GRACE_S = 3.0  # from SIGHUP to SIGKILL
KILL_AGAIN_S = 1.0  # a process may have been forked meanwhile
NOT_EXECUTED, NOT_FOUND = 126, 127  # exit codes of a shell


class Asked:
    """The signals that have come."""

    def __init__(self) -> None:
        self.hang_up = self.kill = False
        self.woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGTERM, lambda number, frame: setattr(self, "hang_up", True))
        signal.signal(signal.SIGQUIT, lambda number, frame: setattr(self, "kill", True))
        for number in (
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGCHLD,
        ):  # handlers, not SIG_IGN: the command would inherit that
            signal.signal(number, lambda number, frame: None)


def watch(command: int, asked: Asked) -> int:
    """Wait for the end of the process `command` and of all that it leaves. Returns its wait status."""
    ended = os.pidfd_open(command)
    kill_at: float | None = None
    while True:
        now = time.monotonic()
        if asked.hang_up and kill_at is None:
            shim.signal_group(command, signal.SIGHUP)
            shim.signal_group(command, signal.SIGCONT)  # a stopped one hears of it as well
            kill_at = now + GRACE_S
        if asked.kill or (kill_at is not None and now >= kill_at):
            shim.signal_group(command, signal.SIGKILL)
            asked.kill, kill_at = False, now + KILL_AGAIN_S
        wait_s = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([asked.woken, ended], [], [], wait_s)
        if asked.woken in ready:
            os.read(asked.woken, 512)
            shim.reap_others(command)
        if ended in ready:
            break
    shim.signal_group(command, signal.SIGKILL)  # before it is reaped: its number can't be anyone else's yet
    _, status = os.waitpid(command, 0)
    shim.end_orphans()
    return status


def run(orders: dict[str, Any], streams: list[int], asked: Asked) -> int:
    """Run the command of `orders`. Returns its exit code."""
    parent, command = os.getpid(), orders["command"]

    def begin() -> None:
        shim.begin_worker(parent, orders["umask"])
        if orders["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    try:
        child = subprocess.Popen(
            command,
            cwd=orders["workdir"],
            env=orders["environment"],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            preexec_fn=begin,  # safe: this process has one thread
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or str(error)
        where = f" (in {orders['workdir']})" if getattr(error, "filename", None) == orders["workdir"] else ""
        os.write(streams[2], f"{command[0]}{where}: {why}\n".encode())
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTED
    child.returncode = 0  # `watch` waits for it
    for descriptor in set(streams):  # only the command and its children hold the other ends now
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(watch(child.pid, asked))
    return code if code >= 0 else 128 - code


def main() -> None:
    """Carry the orders out. Does not return."""
    asked = Asked()
    orders: dict[str, Any] = privileges.orders()
    streams: list[int] = orders["streams"]
    codecs.lookup("ascii")  # for `shim.begin_worker`: the interpreter may be closed to the account
    shim.place(orders["cpus"])
    try:
        privileges.move_in(orders["room"])
        if orders["drop"] is not None:
            privileges.drop(privileges.Drop(orders["drop"]))
    except OSError as error:
        os.write(streams[2], f"it cannot become a process of the job: {error.strerror}\n".encode())
        os._exit(NOT_EXECUTED)
    library = ctypes.CDLL(None)
    library.prctl(shim.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    library.prctl(shim.PR_SET_PDEATHSIG, signal.SIGTERM)  # after the change of the user, which cancels it
    if os.getppid() != orders["agent"]:  # it ended before the call
        os._exit(NOT_EXECUTED)
    code = NOT_EXECUTED
    try:
        code = run(orders, streams, asked)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
