"""Places that `elasticctl doctor` examines: the daemons configured on this machine, and this desk's way to a cluster.

Daemons describe themselves: ``python -m elasticd.agent --config FILE --options`` prints the effective options, so that
no code reads their configuration twice. All of it is gathered before the checks begin, with limits (`bounded`): a
configuration may lie on a file system that hangs.
"""

from __future__ import annotations

import enum
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...protocol.errors import ClusterUnreachable, ElasticError, RequestRefused, UserError
from ...runtime.endpoints import split
from ...runtime.keys import KeyFile
from .. import bounded, reach, record
from ..config import Kind, kind_of
from ..context import SYSTEM, Context, configuration
from ..reach import Reach
from .crowd import crowd

DESCRIBED_WITHIN_S = 20.0
REACHED_WITHIN_S = 25.0
UNITS = (
    Path("/etc/systemd/system"),
    Path("/run/systemd/system"),
    Path("/usr/local/lib/systemd/system"),
    Path("/lib/systemd/system"),
    Path("/usr/lib/systemd/system"),
)


class Subject(enum.Enum):
    """Kind of a check target."""

    DESK = "desk"
    CONTROLLER = "controller"
    SERVER = "server"


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `--options`. Paths are absolute. "" and []: no value, or one that the caller may not see."""

    kind: str
    name: str  # name of the server, or of the cluster
    version: str
    python: str
    options: dict[str, Any]
    state: str
    controller: str = ""  # for an agent: the address of its controller
    checkpoints: str = ""
    scratch: str = ""
    sockets: str = ""
    isolation: dict[str, Any] = {}  # the isolation that the running agent has found possible
    changeable: list[str] = []  # files that an agent executes and other accounts may change
    keys: str = ""  # for a controller: its directory of keys
    clients: list[str] = []  # addresses at which a controller listens for clients
    agents: list[str] = []


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that is configured here. `described` is None if its configuration cannot be read, for the reason
    `error`.
    """

    file: str
    kind: str  # "agent", "controller"
    owner: int  # account (uid) of the running daemon, or of its unit or file
    pid: int | None = None  # process number of the running daemon
    described: Described | None = None
    error: str = ""
    unit: str = ""  # file of its systemd unit, if it is the installed one
    log: str = ""

    @property
    def state(self) -> Path:
        return Path(self.described.state if self.described is not None else "/")

    def option(self, name: str, otherwise: Any = None) -> Any:
        """Return an option of its configuration."""
        found = self.described.options.get(name) if self.described is not None else None
        return otherwise if found is None else found


# From a configuration and its kind; otherwise why it cannot be read
Describe = Callable[[Path, str], tuple[Described | None, str]]


@dataclass(frozen=True)
class Machine:
    """This machine, as the caller sees it."""

    environ: Mapping[str, str]
    uid: int
    host: str
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    units: tuple[Path, ...] = UNITS

    @classmethod
    def here(cls) -> Machine:
        return cls(dict(os.environ), os.geteuid(), socket.gethostname())


@dataclass(frozen=True)
class Target:
    """Target of one group of checks: a daemon, by its configuration file, or a user's machine."""

    subject: Subject
    machine: Machine
    python: str  # interpreter of jobs: `--python`, else the agent's own, or at a desk that in PATH
    home: Path = Path("/")  # directory of the user's configuration
    directory: Path | None = None  # directory of a cluster that `up` has started here
    address: str = ""  # address of the controller, for people
    key: Path | None = None
    no_cluster: str = ""  # why no address is known
    mistaken: bool = False  # `no_cluster` is a mistake in a given name or file
    reach: Reach | None = None
    daemon: Daemon | None = None
    daemons: tuple[Daemon, ...] = field(default=())  # all that are configured here

    @property
    def title(self) -> str:
        """Return the title of the target for people."""
        if self.daemon is None:
            return f"desk of {_account(self.machine.uid)} on {self.machine.host}"
        name = self.daemon.described.name if self.daemon.described is not None else "?"
        what = "server" if self.subject is Subject.SERVER else "controller of cluster"
        return f"{what} {name} ({self.daemon.file})"

    @property
    def described(self) -> Described:
        """Description of its daemon, whose configuration must be readable."""
        assert self.daemon is not None
        assert self.daemon.described is not None
        return self.daemon.described


def find(context: Context, files: Iterable[Path], python: str | None, machine: Machine) -> list[Target]:
    """Return the targets here: daemons by their files (by default the usual ones), then the desk. Raises UserError."""
    named = [file.absolute() for file in files]
    limit_s = DESCRIBED_WITHIN_S * crowd().patience
    found = bounded.one(lambda: list(_daemons(named, context.directory, machine)), limit_s)
    if found.hung and (now := crowd()).crowded:
        raise RequestRefused(now.sentence("`elasticctl doctor` again when less runs here"))
    if found.hung or found.error:
        raise UserError(
            f"the daemons' configuration cannot be read: {found.error or 'its file system does not answer'}"
        )
    daemons = tuple(msgspec.convert(found.answer, list[Daemon]))
    desk = _desk(context, python, machine, daemons)
    subjects = {"controller": Subject.CONTROLLER, "agent": Subject.SERVER}
    found_targets = [_of_daemon(desk, daemon, subjects[daemon.kind], python) for daemon in daemons]
    return [
        *(p for p in found_targets if p.subject is Subject.CONTROLLER),
        *(p for p in found_targets if p.subject is Subject.SERVER),
        desk,
    ]


def _of_daemon(desk: Target, daemon: Daemon, subject: Subject, python: str | None) -> Target:
    own = daemon.described.python if daemon.described is not None else sys.executable
    return Target(**{**desk.__dict__, "subject": subject, "daemon": daemon, "python": python or own})


