"""Everything that an agent does with files and may have to wait for: a full, slow or absent file system shows here.

Each call blocks for as long as the file system likes, and is therefore made by `errands`. What the world can break comes back
as a value that says why.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..protocol.errors import OperatorError, PeerError
from ..protocol.messages import LogPiece, ReadLog, StartWorker
from ..protocol.model import Fault, JobId, WorkerId
from ..protocol.times import RECORD_PATIENCE_S, RECORD_RETRY_S, SHIM_GRACE_S
from . import shim
from .adoption import ExitRecord, Found, Record
from .environment import Surroundings
from .forkserver import key as warm_key
from .forkserver.key import Interpreter, WarmKey
from .identity import Identity
from .logfiles import JobFiles, read_piece

log = logging.getLogger(__name__)

IDENTITY_FILE = "identity.json"
SHIM_TIMES = shim.Times(SHIM_GRACE_S, RECORD_PATIENCE_S, RECORD_RETRY_S)

Watched = Mapping[WarmKey, Mapping[str, int]]  # what warm processes have loaded: modification times (ns) of files


@dataclass(frozen=True)
class Failed:
    """It could not be done, why, and whose fault that is."""

    reason: str
    fault: Fault = Fault.SERVER


@dataclass(frozen=True)
class Forkable:
    """A worker that a warm process may be asked for."""

    interpreter: Interpreter
    key: WarmKey
    launch: warm_key.Launch
    outdated: bool  # what that process has loaded has changed on the disk


class Disk:
    """The files of one agent."""

    def __init__(self, state: Path, files: JobFiles, around: Surroundings) -> None:
        self._state = state
        self._files = files
        self._around = around
        self._boot = shim.boot_id()  # it stays the same; and later there may be no file to be had

    def prepare(self, start: StartWorker, made: Mapping[str, str], watched: Watched) -> Forkable | Failed | None:
        """Touch whatever of a worker's start may lie on a network: its checkpoints, its interpreter. None: it can't be forked."""
        try:
            self._around.checkpoints_of(start).mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, PeerError) as error:
            return not_started(error)
        asked = warm_key.parse(start.spec.command, made)
        found = find_interpreter(start.spec.command[0], made, start.spec.workdir) if asked is not None else None
        if asked is None or found is None:
            return None
        key = warm_key.key_of(found, made)
        return Forkable(found, key, asked, outdated=_changed(watched.get(key, {})))

    def write_down(self, start: StartWorker) -> Failed | None:
        """Make the record of a worker that is about to be started."""
        try:
            record_path = self._files.of(start.job, start.worker, "json", start.uid)
            record_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.of(start.job, start.worker, "exit", start.uid).unlink(missing_ok=True)
            record = Record(start.job, start.worker, start.gpu, start.spec.command, start.uid)
            shim.write_whole(str(record_path), msgspec.to_builtins(record))
        except (OSError, PeerError) as error:
            return not_started(error)
        return None

    def execute(self, start: StartWorker, made: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int] | Failed:
        """Start a worker's shim. Returns it with its pidfd."""
        directory = self._files.directory(start.job, start.uid)
        keeper = [sys.executable, "-I", "-S", shim.__file__, str(directory), start.job, start.uid, start.worker]
        command = [*keeper, str(start.gpu), str(SHIM_TIMES), start.spec.workdir, *start.spec.command]
        try:
            child = subprocess.Popen(
                command,
                env=made,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a zero byte in a variable or an argument
            return not_started(error)
        try:
            return child, os.pidfd_open(child.pid)
        except OSError as error:  # too many files are open
            child.kill()  # nobody would notice its end
            child.wait()
            return not_started(error)

    def read_record(self, path: Path) -> Record | None:
        """A worker's record; None where there is none that can be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.error("%s is not a worker's record and is left alone: %s", path, error)
            return None

    def record_of(self, job: JobId, worker: WorkerId, uid: str) -> Record | None:
        return self.read_record(self._files.of(job, worker, "json", uid))

    def end_of(self, job: JobId, worker: WorkerId, uid: str) -> ExitRecord | None:
        """How a worker has ended, if its shim has written that down."""
        try:
            path = self._files.of(job, worker, "exit", uid)
            return msgspec.json.decode(path.read_bytes(), type=ExitRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def look(self, record: Record, shim_runs: bool) -> Found:
        """What is true of a worker whose shim runs, or does not."""
        same_boot = record.boot_id == self._boot
        return Found(
            record=record,
            same_boot=same_boot,
            shim_runs=shim_runs,
            worker_runs=same_boot and runs(record.pid, record.start_ticks),
            end=self.end_of(record.job, record.worker, record.uid),
        )

    def after_shim(self, job: JobId, worker: WorkerId, uid: str) -> Found:
        """What is true of a worker whose shim has ended."""
        record = self.record_of(job, worker, uid) or Record(job, worker, 0, (), uid)
        return self.look(record, shim_runs=False)

    def forget(self, job: JobId, worker: WorkerId, uid: str) -> None:
        """Remove the records of an ended worker. Its log stays."""
        try:
            paths = [self._files.of(job, worker, suffix, uid) for suffix in ("json", "exit")]
        except PeerError:
            return  # `write_down` refused this name: there are no records
        try:
            for (
                path
            ) in paths:  # in this order: an end without a record is no worker, a record without an end would be one
                path.unlink(missing_ok=True)
            paths[1].with_name(f"{paths[1].name}.new").unlink(missing_ok=True)
        except OSError as error:  # the next agent tells of this end again, and is told again to forget it
            log.error("the records of %s cannot be removed: %s", worker, error)

    def read_log(self, request: ReadLog, growing: bool) -> LogPiece:
        return read_piece(self._files, request, growing)

    def save(self, kept: Identity) -> str:
        """Write the agent's identity down. Returns why that failed, or ""."""
        return save_identity(self._state, kept)


def not_started(error: Exception) -> Failed:
    """Too long a command and a name that is none are the job's own fault; a full disk or no memory is the server's."""
    servers = isinstance(error, OSError) and error.errno not in (errno.E2BIG, errno.ENAMETOOLONG)
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Failed(f"cannot be started: {why}", Fault.SERVER if servers else Fault.SCRIPT)


def load_identity(state: Path, made: str) -> Identity:
    """The identity in the directory `state`, for the start of an agent; `made`: what a new agent is called.

    Raises OperatorError if there is one that cannot be read.
    """
    path = state / IDENTITY_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return Identity(agent=made)
    except (OSError, msgspec.MsgspecError) as error:
        raise OperatorError(
            f"{path}: is not the identity of an agent: {error}; without it this is a new agent"
        ) from None
    return msgspec.structs.replace(found, start=found.start + 1)


def save_identity(state: Path, identity: Identity) -> str:
    """Write `identity` down; at every moment all of the old or all of the new is there. Returns why it failed, or ""."""
    path = state / IDENTITY_FILE
    temporary = state / f"{IDENTITY_FILE}.new"
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(identity))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def runs(pid: int | None, ticks: int | None) -> bool:
    """Whether the process that was number `pid` and started at `ticks` still runs."""
    return pid is not None and ticks is not None and shim.start_ticks(pid) == ticks


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


def located(executable: str) -> Interpreter:
    """The interpreter at an absolute path."""
    return Interpreter(executable, os.path.realpath(os.path.dirname(executable)), os.path.realpath(executable))


def _changed(files: Mapping[str, int]) -> bool:
    try:
        return any(os.stat(path).st_mtime_ns != changed for path, changed in files.items())
    except OSError:
        return True
