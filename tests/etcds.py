"""Real etcd clusters on loopback, which tests start, kill, stop and restart."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from elasticd.controller.store.etcd import EtcdStore
from elasticd.controller.store.etcd_connection import Access, Connection, Endpoint
from elasticd.controller.store.interface import StoreUnavailable
from verification.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 120.0
CALL_TIMEOUT_S = 30.0  # generous, since the machine is loaded; tests of timeouts set their own
USER, PASSWORD = "elasticctl", "a pass word"


def needed() -> None:
    """Skip the test without etcd, if none can be installed."""
    done = subprocess.run([ROOT / "scripts/need-etcd"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr.strip() or "etcd could not be installed")
    if importlib.util.find_spec("etcd3") is None:
        pytest.skip("etcd3 is not installed: pip install 'elasticctl[etcd]'")


@dataclass
class Member:
    """One etcd process."""

    name: str
    directory: Path
    client_port: int
    command: list[str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def start(self) -> None:
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.directory)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Etcd:
    """A cluster of `size` members. `tls`: with certificates, and users with passwords; `certificates`: clients authenticate by
    these.
    """

    directory: Path
    size: int = 1
    tls: bool = False
    certificates: bool = False
    made: bool = False  # the certificates are there already
    options: tuple[str, ...] = ()
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports = [free_port() for _ in range(2 * self.size)]
        encrypted = self.tls or self.certificates
        scheme = "https" if encrypted else "http"
        if encrypted and not self.made:
            _make_certificates(self.directory)
        peers = ",".join(f"m{number}=http://127.0.0.1:{ports[2 * number + 1]}" for number in range(self.size))
        for number in range(self.size):
            clients, peer = f"{scheme}://127.0.0.1:{ports[2 * number]}", f"http://127.0.0.1:{ports[2 * number + 1]}"
            command = [
                "etcd", "--name", f"m{number}", "--data-dir", str(self.directory / f"m{number}"),
                "--listen-client-urls", clients, "--advertise-client-urls", clients,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", peers, "--initial-cluster-state", "new", "--logger", "zap", *self.options,
            ]  # fmt: skip
            if encrypted:
                command += ["--cert-file", "member.pem", "--key-file", "member.key", "--bcrypt-cost", "4"]
            if self.certificates:
                command += ["--client-cert-auth", "--trusted-ca-file", "ca.pem"]
            self.members.append(Member(f"m{number}", self.directory, ports[2 * number], command))
        for member in self.members:
            member.start()
        if self.tls:
            self._enable_passwords()
        self.wait()

    def access(self, **changes: Any) -> Access:
        options: dict[str, Any] = {
            "endpoints": tuple(member.endpoint for member in self.members),
            "timeout_s": CALL_TIMEOUT_S,
            "insecure": not (self.tls or self.certificates),
        }
        if self.certificates:
            files = {"ca": "ca.pem", "cert": "member.pem", "key": "member.key"}
            options |= {name: self.directory / file for name, file in files.items()}
        elif self.tls:
            options |= {"ca": self.directory / "ca.pem", "user": USER, "password": PASSWORD}
        return Access(**options | changes)

    def store(self, root: str, seals: Any = None, **changes: Any) -> EtcdStore:
        """A store that has not written yet."""
        return EtcdStore(self.access(**changes), root, seals=seals)

    def wait(self) -> None:
        """Wait until the cluster accepts writes."""
        with closing(self.store("/ready", timeout_s=1.0)) as store:
            self._until(store.begin, StoreUnavailable)

    def _until(self, attempt: Callable[[], object], refused: type[Exception] | tuple[type[Exception], ...]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                attempt()
                return
            except refused as error:
                if time.monotonic() > until_s:
                    raise AssertionError(f"{error}\n{self.log()}") from None
            time.sleep(0.05)

    def leader(self) -> Member:
        """The leading one of the running members."""
        grpc = pytest.importorskip("grpc")
        found: list[Member] = []

        def look() -> None:
            for member in self.members:
                if member.process is None:
                    continue
                with closing(Endpoint(member.endpoint, self.access())) as at:
                    stub: Any = at._client.maintenancestub
                    status = stub.Status(at._rpc.StatusRequest(), timeout=CALL_TIMEOUT_S)
                    if status.leader == status.header.member_id:
                        found.append(member)
                        return
            raise LookupError("no member leads")

        self._until(look, (LookupError, grpc.RpcError))
        return found[0]

    def _enable_passwords(self) -> None:
        connection = Connection(self.access(user="", password=""))
        rpc = connection.rpc
        auth: Any = rpc.AuthStub(connection.endpoint._client.channel)
        root = rpc.AuthUserAddRequest(name="root", password="root's")
        self._until(lambda: auth.UserAdd(root, timeout=1.0), connection.error)
        auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        auth.UserAdd(rpc.AuthUserAddRequest(name=USER, password=PASSWORD))
        auth.RoleAdd(rpc.AuthRoleAddRequest(name="cluster"))
        for prefix in (b"/ready/", b"/elasticctl/"):
            permission = {"permType": 2, "key": prefix, "range_end": prefix[:-1] + b"0"}
            auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="cluster", perm=permission))
        auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=USER, role="cluster"))
        auth.AuthEnable(rpc.AuthEnableRequest())
        connection.close()

    def log(self) -> str:
        return "".join((self.directory / f"{m.name}.log").read_text()[-4000:] for m in self.members)

    def close(self) -> None:
        for member in self.members:
            if member.process is not None:
                member.signal(signal.SIGCONT)
            member.kill()


def _make_certificates(directory: Path) -> None:
    """ca.pem, and member.pem with member.key for 127.0.0.1."""
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for command in (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=ca -keyout ca.key -out ca.pem",
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=member -keyout member.key -out member.csr",
        "x509 -req -in member.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out member.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=directory, check=True, capture_output=True)
