"""File operations of an agent that may block: on a full, slow or absent file system.

Each call may block for as long as the file system does, so `task_queues` makes them in its threads. Failures of the environment
are returned as values with their reason.

Files of a job's owner are accessed with that owner's rights only (`accounts`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
import resource
import secrets
import select
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..protocol import secrets as secret_files
from ..protocol.errors import OperatorError, PeerError
from ..protocol.messages import LogPiece, ReadLog, StartWorker
from ..protocol.model import Fault, JobId, WorkerId
from ..protocol.snapshots import File, unpack
from ..protocol.texts import memory_text
from ..protocol.times import RECORD_PATIENCE_S, RECORD_RETRY_S, SHIM_GRACE_S
from ..runtime.logs import about
from . import accounts, cgroups, containers, privileges, shim, warm_key
from .accounts import Account, NoAccount, acting_as
from .adoption import SHIM_KILLED, ExitRecord, Found, Record, ShimReport
from .cgroups import Cgroups, Limits, remove
from .containers import Containers
from .devices import Devices
from .environment import DEFAULT_PATH, Surroundings, beside, environment, visible_gpus, without_first_line
from .identity import Identity
from .interpreters import find_interpreter, have_changed
from .logfiles import JobFiles, read_piece, read_small
from .rooms import Rooms, hidden
from .scratch import Scratch, forget_shared_memory
from .topology import interface_of
from .warm_key import Interpreter, WarmKey
from .worker_sockets import let_pass

log = logging.getLogger(__name__)

IDENTITY_FILE = "identity.json"
OWNER_NOTE = "account"
SNAPSHOT = "code-"  # prefix of a directory with the files that a job runs in
MAX_RECORD_BYTES = 1 << 20  # a command line may be long
# ValueError: text that is none; RecursionError: a depth without end.
UNREADABLE = (OSError, PeerError, msgspec.MsgspecError, ValueError, RecursionError)
LEFT = "processes of it are left, which the kernel has not ended yet: its GPU is not free"
LOG_BYTES = 256 << 20
UMASK = 0o022  # of workers of other accounts
SHIM_ENVIRONMENT = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8"}
SHIM_TIMES = shim.Times(SHIM_GRACE_S, RECORD_PATIENCE_S, RECORD_RETRY_S)

Watched = Mapping[WarmKey, Mapping[str, int]]  # files loaded by warm processes, with modification times (ns)


class Spoiled(OSError):
    """A job's account has damaged its own files: the fault is not the server's."""


# A link, a file, a closed directory in place of a directory; a quota. Not a disk that is full, broken or absent.
ACCOUNTS_DOING = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
        *(errno.ELOOP, errno.ENOTEMPTY, errno.EBUSY, errno.EMLINK, errno.EDQUOT),
    )
)


@dataclass(frozen=True)
class Failed:
    """Failure of an operation: the reason, and whose fault it is."""

    reason: str
    fault: Fault = Fault.SERVER


@dataclass(frozen=True)
class Forkable:
    """A worker that a warm process may fork."""

    interpreter: Interpreter
    key: WarmKey
    launch: warm_key.Launch
    outdated: bool  # files that the warm process has loaded have changed


@dataclass(frozen=True)
class Prepared:
    """Account, environment and directories of a worker about to start."""

    account: Account
    environment: dict[str, str]
    scratch: str  # name of its directory for temporary files
    forkable: Forkable | None  # None: no warm process may fork it
    room: str = ""  # of its job; "": none


@dataclass(frozen=True)
class Rules:
    """The operator's settings for the isolation of workers."""

    scratch: Scratch
    cgroups: Cgroups | None = None
    devices: Devices | None = None  # None: a job may open the device files of all GPUs
    rooms: Rooms | None = None  # None: jobs share the machine's /tmp and /dev/shm
    root_jobs: bool = True
    log_bytes: int = LOG_BYTES
    umask: int = 0o022  # of workers of the agent's own account
    containers: Containers | None = None  # None: no worker runs in a container here


