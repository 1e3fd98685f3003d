"""A cluster that `up` has started: real daemons, detached, under one directory. Its agents run here, or on other hosts
(`fleet`).

The directory holds the daemons' configuration (``controller.yaml``, ``local-1.yaml``, …), their state, their logs, and
``cluster.json``: the options of `up` and the processes. A process is recorded with its number and start time, so a
stale record never hits another process. The record is written before any process starts and again after each start
(record, then act). `leftovers` finds and ends processes, with a record or without.
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
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml
from msgspec.structs import replace

from ..protocol.errors import ClusterUnreachable, ElasticError, RequestRefused, UserError
from ..protocol.messages import Ping, Pong, ServerState
from ..protocol.texts import many
from ..runtime import transport
from ..runtime.config import load_yaml
from ..runtime.directories import check_way, private_directory
from ..runtime.keys import KeyDirectory
from ..runtime.processes import start_ticks
from . import fleet as fleets
from . import offers
from .context import say
from .fleet import Fleet
from .hosts import Host
from .leftovers import anything_runs, daemon_runs, end_daemons, stop_everything
from .offers import Offer
from .record import CONTROLLER, FILE, Daemon, log_of, tail
from .ssh import DEFAULT_SSH
from .waiting import Waiting

READY_WITHIN_S = 120.0  # for a slow start on a busy machine; the end of a daemon is noticed at once
SLOW_AFTER_S = 15.0
LOCKED_FOR_S = 180.0  # longest wait for another `up` or `down`
TOLD_LINES = 5  # shown log lines of a daemon that does not start
TEMPORARY = ".new"
# CPU slots share the processors: measurements of one job there depend on the load of the others.
MEASURED_ON_SLOTS = {"way_down": False}
OURS = (".lock", TEMPORARY)  # files that a killed `up` may leave behind before the cluster has a record


class LocalCluster(msgspec.Struct, frozen=True):
    """Contents of ``cluster.json``: the cluster's options and processes."""

    controller: str  # address for clients
    agents: str  # address for agents
    servers: int
    gpus: int | None  # CPU slots per server; None: the server's own GPUs
    policy: str
    daemons: dict[str, Daemon] = {}  # processes on this machine
    fleet: Fleet | None = None  # set if agents run on other hosts; then none runs here
    gpu_models: tuple[str, ...] = ()  # models of the stand-ins for GPUs, one server after the other; none: no stand-ins
    offers: str = ""  # a sentence: the devices that the servers of this machine offer, and the reason

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the daemons on this machine."""
        agents = 0 if self.fleet is not None else self.servers
        return (CONTROLLER, *(f"local-{number + 1}" for number in range(agents)))

    @property
    def offer(self) -> Offer:
        """Offer of each server on this machine."""
        return Offer(self.gpus, self.gpu_models, self.offers)

    @property
    def on_slots(self) -> bool:
        """Whether workers compute on the CPU, as far as the options of `up` show."""
        hosts = () if self.fleet is None else self.fleet.hosts
        return self.gpus is not None or bool(self.gpu_models) or any(host.slots is not None for host in hosts)


@dataclass(frozen=True)
class Wanted:
    """The options of `elasticctl up`; None: not given."""

    servers: int | None = None
    gpus: int | None = None
    policy: str | None = None
    hosts: Path | None = None
    ssh: str | None = None
    python: str | None = None
    address: str | None = None
    checkpoints: str | None = None
    gpu_model: str | None = None

    def plan(self) -> Fleet | None:
        """Return the hosts for agents, or None without --hosts. Raises UserError where options exclude each other."""
        if self.hosts is None:
            for option, given in (
                ("--ssh", self.ssh),
                ("--python", self.python),
                ("--address", self.address),
                ("--checkpoints", self.checkpoints),
            ):
                if given is not None:
                    raise UserError(f"{option} goes with --hosts")
            return None
        if self.gpu_model is not None:
            raise UserError(
                "--gpu-model gives the servers of this machine stand-ins for GPUs: it does not go with --hosts"
            )
        if self.servers is not None:
            raise UserError("--servers starts agents here, --hosts on other hosts: give one of them")
        return fleets.plan(
            self.hosts,
            self.ssh or DEFAULT_SSH,
            self.python or sys.executable,
            self.address,
            self.gpus,
            self.checkpoints,
        )


def read(directory: Path) -> LocalCluster | None:
    """Return the record of the cluster in `directory`, or None. Raises UserError if the record cannot be read."""
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=LocalCluster)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{path} is not the record of a cluster: {error}") from None


def read_address(directory: Path) -> str | None:
    """Return the address of the controller of the cluster in `directory`, or None."""
    cluster = read(directory)
    return cluster.controller if cluster is not None else None


def runs(directory: Path) -> str | None:
    """Return the address of the controller of the cluster in `directory`, or None if it does not run."""
    cluster = read(directory)
    return cluster.controller if cluster is not None and daemon_runs(directory, cluster.daemons, CONTROLLER) else None


def up(directory: Path, wanted: Wanted) -> tuple[LocalCluster, list[str]]:
    """Start a cluster, or the missing parts of one. Returns the cluster, and the names of the daemons that were
    started.

    Raises UserError where the options contradict an existing cluster, RequestRefused if a daemon does not start.
    """
    with _locked(directory):
        known = read(directory)
        try:
            cluster = _plan(directory, wanted) if known is None else _joined(directory, known, wanted)
            seen = {} if cluster.fleet is None else fleets.look(cluster.fleet)
        except BaseException:
            if known is None:
                _let_go(directory)
            raise
        _write(directory, cluster)
        missing = [name for name in cluster.names if not daemon_runs(directory, cluster.daemons, name)]
        started: dict[str, subprocess.Popen[bytes]] = {}
        try:
            _lay_out(directory, cluster)
            removed = _removed(directory, cluster, missing)
            end_daemons(directory, cluster.daemons, removed)
            missing += removed
            for name in missing:
                process = started[name] = _start(directory, name)
                daemon = Daemon(process.pid, start_ticks(process.pid) or 0)
                cluster = replace(cluster, daemons={**cluster.daemons, name: daemon})
                _write(directory, cluster)
            if cluster.fleet is not None:
                missing += fleets.start(cluster.fleet, _keys(directory), seen)
            _wait_until_ready(directory, cluster, started)
        except BaseException:  # Ctrl-C too: processes that were started here are ended, earlier ones stay
            _take_back(directory, cluster, known, started, [host for host, found in seen.items() if not found.runs])
            raise
        return cluster, missing


def down(directory: Path, purge: bool = False, abandon: bool = False) -> bool:
    """Stop all processes of the cluster; `purge`: and remove all its files. False: no process ran, and no file is
    removed.

    Raises RequestRefused if some processes do not end, or if hosts do not answer; `abandon`: such hosts are left alone.
    """
    found = read(directory)
    if not anything_runs(directory) and (found is None or (not purge and not found.daemons)):
        return False
    with _locked(directory):
        cluster = read(directory)
        left = stop_everything(directory, {} if cluster is None else cluster.daemons)
        if left:
            raise RequestRefused(f"these processes do not end: {', '.join(map(str, left))}")
        if cluster is not None and cluster.fleet is not None:
            silent = fleets.end(cluster.fleet, cluster.fleet.hosts, not purge)
            if silent and not abandon:
                again = "`elasticctl down` again when they can be reached, or `elasticctl down --abandon`"
                raise RequestRefused(f"all but these are stopped: {again}\n{fleets.reasons(silent)}")
        if cluster is None:  # a user has removed the record, and may have put other files there
            _let_go(directory)
        elif purge:
            _remove(directory)
        else:
            _write(directory, replace(cluster, daemons={}))
    return True


def made(directory: Path) -> str:
    """Describe the cluster's files, which `down --purge` removes."""
    cluster = read(directory)
    checkpoints = directory / "checkpoints"
    jobs, size = _jobs_in(checkpoints), _bytes_in(checkpoints)
    logs = sum(_bytes_in(logs) for logs in (directory / "log", *directory.glob("*/jobs")))
    parts = [
        "the records of its jobs",
        f"checkpoints of {jobs} job{'s' if jobs != 1 else ''} ({size_text(size)})" if jobs else "no checkpoints",
        f"logs ({size_text(logs)})",
    ]
    if cluster is not None and cluster.fleet is not None:
        where = f" under {cluster.fleet.checkpoints}" if cluster.fleet.checkpoints is not None else ""
        parts.append(f"what lies on its {many(len(cluster.fleet.hosts), 'host')}{where}")
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _jobs_in(checkpoints: Path) -> int:
    try:
        return sum(1 for entry in os.scandir(checkpoints) if entry.is_dir() and any(os.scandir(entry)))
    except OSError:
        return 0


