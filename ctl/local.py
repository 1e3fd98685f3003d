"""A whole cluster on this machine: real daemons, started detached, under one directory.

The directory holds the daemons' configuration (``controller.yaml``, ``local-1.yaml``, …), their state, their logs, and
``cluster.json``: what was asked for and which processes these are. A process is known by its number and start time, so a
stale record never hits a stranger. It is written before anything starts and again after each start (record, then act); how
processes are found and ended, with a record or without, is in `leftovers`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml
from msgspec.structs import replace

from ..protocol.errors import ClusterUnreachable, ElasticError, RequestRefused, UserError
from ..protocol.messages import Ping, Pong
from ..runtime import transport
from ..runtime.directories import check_way, private_directory
from ..runtime.processes import start_ticks
from .leftovers import CONTROLLER, Daemon, anything_runs, daemon_runs, stop_everything
from .waiting import Waiting

READY_WITHIN_S = 20.0
LOCKED_FOR_S = 60.0  # by another `up` or `down`, at most
TOLD_LINES = 5  # of the log of a daemon that does not start
TEMPORARY = ".new"
OURS = (".lock", TEMPORARY)  # what a killed `up` may leave behind before the cluster has a record


class LocalCluster(msgspec.Struct, frozen=True):
    """``cluster.json``."""

    controller: str  # address for clients
    agents: str  # address for agents
    servers: int
    gpus: int | None  # CPU slots per server; None: whatever the server has
    policy: str
    daemons: dict[str, Daemon] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return (CONTROLLER, *(f"local-{number + 1}" for number in range(self.servers)))


def read(directory: Path) -> LocalCluster | None:
    """The cluster in `directory`, or None. Raises UserError if the record cannot be read."""
    path = directory / "cluster.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=LocalCluster)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{path} is not the record of a cluster: {error}") from None


def read_address(directory: Path) -> str | None:
    """Where the controller of the cluster in `directory` listens, or None."""
    cluster = read(directory)
    return cluster.controller if cluster is not None else None


def up(directory: Path, servers: int | None, gpus: int | None, policy: str | None) -> tuple[LocalCluster, list[str]]:
    """Start a cluster, or what is missing of one. Returns it, and the names of the daemons that were started.

    Raises UserError where the options contradict a cluster that is there, RequestRefused if a daemon does not come up.
    """
    with _locked(directory):
        known = read(directory)
        if known is not None:
            _check_same(directory, known, servers, gpus, policy)
        cluster = known or _plan(directory, servers or 1, gpus, policy or "max-min")
        _write(directory, cluster)
        _lay_out(directory, cluster)
        missing = [name for name in cluster.names if not daemon_runs(directory, cluster.daemons, name)]
        started: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in missing:
                process = started[name] = _start(directory, name)
                daemon = Daemon(process.pid, start_ticks(process.pid) or 0)
                cluster = replace(cluster, daemons={**cluster.daemons, name: daemon})
                _write(directory, cluster)
            _wait_until_ready(directory, cluster, started)
        except BaseException:  # Ctrl-C too: what was started here goes, what was there before stays
            _take_back(directory, cluster, None if known is None else started)
            raise
        return cluster, missing


def down(directory: Path, keep: bool) -> bool:
    """Stop all processes of the cluster and remove its directory, unless it is to be kept. False: there is none."""
    if read(directory) is None and not anything_runs(directory):
        return False
    with _locked(directory):
        cluster = read(directory)
        left = stop_everything(directory, {} if cluster is None else cluster.daemons)
        if left:
            raise RequestRefused(f"these processes do not end: {', '.join(map(str, left))}")
        if cluster is None:  # somebody has removed the record, and perhaps put other things there
            (directory / ".lock").unlink()
            with contextlib.suppress(OSError):
                directory.rmdir()
        elif keep:
            _write(directory, replace(cluster, daemons={}))
        else:
            _remove(directory)
    return True


# -- making


def _plan(directory: Path, servers: int, gpus: int | None, policy: str) -> LocalCluster:
    """A new cluster. Raises UserError if the directory holds anything else."""
    foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in OURS)
    if foreign:
        raise UserError(f"{directory} is not empty and not a cluster (there is {foreign[0]}): choose another --dir")
    if gpus is None and servers > 1:
        gpus = max(1, (os.cpu_count() or 1) // servers)
    sockets = _sockets(directory)
    return LocalCluster(f"ipc://{sockets}/clients", f"ipc://{sockets}/agents", servers, gpus, _policy(policy))


def _policy(given: str) -> str:
    """The name of a policy, or the path of a policy file from wherever one stands."""
    is_file = "/" in given or given.endswith((".yaml", ".yml"))
    return str(Path(given).expanduser().absolute()) if is_file else given


def _lay_out(directory: Path, cluster: LocalCluster) -> None:
    """The daemons' configuration, as far as it is not there: what an operator has changed is kept."""
    (directory / "log").mkdir(exist_ok=True)
    _made_private(Path(cluster.controller.removeprefix("ipc://")).parent)
    _configure(
        directory,
        CONTROLLER,
        cluster="local",
        state_directory=str(directory / CONTROLLER),
        listen_clients=cluster.controller,
        listen_agents=cluster.agents,
        policy=cluster.policy,
        # CPU slots share the processors: what one job is measured at there depends on what the others do.
        **({} if cluster.gpus is None else {"measuring": {"way_down": False}}),
    )
    for name in cluster.names[1:]:
        slots = {} if cluster.gpus is None else {"cpu_slots": cluster.gpus}
        _configure(
            directory,
            name,
            server=name,
            controller=cluster.agents,
            state_directory=str(directory / name),
            checkpoint_directory=str(directory / "checkpoints"),
            **({"allow_root_jobs": True} if os.getuid() == 0 else {}),  # it is root who asks for this cluster
            **slots,
        )