class Disk:
    """The files of one agent."""

    def __init__(self, state: Path, files: JobFiles, around: Surroundings, rules: Rules | None = None) -> None:
        self._state = state
        self._files = files
        self._around = around
        self._rules = rules or Rules(Scratch(state / "scratch"))
        self._boot = shim.boot_id()  # constant; read now, since /proc may fail later

    def surround(self, around: Surroundings) -> None:
        """Use these facts of the server for workers from now on."""
        self._around = around

    # -- starts

    def prepare(self, start: StartWorker, watched: Watched) -> Prepared | Failed:
        """Determine the worker's account, and access files that may lie on a network: its checkpoints, its interpreter.

        From here on, files of the job's owner are accessed only as that owner.
        """
        gpu = self._around.gpu(start.gpu)
        if gpu is None:
            raise AssertionError(f"this server has no GPU {start.gpu}")  # checked by the machine before
        around = dataclasses.replace(self._around, interface=interface_of(self._around.address))
        if not around.interface:  # NCCL and Gloo would choose a network by themselves
            return Failed(
                f"no network interface of this server has its address {around.address} now: is a tunnel or a cable missing?"
            )
        try:
            account = accounts.find(start.account, self._rules.root_jobs)
            name = short_name(start.worker, start.uid)
            made = environment(start, gpu, around, account, str(self._rules.scratch.of(name)))
            if (unseen := self._unseen(start, account)) is not None:
                return unseen
            self._make_checkpoints(start, account)
            room = self._make_room(start, account)
            try:
                with acting_as(account):
                    forkable = self._forkable(start, account, made, watched, room)
                secret = _secrets(start, account)
            except BaseException:
                self.leave_room(start)
                raise
            # Warm processes, which outlive a job, do not get the secrets
            return Prepared(account, {**made, **secret}, name, forkable, room)
        except NoAccount as error:
            return Failed(str(error))
        except (OSError, PeerError, ValueError) as error:
            return not_started(error)

    def _unseen(self, start: StartWorker, account: Account) -> Failed | None:
        """Return the failure of a job that needs files below /tmp or /dev/shm, where it sees its own room instead."""
        if self._rules.rooms is None or account.own:
            return None
        needed = (start.spec.workdir, *(start.spec.command[:1] if not start.spec.image else ()))
        with acting_as(account):
            found = hidden(Path(each) for each in needed if each.startswith("/"))
        if found is None:
            return None
        why = "jobs have a /tmp and a /dev/shm of their own here: put it elsewhere, or submit it with its files (a snapshot)"
        return Failed(f"{found} is not seen by the job, as {why}", Fault.SCRIPT)

    def _make_room(self, start: StartWorker, account: Account) -> str:
        if self._rules.rooms is None or account.own:
            return ""
        return self._rules.rooms.make(_directory_name(start.job, start.uid), start.worker, account)

    def leave_room(self, start: StartWorker) -> None:
        """Release the room of a prepared start that did not happen."""
        with contextlib.suppress(NoAccount):
            account = accounts.find(start.account, self._rules.root_jobs)
            if self._rules.rooms is not None and not account.own:
                self._rules.rooms.leave(_directory_name(start.job, start.uid), start.worker, account)

    def _make_checkpoints(self, start: StartWorker, account: Account) -> None:
        path = self._around.checkpoints_of(start, account)
        if account.own:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        above = self._around.checkpoints_for(account)
        if self._state in above.parents:
            let_pass(self._state)
            if above.parent.is_dir():
                let_pass(above.parent)
        if not _is_there(above, account):
            _make_directory_for(account, above)
        with acting_as(account):
            _reach(above, account)
        with _in_its_own(account):
            path.mkdir(mode=0o700, exist_ok=True)

    def _forkable(
        self, start: StartWorker, account: Account, made: Mapping[str, str], watched: Watched, room: str
    ) -> Forkable | None:
        if start.spec.image:
            return None
        asked = warm_key.parse(start.spec.command, made)
        found = find_interpreter(start.spec.command[0], made, start.spec.workdir) if asked is not None else None
        if asked is None or found is None:
            return None
        key = warm_key.key_of(found, without_first_line(made), account.uid, room)
        return Forkable(found, key, asked, outdated=have_changed(watched.get(key, {})))

    def write_down(self, start: StartWorker, prepared: Prepared) -> Record | Failed:
        """Write the record of a worker about to start, and create its directories other than checkpoints."""
        account = prepared.account
        try:
            path = self._files.of(start.job, start.worker, "json", start.uid)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not account.own:
                self._make_output(start, account)
            with _in_its_own(account):
                self._files.output_of(start.job, start.worker, "exit", start.uid, account).unlink(missing_ok=True)
                if not account.own:
                    self._files.output_of(start.job, start.worker, "json", start.uid, account).unlink(missing_ok=True)
            self._rules.scratch.make(prepared.scratch, account)
            made = self._make_cgroup(start, account)
            record = Record(
                start.job,
                start.worker,
                start.gpu,
                start.spec.command,
                start.uid,
                account=account.name,
                user=-1 if account.own else account.uid,
                group=account.gid,
                groups=account.groups,
                cgroups=made,
                scratch=prepared.scratch,
                made_s=time.time(),
                boot_id=self._boot,
                gpus=start.gpus,
                room=prepared.room,
                opens=visible_gpus(start) if made and self._rules.devices is not None else None,
                memory_bytes=start.spec.memory_bytes,
            )
            shim.write_whole(str(path), msgspec.to_builtins(record))
        except (OSError, PeerError) as error:
            return not_started(error)
        return record

    def _make_output(self, start: StartWorker, account: Account) -> None:
        """Create the directory that the shim writes to, and note its owner for later readers of the logs."""
        path = self._files.output(start.job, start.uid, account)
        if not _is_there(path.parent, account):
            _make_directory_for(account, path.parent)
        with acting_as(account):
            _reach(path.parent, account)
        with _in_its_own(account):
            path.mkdir(mode=0o700, exist_ok=True)
        note = self._files.directory(start.job, start.uid) / OWNER_NOTE
        shim.write_whole(str(note), {"name": account.name, "uid": account.uid, "gid": account.gid})

    def _make_cgroup(self, start: StartWorker, account: Account) -> tuple[str, ...]:
        cgroups = self._rules.cgroups
        wanted = Limits(memory_bytes=start.spec.memory_bytes or None, cpus=start.spec.cpus or None)
        plain = not wanted.names and not start.spec.image
        if cgroups is None or (account.own and not cgroups.own_too and plain):
            return ()
        made = cgroups.make(_directory_name(start.worker, start.uid), wanted)
        if made and self._rules.devices is not None:
            try:
                self._rules.devices.admit(made[0], _directory_name(start.job, start.uid), visible_gpus(start))
            except OSError:
                remove(made)
                raise
        return made

    def execute(
        self, start: StartWorker, prepared: Prepared, record: Record
    ) -> tuple[subprocess.Popen[bytes], int] | Failed:
        """Start a worker's shim. Returns its process and pidfd."""
        directory = self._files.output(start.job, start.uid, prepared.account)
        keeper = [sys.executable, "-I", "-S", shim.__file__, str(directory), start.job, start.uid, start.worker]
        command = [*keeper, str(start.gpu), str(SHIM_TIMES), start.spec.workdir, *start.spec.command]
        try:
            check_variables(prepared.environment)
            container = self._container(start, prepared, record)
            drop = drop_orders(prepared.account)
            if drop is not None and container is not None:
                drop["may_gain"] = True
            orders = privileges.write_orders(
                {
                    "record": msgspec.to_builtins(record),
                    "environment": prepared.environment,
                    "drop": drop,
                    "container": container,
                    "cgroups": record.cgroups,
                    "room": self.mounts(record.room),
                    **self.ways(start, prepared.account),
                }
            )
            try:
                child = subprocess.Popen(
                    command,
                    env=SHIM_ENVIRONMENT,
                    cwd="/",
                    stdin=orders,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    close_fds=True,
                )
            finally:
                os.close(orders)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in a variable or an argument
            return not_started(error)
        try:
            self._note_shim(record, child.pid)
            return child, os.pidfd_open(child.pid)
        except OSError as error:  # too many open files, full disk
            child.kill()  # without a pidfd its end would go unnoticed
            child.wait()
            return not_started(error)

    def _container(self, start: StartWorker, prepared: Prepared, record: Record) -> dict[str, object] | None:
        """Return the orders for a worker's container; None: it runs in none. Raises OSError, PeerError, ValueError."""
        if not start.spec.image:
            return None
        account, means = prepared.account, self._rules.containers
        if means is None:
            raise OSError(0, "this server runs no containers")
        seen = [gpu for index in visible_gpus(start) if (gpu := self._around.gpu(index)) is not None]
        if problem := means.unavailable(seen, not account.own):
            raise OSError(0, f"its container cannot be had: {problem}")
        umask = self._rules.umask if account.own else UMASK
        scratch = self._rules.scratch.of(prepared.scratch)
        return means.orders(start, seen, account, self._around, prepared.environment, scratch, record.cgroups, umask)

    def _note_shim(self, record: Record, pid: int) -> None:
        """Write the shim's process number into the agent's own record: the worker can change what its shim writes. Raises
        OSError.

        Not needed for the agent's own account: such a worker could change the agent's records as well.
        """
        if owner(record).own:
            return
        path = self._files.of(record.job, record.worker, "json", record.uid)
        noted = msgspec.structs.replace(record, shim_pid=pid, shim_start_ticks=shim.start_ticks(pid))
        shim.write_whole(str(path), msgspec.to_builtins(noted))

    @property
    def root_jobs(self) -> bool:
        return self._rules.root_jobs

    def surroundings_of(self, start: StartWorker, account: Account, record: Record) -> tuple[dict[str, str], str]:
        """Return the variables and the directory of a command beside a worker. Raises OSError, PeerError, ValueError."""
        gpu, workdir = self._around.gpu(start.gpu), start.spec.workdir
        if gpu is None:
            raise ValueError(f"this server has no GPU {start.gpu}")
        if start.spec.snapshot is not None:
            workdir = str(self._snapshot_path(start, account))
        around = dataclasses.replace(self._around, interface=interface_of(self._around.address))
        made = beside(start, gpu, around, account, str(self._rules.scratch.of(record.scratch)))
        return {**made, **_secrets(start, account)}, workdir

    def mounts(self, room: str) -> list[tuple[str, str]]:
        """Return the bind mounts of a room (`Rooms.mounts`); none for an empty name."""
        return self._rules.rooms.mounts(room) if self._rules.rooms is not None and room else []

    def ways(self, start: StartWorker, account: Account) -> dict[str, object]:
        """Return a shim's parameters, beside its record and the worker's variables."""
        return {
            "cpus": self._around.cpus_of(start),
            "log_bytes": self._rules.log_bytes,
            "umask": self._rules.umask if account.own else UMASK,
        }

    def admit(self, record: Record, pid: int, descriptor: int) -> bool:
        """Put a shim that a warm process has forked into its worker's cgroup. Returns whether the shim may continue.

        descriptor: its pidfd. The cgroup is entered by number, which may belong to another account's process by then; the pidfd
        shows whether it does.
        """
        account = owner(record)
        if not account.own and accounts.runs_as(pid) != account.uid:
            log.error("a warm process of %s names a process as its own that is not: %d", account.name, pid)
            return False
        problem = ""
        try:
            cgroups.enter(record.cgroups, pid)
        except OSError as error:
            problem = f"it cannot enter its cgroup: {error.strerror}"
        if is_over(descriptor):
            problem = "it has ended"
            if accounts.runs_as(pid) not in (None, account.uid) and pid in cgroups.processes(record.cgroups):
                cgroups.let_out(record.cgroups, pid)
        if not problem:
            try:
                self._note_shim(record, pid)
            except OSError as error:
                problem = f"that it has begun cannot be written down: {error.strerror}"
        if problem:
            log.error("its forked shim may not go on: %s", problem, extra=_of(record))
        return not problem

    # -- snapshots

    def snapshot_of(self, start: StartWorker) -> Path | Failed | None:
        """Return the directory of the job's snapshot; None if it is not on this server yet."""
        try:
            account = accounts.find(start.account, self._rules.root_jobs)
            path = self._snapshot_path(start, account)
            with acting_as(account):
                return path if path.is_dir() else None
        except (NoAccount, OSError, PeerError) as error:
            return not_started(error)

    def unpack(self, start: StartWorker, data: bytes) -> Path | Failed:
        """Unpack the job's files as its owner, and verify them against the description in the job's specification."""
        snapshot = start.spec.snapshot
        assert snapshot is not None
        try:
            files = unpack(snapshot, data)
            account = accounts.find(start.account, self._rules.root_jobs)
            path = self._snapshot_path(start, account)
            self._files.directory(start.job, start.uid).mkdir(mode=0o700, parents=True, exist_ok=True)
            if not account.own:
                self._make_output(start, account)
            with _in_its_own(account):
                lay_out(path, files)
            return path
        except (NoAccount, OSError, PeerError) as error:
            return not_started(error)

    def _snapshot_path(self, start: StartWorker, account: Account) -> Path:
        assert start.spec.snapshot is not None
        return self._files.output(start.job, start.uid, account) / f"{SNAPSHOT}{start.spec.snapshot.digest[:16]}"

    def remove_snapshot(self, job: JobId, uid: str) -> None:
        """Remove a job's snapshot when no worker of the job is left on this server."""
        try:
            account = self._writer_of(job, uid)
            directory = self._files.output(job, uid, account)
            with acting_as(account):
                for path in sorted(directory.glob(f"{SNAPSHOT}*")):
                    shutil.rmtree(path, ignore_errors=True)
        except (OSError, PeerError) as error:
            log.error("its snapshot cannot be removed: %s", error, extra=about(job=job))

    # -- records

    def read_record(self, path: Path) -> Record | None:
        """Read a worker's record; None if it is missing or unreadable."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.error("%s is not a worker's record and is left alone: %s", path, error)
            return None

    def settled(self, record: Record) -> Record:
        """Return a record with the processes that its shim has written down since."""
        account = owner(record)
        if account.own:
            return self.read_record(self._files.of(record.job, record.worker, "json", record.uid)) or record
        path = self._files.output_of(record.job, record.worker, "json", record.uid, account)
        try:
            seen = msgspec.json.decode(read_small(path, account, MAX_RECORD_BYTES), type=ShimReport)
        except UNREADABLE:
            return record
        kept: dict[str, int | None] = {}
        if not record.settled and _may_be(record, account, seen.shim_pid, seen.shim_start_ticks):
            kept |= {"shim_pid": seen.shim_pid, "shim_start_ticks": seen.shim_start_ticks}
        if _may_be(record, account, seen.pid, seen.start_ticks):
            kept |= {"pid": seen.pid, "start_ticks": seen.start_ticks}
        return msgspec.structs.replace(record, boot_id=record.boot_id or seen.boot_id, **kept)

    def end_of(self, record: Record) -> ExitRecord | None:
        """Return how a worker has ended, if its shim has recorded that. Its remaining processes, except the shim, are killed."""
        account = owner(record)
        try:
            path = self._files.output_of(record.job, record.worker, "exit", record.uid, account)
            end = msgspec.json.decode(read_small(path, account, MAX_RECORD_BYTES), type=ExitRecord)
        except UNREADABLE:
            return None
        if not cgroups.clear(record.cgroups, spare=record.shim_pid):
            log.error(LEFT, extra=_of(record))
            return None
        return self._explained(record, end if account.own else _plausible(end))

    def _explained(self, record: Record, end: ExitRecord) -> ExitRecord:
        """Return the end of a worker with its reason corrected if its cgroup ran out of memory."""
        if end.exit_code == 0 or not cgroups.out_of_memory(record.cgroups) or self._rules.cgroups is None:
            return end
        asked = f"each worker of the job asked for {memory_text(record.memory_bytes)} (--memory)"
        text = asked if record.memory_bytes else self._rules.cgroups.memory_text
        why = f"out of memory ({text}): {end.reason}"
        return ExitRecord(end.exit_code, why[: shim.MAX_REASON_CHARACTERS], Fault.KILLED)

    def of_this_boot(self, record: Record) -> bool:
        """Return whether the shim wrote the record in the machine's present boot."""
        return record.boot_id == self._boot

    def look(self, record: Record, shim_runs: bool) -> Found:
        """Return the state of a worker, given whether its shim runs."""
        same_boot = self.of_this_boot(record)
        left = not shim_runs and not cgroups.clear(record.cgroups)
        if left:
            log.error(LEFT, extra=_of(record))
        return Found(
            record=record,
            same_boot=same_boot,
            shim_runs=shim_runs,
            worker_runs=same_boot and runs(record.pid, record.start_ticks),
            end=None if left else self.end_of(record),
            left=left,
        )

    def after_shim(self, record: Record, exit_code: int | None) -> Found:
        """Return the state of a worker after the end of its shim, which this agent has watched. Kills its remaining processes.

        exit_code: of the shim, if this agent executed it.
        """
        seen = msgspec.structs.replace(self.settled(record), shim_pid=record.shim_pid, boot_id=self._boot)
        found = self.look(seen, shim_runs=False)
        if found.end is not None or found.left:
            return found
        if exit_code is not None and exit_code > 0 and exit_code != shim.NO_RECORD:
            end = ExitRecord(None, f"the process that keeps it could not begin (exit code {exit_code})", Fault.SERVER)
            return dataclasses.replace(found, end=end)
        if cgroups.out_of_memory(record.cgroups):
            end = self._explained(record, ExitRecord(None, SHIM_KILLED))
            return dataclasses.replace(found, end=end)
        return found

    def tidy(self, record: Record) -> None:
        """Remove the files of an ended worker, except for its records, log and checkpoints."""
        account = owner(record)
        if self._rules.devices is not None and record.cgroups:
            try:
                self._rules.devices.release(record.cgroups[0])
            except OSError as error:
                log.error("its job's other workers keep its GPU's device file: %s", error, extra=_of(record))
        cgroups.remove(record.cgroups)
        if record.scratch:
            self._rules.scratch.remove(record.scratch, account)
            if not record.room:
                containers.forget(self._rules.scratch.of(record.scratch), account)
        if record.room and self._rules.rooms is not None:
            self._rules.rooms.leave(_directory_name(record.job, record.uid), record.worker, account)
        elif record.made_s:
            for name in forget_shared_memory(account, record.made_s):
                log.info("removed shared memory that it has left behind: %s", name, extra=_of(record))

    def left_behind(self, running: Sequence[Record]) -> Callable[[], None]:
        """Return a function that removes what workers of earlier agents left. The list is made now, so nothing newer is
        removed."""
        cgroups_left = self._rules.cgroups.others(running_cgroups(running)) if self._rules.cgroups is not None else ()
        scratch_left = self._rules.scratch.others(frozenset(record.scratch for record in running))
        rooms = self._rules.rooms
        rooms_left = rooms.others(frozenset(record.room for record in running)) if rooms is not None else ()
        for record in running:
            job = _directory_name(record.job, record.uid)
            if rooms is not None and record.room:
                rooms.adopt(job, record.worker, record.room)
            if self._rules.devices is not None and record.cgroups and record.opens is not None:
                try:
                    self._rules.devices.admit(record.cgroups[0], job, record.opens)
                except OSError as error:
                    log.error("its device files stay as they were: %s", error, extra=_of(record))

        def sweep() -> None:
            for name, uid in rooms_left:
                if rooms is not None:
                    rooms.remove(name, Account("", uid, uid, (), "/"))
            for path in cgroups_left:
                cgroups.remove((path,))
            for name, uid in scratch_left:
                self._rules.scratch.remove(name, Account("", uid, uid, (), "/"))
                containers.forget(self._rules.scratch.of(name), Account("", uid, uid, (), "/"))

        return sweep

    def kill_all(self, record: Record) -> None:
        """Kill all processes of a worker, its shim included."""
        cgroups.clear(record.cgroups)

    def forget(self, job: JobId, worker: WorkerId, uid: str) -> None:
        """Remove the records of an ended worker. Its log stays."""
        try:
            paths = [self._files.of(job, worker, suffix, uid) for suffix in ("json", "exit")]
        except PeerError:
            return  # `write_down` refused this name: there are no records
        record = self.read_record(paths[0])
        try:
            for (
                path
            ) in paths:  # in this order: an end without a record is no worker, a record without an end would be one
                path.unlink(missing_ok=True)
            paths[1].with_name(f"{paths[1].name}.new").unlink(missing_ok=True)
            if record is not None and not (account := owner(record)).own:
                with acting_as(account):
                    written = self._files.output_of(job, worker, "exit", uid, account)
                    for path in (written, written.with_suffix(".json"), written.with_suffix(".exit.new")):
                        path.unlink(missing_ok=True)
        except OSError as error:  # the next agent reports this end again, and is asked again to forget it
            log.error("its records cannot be removed: %s", error, extra=about(job=job, worker=worker))

    def read_log(self, request: ReadLog, growing: bool, writer: Account) -> LogPiece:
        return read_piece(self._files, request, growing, writer)

    def writer(self, request: ReadLog) -> Account:
        """Return the account that writes the logs of a job."""
        return self._writer_of(request.job, request.uid)

    def _writer_of(self, job: JobId, uid: str) -> Account:
        try:
            directory = self._files.directory(job, uid)
            noted = msgspec.json.decode((directory / OWNER_NOTE).read_bytes(), type=_Owner)
        except (OSError, PeerError, msgspec.MsgspecError):
            return accounts.myself()
        return Account(noted.name, noted.uid, noted.gid, (), "/")

    def save(self, kept: Identity) -> str:
        """Save the agent's identity. Returns the reason of a failure, or ""."""
        return save_identity(self._state, kept)


