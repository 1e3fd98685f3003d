"""The agent's configuration file (`configs/agent.yaml` shows every option), and the directories that follow from it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..protocol.errors import OperatorError
from ..protocol.principals import Role
from ..protocol.times import (
    HEARTBEAT_INTERVAL_S,
    LEAST_HEARTBEAT_INTERVAL_S,
    LEAST_WORKER_SILENCE_S,
    MOST_HEARTBEAT_INTERVAL_S,
    WORKER_SILENCE_S,
)
from ..runtime import config, logs, transport
from ..runtime.directories import private_directory
from ..runtime.keys import KeyFile

log = logging.getLogger(__name__)

DEFAULT_CONTROLLER = "ipc:///var/lib/elasticctl/controller/agents"

ServerName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Variable = Annotated[str, msgspec.Meta(pattern=r"^(?!ELASTICD_)[A-Za-z_][A-Za-z0-9_]*$")]  # those are the cluster's


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one agent; the comments are in `configs/agent.yaml`."""

    server: ServerName = msgspec.field(default_factory=socket.gethostname)
    controller: str | None = None
    key_file: str | None = None
    state_directory: str = "/var/lib/elasticctl/agent"
    socket_directory: str | None = None
    address: str = "127.0.0.1"
    cpu_slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    checkpoint_directory: str | None = None
    heartbeat_interval_s: Annotated[
        float, msgspec.Meta(ge=LEAST_HEARTBEAT_INTERVAL_S, le=MOST_HEARTBEAT_INTERVAL_S)
    ] = HEARTBEAT_INTERVAL_S
    worker_silence_s: Annotated[float, msgspec.Meta(ge=LEAST_WORKER_SILENCE_S)] = WORKER_SILENCE_S
    warm_start: bool = True
    worker_environment: dict[Variable, str] = msgspec.field(default_factory=dict)
    log_file: str | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def key(self) -> KeyFile | None:
        """What proves this server. Raises OperatorError if the file cannot be used, or is another server's."""
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
    def state(self) -> Path:
        return Path(self.state_directory).expanduser().absolute()

    def begin_log(self) -> None:
        """Raises OperatorError."""
        logs.configure(f"agent[{self.server}]", self.log_level, self.log_file)

    @property
    def checkpoints(self) -> Path:
        """Where the jobs' checkpoints go; shared by all servers if jobs are to survive the loss of one."""
        given = self.checkpoint_directory
        return Path(given).expanduser().absolute() if given else self.state / "checkpoints"


def load(path: Path) -> AgentConfig:
    """The configuration in `path`. Raises OperatorError, naming file and field."""
    loaded = config.load(path, AgentConfig)
    try:
        controller_of(loaded, loaded.key)
    except OperatorError as error:
        raise OperatorError(f"{path}: {error}") from None
    return loaded


# What holds as soon as the configuration is read again. Everything else needs a restart, which jobs do not notice.
RELOADED = frozenset({"log_file", "log_level"})


def mistakes(path: Path) -> list[str]:
    """What is wrong with the configuration in `path`, a sentence each."""
    try:
        load(path)
    except OperatorError as error:
        return [config.with_line(line) for line in str(error).splitlines()]
    return []


def controller_of(options: AgentConfig, key: KeyFile | None) -> str:
    """The controller's address: the configured one, else that in the key file. Raises OperatorError."""
    address = options.controller or (key.controller if key is not None else None) or DEFAULT_CONTROLLER
    try:
        return transport.check_address(address, None if key is None else key.pair)
    except OperatorError as error:
        raise OperatorError(f"controller: {error}") from None


def socket_directory(options: AgentConfig, environment: Mapping[str, str]) -> Path:
    """Where the workers' socket is. Made if missing.

    Running workers know the socket by its path, so a restarted agent must choose the same whatever its environment is: the
    choice is written down in the state directory.
    """
    if options.socket_directory:
        return private_directory(Path(options.socket_directory).expanduser().absolute())
    note = options.state / "socket_directory"
    if noted := _read_note(note):
        return private_directory(Path(noted))
    runtime = Path(environment.get("XDG_RUNTIME_DIR") or "/tmp")
    chosen = transport.short_socket_directory(options.state, runtime if runtime.is_dir() else Path("/tmp"), os.getuid())
    private_directory(chosen.parent)
    private_directory(chosen)
    _write_note(note, f"{chosen}\n")
    return chosen


def _read_note(note: Path) -> str:
    try:
        return note.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{note}: cannot be read: {error}") from None


def _write_note(note: Path, text: str) -> None:
    """All of it or nothing. Without it the next agent chooses the same directory, unless its environment differs."""
    temporary = note.with_name(f"{note.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(note)
    except OSError as error:
        log.warning("%s cannot be written: %s", note, error.strerror)
