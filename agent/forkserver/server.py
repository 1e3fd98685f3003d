"""Warm process: has torch loaded, and forks workers, so that a joiner's script starts within milliseconds (worker-runtime 9).

``python -m elasticd.agent.forkserver.server STATE_DIRECTORY DESCRIPTOR PARENT PRELUDE PADDING``, started by `client`.

Theory of operation
-------------------
`import torch` takes seconds, a fork milliseconds. So the agent keeps a process that has imported torch, and requests workers from
it over a socket pair, one message per worker: the request, and one end of another socket pair, the *channel*. The process forks a
shim, which sends its process number on the channel and waits there for the agent's approval; without approval the shim exits
without a trace. An agent that gets no answer in time closes the channel and starts the worker in the ordinary way: however slow
or broken this process is, a worker is started once. The approved shim forks the worker. Files, signals and command lines in `ps`
are then the same as for a shim and a worker that were executed.

A fork copies one thread and the state of every lock. So this process must have a single thread, and no GPU driver may have been
started in it: `unfit` checks that before each fork, and an unfit process exits. `child` sets the worker up as if it had been
executed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import types
from typing import Any, NoReturn

from .. import shim
from .child import Script, become
from .driver_imports import named
from .gpus import started

MAX_REQUEST_BYTES = 128 << 10
GO = b"g"
NICE_WHILE_LOADING = 5
CAP_SYS_NICE = 23


class Request:
    """Request to fork a worker; its fields are those of the agent's message."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.directory: str = document["directory"]
        self.record: dict[str, Any] = document["record"]
        self.job: str = self.record["job"]
        self.uid: str = self.record["uid"]
        self.worker: str = self.record["worker"]
        self.gpu: int = self.record["gpu"]
        self.cpus: list[int] = document["cpus"]
        self.log_bytes: int = document["log_bytes"]
        self.umask: int = document["umask"]
        self.times: str = document["times"]
        self.workdir: str = document["workdir"]
        self.command: list[str] = document["command"]
        self.environment: dict[str, str] = document["environment"]
        self.executable: str = document["executable"]
        self.module: bool = document["module"]
        self.name: str = document["name"]  # of the module, or path of the script
        self.arguments: list[str] = document["arguments"]


# ------------------------------------------------------------------------------------------------------------ the warm process


def unfit() -> str | None:
    """Return why this process must not fork; None if it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"it has {threads} threads"
    return started()


def load(prelude: str) -> types.ModuleType:
    """Call `import_prelude`, at low priority if the priority can be raised again."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if _may_return_to(before):
        os.setpriority(os.PRIO_PROCESS, 0, max(before, NICE_WHILE_LOADING))
    try:
        return import_prelude(prelude)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, before)


def import_prelude(prelude: str) -> types.ModuleType:
    """Import `prelude`, call its `prepare`, and make this process ready to fork."""
    gc.disable()  # modules are no garbage, and searching them again and again takes a fifth of the imports' time
    module = importlib.import_module(prelude)
    module.prepare()
    _try_fork()
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise write to, and so copy, all its pages
    gc.enable()
    return module


def _may_return_to(priority: int) -> bool:
    """Return whether this process may restore this priority after lowering it: not every root may (`CapabilityBoundingSet=`)."""
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    if limit == resource.RLIM_INFINITY or 20 - limit <= priority:
        return True
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        capabilities = [int(line.split()[1], 16) for line in file if line.startswith("CapEff:")]
    return any(each >> CAP_SYS_NICE & 1 for each in capabilities)


def _try_fork() -> None:
    """Fork once as a test: a fork-safe library (OpenBLAS) ends its threads before a fork; `unfit` then sees any others."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def watched_files() -> dict[str, int]:
    """Return modification times (ns) of the package directories and of this project's modules. When one changes, this process
    is out of date."""
    ours = __package__.partition(".")[0]
    files = [
        module.__file__
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] == ours and getattr(module, "__file__", None)
    ]
    watched = {}
    for path in [*sys.path, *files]:
        try:
            watched[str(path)] = os.stat(str(path)).st_mtime_ns
        except OSError:
            pass
    return watched


def serve(connection: socket.socket) -> tuple[Request, int] | None:
    """Fork a shim per request. Returns None when the agent is gone or this process is unfit; in a child, the request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the shims
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 1)
        if not data:
            return None
        problem = unfit()
        if problem is not None:
            print(f"nothing is forked from this process any more: {problem}", file=sys.stderr)
            return None  # the channel closes with this process, and the agent starts the worker itself
        if _fork() == 0:
            os.close(connection.detach())
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return Request(json.loads(data)), descriptors[0]
        os.close(descriptors[0])


