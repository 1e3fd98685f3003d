"""`elasticctl doctor` on three hosts with stand-ins for GPUs: it names each fault that the test brings about."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticd.ctl.standins import library

pytestmark = pytest.mark.cluster
ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))
PATIENCE_S = 120.0
HOSTS = ("gpu1", "gpu2", "gpu3")
MODELS = {"gpu1": "a100", "gpu2": "v100", "gpu3": "gtx1080"}
STAND_IN = "/usr/local/share/elasticctl-nvml"


class Room:
    """A cluster of three hosts: the controller on gpu1, an agent on each; checkpoints in /data, which all share."""

    def __init__(self, lab: Any, shared: Path, built: Path) -> None:
        self.lab = lab
        self.shared = shared
        self.logs = shared / "logs"
        self.logs.mkdir()
        self.address = lab.address("gpu1")
        first = lab["gpu1"]
        first.shell("mkdir -p /etc/elasticctl /var/lib/elasticctl")
        self.keys("init")
        self.configure(
            "gpu1",
            "controller",
            cluster="lab",
            listen_clients=["ipc:///run/elasticctl/clients", f"tcp://{self.address}:7700"],
            listen_agents=f"tcp://{self.address}:7701",
            keys_directory="/etc/elasticctl/keys",
        )
        first.shell("mkdir -m 711 /run/elasticctl")
        self.start("gpu1", "controller")
        for name in HOSTS:
            self.keys(f"add server:{name} --address tcp://gpu1:7701 --out /root/{name}.key")
            key = first.shell(f"cat /root/{name}.key").stdout.encode()
            lab[name].shell(
                f"mkdir -p /etc/elasticctl /var/lib/elasticctl {STAND_IN}; mount -t tmpfs -o mode=755 t /var/lib"
            )
            lab[name].write("/etc/elasticctl/server.key", key, 0o600)
            lab[name].write(f"{STAND_IN}/libnvidia-ml.so.1", built.read_bytes(), 0o755)
            lab[name].write(f"{STAND_IN}/server.txt", library.description(MODELS[name]).encode())
            self.configure(name, "agent", **self.options(name))
            self.start(name, "agent")

    def options(self, name: str, **changes: object) -> dict[str, object]:
        given: dict[str, object] = {
            "server": name,
            "key_file": "/etc/elasticctl/server.key",
            "address": self.lab.address(name),
            "checkpoint_directory": f"{self.shared}/checkpoints",
            "nvml_library": f"{STAND_IN}/libnvidia-ml.so.1",
            "worker_device": "cpu",
            "warm_start": False,
        }
        return {**given, **changes}

    def keys(self, line: str) -> None:
        self.lab["gpu1"].shell(f"{ELASTICCTL} keys {line}")

    def configure(self, host: str, kind: str, **options: object) -> None:
        self.lab[host].write(f"/etc/elasticctl/{kind}.yaml", yaml.safe_dump(options).encode())

    def start(self, host: str, kind: str) -> None:
        line = [sys.executable, "-m", f"elasticd.{kind}", "--config", f"/etc/elasticctl/{kind}.yaml"]
        self.lab[host].start(*line, log=self.logs / f"{host}.{kind}.log")

    def stop(self, host: str, kind: str) -> None:
        self.lab[host].shell(
            f"pkill -f elasticd.{kind}; while pgrep -f elasticd.{kind}; do sleep 0.05; done", check=False
        )

    def doctor(self, host: str, *only: str, user: str = "root", options: str = "") -> dict[str, tuple[str, str]]:
        """Findings by subject and name."""
        names = " ".join(f"--only {name}" for name in only)
        done = self.lab[host].shell(f"{ELASTICCTL} {options} doctor --json {names}", user=user, check=False)
        found = json.loads(done.stdout)
        assert done.returncode == bool(found["failures"]), done.stderr
        return {f"{each['subject']} {each['name']}": (each["outcome"], each["found"]) for each in found["checks"]}

    def until(self, host: str, check: str, words: str, **given: Any) -> None:
        """Run a check until it reports this."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in str(found := self.doctor(host, check.split(" ")[1], **given)[check]):
            logs = "\n".join(f"{log.name}: {log.read_text()[-600:]}" for log in sorted(self.logs.iterdir()))
            assert time.monotonic() < deadline, f"{check} does not say {words!r} but {found}\n{logs}"
            time.sleep(0.5)


