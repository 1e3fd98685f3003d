"""Three hosts, two users with keys, one host switched off: commands and their output, as in docs/operators.md."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.campaign]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "cluster" / "train_small.py"
ELASTICCTL = Path(sys.executable).with_name("elasticctl")
KEYS = "~/.local/state/elasticctl/local/controller/keys"
PATIENCE_S = 150.0


class Room:
    """Three hosts with their users. Commands are printed with their output."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.began = time.monotonic()

    def types(self, who: str, line: str, check: bool = True, told: bool = True) -> str:
        user, _, host = who.rpartition("@")
        path = f"export PATH={ELASTICCTL.parent}:$PATH; "
        done = self.lab[host].shell(path + line, user=user or "root", check=check)
        if told:
            print(f"[{time.monotonic() - self.began:5.1f} s] {who}$ {line}\n{done.stdout}{done.stderr}", end="")
        return str(done.stdout + done.stderr)

    def until(self, who: str, line: str, pattern: str) -> str:
        """Repeat `line` until its output matches."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.types(who, line, told=False), re.MULTILINE | re.DOTALL):
            if time.monotonic() > deadline:
                self.types("root@gpu1", "elasticctl events")
                raise AssertionError(f"{pattern} does not come:\n{self.types(who, line)}")
            time.sleep(0.3)
        return self.types(who, line)


def test_the_ways_to_name_a_cluster_from_another_host_as_another_user(make_lab: Callable[..., Any]) -> None:
    lab = make_lab("gpu1", "gpu2", users=("alice", "bob"), ssh=True)
    room = Room(lab)
    lab["gpu1"].write("/home/alice/hosts.txt", b"gpu1 slots=1\n", owner="alice")
    room.types("alice@gpu1", "elasticctl up --hosts hosts.txt")
    controller = f"tcp://{lab.address('gpu1')}:7700"
    room.types("alice@gpu1", f"elasticctl keys add user:bob --keys {KEYS} --address {controller} --out bob.key")
    lab["gpu2"].write("/home/bob/my.key", lab["gpu1"].shell("cat ~alice/bob.key").stdout.encode(), 0o600, "bob")

    def asks(line: str) -> str:
        return room.types("bob@gpu2", line, check=False)

    assert "no cluster at" in asks("elasticctl servers")
    assert "wants a key" in asks(f"elasticctl --controller {controller} servers")
    assert "gpu1    alive" in asks(f"elasticctl --controller {controller} --key my.key servers")
    assert "gpu1    alive" in asks(f"ELASTICCTL_CONTROLLER={controller} ELASTICCTL_KEY=my.key elasticctl servers")
    assert "gpu1    alive" in asks("elasticctl --key my.key servers"), "the key's file says where the controller is"
    lab["gpu2"].shell(f"mkdir /etc/elasticctl; echo 'controller: {controller}' > /etc/elasticctl/cluster.yaml")
    assert "wants a key" in asks("elasticctl servers")
    assert "gpu1    alive" in asks("elasticctl --key my.key servers")
    assert "user:bob at" in asks("elasticctl login my.key")
    assert "gpu1    alive" in asks("elasticctl servers")
    assert "only operators may change the policy" in asks("elasticctl policy set fifo")
    room.types("alice@gpu1", f"elasticctl keys revoke user:bob --keys {KEYS}")
    deadline = time.monotonic() + PATIENCE_S
    while "gpu1    alive" in asks("elasticctl servers"):
        assert time.monotonic() < deadline, "a revoked key is still let in"
    room.types("alice@gpu1", "elasticctl down --purge --yes")


def test_two_users_share_three_hosts_of_which_one_is_switched_off(
    make_lab: Callable[..., Any], same_bits: Callable[..., None], tmp_path: Path
) -> None:
    lab = make_lab("gpu1", "gpu2", "gpu3", users=("alice", "bob"), ssh=True)
    shared = tmp_path / "shared"
    room = Room(lab)
    lab["gpu1"].write("/root/hosts.txt", b"gpu1 slots=2\ngpu2 slots=2\ngpu3 slots=2\n")
    room.types("root@gpu1", f"elasticctl up --hosts hosts.txt --checkpoints {shared}/checkpoints")
    for user in ("alice", "bob"):
        address = f"--address tcp://{lab.address('gpu1')}:7700"
        room.types(
            "root@gpu1", f"elasticctl keys add user:{user} --keys {KEYS} {address} --out /home/{user}/{user}.key"
        )
        lab["gpu2"].write(
            f"/home/{user}/{user}.key", lab["gpu1"].shell(f"cat /home/{user}/{user}.key").stdout.encode(), 0o600, user
        )
        room.types(f"{user}@gpu2", f"elasticctl login {user}.key")
        train = f"{sys.executable} {SCRIPT} {shared}/{user}.pt --epochs 16 --pace 0.1"
        submit = f"elasticctl submit --name {user}s --gpus 1:4 --virtual-workers 4 -- {train}"
        room.types(f"{user}@gpu2", f"cd {shared}; {submit}")
    room.until("alice@gpu2", "elasticctl status", r"alices-1 +alice +running +3 +\d.*bobs-2 +bob +running +3 +\d")
    room.types("root@gpu1", "elasticctl servers")
    refused = room.types("bob@gpu2", "elasticctl cancel alices", check=False)
    assert "bob may not cancel alices-1" in refused
    room.types("alice@gpu2", "elasticctl scale alices 3")
    for share in ("3", "2"):  # also the present share: `elasticctl` does not decide permissions
        refused = room.types("bob@gpu2", f"elasticctl scale alices {share}", check=False)
        assert "bob may not scale alices-1" in refused
    room.types("alice@gpu2", "elasticctl scale alices auto")
    for host in lab.hosts.values():
        seen = host.shell("ps -eo user:20,args | grep '[t]rain_small'").stdout.splitlines()
        for line in seen:
            assert re.match(r"alice .*/alice\.pt|bob .*/bob\.pt", line), (
                "a job runs as another account than its owner's"
            )

    print(f"[{time.monotonic() - room.began:5.1f} s] gpu3 is switched off")
    lab["gpu3"].kill()
    room.until("root@gpu1", "elasticctl servers", r"gpu3 +lost")
    room.until(
        "alice@gpu2", "elasticctl status", r"alices-1 +alice +running +[123] +\d.*bobs-2 +bob +running +[123] +\d"
    )
    room.types("root@gpu1", "elasticctl servers")
    room.types("alice@gpu2", "elasticctl wait alices bobs")
    room.types("root@gpu1", "elasticctl events")
    for user in ("alice", "bob"):
        same_bits(shared / f"{user}.pt", shared / f"{user}-alone.pt", "--epochs", "16", virtual_workers=4)
    room.types("root@gpu1", "elasticctl down --abandon --purge --yes", check=False)
