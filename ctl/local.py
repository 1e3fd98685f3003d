"""A whole cluster on this machine: real daemons, started detached, under one directory.

The directory holds the daemons' configuration (``controller.yaml``, ``local-1.yaml``, …), their state, their logs, and
``cluster.json``: what was asked for and which processes these are. A process is known by its number and start time, so a
stale record never hits a stranger. Workers are found through the records that agents keep of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml

from ..protocol.errors import ClusterUnreachable, ElasticError, RequestRefused, UserError
from ..protocol.messages import Ping, Pong
from ..runtime.processes import runs, send, start_ticks

READY_WITHIN_S = 20.0
STOP_GRACE_S = 3.0
GONE_WITHIN_S = 15.0
CONTROLLER = "controller"


class Daemon(msgspec.Struct, frozen=True):
    """A process of ours."""

    pid: int
    start_ticks: int


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
        if known is None:
            cluster = _create(directory, servers or 1, gpus, policy or "max-min")
        else:
            _check_same(directory, known, servers, gpus, policy)
            cluster = known
        missing = [name for name in cluster.names if not _daemon_runs(cluster, name)]
        started = {name: _start(directory, name) for name in missing}
        daemons = {name: Daemon(p.pid, start_ticks(p.pid) or 0) for name, p in started.items()}
        cluster = msgspec.structs.replace(cluster, daemons={**cluster.daemons, **daemons})
        _write(directory, cluster)
        try:
            _wait_until_ready(directory, cluster, started)
        except BaseException:
            if known is None:
                _stop_everything(directory, cluster)
                _remove(directory)
            else:
                for name, process in started.items():
                    process.terminate()
                    process.wait()
                    del daemons[name]
            raise
        return cluster, missing


def down(directory: Path, keep: bool) -> bool:
    """Stop all processes of the cluster and remove its directory, unless it is to be kept. False: there is none."""
    cluster = read(directory)
    if cluster is None:
        return False
    with _locked(directory):
        left = _stop_everything(directory, cluster)
        if left:
            raise RequestRefused(f"these processes do not end: {', '.join(map(str, left))}")
        if keep:
            _write(directory, msgspec.structs.replace(cluster, daemons={}))
        else:
            _remove(directory)
    return True


# -- making


def _create(directory: Path, servers: int, gpus: int | None, policy: str) -> LocalCluster:
    foreign = [entry.name for entry in directory.iterdir() if entry.name != ".lock"]
    if foreign:
        raise UserError(f"{directory} is not empty and not a cluster (there is {foreign[0]}): choose another --dir")
    if gpus is None and servers > 1:
        gpus = max(1, (os.cpu_count() or 1) // servers)
    if "/" in policy or policy.endswith((".yaml", ".yml")):
        policy = str(Path(policy).expanduser().absolute())
    clients, agents = (f"tcp://127.0.0.1:{port}" for port in _free_ports(2))
    cluster = LocalCluster(clients, agents, servers, gpus, policy)
    (directory / "log").mkdir()
    _configure(
        directory,
        CONTROLLER,
        cluster="local",
        state_directory=str(directory / CONTROLLER),
        listen_clients=clients,
        listen_agents=agents,
        policy=policy,
    )
    for name in cluster.names[1:]:
        slots = {} if gpus is None else {"cpu_slots": gpus}
        _configure(
            directory,
            name,
            server=name,
            controller=agents,
            state_directory=str(directory / name),
            checkpoint_directory=str(directory / "checkpoints"),
            **slots,
        )
    return cluster


def _configure(directory: Path, name: str, **options: str | int) -> None:
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(options, sort_keys=False), encoding="utf-8")


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now. They are kept in the configuration, so that restarts find them."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _check_same(
    directory: Path, known: LocalCluster, servers: int | None, gpus: int | None, policy: str | None
) -> None:
    for option, given, there in (
        ("--servers", servers, known.servers),
        ("--gpus", gpus, known.gpus),
        ("--policy", policy, known.policy),
    ):
        if given is not None and given != there and str(given) != Path(str(there)).name:
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
    temporary = directory / ".cluster.json"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(cluster)))
    os.replace(temporary, directory / "cluster.json")


def _wait_until_ready(directory: Path, cluster: LocalCluster, started: dict[str, subprocess.Popen[bytes]]) -> None:
    from .client import Client

    client = Client(cluster.controller)
    deadline = time.monotonic() + READY_WITHIN_S
    try:
        while time.monotonic() < deadline:
            for name, process in started.items():
                if process.poll() is not None:
                    raise RequestRefused(f"{name} does not start:\n{_tail(directory, name)}")
            try:
                answer = client.ask(Ping(), timeout_s=0.5)
            except ClusterUnreachable:
                continue
            if isinstance(answer, Pong) and answer.servers >= cluster.servers:
                return
            time.sleep(0.05)
    finally:
        client.close()
    raise RequestRefused(
        f"not ready within {READY_WITHIN_S:.0f} s; see {directory / 'log'}\n{_tail(directory, CONTROLLER)}"
    )


def _tail(directory: Path, name: str, lines: int = 5) -> str:
    try:
        text = (directory / "log" / f"{name}.log").read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time. Raises UserError if the directory cannot be used."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"--dir {directory}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# -- ending


def _daemon_runs(cluster: LocalCluster, name: str) -> bool:
    daemon = cluster.daemons.get(name)
    return daemon is not None and runs(daemon.pid, daemon.start_ticks)


class _WorkerFile(msgspec.Struct, frozen=True):
    """What an agent's shim writes down of a worker."""

    shim_pid: int | None = None
    shim_start_ticks: int | None = None
    pid: int | None = None
    start_ticks: int | None = None


