"""A cluster with three controllers on etcd, as real processes.

The connections from each controller to etcd, and from the agents to each controller, can be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from elasticd.controller.election.records import LEADING_KEY
from elasticd.controller.records import LEADER_KEY, LeaderRecord
from elasticd.controller.store.interface import StoreUnavailable
from elasticd.ctl.client import Client
from elasticd.protocol.errors import ClusterUnreachable, RequestRefused
from elasticd.protocol.messages import Controllers, GetControllers

from ..etcds import Etcd
from .conftest import Cluster
from .forwarders import Forwarder

CONTROLLERS = ("c1", "c2", "c3")


class Several(Cluster):
    """`kill` and `start` one by name: "c1", "c2", "c3", "s1", "s2", ..."""

    def __init__(
        self,
        directory: Path,
        members: int = 1,
        servers: int = 2,
        slots: int = 2,
        server_lease_s: float = 60.0,
        etcd_options: tuple[str, ...] = (),
        **options: object,
    ) -> None:
        self.directory = directory
        self.sockets = Path("/tmp") / f"elasticd-test-{os.getpid()}-{directory.name[-6:]}"
        self.sockets.mkdir(mode=0o700)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"s{number + 1}" for number in range(servers)]
        (directory / "etcd").mkdir()
        self.etcd = Etcd(directory / "etcd", size=members, options=etcd_options)
        self.store = self.etcd.store("/elasticctl/test")
        self.to_etcd: dict[str, list[Forwarder]] = {}
        self.to_controller: dict[str, Forwarder] = {}
        for name in CONTROLLERS:
            self._lay_out_controller(name, server_lease_s, options)
        for name in self.names:
            self.write(name, server=name, controller=[f"ipc://{self.sockets}/to-{each}" for each in CONTROLLERS],
                       state_directory=str(directory / name), socket_directory=str(self.sockets / name),
                       cpu_slots=slots, allow_root_jobs=True, checkpoint_directory=str(directory / "checkpoints"))  # fmt: skip
        self.address = ",".join(self.clients_of(name) for name in CONTROLLERS)
        self.client = Client(self.address)

    def begin(self) -> None:
        """Start all, and wait until they know each other."""
        for name in (*CONTROLLERS, *self.names):
            self.start(name)
        self.until("all servers are there", self.there)

    def there(self) -> bool:
        """Does one lead, and know all servers?"""
        try:
            return self.all_there()
        except (ClusterUnreachable, RequestRefused):
            return False

    def _lay_out_controller(self, name: str, server_lease_s: float, options: dict[str, object]) -> None:
        ways = [Forwarder(("127.0.0.1", 0), ("127.0.0.1", member.client_port)) for member in self.etcd.members]
        self.to_etcd[name] = ways
        agents = f"{self.sockets}/{name}-agents"
        self.to_controller[name] = Forwarder(f"{self.sockets}/to-{name}", agents)
        self.write(name, cluster="test", name=name, state_directory=str(self.directory / name),
                   keys_directory=str(self.directory / "keys"),
                   listen_clients=self.clients_of(name), listen_agents=f"ipc://{agents}", server_lease_s=server_lease_s,
                   measuring={"way_down": False},
                   store="etcd", etcd={"endpoints": [f"127.0.0.1:{way.address[1]}" for way in ways], "insecure": True},
                   **options)  # fmt: skip

    def clients_of(self, name: str) -> str:
        return f"ipc://{self.sockets}/{name}-clients"

    def start(self, name: str) -> None:
        module = "elasticd.controller" if name in CONTROLLERS else "elasticd.agent"
        with (self.directory / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", module, "--config", str(self.directory / f"{name}.yaml")]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def cut_from_etcd(self, name: str) -> None:
        for way in self.to_etcd[name]:
            way.cut()

    def mend_to_etcd(self, name: str) -> None:
        for way in self.to_etcd[name]:
            way.mend()

    # -- who leads

    def recorded(self) -> LeaderRecord | None:
        """The present reign in the store; None: nobody leads, or the store does not answer."""
        try:
            if self.store.get(LEADING_KEY) is None:
                return None
            found = self.store.get(LEADER_KEY)
        except StoreUnavailable:
            return None
        return msgspec.msgpack.decode(found.value, type=LeaderRecord) if found is not None else None

    def leader(self) -> LeaderRecord:
        """Wait until one leads."""
        return self.until("a controller leads", self.recorded)

    def next_leader(self, after: int) -> LeaderRecord:
        """Wait until one leads with a higher term."""

        def probe() -> LeaderRecord | None:
            found = self.recorded()
            return found if found is not None and found.term > after else None

        return self.until(f"a controller leads after term {after}", probe)

    def told_by(self, name: str) -> Controllers:
        """Which controllers there are, according to this one."""
        client = Client(self.clients_of(name))
        try:
            answer = client.ask(GetControllers(), timeout_s=60.0)
        finally:
            client.close()
        assert isinstance(answer, Controllers)
        return answer

    def log_of(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
        super().close()
        for ways in (*self.to_etcd.values(), self.to_controller.values()):
            for way in ways:
                way.close()
        self.store.close()
        self.etcd.close()
