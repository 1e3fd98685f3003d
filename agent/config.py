"""The agent's configuration file (`configs/agent.yaml` shows every option), and the directories that follow from it."""

from __future__ import annotations

import enum
import logging
import os
import socket
import stat
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .. import __version__
from ..protocol.errors import OperatorError
from ..protocol.model import GpuKind, Severity
from ..protocol.principals import Role
from ..protocol.times import (
    HEARTBEAT_INTERVAL_S,
    LEAST_HEARTBEAT_INTERVAL_S,
    LEAST_WORKER_SILENCE_S,
    MOST_HEARTBEAT_INTERVAL_S,
    MOST_USE_INTERVAL_S,
    USE_INTERVAL_S,
    WORKER_SILENCE_S,
)
from ..runtime import config, logs, transport
from ..runtime.directories import private_directory
from ..runtime.endpoints import endpoints, split
from ..runtime.keys import KeyFile
from ..runtime.listener import Bounds
from .health import LIMITS, Rules

log = logging.getLogger(__name__)

DEFAULT_CONTROLLER = "ipc:///var/lib/elasticctl/controller/agents"

# In the state directory: the isolation that the running agent has found possible (`isolation`)
ISOLATION = "isolation.json"
MOST_TASKS = 16_384  # of a worker: threads and processes
LEAST_CONNECTIONS, CONNECTIONS_PER_GPU = 64, 4  # of an account's workers
WORKER_BYTES_PER_S, WORKER_BYTES_AT_ONCE = 8e6, 64e6  # of an account's workers
UNREAD_BYTES = 64 << 20  # of messages to an account's workers, sent and unread
# files that an agent executes, for jobs and for itself
EXECUTED = (Path(sys.executable), *(Path(__file__).with_name(name) for name in ("daemon.py", "shim.py", "execshim.py")))
LONGEST_SCRATCH = 60  # bytes: programs make sockets below, and the kernel limits their paths to 107

ServerName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
# Names with this prefix are the cluster's
Variable = Annotated[str, msgspec.Meta(pattern=r"^(?!ELASTICD_)[A-Za-z_][A-Za-z0-9_]*$")]
# A directory in the containers of all jobs. In the options of podman a comma and a colon are separators.
Mount = Annotated[str, msgspec.Meta(pattern=r'^/[^,:"\n]+(:ro)?$')]


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one worker, where there are cgroups."""

    memory_gib: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tasks: Annotated[int, msgspec.Meta(ge=16, le=1 << 22)] | None = None
    cpus: Annotated[float, msgspec.Meta(ge=0.01, le=1 << 16)] | None = None
    reserved_gib: Annotated[float, msgspec.Meta(ge=0)] = 2.0

    @property
    def given(self) -> bool:
        """Return whether the operator has set any limit for single workers."""
        return bool(self.asked)

    @property
    def asked(self) -> frozenset[str]:
        """Return the limits that are set: no worker is started without them."""
        given = {"memory": self.memory_gib, "tasks": self.tasks, "CPUs": self.cpus}
        return frozenset(name for name, value in given.items() if value is not None)

    def each(self) -> tuple[int | None, int | None, float | None]:
        """Return memory (bytes), tasks and CPUs of a worker."""
        memory_bytes = None if self.memory_gib is None else int(self.memory_gib * (1 << 30))
        return memory_bytes, self.tasks or MOST_TASKS, self.cpus


class Apart(enum.Enum):
    """Strictness of the isolation of jobs from each other."""

    AUTO = "auto"  # where the agent has the rights for it
    REQUIRED = "required"  # otherwise the server gets no work
    OFF = "off"


class IsolationOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Isolation of jobs of other accounts, besides their rights and control groups."""

    devices: Apart = Apart.AUTO
    tmp: Apart = Apart.AUTO

    @property
    def required(self) -> bool:
        return Apart.REQUIRED in (self.devices, self.tmp)


class HealthOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Intervals and thresholds for monitoring GPUs and disks."""

    interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 5.0
    probation_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    longest_probation_s: Annotated[float, msgspec.Meta(ge=0, le=864_000)] = 3600.0
    least_free_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8
    least_disk_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 256


class WorkerMessages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rate limits of the messages from the workers of one account."""

    per_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] = 1000.0
    at_once: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] = 5000

    def bounds(self, gpus: int) -> Bounds:
        """Return the bounds for a server with `gpus` GPUs."""
        return Bounds(
            connections=max(LEAST_CONNECTIONS, CONNECTIONS_PER_GPU * gpus),
            messages_per_s=self.per_s,
            messages_burst=float(self.at_once),
            bytes_per_s=WORKER_BYTES_PER_S,
            bytes_burst=WORKER_BYTES_AT_ONCE,
            unread_bytes=UNREAD_BYTES,
        )


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one agent; the comments are in `configs/agent.yaml`."""

    server: ServerName = msgspec.field(default_factory=socket.gethostname)
    controller: str | tuple[str, ...] | None = None
    key_file: str | None = None
    state_directory: str = "/var/lib/elasticctl/agent"
    socket_directory: str | None = None
    address: str = "127.0.0.1"
    rack: Annotated[str, msgspec.Meta(max_length=64)] = ""
    cpu_slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    visible_gpus: tuple[str | int, ...] | None = None
    worker_device: Literal["gpu", "cpu"] = "gpu"
    nvml_library: str | None = None
    sysfs: str = "/sys"
    checkpoint_directory: str | None = None
    heartbeat_interval_s: Annotated[
        float, msgspec.Meta(ge=LEAST_HEARTBEAT_INTERVAL_S, le=MOST_HEARTBEAT_INTERVAL_S)
    ] = HEARTBEAT_INTERVAL_S
    use_interval_s: Annotated[float, msgspec.Meta(ge=1.0, le=MOST_USE_INTERVAL_S)] = USE_INTERVAL_S
    worker_silence_s: Annotated[float, msgspec.Meta(ge=LEAST_WORKER_SILENCE_S)] = WORKER_SILENCE_S
    warm_start: bool = True
    allow_root_jobs: bool = False
    worker_limits: WorkerLimits = WorkerLimits()
    isolation: IsolationOptions = IsolationOptions()
    worker_messages: WorkerMessages = WorkerMessages()
    worker_log_mib: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 256
    scratch_directory: str | None = None
    health: HealthOptions = HealthOptions()
    xid_actions: dict[Annotated[int, msgspec.Meta(ge=1, le=1 << 20)], Severity] = msgspec.field(default_factory=dict)
    trouble_actions: dict[str, Severity] = msgspec.field(default_factory=dict)
    cpu_affinity: bool = True
    container_mounts: tuple[Mount, ...] = ()
    worker_environment: dict[Variable, str] = msgspec.field(default_factory=dict)
    metrics_address: str | None = None
    metrics_token_file: str | None = None
    log_file: str | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"

    @property
    def key(self) -> KeyFile | None:
        """Return the key of this server. Raises OperatorError if the file cannot be used, or is another server's."""
        if self.key_file is None:
            return None
        path = Path(self.key_file).expanduser()
        found = KeyFile.read(path)
        if found.role is not Role.SERVER or found.name != self.server:
            raise OperatorError(
                f"key_file: {path} is the key of {found.role.value}:{found.name}, not server:{self.server}"
            )
        return found

    @property
    def limits_needed(self) -> bool:
        """Return whether no worker may be started without its limits. `trouble_actions: {limits: note}` allows it."""
        return self.trouble_actions.get(LIMITS, Severity.NO_NEW_WORK).blocks_new_work

    @property
    def rules(self) -> Rules:
        """Return the rules by which troubles are judged."""
        given = self.health
        return Rules(
            xid_actions=self.xid_actions,
            trouble_actions=self.trouble_actions,
            probation_s=given.probation_s,
            longest_probation_s=max(given.probation_s, given.longest_probation_s),
            least_free_share=given.least_free_share,
        )

    @property
    def disks(self) -> dict[str, Path]:
        """Return the directories that need free space for the agent and its workers."""
        logs = {"logs": Path(self.log_file).expanduser().absolute().parent} if self.log_file else {}
        return {"state": self.state, "checkpoints": self.checkpoints, "scratch": scratch_directory(self), **logs}

    @property
    def gpu_kind(self) -> GpuKind:
        """Return the device type on which workers on this server's GPUs compute."""
        return GpuKind.CUDA if self.worker_device == "gpu" else GpuKind.CPU

    @property
    def state(self) -> Path:
        return Path(self.state_directory).expanduser().absolute()

    def begin_log(self) -> None:
        """Set the log up. Raises OperatorError."""
        process = logs.Process("agent", {"server": self.server})
        logs.configure(process, self.log_level, self.log_file, logs.Form(self.log_format))

    @property
    def scratch(self) -> Path:
        """Return the directory of the workers' directories for temporary files."""
        if self.scratch_directory:
            return Path(self.scratch_directory).expanduser().absolute()
        chosen = self.state / "scratch"
        if len(os.fsencode(chosen)) <= LONGEST_SCRATCH:
            return chosen
        return Path(f"/tmp/elasticctl-{os.getuid()}") / f"scratch-{tag(self.state)}"

    @property
    def checkpoints(self) -> Path:
        """Return the directory of the jobs' checkpoints; shared by all servers if jobs are to survive the loss of one."""
        given = self.checkpoint_directory
        return Path(given).expanduser().absolute() if given else self.state / "checkpoints"


def load(path: Path, log_format: Literal["text", "json"] | None = None) -> AgentConfig:
    """Return the configuration in `path`; `log_format` overrides the file's. Raises OperatorError, naming file and
    field.
    """
    loaded = config.load(path, AgentConfig)
    if log_format is not None:
        loaded = msgspec.structs.replace(loaded, log_format=log_format)
    try:
        controllers_of(loaded, loaded.key)
    except OperatorError as error:
        raise OperatorError(f"{path}: {error}") from None
    if loaded.metrics_address is not None:
        config.host_and_port(f"{path}: metrics_address", loaded.metrics_address)
    return loaded