def _worker_files(directory: Path) -> list[_WorkerFile]:
    found = []
    for path in sorted(directory.glob("*/jobs/*/*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # it is being removed, or was never finished
            found.append(msgspec.json.decode(path.read_bytes(), type=_WorkerFile))
    return found


def _running(directory: Path, cluster: LocalCluster) -> dict[str, list[int]]:
    """Process numbers of what runs: daemons, shims, workers."""
    workers = _worker_files(directory)
    return {
        "daemons": [d.pid for d in cluster.daemons.values() if runs(d.pid, d.start_ticks)],
        "shims": [w.shim_pid for w in workers if w.shim_pid and runs(w.shim_pid, w.shim_start_ticks)],
        "workers": [w.pid for w in workers if w.pid and runs(w.pid, w.start_ticks)],
    }


def _stop_everything(directory: Path, cluster: LocalCluster) -> list[int]:
    """End all processes, gently first. Returns those that are left."""
    began = time.monotonic()
    while time.monotonic() < began + GONE_WITHIN_S:
        found = _running(directory, cluster)
        if not any(found.values()):
            return []
        late = time.monotonic() > began + STOP_GRACE_S
        for pid in found["daemons"]:  # first, so that nobody starts workers again
            send(pid, signal.SIGKILL if late else signal.SIGTERM)
        if not found["daemons"]:
            for pid in found["shims"]:
                if not late:
                    send(pid, signal.SIGTERM)
            if late:
                for pid in found["workers"]:
                    send(pid, signal.SIGKILL, group=True)
                if not found["workers"]:
                    for pid in found["shims"]:
                        send(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.05)
    left = _running(directory, cluster)
    return [pid for pids in left.values() for pid in pids]


def _reap() -> None:
    """Daemons that this very process has started (an `up` that failed) are its children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _remove(directory: Path) -> None:
    for note in directory.glob("*/socket_directory"):
        with contextlib.suppress(OSError):
            sockets = Path(note.read_text().strip())
            if sockets.is_absolute() and sockets.name and sockets.is_dir():
                shutil.rmtree(sockets, ignore_errors=True)
                with contextlib.suppress(OSError):
                    sockets.parent.rmdir()
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise ElasticError(f"{directory} could not be removed")