class _Owner(msgspec.Struct, frozen=True):
    name: str
    uid: int
    gid: int


def running_cgroups(running: Sequence[Record]) -> frozenset[str]:
    return frozenset(path for record in running for path in record.cgroups)


def owner(record: Record) -> Account:
    """Return the account that a worker runs as."""
    if record.user in (-1, os.getuid()):
        return accounts.myself()
    return Account(record.account, record.user, record.group, record.groups, "/")


def drop_orders(account: Account) -> dict[str, object] | None:
    """Return the orders by which a process of the agent becomes one of `account`; None for the agent's own account."""
    if account.own:
        return None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return {"uid": account.uid, "gid": account.gid, "groups": account.groups, "open_files": most}


def _secrets(start: StartWorker, account: Account) -> dict[str, str]:
    """Return the variables of a job whose values are in its owner's files, read as the owner. Raises ValueError."""
    found = {}
    for name, path in start.spec.secrets.items():
        try:
            with acting_as(account):
                found[name] = secret_files.read(path)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ValueError(f"secret {name}: {path} cannot be read as {account.name}: {why}") from None
    return found


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise ValueError for names or values that no process environment can hold."""
    for name, value in variables.items():
        if "\0" in name + value or "=" in name or not name:
            raise ValueError("embedded null byte" if "\0" in name + value else "illegal environment variable name")
        os.fsencode(name + value)


def _directory_name(name: JobId | WorkerId, uid: str) -> str:
    """Return the directory name of a job or worker on this server: readable, and unique among jobs of the same name."""
    return f"{name[-60:]}.{short_name(name, uid)}"


def short_name(name: JobId | WorkerId, uid: str) -> str:
    """Return a short unique name, where the length of paths is limited."""
    return hashlib.blake2b(f"{uid}/{name}".encode(), digest_size=6).hexdigest()


def _plausible(end: ExitRecord) -> ExitRecord:
    """Sanitise an end as written by a job's owner, who can write anything: the owner may not blame the server."""
    code = end.exit_code if end.exit_code is None or -128 <= end.exit_code <= 255 else None
    reason = "".join(each for each in end.reason[: shim.MAX_REASON_CHARACTERS] if each.isprintable())
    return ExitRecord(code, reason, None if end.fault is None else Fault.KILLED)


