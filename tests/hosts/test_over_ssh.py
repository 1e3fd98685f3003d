"""`elasticctl up --hosts`: a cluster on three hosts, started over a real ssh by an unprivileged user."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "cluster" / "train_small.py"
ELASTICCTL = Path(sys.executable).with_name("elasticctl")
PATIENCE_S = 120.0
MakeLab = Callable[..., Any]
SameBits = Callable[..., None]


class Alice:
    """A user at the first host: typed commands, and their output."""

    def __init__(self, lab: Any, shared: Path) -> None:
        self.lab = lab
        self.shared = shared
        self.host = lab["one"]

    def types(self, line: str, check: bool = True) -> Any:
        return self.host.shell(f"export PATH={ELASTICCTL.parent}:$PATH; {line}", user="alice", check=check)

    def asks(self, line: str) -> Any:
        return json.loads(self.types(f"elasticctl {line} --json").stdout)

    def hosts(self, *lines: str) -> None:
        self.host.write("/home/alice/hosts.txt", "\n".join(lines).encode(), owner="alice")

    def until(self, what: str, probe: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := probe():
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}\n{self.story()}")

    def job(self, job: str) -> Any:
        return self.asks(f"status {job}")

    def submit(self, *arguments: str) -> str:
        """A job of `train_small.py` on one to three GPUs."""
        line = shlex.join([sys.executable, str(SCRIPT), *arguments])
        said = self.types(f"cd {self.shared} && elasticctl submit --name job --gpus 1:3 --virtual-workers 3 -- {line}")
        return str(said.stdout).strip()

    def until_on(self, job: str, *servers: str) -> Any:
        def there() -> Any:
            view = self.job(job)
            on = {worker["server"] for worker in view["workers"] if worker["phase"] == "training"}
            return view if on == set(servers) else None

        return self.until(f"{job} trains on {', '.join(servers)}", there)

    def story(self) -> str:
        return str(self.types("elasticctl events; elasticctl servers; elasticctl status", check=False).stdout)

    def left(self) -> dict[str, str]:
        """Remains of a cluster on each host: files and processes."""
        line = "find ~/.local/state /tmp/elasticctl-* 2>/dev/null | grep elasticctl/; pgrep -u alice -af elasticd"
        return {name: host.shell(line, user="alice", check=False).stdout for name, host in self.lab.hosts.items()}


@pytest.fixture
def alice(make_lab: MakeLab, tmp_path: Path) -> Alice:
    found = Alice(make_lab("one", "two", "three", users=("alice",), ssh=True), tmp_path / "shared")
    found.hosts("one slots=1", "two slots=1", "three slots=1")
    return found


def test_a_job_spans_three_hosts_is_resized_and_loses_one_and_no_bit(alice: Alice, same_bits: SameBits) -> None:
    said = alice.types(f"elasticctl up --hosts hosts.txt --checkpoints {alice.shared}/checkpoints").stdout
    assert said.startswith("started controller, one, two, three at ")
    output = alice.shared / "model.pt"
    arguments = ("--epochs", "16")
    job = alice.submit(str(output), *arguments, "--pace", "0.1")
    alice.until_on(job, "one", "two", "three")
    alice.types(f"elasticctl scale {job} 2")
    alice.types(f"elasticctl scale {job} 3")
    before = alice.until_on(job, "one", "two", "three")

    alice.lab["three"].kill()
    after = alice.until_on(job, "one", "two")
    assert after["restarts"] == 0, "it began again from a checkpoint"
    alice.lab.add("three")  # with empty disks: its key and its agent are gone
    alice.lab.add_user("alice", ["three"])
    alice.lab.serve_ssh(["alice"])
    assert alice.types("elasticctl up").stdout.startswith("started three at ")
    grown = alice.until_on(job, "one", "two", "three")
    assert grown["generation"] > after["generation"] > before["generation"]
    alice.types(f"elasticctl wait {job}")
    assert alice.job(job)["restarts"] == 0

    same_bits(output, alice.shared / "alone.pt", *arguments, virtual_workers=3)
    keys = json.loads(alice.types("cat ~/.local/state/elasticctl/local/controller/keys/known.json").stdout)["known"]
    assert [key["principal"] for key in keys if key.get("revoked_s")] == ["server:three"], "the lost key counts no more"
    alice.types("elasticctl down --purge --yes")
    assert alice.left() == {"one": "", "two": "", "three": ""}


def test_workers_use_the_network_that_their_servers_configuration_names(alice: Alice) -> None:
    """The controller is reached on the first network; `address=` is on the second one."""
    alice.hosts(*(f"{name} slots=1 address={alice.lab.address(name, 1)}" for name in alice.lab.hosts))
    alice.types(f"elasticctl up --hosts hosts.txt --address {alice.lab.address('one')}")
    job = alice.submit(str(alice.shared / "model.pt"), "--epochs", "500", "--pace", "0.05")
    alice.until_on(job, "one", "two", "three")
    for name, host in alice.lab.hosts.items():
        pids = [worker["pid"] for worker in alice.job(job)["workers"] if worker["server"] == name]
        lines = [
            line for line in host.shell("ss -tanpH").stdout.splitlines() if any(f"pid={pid}," in line for pid in pids)
        ]
        ours = {line.split()[3].rpartition(":")[0] for line in lines}
        assert ours == {alice.lab.address(name, 1)}, "\n".join(lines)
        peers = {line.split()[4].rpartition(":")[0] for line in lines if line.startswith("ESTAB")}
        assert {alice.lab.address(other, 1) for other in alice.lab.hosts if other != name} <= peers, "\n".join(lines)
    alice.types("elasticctl down --purge --yes")
    assert alice.left() == {"one": "", "two": "", "three": ""}


def test_a_host_that_cannot_be_used_is_named_and_nothing_is_left_on_the_others(alice: Alice) -> None:
    alice.lab.unplug("three")
    fast = "--ssh 'ssh -o BatchMode=yes -o ConnectTimeout=2'"
    said = alice.types(f"elasticctl up --hosts hosts.txt {fast}", check=False)
    assert said.returncode == 1
    assert "1 of 3 hosts cannot be used:\n  three (three): ssh: connect to host three port 22" in said.stderr
    assert alice.left() == {"one": "", "two": "", "three": ""}

    alice.lab.plug("three")
    alice.hosts("one slots=1", "two slots=1 python=/nowhere/python", "bob@three slots=1")
    said = alice.types("elasticctl up --hosts hosts.txt", check=False)
    assert "2 of 3 hosts cannot be used:" in said.stderr
    assert "two (two): bash: line 1: /nowhere/python: No such file or directory" in said.stderr
    assert "three (bob@three): bob@three: Permission denied" in said.stderr
    assert alice.left() == {"one": "", "two": "", "three": ""}

    old = alice.shared / "python"  # with another version of Python
    old.write_text(
        "#!/bin/sh\ncat >/dev/null\n"
        """echo 'elasticctl-remote: {"type":"Seen","version":"0.0.1","protocol":1,"runs":false}'\n"""
    )
    old.chmod(0o755)
    alice.hosts("one slots=1", f"two slots=1 python={old}")
    said = alice.types("elasticctl up --hosts hosts.txt", check=False)
    assert "two (two): has elasticctl 0.0.1 (protocol 1), not " in said.stderr


def test_a_failed_start_is_taken_back_on_all_hosts(alice: Alice) -> None:
    """On the second host the agent has no directory for its files."""
    alice.lab["two"].shell(
        "mkdir -p ~/.local/state/elasticctl/hosts && touch ~/.local/state/elasticctl/hosts/x", "alice"
    )
    alice.lab["two"].shell("chmod 500 ~/.local/state/elasticctl/hosts", "alice")
    said = alice.types("elasticctl up --hosts hosts.txt", check=False)
    assert said.returncode == 1
    assert "1 of 3 hosts do not start their agent:\n  two (two): " in said.stderr
    assert "Permission denied" in said.stderr
    left = alice.left()
    assert (left["one"], left["three"]) == ("", "")


def test_down_names_hosts_that_do_not_answer_and_ends_them_later(alice: Alice) -> None:
    alice.types("elasticctl up --hosts hosts.txt --ssh 'ssh -o BatchMode=yes -o ConnectTimeout=2'")
    assert alice.types("elasticctl up").stdout.startswith("the cluster at ")
    alice.lab.unplug("two")
    said = alice.types("elasticctl down --purge --yes", check=False)
    assert said.returncode == 1
    assert "all but these are stopped" in said.stderr
    assert "two (two): ssh: connect to host two" in said.stderr
    left = alice.left()
    assert left["three"] == "", "a host that answers is not kept waiting"
    assert left["two"]
    alice.lab.plug("two")
    alice.types("elasticctl down --purge --yes")
    assert alice.left() == {"one": "", "two": "", "three": ""}


def test_no_key_is_ever_on_a_command_line(alice: Alice) -> None:
    spy = alice.shared / "ssh"
    spy.write_text(f'#!/bin/sh\necho "$@" >> {alice.shared}/lines\nexec ssh -o BatchMode=yes "$@"\n')
    spy.chmod(0o755)
    alice.types(f"elasticctl up --hosts hosts.txt --ssh {spy}")
    keys = [
        host.shell("cat ~/.local/state/elasticctl/hosts/*/*/agent.key", "alice").stdout
        for host in alice.lab.hosts.values()
    ]
    secrets = [line.split()[1].strip("'\"") for key in keys for line in key.splitlines() if line.startswith("secret:")]
    assert len(set(secrets)) == 3
    lines = (alice.shared / "lines").read_text()
    assert len(lines.splitlines()) >= 6
    assert not any(secret in lines for secret in secrets)
    modes = alice.lab["two"].shell(
        "stat -c %a ~/.local/state/elasticctl/hosts/*/* ~/.local/state/elasticctl/hosts/*/*/agent.key", "alice"
    )
    assert modes.stdout.split() == ["700", "600"]
    alice.types("elasticctl down --purge --yes")
