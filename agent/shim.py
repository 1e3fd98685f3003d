"""One small process around each worker: starts it, keeps its log, records how it ended. Survives the agent.

Theory of operation
-------------------
Workers must go on while the agent is down (cluster 1), so neither their output nor their exit code may depend on it.
The shim, the standard library alone and started as ``python -I -S shim.py`` (or forked, with its worker, from a warm
process: `forkserver.server`), is the worker's parent in the agent's stead:

* it gives up root's rights first of all, if it has them, and only then touches any file of its job (`privileges`);
* its orders come through its standard input: the worker's variables must be neither in an argument list, where all can
  read them, nor in the shim's own environment, where LD_PRELOAD would act with the agent's rights;
* the worker runs in a session of its own;
* each line of its output goes to ``WORKER.log`` as ``<Unix time, 6 decimals> <o|e> <text>``, bytes as they came, cut into
  pieces of `MAX_LINE_BYTES`; a carriage return ends a line too, so progress bars are lines. A log that becomes long goes on
  in ``WORKER.log.OFFSET``, where OFFSET bytes are before it; the first and the last of these files are kept;
* ``WORKER.json`` names the processes, ``WORKER.exit`` records the worker's end; both are replaced atomically. A process is
  named by its number and its start time in clock ticks since boot: unlike a Unix time that stays the same when the clock is set;
* if it cannot write, it ends with the exit code `NO_RECORD`: its job can bring that about. Any other code but 0 is the
  server's fault, as the shim has touched no file of the job by then;
* SIGTERM to the shim ends the worker's whole process group, by SIGTERM and after a grace by SIGKILL. The rest of the
  group is killed after the worker's end and before the exit is recorded, so that its GPU is free by then. So are processes
  that have left the group: the kernel makes them the shim's children (PR_SET_CHILD_SUBREAPER);
* if the shim itself is killed, the kernel kills the worker (PR_SET_PDEATHSIG).

Room for the exit record is taken before the worker is started: a disk that fills up must not hide how a job has ended.

No file is synced to the disk: survivors wait for the news of a worker's end, and after a crash of the machine the boot
id in the record shows that none of its processes runs any more.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__:
    from . import causes

    if TYPE_CHECKING:
        from .contained import Container
else:  # as a script this file belongs to no package
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import causes  # type: ignore[import-not-found, no-redef]

MAX_LINE_BYTES = 64 << 10
MAX_REASON_CHARACTERS = 600
COMMANDS_FAULT = (
    errno.ENOENT,
    errno.EACCES,
    errno.ENOEXEC,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.E2BIG,
)  # any other error of a start is the server's
READ_BYTES = 1 << 16
EXIT_RECORD_BYTES = (
    8192  # longer than any: a reason has at most MAX_REASON_CHARACTERS, of twelve bytes each, and its frame
)
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # names the file in which launchers record a failure
NO_RECORD = 75  # the exit code of a shim that could not record how its worker has ended
LOG_FILES = 4  # of one worker: the first, and the last ones
MORE_LIKELY_TO_GO = 500  # of 1000: the kernel ends a worker before a daemon when memory runs out
MAX_ENTRIES = 100_000  # of a directory that is listed: its owner may have filled it
ORPHANS_GONE_WITHIN_S = 5.0


def start_ticks(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot. None: there is no such process, or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    """Return the kernel's boot id, which changes with each boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def write_whole(path: str, document: dict[str, object]) -> None:
    """Write `document` as JSON to `path` atomically: at every moment the file holds all of the old or all of the new
    content.
    """
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(temporary, path)