def _may_be(record: Record, account: Account, pid: int | None, ticks: int | None) -> bool:
    """Return whether a process that the owner names as a worker's is one: it has ended, or is the owner's and in its cgroup."""
    if pid is None or ticks is None:
        return False
    if not runs(pid, ticks):
        return True
    return accounts.runs_as(pid) == account.uid and (not record.cgroups or pid in cgroups.processes(record.cgroups))


@contextlib.contextmanager
def _in_its_own(account: Account) -> Iterator[None]:
    """Act as `account` on files of its own: damage by the account raises Spoiled, other failures OSError."""
    with acting_as(account):
        try:
            yield
        except OSError as error:
            if account.own or error.errno not in ACCOUNTS_DOING:
                raise
            raise Spoiled(error.errno, f"{error.filename}: {error.strerror}") from None


def _is_there(path: Path, account: Account) -> bool:
    with acting_as(account):
        return os.path.lexists(path)


def _make_directory_for(account: Account, path: Path) -> None:
    """Create a directory that is closed to all but `account`; those above it belong to the operator. Raises OSError."""
    open_to_pass(path.parent)
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.mkdir(path.name, 0o700, dir_fd=above)
        os.chown(path.name, account.uid, account.gid, dir_fd=above, follow_symlinks=False)
    except FileExistsError:
        pass  # the caller checks the existing one
    finally:
        os.close(above)


