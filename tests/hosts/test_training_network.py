"""The training network: listening sockets, and traffic on the cable with and without the documented tunnel.

The recipe is that of docs/training-network.md, with the keys filled in.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.campaign]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "training-network.md"
SCRIPT = Path(__file__).with_name("train_pattern.py")
READER = Path(__file__).with_name("cable.py")
ELASTICCTL = Path(sys.executable).with_name("elasticctl")
HOSTS = ("gpu1", "gpu2")
CABLE, TUNNEL = "10.78.0", "10.79.0"  # networks of the page
PATIENCE_S = 150.0
WATCHED_S = 3.0


def recipe(first_line: str) -> str:
    """The file on the page that begins with this comment."""
    (found,) = re.findall(rf"```\w*\n(# {re.escape(first_line)}.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


class Site:
    """Two hosts with a cluster, and a capture of every frame between them."""

    def __init__(self, lab: Any, shared: Path) -> None:
        self.lab, self.shared = lab, shared
        self._reader = lab.on_switch_keep(sys.executable, "-I", "-S", str(READER))
        self._jobs = 0

    def types(self, line: str, host: str = HOSTS[0], check: bool = True) -> str:
        done = self.lab[host].shell(f"export PATH={ELASTICCTL.parent}:$PATH; cd {self.shared}; {line}", check=check)
        return str(done.stdout)

    def up(self, network: str) -> None:
        lines = "".join(f"{name} slots=1 address={network}.{number}\n" for number, name in enumerate(HOSTS, 1))
        self.lab[HOSTS[0]].write("/root/hosts.txt", lines.encode())
        self.types("elasticctl up --hosts /root/hosts.txt")

    def submit(self, gpus: str, *arguments: str) -> tuple[str, Path]:
        """A job that tries to use the cable's interface, and the file that ends it."""
        self._jobs += 1
        go = self.shared / f"go{self._jobs}"
        command = f"{sys.executable} {SCRIPT} {go} {' '.join(arguments)}"
        env = "--env GLOO_SOCKET_IFNAME=eth1 --env NCCL_SOCKET_IFNAME==eth1"
        said = self.types(f"elasticctl submit --name pattern --gpus {gpus} {env} -- {command}")
        return said.split()[0], go

    def until(self, job: str, what: str, holds: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(view := json.loads(self.types(f"elasticctl status {job} --json"))):
            seen = self.types(f"elasticctl logs {job}; elasticctl events", check=False)
            assert time.monotonic() < deadline, f"{job}: {what} does not come: {view}\n{seen}"
            time.sleep(0.3)

    def passed(self) -> dict[str, int]:
        """Kinds of traffic on the cables since the last call, with their number of frames."""
        self._reader.stdin.write(b"\n")
        self._reader.stdin.flush()
        found: dict[str, int] = json.loads(self._reader.stdout.readline())
        return found

    def trained_on_both(self) -> tuple[dict[str, int], dict[str, set[str]]]:
        """Traffic while an elastic job gets its second worker and trains; addresses on which each host's workers listen."""
        before = {name: self.listening(name) for name in HOSTS}
        self.passed()
        job, go = self.submit("1:2")
        self.until(job, "two workers that train", lambda view: [
            worker["phase"] for worker in view["workers"]] == ["training", "training"])  # fmt: skip
        time.sleep(WATCHED_S)
        passed = self.passed()
        new = {name: self.listening(name) - before[name] for name in HOSTS}
        go.touch()
        self.until(job, "its end", lambda view: view["phase"] == "finished")
        return passed, {name: {address for address, _ in found} for name, found in new.items()}

    def listening(self, host: str) -> set[tuple[str, int]]:
        """TCP and UDP sockets that other hosts can reach: address, port."""
        lines = self.types("ss -Hltun", host).splitlines()
        return {(address, int(port)) for address, _, port in (line.split()[4].rpartition(":") for line in lines)}


def between(passed: dict[str, int], network: str) -> set[str]:
    """Protocols, with ports on both sides, of the traffic between addresses of a network."""
    found = set()
    for each in passed:
        kind, _, ends = each.partition(" ")
        if ends and all(end.startswith(network) for end in ends.split()):
            found.add(kind if kind == "tcp" else f"{kind} {' '.join(end.rpartition(':')[2] for end in ends.split())}")
    return found


@pytest.fixture
def site(make_lab: Callable[..., Any], tmp_path: Path) -> Iterator[Site]:
    made = Site(make_lab(*HOSTS, ssh=True), tmp_path / "shared")
    yield made
    made.types("elasticctl down --purge --yes", check=False)


def test_without_a_tunnel_training_is_read_from_the_cable_and_workers_listen_on_their_address_alone(site: Site) -> None:
    site.up(CABLE)
    passed, listening = site.trained_on_both()
    assert passed["parameter"] > 0
    assert passed["gradient"] > 0
    assert listening == {"gpu1": {f"{CABLE}.1"}, "gpu2": {f"{CABLE}.2"}}


def test_through_the_tunnel_of_the_recipe_nothing_is_read_and_its_firewall_holds_against_a_job(site: Site) -> None:
    done = subprocess.run([ROOT / "scripts/need-wireguard"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    dig(site)
    site.up(TUNNEL)

    passed, listening = site.trained_on_both()
    assert not {"parameter", "gradient"} & set(passed)
    assert between(passed, CABLE) == {"udp 51820 51820"}
    assert listening == {"gpu1": {f"{TUNNEL}.1"}, "gpu2": {f"{TUNNEL}.2"}}

    job, go = site.submit("2", "--plain")
    deadline = time.monotonic() + PATIENCE_S
    while not (passed := site.passed()).get("gradient"):  # its `env` has led it out of the tunnel
        assert time.monotonic() < deadline, site.types(f"elasticctl logs {job}", check=False)
        time.sleep(0.3)
    assert "tcp" in between(passed, CABLE)
    go.touch()
    site.until(job, "its end", lambda view: view["phase"] == "finished")

    for name in HOSTS:
        site.lab[name].write("/etc/training.nft", recipe("/etc/nftables.conf").encode())
        site.lab[name].shell("nft -f /etc/training.nft")
    site.passed()
    job, _ = site.submit("2", "--plain")
    site.until(job, "a failure of its", lambda view: view["restarts"] > 0)
    assert "Connect timeout" in site.types("elasticctl events")
    assert not {"parameter", "gradient"} & set(site.passed())
    site.types(f"elasticctl cancel {job}")
    site.passed()
    passed, _ = site.trained_on_both()
    assert not {"parameter", "gradient"} & set(passed)
    assert between(passed, CABLE) == {"udp 51820 51820"}


def dig(site: Site) -> None:
    """Set up WireGuard on both hosts as the page says."""
    keys = {}
    for name in HOSTS:
        host = site.lab[name]
        host.shell("mkdir -p /dev/net /etc/wireguard; test -e /dev/net/tun || mknod /dev/net/tun c 10 200")
        host.shell("umask 077; wg genkey > /etc/wireguard/key")
        keys[name] = host.shell("cat /etc/wireguard/key; wg pubkey < /etc/wireguard/key").stdout.split()
    for name, other in zip(HOSTS, reversed(HOSTS), strict=True):
        text = recipe("/etc/wireguard/wg0.conf")
        if name == HOSTS[1]:  # the page shows the first host's
            text = re.sub(r"\.([12])\b", lambda found: f".{3 - int(found[1])}", text)
        text = re.sub(r"PRIVATE_KEY\w+", keys[name][0], text)
        text = re.sub(r"PUBLIC_KEY\w+", keys[other][1], text)
        site.lab[name].write("/etc/wireguard/wg0.conf", text.encode(), 0o600)
        site.lab[name].shell("wg-quick up wg0")
