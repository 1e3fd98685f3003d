"""Workers' processes: start them behind a shim, find them again after a restart, notice their end at once, signal them.

A shim is watched through a pidfd, which becomes readable when the process ends, whether it is our child or was started by an
earlier agent. What is written down is read back from the files that the shim keeps (see `shim`).

The fellows of a dead worker wait for the news, so it must be quick. The shim's own end comes too late: a forked one has the
memory of torch to give back, some 10 ms. Therefore a worker that has joined its job is watched as well, and once it is dead
its exit record, which the shim writes when nothing of the worker is left, is looked for every millisecond, for a while.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..protocol.errors import PeerError
from ..protocol.exits import fault_of
from ..protocol.messages import StartWorker, WorkerExit
from ..protocol.model import Fault, JobId, WorkerId
from ..runtime.clock import Clock
from ..runtime.loop import Loop
from . import launch, shim
from .environment import Surroundings, environment
from .events import ProcessExited, ProcessFailed, Started, StopSignal
from .forking import Channel, WarmProcesses, find_interpreter
from .logfiles import JobFiles

log = logging.getLogger(__name__)

SHIM_GRACE_S = 60.0  # after which a shim kills by itself, should the agent that asked it to stop be gone
LOOK_INTERVAL_S = 0.001
LOOK_FOR_S = 0.1
SHIM_START_S = 2.0  # how long shims may take to write their records, when an agent was killed just after starting them


class Record(msgspec.Struct, frozen=True):
    """A worker's ``.json``. The agent writes it without pids before it starts the shim, the shim adds them."""

    job: JobId
    worker: WorkerId
    gpu: int
    argv: tuple[str, ...]
    shim_pid: int | None = None
    shim_start_ticks: int | None = None
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str = ""

    @property
    def shim_runs(self) -> bool:
        return self.boot_id == shim.boot_id() and _runs(self.shim_pid, self.shim_start_ticks)

    @property
    def worker_runs(self) -> bool:
        return self.boot_id == shim.boot_id() and _runs(self.pid, self.start_ticks)


class ExitRecord(msgspec.Struct, frozen=True):
    """A worker's ``.exit``."""

    exit_code: int | None
    reason: str
    fault: Fault | None = None  # where the exit code does not tell


def _runs(pid: int | None, ticks: int | None) -> bool:
    return pid is not None and ticks is not None and shim.start_ticks(pid) == ticks


@dataclass
class _Watched:
    """A shim that runs."""

    job: JobId
    pid: int
    descriptor: int  # pidfd
    child: subprocess.Popen[bytes] | None  # to be reaped, if it is ours
    worker: int | None = None  # pidfd of the worker itself, once it has spoken
    look_until: float | None = None  # the worker is dead: its exit record is due
    told: bool = False  # the worker's end has been told; the shim is just ending


@dataclass(frozen=True)
class _Asked:
    """A worker that a warm process has been asked for."""

    start: StartWorker
    environment: dict[str, str]
    channel: Channel