def _bytes_in(directory: Path) -> int:
    found = 0
    for path, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(path, name)).st_size
    return found


def size_text(size: float) -> str:
    """Return "512 bytes", "3.4 MiB"."""
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:.1f} {unit}"


# -- making


def _plan(directory: Path, wanted: Wanted) -> LocalCluster:
    """Return a new cluster. Raises UserError if the directory holds anything else."""
    foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in OURS)
    if foreign:
        raise UserError(f"{directory} is not empty and not a cluster (there is {foreign[0]}): choose another --dir")
    fleet = wanted.plan()
    if fleet is not None:
        servers, offer = len(fleet.hosts), Offer(wanted.gpus, (), "")
    else:
        offer = offers.plan(wanted.gpus, wanted.gpu_model, wanted.servers)
        servers = wanted.servers or len(offer.models) or 1
    sockets = _sockets(directory)
    policy = _policy(wanted.policy or "max-min")
    return LocalCluster(
        f"ipc://{sockets}/clients",
        f"ipc://{sockets}/agents",
        servers,
        offer.slots,
        policy,
        fleet=fleet,
        gpu_models=offer.models,
        offers=offer.text,
    )


def _joined(directory: Path, known: LocalCluster, wanted: Wanted) -> LocalCluster:
    """Return the existing cluster, with the hosts that have been added to its file. Raises UserError if the options
    differ.
    """
    if not known.controller.startswith("ipc://"):
        raise UserError(f"the cluster at {directory} is of an older version: `elasticctl down` first")
    fleet, asked = known.fleet, wanted.plan()
    if not known.daemons and fleet is None and asked is None:
        return _changed(directory, known, wanted)
    # A stopped cluster keeps its jobs: options of another kind need a new cluster, in its place or beside it.
    way = "`elasticctl down` first" if known.daemons else "`elasticctl down --purge` removes it with its jobs"
    for option, given, there in (
        ("--servers", wanted.servers, known.servers),
        ("--gpus", wanted.gpus, known.gpus),
        ("--gpu-model", wanted.gpu_model, ",".join(known.gpu_models) or "none"),
        ("--policy", wanted.policy and _policy(wanted.policy), known.policy),
        ("--hosts", asked and "", "agents on this machine" if fleet is None else ""),
        ("--ssh", wanted.ssh, fleet and fleet.ssh),
        ("--python", wanted.python, fleet and fleet.python),
        ("--checkpoints", wanted.checkpoints, fleet and fleet.checkpoints),
        ("--address", wanted.address, fleet and fleets.host_of(fleet.agents)),
    ):
        if given is not None and given != there:
            raise UserError(
                f"{' '.join(filter(None, (option, str(given))))}: the cluster at {directory} has {there}; "
                f"{way}, or choose another --dir"
            )
    if fleet is None or asked is None:
        return known
    changed = [host.name for host in fleet.hosts if host not in asked.hosts]
    if changed:
        raise UserError(
            f"--hosts {wanted.hosts}: {', '.join(changed)} is missing, or differs from the cluster at {directory}: "
            "hosts can be added"
        )
    return replace(known, servers=len(asked.hosts), fleet=replace(fleet, hosts=asked.hosts))