def _desk(context: Context, python: str | None, machine: Machine, daemons: tuple[Daemon, ...]) -> Target:
    interpreter = python or shutil.which("python", path=machine.environ.get("PATH")) or shutil.which("python3") or ""
    address, key, why, mistaken = "", None, "", False
    try:
        address, key = context.named()
    except ElasticError as error:
        why, mistaken = str(error), not isinstance(error, ClusterUnreachable)
    reached = None
    if address:
        limit_s = REACHED_WITHIN_S * len(split(address)) * crowd().patience
        done = bounded.one(lambda: _reached(address, key), limit_s)
        if done.hung or done.error:
            text = done.error or f"no end of the attempt to reach it within {limit_s:.0f} s"
            if done.hung and (now := crowd()).crowded:
                text = now.sentence(text)
            reached = Reach(address=address, step=reach.Step.ANSWER, found=text, remedy="look at the controller's log")
        else:
            reached = msgspec.convert(done.answer, Reach)
    return Target(
        Subject.DESK,
        machine,
        interpreter,
        home=configuration(),
        directory=context.directory,
        address=address,
        key=key,
        no_cluster=why,
        mistaken=mistaken,
        reach=reached,
        daemons=daemons,
    )


def _reached(address: str, path: Path | None) -> Reach:
    try:
        key = None if path is None else KeyFile.read(path.expanduser().absolute(), UserError)
    except UserError as error:
        return Reach(address=address, step=reach.Step.KEYS, found=str(error), remedy="see the check `key`")
    return reach.each_as_person(address, key)


# -- daemons


def _daemons(named: list[Path], directory: Path, machine: Machine) -> Iterator[Daemon]:
    files = [(file, kind_of(file).value) for file in named] if named else list(_usual(directory))
    for file, kind in files:
        if kind in (Kind.AGENT.value, Kind.CONTROLLER.value):
            yield _daemon(file, kind, machine)
        else:
            raise UserError(f"{file}: is the file of no daemon")


def _usual(directory: Path) -> Iterator[tuple[Path, str]]:
    """Yield the usual files: installed daemons, those of a running cluster that `up` has started here, and agents that
    `up` on another host has started here.
    """
    for kind in ("controller", "agent"):
        if (SYSTEM / f"{kind}.yaml").exists():
            yield SYSTEM / f"{kind}.yaml", kind
    if _is_up(directory):
        if (directory / "controller.yaml").exists():
            yield directory / "controller.yaml", "controller"
        for file in sorted(directory.glob("local-*.yaml")):
            yield file, "agent"
    hosts = Path("/var/lib/elasticctl/hosts") if os.getuid() == 0 else directory.parent / "hosts"
    if os.access(hosts, os.R_OK | os.X_OK):
        for file in sorted(hosts.glob("*/*/agent.yaml")):
            yield file, "agent"


def _is_up(directory: Path) -> bool:
    try:
        cluster = record.read(directory)
    except UserError:  # unknown whether it was stopped: its daemons are checked
        return True
    return cluster is not None and not cluster.stopped


def _daemon(file: Path, kind: str, machine: Machine, describe: Describe | None = None) -> Daemon:
    pid = _pid(file, kind, machine)
    unit = _unit(file, kind, machine)
    owner = _owner(file, kind, pid, unit, machine)
    described, error = (describe or _described)(file, kind)
    log = ""
    if described is not None:
        beside = file.parent / "log" / f"{file.stem}.log"
        log = described.options.get("log_file") or (str(beside) if beside.exists() else "")
        log = log or (f"journalctl -u elasticctl-{kind}" if unit else "")
    return Daemon(file=str(file), kind=kind, owner=owner, pid=pid, described=described, error=error, unit=unit, log=log)


def _described(file: Path, kind: str) -> tuple[Described | None, str]:
    command = [sys.executable, "-P", "-m", f"elasticd.{kind}", "--config", str(file), "--options"]
    try:
        limit_s = DESCRIBED_WITHIN_S / 2 * crowd().patience
        done = subprocess.run(command, capture_output=True, check=False, timeout=limit_s, cwd="/")
    except subprocess.TimeoutExpired:
        return None, f"{file}: cannot be read within {limit_s:.0f} s"
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return None, said[0] if said else f"{file}: exit code {done.returncode}"
    return msgspec.json.decode(done.stdout, type=Described), ""


def _unit(file: Path, kind: str, machine: Machine) -> str:
    """Return the file of the systemd unit that starts this daemon."""
    for directory in machine.units:
        path = directory / f"elasticctl-{kind}.service"
        if path.exists() and str(file) in unit_options(path).get("ExecStart", ""):
            return str(path)
    return ""


def unit_options(path: Path) -> dict[str, str]:
    """Return the options in a systemd unit's file; of repeated options the last value counts."""
    found = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name.strip()] = value.strip()
    return found


def _owner(file: Path, kind: str, pid: int | None, unit: str, machine: Machine) -> int:
    """Return the account under which the daemon runs, or would run."""
    if pid is not None:
        return (machine.proc / str(pid)).stat().st_uid
    if unit:
        try:
            return pwd.getpwnam(unit_options(Path(unit)).get("User", "root")).pw_uid
        except KeyError:
            return 0
    return file.stat().st_uid


def _pid(file: Path, kind: str, machine: Machine) -> int | None:
    """Return the process of the daemon that runs with this file."""
    wanted = [b"-m", f"elasticd.{kind}".encode(), b"--config", os.fsencode(file)]
    for entry in sorted(name for name in os.listdir(machine.proc) if name.isdecimal()):
        try:
            line = (machine.proc / entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # the process has just ended
            continue
        if any(line[at : at + 4] == wanted for at in range(1, len(line) - 3)):
            return int(entry)
    return None


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