@pytest.fixture
def room(make_lab: Callable[..., Any], tmp_path: Path) -> Room:
    built = library.build(tmp_path)
    return Room(make_lab(*HOSTS, users=("alice",)), tmp_path / "shared", built)


def test_each_thing_that_is_broken_on_three_hosts_is_named(room: Room) -> None:
    lab = room.lab
    room.until("gpu1", "desk servers", "3 of 3 are alive", options="--controller ipc:///run/elasticctl/clients")
    here = "--controller ipc:///run/elasticctl/clients"

    healthy = room.doctor("gpu2")
    for name in ("configuration", "daemon", "key", "controller", "address", "checkpoints", "nvml", "open-files"):
        assert healthy[f"server {name}"][0] == "ok", (name, healthy[f"server {name}"])
    assert "8x" in healthy["server nvml"][1]
    first = room.doctor("gpu1", options=here)
    assert f"tcp://{room.address}:7701, held by the controller" in first["controller listening"][1]
    assert "3 servers" in first["controller keys"][1]
    assert "3 servers see the same" in first["desk shared-directory"][1]
    assert first["desk server-clocks"][0] == "ok"

    # checks of a user's machine
    room.keys("add user:alice --address tcp://gpu1:7700 --out /root/alice.key")
    key = lab["gpu1"].shell("cat /root/alice.key").stdout.encode()
    lab["gpu3"].write("/home/alice/my.key", key, 0o600, "alice")
    lab["gpu3"].shell(f"{ELASTICCTL} login my.key", user="alice")
    alice = room.doctor("gpu3", user="alice")
    assert (alice["desk key"][0], alice["desk controller"][0], alice["desk servers"][0]) == ("ok", "ok", "ok")
    assert alice["server key"] == ("not applicable", "root sees this")

    # checkpoints on a disk of its own, a GPU that falls off the bus, an address of another host
    room.stop("gpu3", "agent")
    room.configure("gpu3", "agent", **room.options("gpu3", checkpoint_directory="/var/lib/mine"))
    lab["gpu3"].shell("mkdir /var/lib/mine")
    room.start("gpu3", "agent")
    room.until("gpu1", "desk shared-directory", "gpu1, gpu2: ", options=here)
    found = room.doctor("gpu1", "shared-directory", options=here)["desk shared-directory"]
    assert found[0] in ("failure", "warning")
    assert "gpu3: tmpfs /var/lib/mine" in found[1]
    lab["gpu2"].shell(f"echo gpu 5 error 15 >> {STAND_IN}/server.txt")
    assert "GPU 5 does not answer: a GPU has fallen off the bus" in room.doctor("gpu2", "nvml")["server nvml"][1]
    room.configure("gpu2", "agent", **room.options("gpu2", address=lab.address("gpu3")))
    assert "is the address of no interface" in room.doctor("gpu2", "address")["server address"][1]
    room.configure("gpu2", "agent", **room.options("gpu2"))

    # the connection to the controller: cable, key, name, the controller itself
    lab.unplug("gpu3")
    away = room.doctor("gpu3", "controller")["server controller"]
    assert (away[0], "there is no way to gpu1" in away[1] or "a firewall drops" in away[1]) == ("failure", True)
    lab.plug("gpu3")
    room.keys("revoke server:gpu3")
    room.until("gpu3", "server controller", "does not let server:gpu3 in: the key is unknown there, or revoked")
    lab["gpu2"].shell("sed '/gpu1/d' /etc/hosts > /root/hosts; cat /root/hosts > /etc/hosts")
    assert "no name that this machine knows" in room.doctor("gpu2", "controller")["server controller"][1]
    room.stop("gpu1", "controller")
    refused = room.doctor("gpu3", "controller")["server controller"]
    assert "nothing listens at gpu1 (10.77.0.1), port 7701: the connection is refused" in refused[1]
    stopped = room.doctor("gpu1", "daemon")["controller daemon"]
    assert (stopped[0], "no controller runs with /etc/elasticctl/controller.yaml" in stopped[1]) == ("failure", True)
    said = lab["gpu3"].shell(f"{ELASTICCTL} status", user="alice", check=False).stderr
    assert "nothing listens at gpu1 (10.77.0.1), port 7700: the connection is refused" in said