class Lines:
    """Cuts a stream of bytes into lines of bounded length. ``\\n``, ``\\r\\n`` and a lone ``\\r`` after some text end a
    line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._returned = False  # the last line was ended by \r: a \n that follows belongs to it

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes."""
        lines: list[bytes] = []
        for piece in data.splitlines(keepends=True):  # of bytes: at \n, \r and \r\n only
            text = piece.rstrip(b"\r\n")
            end = piece[len(text) :]
            if self._returned and piece == b"\n":
                self._returned = False
                continue
            self._rest += text
            while len(self._rest) > MAX_LINE_BYTES:
                lines.append(self._rest[:MAX_LINE_BYTES])
                self._rest = self._rest[MAX_LINE_BYTES:]
            self._returned = end == b"\r" and bool(self._rest)
            if self._returned or end.endswith(b"\n"):
                lines.append(self._rest)
                self._rest = b""
        return lines

    def end(self) -> list[bytes]:
        """Return the unfinished last line, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def log_files(directory: str, worker: str) -> list[tuple[int, str]]:
    """Return the files of a worker's log, in order: the number of bytes written before each, and its name."""
    pattern = re.compile(re.escape(f"{worker}.log") + r"(?:\.([0-9]{1,18}))?")
    with os.scandir(directory) as entries:
        matches = [pattern.fullmatch(entry.name) for entry in itertools.islice(entries, MAX_ENTRIES)]
    return sorted((int(match[1] or 0), match[0]) for match in matches if match)


