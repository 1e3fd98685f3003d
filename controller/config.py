"""The controller's configuration file (`configs/controller.yaml` shows every option), and what it lets decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..protocol.errors import OperatorError
from ..runtime import config, transport
from .scheduling.scheduler import Scheduler, StageChoice, load_scheduler, load_stages

ClusterName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the controller; the comments are in `configs/controller.yaml`."""

    cluster: ClusterName = "local"
    state_directory: str = "/var/lib/elasticctl/controller"
    listen_clients: str = "tcp://127.0.0.1:7700"
    listen_agents: str = "tcp://127.0.0.1:7701"
    policy: Annotated[str, msgspec.Meta(min_length=1)] = "max-min"
    admission: str | StageChoice = "all"
    packing: str = "none"
    placement: str | StageChoice = "fewest-servers"
    server_lease_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0
    max_restarts: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 5
    log_file: str | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def state(self) -> Path:
        return Path(self.state_directory).expanduser().absolute()


def load(path: Path) -> ControllerConfig:
    """The configuration in `path`. Raises OperatorError, naming file and field."""
    loaded = config.load(path, ControllerConfig)
    for field, address in (("listen_clients", loaded.listen_clients), ("listen_agents", loaded.listen_agents)):
        try:
            transport.check_address(address, None)
        except OperatorError as error:
            raise OperatorError(f"{path}: {field}: {error}") from None
    return loaded


def scheduler_of(loaded: ControllerConfig, path: Path) -> Scheduler:
    """What decides by the configuration in `path`: its policy, a built-in one or one in a file of its own, and the stages.

    Stages in the policy's file win over those in the configuration. Raises OperatorError, naming the file and the field.
    """
    stages = load_stages(str(path), loaded.admission, loaded.packing, loaded.placement)
    name = loaded.policy
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        return load_scheduler({"policy": name}, str(path), stages)
    file = Path(name).expanduser()
    if not file.is_absolute():
        file = path.absolute().parent / file
    return load_scheduler(config.load_yaml(file), str(file), stages)