def _changed(directory: Path, known: LocalCluster, wanted: Wanted) -> LocalCluster:
    """Return a stopped cluster of this machine with other options, after writing them to the daemons' configuration."""
    servers, offer = wanted.servers or known.servers, known.offer
    if wanted.gpus is not None or wanted.gpu_model is not None:
        offer = offers.plan(wanted.gpus, wanted.gpu_model, servers)
        servers = wanted.servers or max(servers, len(offer.models))
    elif (
        servers != known.servers or not offer.text
    ) and not offer.models:  # no text: the record was written by an older version
        offer = offers.plan(known.gpus, None, servers)
    policy = _policy(wanted.policy) if wanted.policy else known.policy
    cluster = replace(
        known, servers=servers, gpus=offer.slots, gpu_models=offer.models, offers=offer.text, policy=policy
    )
    if policy != known.policy:
        _set_option(directory / f"{CONTROLLER}.yaml", "policy", policy)
    if cluster.on_slots and not known.on_slots:
        _set_option(directory / f"{CONTROLLER}.yaml", "measuring", MEASURED_ON_SLOTS)
    if (offer.slots, offer.models) != (known.gpus, known.gpu_models):
        for position, name in enumerate(known.names[1:]):
            options = offer.options(directory, name, position)
            for option in offers.OPTIONS:
                _set_option(directory / f"{name}.yaml", option, options.get(option))
            (directory / name / "gpus.json").unlink(missing_ok=True)  # the agent would report the old GPUs as missing
    return cluster


