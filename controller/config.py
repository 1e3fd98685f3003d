"""The controller's configuration file (`configs/controller.yaml` shows every option), and the scheduler that it selects."""

from __future__ import annotations

import math
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .. import __version__
from ..protocol.durations import idle_of
from ..protocol.errors import OperatorError, UserError
from ..protocol.limits import MAX_PRIORITY, PRIORITIES
from ..protocol.model import NEVER_IDLE, Idle
from ..protocol.times import (
    DEATHS_IN_VAIN,
    LEADER_LEASE_S,
    LEAST_HEARTBEAT_INTERVAL_S,
    LEAST_LEADER_LEASE_S,
    MOST_LEADER_LEASE_S,
    MOST_SERVER_LEASE_S,
    SERVER_LEASE_S,
)
from ..runtime import config, logs, transport
from ..runtime.directories import check_code
from ..runtime.listener import Bounds
from ..scheduler.measuring import Measuring
from ..scheduler.profiles.curves import load as load_profiles
from ..scheduler.scheduler import Scheduler, StageChoice, load_scheduler, load_stages
from . import notifying
from .jobs.throughput import Profiles
from .notifying import NotifyConfig
from .settings import Keeping
from .store import etcd_api
from .store.etcd_connection import Access
from .store.opening import EtcdConfig

ControllerName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
ClusterName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

Priority = Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)]


class MeasuringConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the throughput measurement of jobs."""

    way_down: bool = True
    steps: Annotated[int, msgspec.Meta(ge=3, le=32)] = 20
    longest_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    most_of_rest: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05


class HistoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of ended jobs that are kept, and for how many days; `usage_days` is the same for the records of usage."""

    jobs: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 100_000
    days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 365.0
    usage_days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 1830.0


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the connections and messages of one principal: a user, an operator or a server."""

    connections: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 256
    messages_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] = 2000.0
    messages_at_once: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] = 10_000


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the controller; the comments are in `configs/controller.yaml`."""

    cluster: ClusterName = "local"
    name: ControllerName | None = None
    state_directory: str = "/var/lib/elasticctl/controller"
    store: Literal["sqlite", "etcd"] = "sqlite"
    etcd: EtcdConfig | None = None
    leader_lease_s: Annotated[int, msgspec.Meta(ge=LEAST_LEADER_LEASE_S, le=MOST_LEADER_LEASE_S)] = LEADER_LEASE_S
    listen_clients: str | tuple[str, ...] | None = None
    listen_agents: str | tuple[str, ...] | None = None
    keys_directory: str | None = None
    limits: LimitsConfig = LimitsConfig()
    policy: Annotated[str, msgspec.Meta(min_length=1)] = "max-min"
    admission: str | StageChoice = "all"
    packing: str = "none"
    placement: str | StageChoice = "fewest-servers"
    server_lease_s: Annotated[float, msgspec.Meta(gt=2 * LEAST_HEARTBEAT_INTERVAL_S, le=MOST_SERVER_LEASE_S)] = (
        SERVER_LEASE_S
    )
    max_restarts: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = DEATHS_IN_VAIN
    measuring: MeasuringConfig = MeasuringConfig()
    reserve_after_s: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 600.0
    history: HistoryConfig = HistoryConfig()
    notify: NotifyConfig = NotifyConfig()
    idle: str | None = None
    open_jobs_per_user: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    user_priority: Priority = PRIORITIES["high"]
    operator_priority: Priority = MAX_PRIORITY
    metrics_address: str | None = None
    metrics_token_file: str | None = None
    metrics_jobs: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100
    profiles: tuple[str, ...] = ()
    profiles_gpu_type: str | None = None
    log_file: str | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"

    @property
    def state(self) -> Path:
        return Path(self.state_directory).expanduser().absolute()

    def begin_log(self) -> None:
        """Configure the log of this process. Raises OperatorError if the log file cannot be opened."""
        process = logs.Process("controller", {"cluster": self.cluster})
        logs.configure(process, self.log_level, self.log_file, logs.Form(self.log_format))

    @property
    def clients_at(self) -> tuple[str, ...]:
        return _addresses(self.listen_clients) or (f"ipc://{self.state}/clients",)

    @property
    def agents_at(self) -> tuple[str, ...]:
        return _addresses(self.listen_agents) or (f"ipc://{self.state}/agents",)

    @property
    def keys(self) -> Path:
        """The directory of the keys."""
        return Path(self.keys_directory).expanduser().absolute() if self.keys_directory else self.state / "keys"

    @property
    def own_name(self) -> str:
        """The name of this controller among those of its cluster; by default the host's name."""
        return self.name or socket.gethostname()

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.limits.connections, self.limits.messages_per_s, float(self.limits.messages_at_once))

    @property
    def keeping(self) -> Keeping:
        return Keeping(ended=self.history.jobs, days=self.history.days, usage_days=self.history.usage_days)

    @property
    def idle_rules(self) -> Idle:
        """Rules for jobs with idle GPUs. Raises UserError."""
        return NEVER_IDLE if self.idle is None else idle_of(self.idle, "idle")

    @property
    def how_to_measure(self) -> Measuring:
        return Measuring(**msgspec.structs.asdict(self.measuring))