def _fork() -> int | None:
    try:
        return os.fork()
    except OSError as error:  # no memory, too many processes: the agent sees the channel close
        print(f"cannot fork: {error.strerror}", file=sys.stderr)
        return None


# ------------------------------------------------------------------------------------------------------------------- the shim


class ForkingShim(shim.Shim):
    """Shim that forks its worker from its own process."""

    def _start(self, argv: list[str], workdir: str) -> shim.Child | None:
        try:
            os.chdir(workdir)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, workdir) from None
        parent = os.getpid()
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        separated, separate = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _separate(parent, self._umask, out[1], err[1])
            return None
        os.chdir("/")
        for descriptor in (out[1], err[1], separate):
            os.close(descriptor)
        os.read(separated, 1)  # wait until the worker has its own process group: an earlier signal would be lost
        os.close(separated)
        return shim.Child(pid, out[0], err[0])


def keep(request: Request, channel: int) -> bool:
    """Act as a worker's shim until the worker has ended. Returns False in the worker."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    _introduce(channel)
    names = [request.directory, request.job, request.uid, request.worker]
    where = [*names, str(request.gpu), request.times, request.workdir]
    show([request.executable, "-I", "-S", shim.__file__, *where, *request.command])
    shim.place(request.cpus)
    times = shim.Times.of(request.times)
    keeper = ForkingShim(
        request.directory, request.worker, times, request.log_bytes, request.environment, request.umask
    )
    return keeper.run(request.record, request.command, request.workdir)


def _introduce(channel: int) -> None:
    """Send this process's number to the agent, and exit unless the agent approves."""
    with socket.socket(fileno=channel) as line:
        try:
            line.send(str(os.getpid()).encode())
            word = line.recv(1)
        except OSError:
            word = b""
    if word != GO:
        os._exit(0)


def _separate(shim_pid: int, umask: int, stdout: int, stderr: int) -> None:
    """Detach the worker from the shim's session, signals and files, except for the output pipes."""
    shim.begin_worker(shim_pid, umask)
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


# --------------------------------------------------------------------------------------------------------------------- both


def show(command: list[str]) -> None:
    """Replace this process's command line, as seen by `ps` and `elasticctl down`, as far as there is room."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    room = end - begin
    if room > 0:
        text = b"\0".join(os.fsencode(part) for part in command)[: room - 1]
        ctypes.memset(begin, 0, room)
        ctypes.memmove(begin, text, len(text))


def _report(connection: socket.socket, **document: object) -> None:
    connection.send(json.dumps(document).encode())


def main(arguments: list[str]) -> None:
    """Load, report, and serve; in a child, run the worker. All children of this process end in here."""
    _, descriptor, parent, prelude, *_ = arguments
    shim.die_with(int(parent))
    paths = sys.path[1:]  # without the directory that this process was started in
    sys.path[:] = paths
    connection = socket.socket(fileno=int(descriptor))
    try:
        loaded = load(prelude)
    except BaseException as error:  # outermost frame of the process: the agent starts workers without it
        _report(connection, useless=f"{type(error).__name__}: {error}")
        _end(1)
    problem = unfit()
    if problem is not None:
        name = named(prelude) if started() else ""
        _report(connection, useless=f"{problem}, by the import of {name}" if name else problem)
        _end(1)
    _report(connection, executable=sys.executable, watched=watched_files())
    child = serve(connection)
    if child is None:
        _end(0)
    request, channel = child
    if keep(request, channel):
        _end(0)
    show(request.command)
    script = Script(request.executable, request.command, request.module, request.name, request.arguments)
    become(script, request.environment, paths, loaded.renew)


def _end(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