def _set_option(path: Path, option: str, value: object) -> None:
    """Set an option in an existing configuration. The other options are kept, but no comments. None: remove the option.

    Raises UserError if the file is not a configuration.
    """
    if path.exists():
        document = load_yaml(path, UserError)
        if not isinstance(document, dict):
            raise UserError(f"{path}: is not a configuration any more: --purge makes a new one")
        changed = (
            {**document, option: value} if value is not None else {k: document[k] for k in document if k != option}
        )
        _write_whole(path, yaml.safe_dump(changed, sort_keys=False).encode())


def _policy(given: str) -> str:
    """Return the name of a policy, or the absolute path of a policy file."""
    is_file = "/" in given or given.endswith((".yaml", ".yml"))
    return str(Path(given).expanduser().absolute()) if is_file else given


def _lay_out(directory: Path, cluster: LocalCluster) -> None:
    """Write the daemons' configuration files that are missing: an operator's changes are kept."""
    (directory / "log").mkdir(exist_ok=True)
    _made_private(Path(cluster.controller.removeprefix("ipc://")).parent)
    fleet = cluster.fleet
    keys = _keys(directory)
    if fleet is not None and not keys.exists:
        keys.make()
    _configure(
        directory,
        CONTROLLER,
        cluster="local",
        state_directory=str(directory / CONTROLLER),
        listen_clients=cluster.controller if fleet is None else [cluster.controller, fleet.clients],
        listen_agents=cluster.agents if fleet is None else fleet.agents,
        policy=cluster.policy,
        **({"measuring": MEASURED_ON_SLOTS} if cluster.on_slots else {}),
    )
    for position, name in enumerate(cluster.names[1:]):
        _configure(
            directory,
            name,
            server=name,
            controller=cluster.agents,
            state_directory=str(directory / name),
            checkpoint_directory=str(directory / "checkpoints"),
            **({"allow_root_jobs": True} if os.getuid() == 0 else {}),  # root itself has asked for this cluster
            **cluster.offer.options(directory, name, position),
        )


def _keys(directory: Path) -> KeyDirectory:
    return KeyDirectory(directory / CONTROLLER / "keys")


def _configure(directory: Path, name: str, **options: str | int | list[str] | dict[str, bool]) -> None:
    path = directory / f"{name}.yaml"
    if not path.exists():
        _write_whole(path, yaml.safe_dump(options, sort_keys=False).encode())


def _sockets(directory: Path) -> Path:
    """Return the directory of the controller's sockets: in the cluster's own directory, or, if that path is too long,
    in one for this user.
    """
    within = directory / "run"
    if len(str(within / "clients").encode()) <= transport.MAX_PATH_BYTES:
        return within
    return transport.short_socket_directory(directory, Path("/tmp"), os.getuid())


def _made_private(sockets: Path) -> None:
    """Make the directory of the sockets private: its permissions decide which users may connect. Raises OperatorError
    if another user made it first.
    """
    if sockets.name != "run":
        private_directory(sockets.parent)
    check_way(private_directory(sockets))