def open_to_pass(path: Path) -> None:
    """Create a directory, if missing, that others may pass through without listing it. Raises OSError."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)  # threads of several accounts may create it at once
        path.chmod(0o711)


def _reach(path: Path, account: Account) -> None:
    """Check, acting as `account`, that `path` is a directory of that account which it can reach. Raises OSError."""
    try:
        found = path.lstat()
    except PermissionError:
        closed = shim.first_closed(str(path))
        raise PermissionError(0, f"account {account.name} cannot reach {path}: {closed} is closed to it") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid:
        raise PermissionError(0, f"{path} is not a directory of account {account.name}")


def lay_out(path: Path, files: Sequence[File]) -> None:
    """Write these files below `path`, which appears atomically. Raises OSError."""
    above = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    above.mkdir(mode=0o700)
    try:
        for file in files:
            target = above / file.path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(target, new, 0o700 if file.executable else 0o600)
            with os.fdopen(descriptor, "wb") as output:
                output.write(file.content)
        if not path.is_dir():
            above.rename(path)
    finally:
        shutil.rmtree(above, ignore_errors=True)


def not_started(error: Exception) -> Failed:
    """Return the failure of a start: an invalid name or too long a command is the job's fault, a full disk the server's."""
    if isinstance(error, Spoiled):
        return Failed(f"cannot be started: {error.strerror}", Fault.KILLED)
    servers = isinstance(error, OSError) and error.errno not in (errno.E2BIG, errno.ENAMETOOLONG)
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Failed(f"cannot be started: {why}", Fault.SERVER if servers else Fault.SCRIPT)


def load_identity(state: Path, made: str) -> Identity:
    """Load an agent's identity from the directory `state` at its start; `made`: name of a new agent, if there is none.

    Raises OperatorError if the file is unreadable.
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
    """Write `identity` atomically. Returns the reason of a failure, or ""."""
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
    """Return whether the process that had number `pid` and started at `ticks` still runs."""
    return pid is not None and ticks is not None and shim.start_ticks(pid) == ticks


def is_over(process: int) -> bool:
    """Return whether the process of this pidfd has ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def _of(record: Record) -> dict[str, object]:
    """Return the subject of a log line about a worker."""
    return about(job=record.job, worker=record.worker)
