"""`elasticctl store certs`: the printed lines are run unchanged, on two machines with etcd and one without."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.campaign]

ROOT = Path(__file__).resolve().parents[2]
ELASTICCTL = Path(sys.executable).with_name("elasticctl")
PATIENCE_S = 120.0
MEMBERS = ("c1", "c2")
AT = "/etc/elasticctl/etcd"
CONTROLLER = """
import sys
from contextlib import closing
from pathlib import Path
from elasticd.controller.store.etcd import EtcdStore
from elasticd.controller.store.etcd_connection import Access
from elasticd.controller.store.interface import Put
at = Path("/etc/elasticctl/etcd")
root, *endpoints = sys.argv[1:]
access = Access(
    endpoints=tuple(endpoints), timeout_s=10.0, insecure=False,
    ca=at / "ca.pem", cert=at / "client.pem", key=at / "client.key",
)
with closing(EtcdStore(access, root)) as store:
    store.begin()
    assert store.commit((), (Put("/a", b"1"),)) is not None
    lease = store.grant(5.0)
    store.revoke(lease.id)
    assert store.get("/a") is not None
print("all of it")
"""
REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


class Machines:
    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.addresses = {name: lab.address(name) for name in MEMBERS}
        members = " ".join(f"--member {name}={address}" for name, address in self.addresses.items())
        line = f"{ELASTICCTL} store certs /root/etcd --cluster lab {members}"
        self.printed = [each.strip() for each in lab["c1"].shell(line).stdout.splitlines()]
        self.made = {name: self.file(f"/root/etcd/{name}") for name in lab["c1"].shell("ls /root/etcd").stdout.split()}

    def file(self, path: str) -> bytes:
        return str(self.lab["c1"].shell(f"cat {path}").stdout).encode()

    def start(self) -> None:
        """Start etcd on both, with the options that were printed for each."""
        (for_clients,) = [each for each in self.printed if each.startswith("--cert-file")]
        (for_peers,) = [each for each in self.printed if each.startswith("--peer-cert-file")]
        peers = ",".join(f"{name}=https://{address}:2380" for name, address in self.addresses.items())
        for name, address in self.addresses.items():
            host = self.lab[name]
            host.shell(f"install -d -m 700 /etc/etcd {AT}")
            for target, source in (
                ("/etc/etcd/ca.pem", "ca.pem"), ("/etc/etcd/member.pem", f"member-{name}.pem"),
                ("/etc/etcd/member.key", f"member-{name}.key"), (f"{AT}/ca.pem", "ca.pem"),
                (f"{AT}/client.pem", f"client-{name}.pem"), (f"{AT}/client.key", f"client-{name}.key"),
            ):  # fmt: skip
                host.write(target, self.made[source], 0o600)
            (own,) = [each for each in self.printed if each.startswith(f"{name}: --listen-client-urls")]
            options = f"{for_clients} {for_peers} {own.removeprefix(f'{name}: ')}"
            options += f" --name {name} --data-dir /var/lib/etcd-lab --listen-peer-urls https://{address}:2380"
            options += f" --initial-advertise-peer-urls https://{address}:2380 --initial-cluster {peers} --logger zap"
            host.start("etcd", *shlex.split(options), log=Path(f"/tmp/etcd-{name}-{id(self)}.log"))

    def lines(self, *words: str) -> str:
        """The printed commands that begin with these words."""
        return "\n".join(each for each in self.printed if each.startswith(words))

    def etcdctl(self, line: str, client: str = "root") -> subprocess.CompletedProcess[str]:
        exports = self.lines("export").replace("client-root", f"client-{client}")
        done: subprocess.CompletedProcess[str] = self.lab["c1"].shell(f"{exports}\n{line}", check=False)
        return done

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, what
            time.sleep(0.3)


@pytest.fixture
def machines(make_lab: Callable[..., Any]) -> Machines:
    done = subprocess.run(
        [ROOT / "scripts/need-etcd", "etcdctl:etcd-client", "nft:nftables"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return Machines(make_lab(*MEMBERS, "other"))


def test_the_printed_lines_let_each_controller_do_what_it_needs_and_nobody_else(machines: Machines) -> None:
    machines.start()
    machines.until("etcd answers", lambda: machines.etcdctl("etcdctl endpoint health").returncode == 0)
    typed = machines.etcdctl("set -e\n" + machines.lines("etcdctl"))
    assert typed.returncode == 0, typed.stderr

    endpoints = " ".join(f"{address}:2379" for address in machines.addresses.values())

    def controller(name: str, root: str) -> Any:
        line = shlex.join([sys.executable, "-c", CONTROLLER, root, *endpoints.split()])
        return machines.lab[name].shell(line, check=False)

    for name in MEMBERS:
        assert controller(name, "/elasticctl/lab").stdout == "all of it\n"
        assert "may not" in controller(name, "/elasticctl/other").stderr
    assert "permission denied" in machines.etcdctl("etcdctl user list", client="c1").stderr
    assert "permission denied" in machines.etcdctl("etcdctl get /other", client="c1").stderr
    without = machines.lab["other"]
    without.write("/root/ca.pem", machines.made["ca.pem"])
    first = machines.addresses["c1"]
    nobody = f"ETCDCTL_API=3 etcdctl --endpoints https://{first}:2379 --cacert /root/ca.pem get --prefix /"
    assert without.shell(nobody, check=False).returncode != 0
    unknown = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=c1 -keyout k.pem -out c.pem 2>/dev/null"
    assert without.shell(f"{unknown}; {nobody} --cert c.pem --key k.pem", check=False).returncode != 0
    # A certificate of the same authority that names no user: TLS accepts it, etcd does not.
    member = f"{nobody} --cert m.pem --key m.key"
    for suffix in ("pem", "key"):
        without.write(f"/root/m.{suffix}", machines.made[f"member-c2.{suffix}"])
    assert "permission denied" in without.shell(member, check=False).stderr

    def reached(port: int) -> bool:
        return bool(without.shell(f"{sys.executable} -c '{REACH}' {first} {port}", check=False).returncode == 0)

    assert reached(2379)
    assert reached(2380)
    for name in MEMBERS:
        machines.lab[name].shell("set -e\n" + machines.lines("nft add"))
        machines.lab[name].shell(machines.lines("nft list").partition(" && ")[0])  # systemd does not run here
        machines.lab[name].shell("nft -f /etc/nftables.conf")  # as after a boot
    assert not reached(2379)
    assert not reached(2380)
    for name in MEMBERS:
        assert controller(name, "/elasticctl/lab").stdout == "all of it\n"
    assert machines.etcdctl("etcdctl endpoint health").returncode == 0