def _start(directory: Path, name: str) -> subprocess.Popen[bytes]:
    module = "elasticd.controller" if name == CONTROLLER else "elasticd.agent"
    with log_of(directory, name).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, "--config", str(directory / f"{name}.yaml")],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _write(directory: Path, cluster: LocalCluster) -> None:
    _write_whole(directory / FILE, msgspec.json.format(msgspec.json.encode(cluster)))


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically, so that a kill at any time leaves either version whole."""
    temporary = path.with_name(TEMPORARY)
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _removed(directory: Path, cluster: LocalCluster, missing: list[str]) -> list[str]:
    """Return running agents of this machine with servers that have been removed: the controller accepts them again
    after a restart. Returns none where the controller does not run, or does not answer.
    """
    from .client import Client

    if CONTROLLER in missing or cluster.fleet is not None:
        return []
    client = Client(cluster.controller)
    try:
        known = {str(view.server.server) for view in client.servers().servers}
    except ElasticError:
        return []
    finally:
        client.close()
    return [name for name in cluster.names[1:] if name not in known and name not in missing]


def _wait_until_ready(directory: Path, cluster: LocalCluster, started: dict[str, subprocess.Popen[bytes]]) -> None:
    from .client import Client

    client = Client(cluster.controller)
    began, here, remarked = time.monotonic(), 0, False
    present: set[str] | None = None
    try:
        while (waited_s := time.monotonic() - began) < READY_WITHIN_S:
            if waited_s > SLOW_AFTER_S and not remarked:
                remarked = True
                say(f"elasticctl: still waiting: {_there(here, cluster)} after {waited_s:.0f} s")
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
        with contextlib.suppress(ElasticError):
            found = client.servers().servers
            present = {str(view.server.server) for view in found if view.state is not ServerState.LOST}
    finally:
        client.close()
    late = f"not ready within {READY_WITHIN_S:.0f} s: {_there(here, cluster)}"
    if cluster.fleet is not None and present is not None:
        raise RequestRefused(f"{late}\n{fleets.silent(cluster.fleet, present)}")
    raise RequestRefused(f"{late}; see {directory / 'log'}\n{_tail(directory, CONTROLLER)}")


def _there(here: int, cluster: LocalCluster) -> str:
    return f"{here} of {many(cluster.servers, 'server')} {'is' if here == 1 else 'are'} there"


def _tail(directory: Path, name: str) -> str:
    return "\n".join(tail(log_of(directory, name), TOLD_LINES))


def _take_back(
    directory: Path,
    cluster: LocalCluster,
    known: LocalCluster | None,
    started: dict[str, subprocess.Popen[bytes]],
    hosts: list[Host],
) -> None:
    """Undo a failed `up`: end the processes `started` here and on `hosts`; for a new cluster, remove all files."""
    if known is None:
        stop_everything(directory, cluster.daemons)
    for process in started.values():
        process.kill()
        process.wait()
    left = fleets.end(cluster.fleet, hosts) if cluster.fleet is not None else {}
    if left:  # the remaining processes stay on record, so that `down` finds them
        say(
            f"elasticctl: not ended on these hosts; `elasticctl down` when they can be reached:\n{fleets.reasons(left)}"
        )
    elif known is None:
        _remove(directory)
    else:
        _write(directory, replace(known, daemons=cluster.daemons))


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock: one `up` or `down` at a time. Raises UserError if the directory cannot be used."""
    waiting = Waiting(f"another `elasticctl up` or `down` at {directory}", LOCKED_FOR_S)
    try:
        while (descriptor := _lock(directory)) is None:
            waiting.pause()
    except OSError as error:
        raise UserError(f"--dir {directory}: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(directory: Path) -> int | None:
    """Return a descriptor that holds the lock, or None: another process has it, or has removed the directory meanwhile."""
    path = directory / ".lock"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _let_go(directory: Path) -> None:
    """Remove a directory that contains only the lock."""
    with contextlib.suppress(OSError):
        (directory / ".lock").unlink()
        directory.rmdir()


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
