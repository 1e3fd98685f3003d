"""Part of a local cluster's record that every command reads, so it is small and fast: the controller's address and
process.

The whole record is `local.LocalCluster`.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..protocol.errors import UserError
from ..runtime.processes import runs

CONTROLLER = "controller"
FILE = "cluster.json"
TOLD_BYTES = 1 << 16  # bytes read at the end of a log


class Daemon(msgspec.Struct, frozen=True):
    """A daemon's process."""

    pid: int
    start_ticks: int

    @property
    def runs(self) -> bool:
        return runs(self.pid, self.start_ticks)


class Record(msgspec.Struct, frozen=True):
    """The part of ``cluster.json`` that every command needs."""

    controller: str  # address for clients
    daemons: dict[str, Daemon] = {}  # empty: the cluster has been stopped

    @property
    def stopped(self) -> bool:
        return not self.daemons


def read(directory: Path) -> Record | None:
    """Return the record of the cluster in `directory`, or None. Raises UserError if it cannot be read."""
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{path} is not the record of a cluster: {error}") from None


def log_of(directory: Path, daemon: str) -> Path:
    return directory / "log" / f"{daemon}.log"


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a log; none where it cannot be read."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - TOLD_BYTES))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def stopped(directory: Path, up: str) -> str:
    """Return the error of a request to a cluster that `down` has stopped. `up`: the command that starts it."""
    return f"the cluster at {directory} is stopped: `{up}` starts it again, with all that it has kept"


def dead(directory: Path, record: Record, up: str) -> str | None:
    """Return the error for a controller that has died; None: the controller runs, or its state is unknown."""
    daemon = record.daemons.get(CONTROLLER)
    if daemon is None or daemon.runs:
        return None
    log = log_of(directory, CONTROLLER)
    last = tail(log, 1)
    ends = f", which ends with: {last[0]}" if last else ""
    return (
        f"the controller of the cluster at {directory} has died: process {daemon.pid} does not run any more; "
        f"`{up}` starts it again, and jobs train on meanwhile; its log is {log}{ends}"
    )


def silent(directory: Path, record: Record) -> str | None:
    """Return the error for a controller that runs without answering; None: its state is unknown."""
    daemon = record.daemons.get(CONTROLLER)
    if daemon is None or not daemon.runs:
        return None
    return (
        f"the controller of the cluster at {directory} runs as process {daemon.pid} and does not answer; "
        f"its log is {log_of(directory, CONTROLLER)}"
    )