# Options that apply as soon as the configuration is read again. All others need a restart, which does not disturb jobs.
RELOADED = frozenset({"log_file", "log_level", "log_format"})


def mistakes(path: Path) -> list[str]:
    """Return the mistakes in the configuration `path`, a sentence each."""
    try:
        load(path)
    except OperatorError as error:
        return [config.with_line(line) for line in str(error).splitlines()]
    return []


def described(path: Path) -> dict[str, Any]:
    """Return the configuration in `path`, with derived values, for `elasticctl doctor`. No file is created, and the key
    need not be readable. Raises OperatorError.
    """
    options = config.load(path, AgentConfig)
    try:
        addresses = controllers_of(options, options.key)
    except OperatorError:
        addresses = split(options.controller or "")
    note = options.state / "socket_directory"
    try:
        sockets = options.socket_directory or note.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        sockets = ""
    return {
        "kind": "agent",
        "name": options.server,
        "version": __version__,
        "python": sys.executable,
        "options": msgspec.to_builtins(options),
        "state": str(options.state),
        "controller": ",".join(addresses),
        "checkpoints": str(options.checkpoints),
        "scratch": str(options.scratch),
        "sockets": str(Path(sockets).expanduser().absolute()) if sockets else "",
        "isolation": _told(options.state / ISOLATION),
        "changeable": [str(each) for each in others_may_change(EXECUTED)],
    }


def _told(path: Path) -> dict[str, Any]:
    """Return a document that an agent has written; {}: there is none that may be read."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    return found if isinstance(found, dict) else {}


def controllers_of(options: AgentConfig, key: KeyFile | None) -> tuple[str, ...]:
    """Return the controllers' addresses: those of the configuration, else those in the key file. Raises OperatorError."""
    told = options.controller
    if told is None:
        told = (key.controller if key is not None else None) or DEFAULT_CONTROLLER
    try:
        found = endpoints(told)
        return tuple(transport.check_address(address, None if key is None else key.pair) for address in found)
    except OperatorError as error:
        raise OperatorError(f"controller: {error}") from None


def socket_directory(options: AgentConfig, environment: Mapping[str, str]) -> Path:
    """Return the directory of the workers' socket. Made if missing.

    Running workers know the socket by its path, so a restarted agent must choose the same path in any environment: the
    choice is recorded in the state directory. A service of systemd has a RUNTIME_DIRECTORY.
    """
    if options.socket_directory:
        return private_directory(Path(options.socket_directory).expanduser().absolute())
    note = options.state / "socket_directory"
    if noted := _read_note(note):
        return private_directory(Path(noted))
    runtime = Path(environment.get("RUNTIME_DIRECTORY") or environment.get("XDG_RUNTIME_DIR") or "/tmp")
    if os.getuid() == 0 and (runtime == Path("/tmp") or not _lets_pass(runtime)):
        runtime = Path("/run")  # root's own runtime directory is closed to the accounts under which workers run
    usable = runtime.is_dir() and os.access(runtime, os.W_OK)
    chosen = transport.short_socket_directory(options.state, runtime if usable else Path("/tmp"), os.getuid())
    private_directory(chosen.parent)
    private_directory(chosen)
    _write_note(note, f"{chosen}\n")
    return chosen


def _lets_pass(path: Path) -> bool:
    return path.is_dir() and bool(path.stat().st_mode & stat.S_IXOTH)


def scratch_directory(options: AgentConfig) -> Path:
    """Return the directory of the workers' directories for temporary files. Made when first needed."""
    chosen = options.scratch
    if not options.scratch_directory and chosen.parent != options.state:
        private_directory(chosen.parent)
    return chosen


def tag(state: Path) -> str:
    """Return a tag that distinguishes agents of one machine by their state directories."""
    return f"{zlib.crc32(os.fsencode(state.resolve())):08x}"


def all_memory_bytes(limits: WorkerLimits, there_bytes: int) -> int | None:
    """Return the memory that all workers of a server with `there_bytes` may use together."""
    rest = there_bytes - int(limits.reserved_gib * (1 << 30))
    return rest if rest > 0 else None


def others_may_change(programs: Iterable[Path]) -> list[Path]:
    """Return which of these files, or of the directories above them, accounts other than this one and root can change."""
    found = []
    for program in programs:
        real = program.resolve()
        for path in (real, *real.parents):
            status = path.lstat()
            sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
            if status.st_uid not in (0, os.getuid()) or (status.st_mode & 0o022 and not sticky):
                found.append(path)
    return sorted(set(found))


def _read_note(note: Path) -> str:
    try:
        return note.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{note}: cannot be read: {error}") from None


def _write_note(note: Path, text: str) -> None:
    """Write the note atomically. Without it the next agent chooses the same directory, unless its environment differs."""
    temporary = note.with_name(f"{note.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(note)
    except OSError as error:
        log.warning("%s cannot be written: %s", note, error.strerror)
