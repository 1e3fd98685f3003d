"""The first process of a worker's container: starts the command, passes signals on, reports the command's end.

The shim sends the text of this file into the container, where the image's own Python executes it (`contained.LOADER`): an
image needs Python 3.9 or newer, and its entry point is not used. The standard library alone.

Theory of operation
-------------------
The shim's end of a socket is the life line of a container: podman, its monitor (conmon) and the container are no children
of each other once a container runs, so the death of one does not end the others. This process kills all that the command
has started when the socket is closed, with whatever ended the shim. Before its own end it sends the command's wait status:
podman reports a signal as an exit code, from which it could not be told apart.

The job's variables and command come as a sealed-off file through the same socket. They are neither in a command line, nor
in podman's records, where `podman inspect` shows a container's variables.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import select
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SEED = "ELASTICD_SEED"
PACKAGE, DISTRIBUTION = "elasticd", "elasticctl"
NOT_EXECUTED, NOT_FOUND = 126, 127  # exit codes of a shell
KILLED = 128 + signal.SIGKILL
AGAIN_AFTER_S = 1.0  # podman's client may pass one signal on twice
ORPHANS_GONE_WITHIN_S = 5.0
_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)


def main(line: socket.socket, orders: dict[str, Any]) -> None:
    """Run the command of `orders`. Does not return. `line`: the socket to the shim, which is this process's standard input."""
    line = line.dup()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    asked: dict[int, float] = {}  # time of each signal that is to be passed on
    for passed_on in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(passed_on, lambda number, frame: asked.setdefault(number, time.monotonic()))
    for other in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(other, lambda number, frame: None)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    environment = {**os.environ, **orders["environment"]}
    if problem := _prepare(orders, environment):
        os.write(2, f"{problem}\n".encode())
        _end(line, NOT_EXECUTED << 8)
    command = _start(orders, environment)
    passed: dict[int, float] = {}
    while True:
        for number, asked_s in list(asked.items()):
            del asked[number]
            if asked_s - passed.get(number, -AGAIN_AFTER_S) >= AGAIN_AFTER_S:
                passed[number] = asked_s
                _pass_on(number, command)
        ready, _, _ = select.select([woken, line.fileno()], [], [])
        if line.fileno() in ready and not line.recv(1):
            _kill_all(command)
            os._exit(KILLED)
        if woken in ready:
            os.read(woken, 512)
        if (status := _reap(command)) is not None:
            _end(line, status)


def _prepare(orders: dict[str, Any], environment: dict[str, str]) -> str:
    """Add the variables that depend on the image. Returns why the job cannot run in it; "": it can."""
    sys.path += [each for each in environment.get("PYTHONPATH", "").split(":") if each]
    wanted = orders["version"]  # of the server; "": the command does not join, or another interpreter runs it
    found = importlib.util.find_spec(PACKAGE)
    where = next(iter(found.submodule_search_locations or ()), None) if found is not None else None
    if wanted:
        version = None if where is None else _version(where)
        if version != wanted:
            has = f"elasticctl {version}" if version else "no elasticctl"
            return (
                f"the image {orders['image']} has {has} where {orders['interpreter']} looks, and this server has {wanted}: "
                f"the image needs the same version (pip install elasticctl=={wanted})"
            )
    if SEED in environment and where is not None:
        first = os.path.join(where, "agent", "firstline")
        paths = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = f"{first}:{paths}" if paths else first
    return ""


def _version(where: str) -> str:
    """Return the version of the package in the directory `where`; "": unknown."""
    try:
        with open(os.path.join(where, "__init__.py"), encoding="utf-8") as file:
            found = _VERSION.search(file.read())
    except OSError:
        found = None
    if found is not None:
        return found[1]
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _start(orders: dict[str, Any], environment: dict[str, str]) -> int:
    """Start the command in a session of its own. Returns its process number."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    command, where = orders["command"], orders["workdir"]
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(NOT_EXECUTED)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(orders["umask"])
        os.chdir(where)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        at = f" (in {where})" if error.filename == where else ""
        os.write(2, f"cannot start {command[0]}{at}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTED)


def _reap(command: int) -> int | None:
    """Reap processes that the command has left behind. Returns the command's wait status if it has ended; it stays a
    zombie, so that its number can be no other group's yet."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if ended is None:
            return None
        if ended.si_pid == command:
            _signal_group(command, signal.SIGKILL)
            return os.waitpid(command, 0)[1]
        os.waitpid(ended.si_pid, 0)


def _pass_on(number: int, group: int) -> None:
    """Pass SIGTERM on to the command's group, and SIGUSR1 to those of its processes that handle it: others would end by it."""
    if number == signal.SIGTERM:
        _signal_group(group, number)
        return
    for pid, columns in _processes():
        if int(columns[2]) == group and _handles(pid, number):
            _signal(pid, number)


def _processes() -> list[tuple[int, list[bytes]]]:
    """Return all processes that this one sees, with the columns of /proc/PID/stat from the state on."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found.append((int(name), file.read().rpartition(b")")[2].split()))
            except OSError:  # it has just ended
                pass
    return found


def _handles(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _kill_all(command: int) -> None:
    """Kill the command's group, and the orphans that have become this process's children."""
    _signal_group(command, signal.SIGKILL)
    give_up_at = time.monotonic() + ORPHANS_GONE_WITHIN_S
    try:
        while time.monotonic() < give_up_at:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for pid, columns in _processes():
                if int(columns[1]) == os.getpid():
                    _signal(pid, signal.SIGKILL)
            time.sleep(0.002)
    except ChildProcessError:
        pass  # none is left


def _end(line: socket.socket, status: int) -> None:
    """Send the command's wait status to the shim, and end. Does not return."""
    _kill_all(0)
    try:
        line.sendall(f"status {status}\n".encode())
    except OSError:  # the shim has ended
        pass
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _signal_group(group: int, number: int) -> None:
    if group:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            pass