class Processes:
    """The workers' processes of one server."""

    def __init__(
        self,
        files: JobFiles,
        around: Surroundings,
        loop: Loop,
        clock: Clock,
        warm: WarmProcesses | None,
        tell: Callable[[ProcessExited | ProcessFailed], None],
    ) -> None:
        """`warm`: what to fork workers from, where that is possible."""
        self._files = files
        self._around = around
        self._loop = loop
        self._clock = clock
        self._warm = warm
        self._tell = tell
        self._watched: dict[WorkerId, _Watched] = {}
        self._asked: dict[WorkerId, _Asked] = {}
        self._dead: dict[WorkerId, _Watched] = {}  # whose exit records are looked for

    def start(self, start: StartWorker) -> ProcessFailed | None:
        """Write a record, start a shim. Returns why that failed, or None."""
        gpu = self._around.gpu(start.gpu)
        if gpu is None:
            return ProcessFailed(start.worker, f"this server has no GPU {start.gpu}")
        try:
            record_path = self._files.of(start.job, start.worker, "json")
            directory = record_path.parent
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._around.checkpoints / start.job).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.of(start.job, start.worker, "exit").unlink(missing_ok=True)
            record = Record(start.job, start.worker, start.gpu, start.spec.command)
            shim.write_whole(str(record_path), msgspec.to_builtins(record))
            made = environment(start, gpu, self._around)
            channel = self._ask(start, made)
            if channel is None:
                self._execute(start, made)
            else:
                self._asked[start.worker] = _Asked(start, made, channel)
        except (OSError, PeerError, ValueError) as error:  # ValueError: a zero byte in a variable or an argument
            return _failed(start, error)
        return None

    def _ask(self, start: StartWorker, made: dict[str, str]) -> Channel | None:
        """Ask a warm process for the worker, if one can have it."""
        spec = start.spec
        asked = launch.parse(spec.command, made) if self._warm is not None else None
        found = find_interpreter(spec.command[0], made, spec.workdir) if asked is not None else None
        if self._warm is None or asked is None or found is None:
            return None
        request = {
            "directory": str(self._files.directory(start.job)),
            "job": start.job,
            "worker": start.worker,
            "gpu": start.gpu,
            "grace_s": SHIM_GRACE_S,
            "workdir": spec.workdir,
            "command": spec.command,
            "environment": made,
            "executable": found.path,
            "module": asked.module,
            "name": asked.name,
            "arguments": asked.arguments,
        }
        key = launch.key_of(found, made)
        return self._warm.fork(found, key, request, lambda shim: self._on_forked(start.worker, shim))

    def _on_forked(self, worker: WorkerId, forked: tuple[int, int] | None) -> None:
        asked = self._asked.pop(worker)
        if forked is not None:
            self._watch(asked.start.job, worker, *forked, None)
            log.info("forked worker=%s gpu=%d shim_pid=%d", worker, asked.start.gpu, forked[0])
            return
        try:
            self._execute(asked.start, asked.environment)
        except (OSError, ValueError) as error:
            self._tell(_failed(asked.start, error))

    def _execute(self, start: StartWorker, made: dict[str, str]) -> None:
        child = subprocess.Popen(
            _command(self._files.directory(start.job), start),
            env=made,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=True,
        )
        try:
            descriptor = os.pidfd_open(child.pid)
        except OSError:
            child.kill()  # nobody would notice its end
            child.wait()
            raise
        self._watch(start.job, start.worker, child.pid, descriptor, child)
        log.info("started worker=%s gpu=%d shim_pid=%d", start.worker, start.gpu, child.pid)

    def adopt(self) -> Started:
        """Find the workers that earlier agents have started: those that run, and those that have ended and are not forgotten."""
        running: list[tuple[JobId, WorkerId]] = []
        exited: list[WorkerExit] = []
        give_up_at = time.monotonic() + SHIM_START_S
        for path in sorted(self._files.root.glob("*/*.json")):
            record = _settled_record(path, give_up_at)
            if record is None:
                continue
            if self._rewatch(record):
                running.append((record.job, record.worker))
                log.info("adopted worker=%s shim_pid=%s pid=%s", record.worker, record.shim_pid, record.pid)
            else:
                end = self._read_exit(record.job, record.worker)
                exited.append(
                    WorkerExit(
                        job=record.job,
                        worker=record.worker,
                        exit_code=end.exit_code,
                        reason=end.reason,
                        fault=end.fault or (fault_of(end.exit_code) if end.exit_code else Fault.KILLED),
                    )
                )
        return Started(tuple(running), tuple(exited))

    def signal(self, worker: WorkerId, how: StopSignal) -> ProcessFailed | None:
        """Signal a worker's process group; nothing if it has ended. Returns its end, if it has not begun yet."""
        asked = self._asked.pop(worker, None)
        if asked is not None and self._warm is not None:
            self._warm.cancel(asked.channel)
            return ProcessFailed(worker, "it was stopped before it began", Fault.STOPPED)
        watched = self._watched.get(worker)
        if watched is None:
            return None
        log.info("signal worker=%s how=%s", worker, how.value)
        if how is StopSignal.TERMINATE:
            _send(watched, signal.SIGTERM)  # the shim passes it on to the group, and keeps the log to the end
            return None
        record = _read(self._files.of(watched.job, worker, "json"))
        if record is not None and record.pid is not None and record.worker_runs:
            shim.signal_group(record.pid, signal.SIGKILL)
        else:
            _send(watched, signal.SIGKILL)
        return None

    def heard(self, worker: WorkerId) -> None:
        """A worker has spoken: from now on others may depend on it."""
        watched = self._watched.get(worker)
        if watched is None or watched.worker is not None:
            return
        record = _read(self._files.of(watched.job, worker, "json"))
        if record is None or record.pid is None or not record.worker_runs:
            return
        try:
            descriptor = os.pidfd_open(record.pid)
        except OSError:  # it has just ended, or the agent has too many files open: the shim's end will tell
            return
        if not record.worker_runs:  # its number may be somebody else's by now
            os.close(descriptor)
            return
        watched.worker = descriptor
        self._loop.add_descriptor(descriptor, lambda: self._died(worker))

    def next_deadline(self) -> float | None:
        """When `pass_time` has something to do."""
        return self._clock.now() + LOOK_INTERVAL_S if self._dead else None

    def pass_time(self) -> None:
        """Look for the exit records that are due."""
        now = self._clock.now()
        for worker, watched in list(self._dead.items()):
            end = self._written_end(watched.job, worker)
            if end is not None:
                self._tell_end(worker, watched, end)
            elif watched.look_until is not None and now >= watched.look_until:
                del self._dead[worker]  # the shim is slow: its end will tell

    def forget(self, job: JobId, worker: WorkerId) -> None:
        """Remove the records of an ended worker. Its log stays."""
        try:
            paths = [self._files.of(job, worker, suffix) for suffix in ("json", "exit")]
        except PeerError:
            return  # `start` refused this name: there are no records
        for path in paths:  # in this order: an end without a record is no worker, a record without an end would be one
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the next agent tells this end once more, and the controller knows it
                log.error("%s cannot be removed: %s", path, error.strerror)
                return

    def close(self) -> None:
        """Let go of the processes. They go on."""
        self._asked.clear()  # whoever closes the warm processes closes their channels: none of these begins
        for watched in self._watched.values():
            self._release(watched)
            if watched.child is not None:
                watched.child.returncode = 0  # keeps subprocess from complaining of a child that runs on, as it should
        self._watched.clear()
        self._dead.clear()

    def _rewatch(self, record: Record) -> bool:
        if record.shim_pid is None or not record.shim_runs:
            return False
        try:
            descriptor = os.pidfd_open(record.shim_pid)
        except ProcessLookupError:
            return False
        if not record.shim_runs:  # it ended before the descriptor was taken, which may be another process's
            os.close(descriptor)
            return False
        self._watch(record.job, record.worker, record.shim_pid, descriptor, None)
        return True

    def _watch(
        self, job: JobId, worker: WorkerId, pid: int, descriptor: int, child: subprocess.Popen[bytes] | None
    ) -> None:
        self._watched[worker] = _Watched(job, pid, descriptor, child)
        self._loop.add_descriptor(descriptor, lambda: self._ended(worker))

    def _died(self, worker: WorkerId) -> None:
        """The worker's own process is dead. Its shim will kill what is left of its group, and write down how it ended."""
        watched = self._watched[worker]
        if watched.worker is None or not _is_over(watched.worker):
            return
        self._release_worker(watched)
        watched.look_until = self._clock.now() + LOOK_FOR_S
        self._dead[worker] = watched

    def _ended(self, worker: WorkerId) -> None:
        if not _is_over(self._watched[worker].descriptor):
            return
        watched = self._watched.pop(worker)
        self._release(watched)
        if watched.child is not None:
            watched.child.wait()
        if not watched.told:
            self._tell_end(worker, watched, self._read_exit(watched.job, worker))

    def _tell_end(self, worker: WorkerId, watched: _Watched, end: ExitRecord) -> None:
        self._dead.pop(worker, None)
        watched.told = True
        log.info("ended worker=%s reason=%s", worker, end.reason)
        self._tell(ProcessExited(worker, end.exit_code, end.reason, end.fault))

    def _release(self, watched: _Watched) -> None:
        self._release_worker(watched)
        self._loop.remove_descriptor(watched.descriptor)
        os.close(watched.descriptor)

    def _release_worker(self, watched: _Watched) -> None:
        if watched.worker is not None:
            self._loop.remove_descriptor(watched.worker)
            os.close(watched.worker)
            watched.worker = None

    def _written_end(self, job: JobId, worker: WorkerId) -> ExitRecord | None:
        try:
            return msgspec.json.decode(self._files.of(job, worker, "exit").read_bytes(), type=ExitRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def _read_exit(self, job: JobId, worker: WorkerId) -> ExitRecord:
        """How a worker ended whose shim is gone. If the shim could not say it, nothing of the worker may be left."""
        end = self._written_end(job, worker)
        if end is not None:
            return end
        record = _read(self._files.of(job, worker, "json"))
        if record is not None and record.pid is not None and record.worker_runs:
            shim.signal_group(record.pid, signal.SIGKILL)
        if record is not None and record.boot_id not in ("", shim.boot_id()):
            return ExitRecord(None, "the server was started anew", Fault.LOST)
        if record is None or record.pid is None:
            return ExitRecord(None, "it never started", Fault.SERVER)
        return ExitRecord(None, "the process that kept it was killed", Fault.KILLED)


def _is_over(process: int) -> bool:
    """Whether the process of this pidfd has ended. Its number may lately have been another descriptor's, whose news are late."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def _failed(start: StartWorker, error: Exception) -> ProcessFailed:
    """Too long a command and a name that is none are the job's own fault; a full disk or no memory is the server's."""
    log.error("worker %s cannot be started: %s", start.worker, error)
    servers = isinstance(error, OSError) and error.errno not in (errno.E2BIG, errno.ENAMETOOLONG)
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ProcessFailed(start.worker, f"cannot be started: {why}", Fault.SERVER if servers else Fault.SCRIPT)


def _command(directory: Path, start: StartWorker) -> list[str]:
    keeper = [sys.executable, "-I", "-S", shim.__file__, str(directory), start.job, start.worker, str(start.gpu)]
    return [*keeper, str(SHIM_GRACE_S), start.spec.workdir, *start.spec.command]


def _send(watched: _Watched, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(watched.descriptor, number)
    except ProcessLookupError:
        pass


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s is not a worker's record and is left alone: %s", path, error)
        return None


def _settled_record(path: Path, give_up_at: float) -> Record | None:
    """The record in `path`; if it is one without pids, as soon as its shim has added them, or at `give_up_at`."""
    while (record := _read(path)) is not None and record.shim_pid is None and time.monotonic() < give_up_at:
        time.sleep(0.02)
    return record
