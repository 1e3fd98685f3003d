"""Cluster under fault injection: real daemons on the hosts of a lab.

Each host has a disk (a directory that outlasts its host), an agent with CPU slots, and possibly a controller. With several
controllers, each one's host also has a member of etcd. Agents reach controllers, and controllers etcd, over the first network;
workers reach each other over the second one. Checkpoints and results are in a directory that all hosts share, which stands for a
file server. The harness itself uses a Unix socket of each controller in that directory, so its network faults do not affect it.

The harness also stands for systemd: it restarts a daemon that was killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import yaml

from elasticd.ctl.client import Client
from elasticd.protocol.errors import ElasticError
from elasticd.protocol.messages import Answer, Ping, Pong, Request
from elasticd.runtime.keys import KeyDirectory

from ..hosts.lab import Host, Lab
from ..hosts.links import Links

AGENTS_PORT = 7701
CLIENTS_OF_ETCD, PEERS_OF_ETCD = 2379, 2380  # ports
TRAIN = Path(__file__).with_name("train.py")
READY_WITHIN_S = 600.0


class What(Enum):
    """Kind of a process on a host."""

    CONTROLLER = "controller"
    AGENT = "agent"
    MEMBER = "etcd"
    SHIM = "shim"
    WORKER = "worker"


@dataclass(frozen=True)
class Found:
    what: What
    pid: int
    command: tuple[str, ...]


class Cluster:
    """controllers: the hosts with one, in order; several keep their store in etcd. All hosts have an agent.

    versions: daemons of another version, with the directory of its package (for PYTHONPATH); may be changed.
    """

    def __init__(
        self, lab: Lab, links: Links, directory: Path, controllers: Sequence[str], slots: int, lease_s: float,
        versions: Mapping[tuple[What, str], Path] | None = None,
    ) -> None:  # fmt: skip
        self.lab = lab
        self.links = links
        self.directory = directory
        self.controllers = tuple(controllers)
        self.members = self.controllers if len(self.controllers) > 1 else ()
        self.versions = dict(versions or {})
        self.gone: set[str] = set()  # hosts that are off
        keys = KeyDirectory(directory / "keys")
        keys.make()
        for name in lab.hosts:
            keys.add(f"server:{name}", "", self.directory / f"{name}.key")
            (self.disk(name)).mkdir(parents=True)
        for name in self.controllers:
            self._write(f"controller-{name}", self._controller(name, lease_s))
        for name in lab.hosts:
            self._write(f"agent-{name}", self._agent(name, slots))

    def _controller(self, name: str, lease_s: float) -> dict[str, object]:
        members = [f"{self.lab.address(member)}:{CLIENTS_OF_ETCD}" for member in self.members]
        return {
            **({"name": name, "store": "etcd", "etcd": {"endpoints": members, "insecure": True}} if members else {}),
            "cluster": "soak",
            "state_directory": str(self.disk(name) / "controller"),
            "keys_directory": str(self.directory / "keys"),
            "listen_clients": f"ipc://{self._socket(name)}",
            "listen_agents": f"tcp://{self.lab.address(name)}:{AGENTS_PORT}",
            "server_lease_s": lease_s,
            "measuring": {"way_down": False},
        }

    def _agent(self, name: str, slots: int) -> dict[str, object]:
        addresses = [f"tcp://{self.lab.address(each)}:{AGENTS_PORT}" for each in self.controllers]
        return {
            "server": name,
            "controller": addresses[0] if len(addresses) == 1 else addresses,
            "key_file": str(self.directory / f"{name}.key"),
            "address": self.lab.address(name, 1),
            "state_directory": str(self.disk(name) / "agent"),
            "socket_directory": "/run/elasticctl",
            "checkpoint_directory": str(self.directory / "checkpoints"),
            "scratch_directory": "/var/tmp/elasticctl",
            "cpu_slots": slots,
            "allow_root_jobs": True,
        }

    def disk(self, name: str) -> Path:
        return self.directory / "disks" / name

    def _socket(self, name: str) -> Path:
        return self.directory / f"ask-{name}"

    def _write(self, name: str, options: dict[str, object]) -> None:
        (self.directory / f"{name}.yaml").write_text(yaml.safe_dump(options))

    # -- processes

    def start(self, what: What, name: str) -> None:
        """Start a daemon on a host, unless it runs."""
        if name in self.gone or any(found.what is what for found in self.processes(name)):
            return
        module = f"elasticd.{what.value}"
        config = self.directory / f"{what.value}-{name}.yaml"
        log = self.directory / f"{what.value}-{name}.log"
        if what is What.MEMBER:
            self.lab[name].start(*self._etcd(name), log=self.directory / f"etcd-{name}.log")
            return
        source = self.versions.get((what, name))
        variables = {} if source is None else {"PYTHONPATH": str(source)}
        self.lab[name].start(sys.executable, "-m", module, "--config", str(config), log=log, variables=variables)

    def open(self) -> None:
        """Start all daemons."""
        for name in self.lab.hosts:
            self.start_all(name)

    def start_all(self, name: str) -> None:
        """Start the daemons of a host that do not run."""
        if name in self.members:
            self.start(What.MEMBER, name)
        if name in self.controllers:
            self.start(What.CONTROLLER, name)
        self.start(What.AGENT, name)

    def _etcd(self, name: str) -> list[str]:
        """Return the command of a member of etcd. It need not sync: no fault here loses data that the kernel has accepted."""
        here = self.lab.address(name)
        clients, peers = f"http://{here}:{CLIENTS_OF_ETCD}", f"http://{here}:{PEERS_OF_ETCD}"
        all_peers = ",".join(f"{each}=http://{self.lab.address(each)}:{PEERS_OF_ETCD}" for each in self.members)
        return [
            "etcd", "--name", name, "--data-dir", str(self.disk(name) / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", clients, "--advertise-client-urls", clients,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", all_peers, "--initial-cluster-state", "new", "--logger", "zap",
        ]  # fmt: skip

    def boot(self, name: str, keeps_disk: bool) -> None:
        """Boot a host that was switched off. Without its disk it is a reinstalled server, with its old key."""
        if not keeps_disk and name not in self.controllers:
            shutil.rmtree(self.disk(name))
            self.disk(name).mkdir()
        self.lab.add(name)
        self.links.booted(name)
        self.gone.discard(name)
        self.start_all(name)

    def switch_off(self, name: str) -> None:
        self.gone.add(name)
        self.lab[name].kill()

    def processes(self, name: str) -> list[Found]:
        """Return this project's processes on a host, by their numbers on this machine."""
        return list(_ours(self.lab[name])) if name not in self.gone else []

    # -- questions

    def desk(self) -> Desk:
        return Desk([f"ipc://{self._socket(name)}" for name in self.controllers])