def load(path: Path) -> ControllerConfig:
    """Return the options in the file `path`. Raises OperatorError with the file and the field."""
    loaded = config.load(path, ControllerConfig)
    for field, addresses in (("listen_clients", loaded.clients_at), ("listen_agents", loaded.agents_at)):
        for address in addresses:
            try:
                transport.check_form(address)
            except OperatorError as error:
                raise OperatorError(f"{path}: {field}: {error}") from None
    notifying.check(loaded.notify, f"{path}: notify")
    try:
        _ = loaded.idle_rules
    except UserError as error:
        raise OperatorError(f"{path}: {error}") from None
    if loaded.metrics_address is not None:
        config.host_and_port(f"{path}: metrics_address", loaded.metrics_address)
    return loaded


def _addresses(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given or ()


# Options that take effect as soon as the configuration is read again (SIGHUP). All others need a restart.
RELOADED = frozenset(
    {
        "policy",
        "admission",
        "packing",
        "placement",
        "max_restarts",
        "measuring",
        "reserve_after_s",
        "history",
        "notify",
        "idle",
        "open_jobs_per_user",
        "user_priority",
        "operator_priority",
        "profiles",
        "profiles_gpu_type",
        "log_file",
        "log_level",
        "log_format",
    }
)


@dataclass(frozen=True)
class Configuration:
    """A configuration file with the contents of the files that it refers to."""

    options: ControllerConfig
    scheduler: Scheduler
    profiles: Profiles
    etcd: Access | None = None  # access to the store in etcd; None: the store is in the state directory


def read(path: Path, log_format: Literal["text", "json"] | None = None) -> Configuration:
    """Return the whole configuration; `log_format` overrides the file's. Raises OperatorError with the file and the field."""
    loaded = load(path)
    if log_format is not None:
        loaded = msgspec.structs.replace(loaded, log_format=log_format)
    return Configuration(loaded, scheduler_of(loaded, path), profiles_of(loaded, path), etcd_of(loaded, path))


def mistakes(path: Path) -> list[str]:
    """Return the errors of the configuration in `path`, one sentence each; an empty list if there are none."""
    try:
        loaded = load(path)
    except OperatorError as error:
        return [config.with_line(line) for line in str(error).splitlines()]
    found = []
    for part in (scheduler_of, profiles_of, etcd_of):
        try:
            part(loaded, path)
        except OperatorError as error:
            found.append(config.with_line(str(error)))
    return found


def described(path: Path) -> dict[str, Any]:
    """Return the options in `path` and the values derived from them, for `elasticctl doctor`.

    Raises OperatorError if the file is not a valid configuration.
    """
    options = load(path)
    return {
        "kind": "controller",
        "name": options.cluster,
        "version": __version__,
        "python": sys.executable,
        "options": msgspec.to_builtins(options),
        "state": str(options.state),
        "keys": str(options.keys),
        "clients": list(options.clients_at),
        "agents": list(options.agents_at),
    }


def scheduler_of(loaded: ControllerConfig, path: Path) -> Scheduler:
    """Return the scheduler of the configuration in `path`: its stages, and a policy: built-in, or in a YAML or Python file.

    Stages in the policy's file override those in the configuration. Raises OperatorError with the file and the field.
    """
    stages = load_stages(str(path), loaded.admission, loaded.packing, loaded.placement)
    name = loaded.policy
    if "/" not in name and not name.endswith((".yaml", ".yml", ".py")):
        return load_scheduler({"policy": name}, str(path), stages)
    file = Path(name).expanduser()
    if not file.is_absolute():
        file = path.absolute().parent / file
    document = {"policy": str(file)} if file.suffix == ".py" else config.load_yaml(file)
    python = document.get("policy") if isinstance(document, dict) else None
    if isinstance(python, str) and python.endswith(".py"):
        check_code(file.parent / python)
    return load_scheduler(document, str(file), stages, str(file.parent))


def etcd_of(loaded: ControllerConfig, path: Path) -> Access | None:
    """Return the access to etcd in the configuration `loaded` from `path`; None: the store is in the state directory.

    Raises OperatorError if the options contradict each other, or etcd cannot be used.
    """
    if loaded.store == "sqlite":
        if (
            loaded.etcd is not None
        ):  # several controllers, each leader of a cluster of its own, would be worse than none
            raise OperatorError(f"{path}: etcd: is given, and the store is sqlite: add `store: etcd`, or leave it out")
        return None
    if loaded.etcd is None:
        raise OperatorError(f"{path}: etcd.endpoints: is missing, as the store is etcd")
    try:
        etcd_api.load()
        return loaded.etcd.access(path.absolute().parent)
    except OperatorError as error:
        raise OperatorError(f"{path}: {error}") from None


def profiles_of(loaded: ControllerConfig, path: Path) -> Profiles:
    """Return the throughput in the tables that the configuration in `path` names: by model and by "model/batch", the steps
    per second by share (number of GPUs).

    Of several entries for one model the first counts. Raises OperatorError with the file, line and column.
    """
    found: dict[str, dict[int, float]] = {}
    for name in loaded.profiles:
        file = path.absolute().parent / Path(name).expanduser()
        try:
            table = load_profiles(file, loaded.profiles_gpu_type)
        except UserError as error:
            raise OperatorError(f"{path}: profiles: {error}") from None
        for curve in table.curves:
            if not math.isfinite(curve.iterations_per_s):
                continue  # only the speedup is known, not the duration of a step
            rates = {
                share: curve.iterations_per_s * speedup for share, speedup in enumerate(curve.speedup.tolist()) if share
            }
            for key in (curve.model.casefold(), curve.name.casefold()):
                found.setdefault(key, rates)
    return found