class Output:
    """The worker's log files, and the analysis of its stderr (`causes`)."""

    def __init__(self, directory: str, worker: str, most_bytes: int) -> None:
        """`most_bytes`: of all files together."""
        self._base = os.path.join(directory, f"{worker}.log")
        self._starts = [start for start, _ in log_files(directory, worker)] or [0]
        self._file = self._open(self._starts[-1])
        self._size = os.fstat(self._file).st_size
        self._cut = False  # a full disk has cut the last line
        self._most_bytes = max(1, most_bytes // LOG_FILES)
        self._lines = {"o": Lines(), "e": Lines()}
        self.cause = causes.Cause()

    def take(self, stream: str, data: bytes) -> None:
        """Take `data`, read from `stream`; empty: the stream has ended."""
        lines = self._lines[stream].feed(data) if data else self._lines[stream].end()
        if not lines:
            return
        stamp = f"{time.time():.6f} {stream} ".encode()
        text = b"".join(stamp + line + b"\n" for line in lines)
        try:
            if self._size and self._size + len(text) > self._most_bytes:
                self._go_on()
            text = b"\n" + text if self._cut else text
            written = os.write(self._file, text)
            self._size, self._cut = self._size + written, written < len(text)
        except OSError:
            pass  # a full disk must not stop the training: these lines are lost
        for line in lines if stream == "e" else ():
            self.cause.take(line)

    def _go_on(self) -> None:
        """Continue the log in a further file."""
        start = self._starts[-1] + self._size
        file = self._open(start)
        os.close(self._file)
        self._file, self._size, self._cut = file, os.fstat(file).st_size, False
        self._starts.append(start)
        while len(self._starts) > LOG_FILES:
            os.unlink(self._path(self._starts.pop(1)))

    def _path(self, start: int) -> str:
        return f"{self._base}.{start}" if start else self._base

    def _open(self, start: int) -> int:
        return os.open(self._path(start), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class Child:
    """A started worker's process: its number, and the read ends of the pipes to which it writes."""

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr


class Times:
    """Time limits of a shim (s). It cannot import `protocol.times`, which defines them: its agent passes them."""

    def __init__(self, grace_s: float, record_patience_s: float, record_retry_s: float) -> None:
        """grace_s: from SIGTERM to SIGKILL. The others: for an exit record that cannot be written, and between
        attempts.
        """
        self.grace_s = grace_s
        self.record_patience_s = record_patience_s
        self.record_retry_s = record_retry_s

    @classmethod
    def of(cls, text: str) -> Times:
        """Return the limits in one word of a command line."""
        return cls(*(float(each) for each in text.split(",")))

    def __str__(self) -> str:
        return f"{self.grace_s},{self.record_patience_s},{self.record_retry_s}"


class Shim:
    """One worker from its start to its exit record."""

    def __init__(
        self,
        directory: str,
        worker: str,
        times: Times,
        log_bytes: int,
        environment: dict[str, str],
        umask: int,
        container: Container | None = None,
    ) -> None:
        """`environment` and `umask` are the worker's. `container`: in which it runs; None: on the server itself."""
        self._container = container
        self._base = os.path.join(directory, worker)
        self._times = times
        self._environment = environment
        self._umask = umask
        self._output = Output(directory, worker, log_bytes)
        self._kill_at: float | None = None
        self._asked_to_stop = False
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        self._asked_to_warn = False
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGUSR1, self._on_warn)
        for number in (signal.SIGINT, signal.SIGHUP):  # a handler, not SIG_IGN: the worker would inherit that
            signal.signal(number, lambda number, frame: None)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # so that the signal wakes the selector
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def refuse(self, record: dict[str, object], reason: str) -> None:
        """Record that there will be no worker, for a reason that is the server's fault."""
        self._introduce(record)
        self._finish(None, reason, "server")

    def _introduce(self, record: dict[str, object]) -> None:
        record |= {"shim_pid": os.getpid(), "shim_start_ticks": start_ticks(os.getpid()), "boot_id": boot_id()}
        self._take_room()
        write_whole(f"{self._base}.json", record)

    def run(self, record: dict[str, object], argv: list[str], workdir: str) -> bool:
        """Start `argv` in `workdir`, write `record` with the process numbers, return when the exit record is written.

        False: this is not the shim, but the worker that it has forked (see `_start`).
        """
        self._introduce(record)
        try:
            child = self._start(argv, workdir)
        except OSError as error:
            where = f" (in {workdir})" if error.filename == workdir else ""
            reason = f"cannot start {argv[0]}{where}: {error.strerror}{self._closed(error)}"[:MAX_REASON_CHARACTERS]
            self._output.take("e", f"{reason}\n".encode())
            if error.errno in COMMANDS_FAULT:
                self._finish(127 if isinstance(error, FileNotFoundError) else 126, reason)
            else:
                self._finish(None, reason, "server")
            return True
        if child is None:
            return False
        try:
            write_whole(f"{self._base}.json", record | {"pid": child.pid, "start_ticks": start_ticks(child.pid)})
        except OSError as error:  # no agent would find this worker again
            signal_group(child.pid, signal.SIGKILL)
            self._finish(None, f"its record cannot be written: {error.strerror}", "server")
            return True
        began_s = time.time()
        code = self._watch(child)
        self._finish(code, self._reason(code, began_s)[:MAX_REASON_CHARACTERS])
        return True

    def _reason(self, code: int, began_s: float) -> str:
        """Return how the worker ended, and why, as far as its output reveals it."""
        if code == 0:
            return "exit code 0"
        because = self._output.cause.text(code, causes.recorded(self._environment.get(ERROR_FILE, ""), began_s))
        if code < 0:
            return f"killed by {causes.signal_name(-code)}" + (f" after {because}" if because else "")
        return f"exit code {code}" + (f": {because}" if because else "")

    def _start(self, argv: list[str], workdir: str) -> Child | None:
        """Start the worker. None: this process is the worker (of a shim that forks instead of executing `argv`)."""
        parent = os.getpid()
        container = self._container
        if container is not None:
            container.prepare()
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        child = subprocess.Popen(
            argv if container is None else container.argv,
            cwd=workdir if container is None else "/",
            env=self._environment if container is None else container.environment,
            stdin=subprocess.DEVNULL if container is None else container.stdin,
            stdout=out[1],
            stderr=err[1],
            start_new_session=True,
            preexec_fn=lambda: begin_worker(parent, self._umask),  # safe: the shim has one thread
        )
        child.returncode = 0  # `_watch` waits for it
        if container is not None:
            container.begun()
        os.close(out[1])
        os.close(err[1])
        return Child(child.pid, out[0], err[0])

    def _closed(self, error: OSError) -> str:
        """Return the closed directory that keeps the account from an interpreter, if that is the cause; else ""."""
        program = error.filename
        if error.errno != errno.EACCES or not isinstance(program, str):
            return ""
        names = [program] if program.startswith("/") else []
        names += [os.path.join(each, program) for each in os.get_exec_path(self._environment) if "/" not in program]
        closed = next((found for name in names if (found := first_closed(name))), "")
        return f": {closed} is closed to this account" if closed else ""

    def _watch(self, child: Child) -> int:
        """Log the worker's output until it has ended and its group is gone. Returns its exit code, or minus its signal."""
        ended = os.pidfd_open(child.pid)
        selector = selectors.DefaultSelector()
        selector.register(child.stdout, selectors.EVENT_READ, "o")
        selector.register(child.stderr, selectors.EVENT_READ, "e")
        selector.register(self._woken, selectors.EVENT_READ, "signal")
        selector.register(ended, selectors.EVENT_READ, "ended")
        running = True
        while running:
            self._stop_if_asked(child.pid)
            self._warn_if_asked(child.pid)
            for key, _ in selector.select(self._wait_s()):
                if key.data == "signal":
                    os.read(key.fd, 512)
                    reap_others(child.pid)
                elif key.data == "ended":
                    running = False
                elif not self._read(key.fd, key.data):
                    selector.unregister(key.fd)
        signal_group(child.pid, signal.SIGKILL)  # before the worker is reaped: its number can't be anyone else's yet
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if self._container is not None:
            code = self._container.ended(code)
        end_orphans()
        if self._container is not None:
            self._container.remove()
        for descriptor, stream in ((child.stdout, "o"), (child.stderr, "e")):
            if descriptor in selector.get_map():
                self._read_rest(descriptor, stream)
        return code

    def _read(self, descriptor: int, stream: str) -> bool:
        data = os.read(descriptor, READ_BYTES)
        self._output.take(stream, data)
        return bool(data)

    def _read_rest(self, descriptor: int, stream: str) -> None:
        """Read the rest of the pipe, without waiting for its end: a process that left the group may hold it open."""
        os.set_blocking(descriptor, False)
        try:
            while self._read(descriptor, stream):
                pass
        except BlockingIOError:
            self._output.take(stream, b"")

    def _on_terminate(self, number: int, frame: object) -> None:
        self._asked_to_stop = True

    def _on_warn(self, number: int, frame: object) -> None:
        self._asked_to_warn = True

    def _warn_if_asked(self, group: int) -> None:
        """Pass SIGUSR1 on to the processes of the group that handle it: others would end by it."""
        if self._asked_to_warn:
            self._asked_to_warn = False
            for pid in members(group):
                if handles(pid, signal.SIGUSR1):
                    kill(pid, signal.SIGUSR1)

    def _stop_if_asked(self, group: int) -> None:
        now = time.monotonic()
        if self._asked_to_stop and self._kill_at is None:
            self._kill_at = now + self._times.grace_s
            signal_group(group, signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            signal_group(group, signal.SIGKILL)
            self._kill_at = now + self._times.grace_s

    def _wait_s(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _take_room(self) -> None:
        with open(f"{self._base}.exit.new", "wb") as file:
            file.write(b" " * EXIT_RECORD_BYTES)

    def _finish(self, exit_code: int | None, reason: str, fault: str | None = None) -> None:
        """Record how the worker ended. On a full disk it retries for a while: the end of a finished worker must not be
        lost.
        """
        document: dict[str, object] = {"exit_code": exit_code, "reason": reason}
        if fault is not None:
            document["fault"] = fault
        give_up_at = time.monotonic() + self._times.record_patience_s
        while True:
            try:
                self._write_end(document)
                return
            except OSError:
                if time.monotonic() >= give_up_at:
                    raise
            time.sleep(self._times.record_retry_s)

    def _write_end(self, document: dict[str, object]) -> None:
        room = f"{self._base}.exit.new"
        if not os.path.exists(room):
            write_whole(f"{self._base}.exit", document)
            return
        with open(room, "r+b") as file:  # spaces follow
            file.write(json.dumps(document).encode())
        os.replace(room, f"{self._base}.exit")


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, with number `parent`, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def begin_worker(parent: int, umask: int) -> None:
    """Set up a worker's process, before any code of the job runs in it."""
    die_with(parent)
    os.umask(umask)
    # Otherwise the following file belongs to root, which this process was
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(MORE_LIKELY_TO_GO))
    except OSError:  # a /proc that cannot be written to
        pass


def place(cpus: Sequence[int]) -> None:
    """Run on these CPUs, as far as that is allowed; none: no change."""
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:  # none of them is available: a container, CPUs that are switched off
            pass


def reap_others(worker: int) -> None:
    """Reap processes that the worker has left behind, but not the worker itself."""
    try:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != worker:
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        pass


def end_orphans() -> None:
    """Kill the processes that an ended worker has left behind, in any session: they are this process's children by now."""
    give_up_at = time.monotonic() + ORPHANS_GONE_WITHIN_S  # one may be stuck in the kernel
    try:
        while time.monotonic() < give_up_at:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for pid in children(os.getpid()):
                kill(pid)
            time.sleep(0.002)
    except ChildProcessError:
        pass  # none is left


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # it is gone, or belongs to another account now
        pass


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; False: it would end, or ignores the signal, or has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def children(parent: int) -> list[int]:
    """Return the processes whose parent is `parent`."""
    return _processes(1, parent)


def members(group: int) -> list[int]:
    """Return the processes of a process group."""
    return _processes(2, group)


def _processes(at: int, value: int) -> list[int]:
    """Return the processes with this value in a column of /proc/PID/stat, counted from the state on."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[at]) == value:
                        found.append(int(entry))
            except OSError:  # it has just ended
                pass
    return found


def first_closed(path: str) -> str:
    """Return the first directory on the way to `path` that this process may not enter; "": none."""
    for _ in range(40):  # links
        directory = os.path.dirname(os.path.abspath(path))
        parts = directory.split("/")
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count]) or "/"
            if not os.access(above, os.X_OK, effective_ids=True):
                return above
        if not os.path.islink(path):
            return ""
        path = os.path.join(directory, os.readlink(path))
    return ""


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group that may be gone."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def main(arguments: list[str]) -> None:
    """Run the shim: ``shim.py DIRECTORY JOB UID WORKER GPU TIMES WORKDIR ARGV...``, with its orders in the standard
    input.
    """
    import privileges  # type: ignore[import-not-found]  # as a script this file belongs to no package

    directory, _, _, worker, _, times, workdir, *argv = arguments
    orders = privileges.orders()
    place(orders["cpus"])
    container: Container | None = None
    if orders.get("container"):  # loaded now, as the account may be kept from this interpreter's files
        import contained  # type: ignore[import-not-found]

        container = contained.Container(orders["container"])
    problem = ""
    try:
        privileges.join(orders["cgroups"])
        # An agent older than this file sends no `room`. Containers of root have mounts, which are to end with them
        privileges.move_in(orders.get("room", ()), always=bool(orders.get("container")) and os.getuid() == 0)
    except OSError as error:
        problem = f"it cannot enter its cgroup, or its own /tmp: {error.strerror}"
    if orders["drop"] is not None:
        privileges.drop(privileges.Drop(orders["drop"]))
    try:
        ways = orders["log_bytes"], orders["environment"], orders["umask"]
        shim = Shim(directory, worker, Times.of(times), *ways, container)
        if problem:
            shim.refuse(orders["record"], problem)
        else:
            shim.run(orders["record"], argv, workdir)
    except BaseException:  # the edge of the process; its output has no reader
        os._exit(NO_RECORD)
    os._exit(0)  # there is nothing to tidy up, and others wait for this end


if __name__ == "__main__":
    main(sys.argv[1:])