def _configure(directory: Path, name: str, **options: str | int | dict[str, bool]) -> None:
    path = directory / f"{name}.yaml"
    if not path.exists():
        _write_whole(path, yaml.safe_dump(options, sort_keys=False).encode())


def _sockets(directory: Path) -> Path:
    """Where the controller's sockets are: in the cluster's own directory, or, if its path is too long, in one for this user."""
    within = directory / "run"
    if len(str(within / "clients").encode()) <= transport.MAX_PATH_BYTES:
        return within
    return transport.short_socket_directory(directory, Path("/tmp"), os.getuid())


def _made_private(sockets: Path) -> None:
    """The directory decides who may connect. Raises OperatorError if somebody else has made it first."""
    if sockets.name != "run":
        private_directory(sockets.parent)
    check_way(private_directory(sockets))


def _check_same(
    directory: Path, known: LocalCluster, servers: int | None, gpus: int | None, policy: str | None
) -> None:
    if not known.controller.startswith("ipc://"):
        raise UserError(f"the cluster at {directory} is of an older version: `elasticctl down` first")
    for option, given, there in (
        ("--servers", servers, known.servers),
        ("--gpus", gpus, known.gpus),
        ("--policy", policy and _policy(policy), known.policy),
    ):
        if given is not None and given != there:
            raise UserError(
                f"{option} {given}: the cluster at {directory} has {there}; `elasticctl down` first, or choose another --dir"
            )


def _start(directory: Path, name: str) -> subprocess.Popen[bytes]:
    module = "elasticd.controller" if name == CONTROLLER else "elasticd.agent"
    with (directory / "log" / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, "--config", str(directory / f"{name}.yaml")],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _write(directory: Path, cluster: LocalCluster) -> None:
    _write_whole(directory / "cluster.json", msgspec.json.format(msgspec.json.encode(cluster)))


def _write_whole(path: Path, data: bytes) -> None:
    """All or nothing, whenever this process is killed."""
    temporary = path.with_name(TEMPORARY)
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _wait_until_ready(directory: Path, cluster: LocalCluster, started: dict[str, subprocess.Popen[bytes]]) -> None:
    from .client import Client

    client = Client(cluster.controller)
    deadline = time.monotonic() + READY_WITHIN_S
    here = 0
    try:
        while time.monotonic() < deadline:
            for name, process in started.items():
                if process.poll() is not None:
                    raise RequestRefused(f"{name} does not start:\n{_tail(directory, name)}")
            try:
                answer = client.ask(Ping(), timeout_s=0.5)
            except ClusterUnreachable:
                continue
            here = answer.servers if isinstance(answer, Pong) else 0
            if here >= cluster.servers:
                return
            time.sleep(0.05)
    finally:
        client.close()
    there = f"{here} of {cluster.servers} servers are there"
    raise RequestRefused(
        f"not ready within {READY_WITHIN_S:.0f} s: {there}; see {directory / 'log'}\n{_tail(directory, CONTROLLER)}"
    )


def _tail(directory: Path, name: str) -> str:
    try:
        text = (directory / "log" / f"{name}.log").read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TOLD_LINES:])


def _take_back(directory: Path, cluster: LocalCluster, started: dict[str, subprocess.Popen[bytes]] | None) -> None:
    """After a failed `up`: end what it `started`; None: the whole cluster is its work, and goes."""
    if started is None:
        stop_everything(directory, cluster.daemons)
        _remove(directory)
        return
    for process in started.values():
        process.kill()
        process.wait()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time. Raises UserError if the directory cannot be used."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"--dir {directory}: {error.strerror}") from None
    try:
        waiting = Waiting(f"another `elasticctl up` or `down` at {directory}", LOCKED_FOR_S)
        while not _lock(descriptor):
            waiting.pause()
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(directory: Path) -> None:
    elsewhere = [str(_sockets(directory))]
    for note in directory.glob("*/socket_directory"):
        with contextlib.suppress(OSError):
            elsewhere.append(note.read_text().strip())
    for name in elsewhere:
        with contextlib.suppress(OSError):
            sockets = Path(name)
            if sockets.is_absolute() and sockets.name and sockets.is_dir():
                shutil.rmtree(sockets, ignore_errors=True)
                with contextlib.suppress(OSError):
                    sockets.parent.rmdir()
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise ElasticError(f"{directory} could not be removed")