class Desk:
    """Client of whichever controller answers. For one thread."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._client = Client(",".join(addresses))

    def ask(self, request: Request, timeout_s: float = 1.0) -> Answer | None:
        """Return the answer; None if no controller answers, or the request is refused."""
        try:
            return self._client.ask(request, timeout_s=timeout_s)
        except ElasticError:
            return None

    def close(self) -> None:
        self._client.close()


def all_there(desk: Desk, servers: int) -> bool:
    answer = desk.ask(Ping())
    return isinstance(answer, Pong) and answer.servers == servers


def wait_for(probe: Callable[[], bool], limit_s: float, every_s: float = 0.2) -> bool:
    deadline = time.monotonic() + limit_s
    while not probe():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def signal_process(pid: int, number: signal.Signals) -> bool:
    """Send a signal. Returns False if there is no such process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _ours(host: Host) -> Iterator[Found]:
    for pid in host.processes():
        try:
            command = tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and (what := _what(command)) is not None:
            yield Found(what, pid, command)


def _what(command: tuple[str, ...]) -> What | None:
    if any(word.endswith("agent/shim.py") for word in command):
        return What.SHIM
    if str(TRAIN) in command:
        return What.WORKER
    if command[:1] == ("etcd",):
        return What.MEMBER
    if "elasticd.controller" in command:
        return What.CONTROLLER
    return What.AGENT if "elasticd.agent" in command else None
