"""The isolation that other tests of several hosts rely on: hosts are separate from each other and from this machine, and
vanish.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster
MakeLab = Callable[..., Any]
LISTEN = "import socket; s = socket.create_server(('', 4000)); c, _ = s.accept(); c.sendall(b'here')"
CONNECT = "import socket; print(socket.create_connection(('one', 4000), 2).recv(9).decode())"


def test_hosts_have_addresses_files_users_and_processes_of_their_own(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab("one", "two", "three")
    mark = tmp_path.name
    lab["one"].shell(f"mkdir /etc/elasticctl; echo secret > /etc/elasticctl/{mark}; useradd -m {mark[:20]}")
    for name, shell in [("two", lab["two"].shell), ("here", lambda line: subprocess.run(["bash", "-c", line]))]:
        assert shell(f"! test -e /etc/elasticctl/{mark} && ! getent passwd {mark[:20]}").returncode == 0, name
    assert [lab[name].shell("hostname; hostname -I").stdout.split() for name in ("one", "two", "three")] == [
        ["one", "10.77.0.1", "10.78.0.1"], ["two", "10.77.0.2", "10.78.0.2"], ["three", "10.77.0.3", "10.78.0.3"]
    ]  # fmt: skip
    shared = tmp_path / "shared"
    lab["three"].shell(f"echo seen > {shared}/note")
    assert lab["two"].shell(f"cat {shared}/note").stdout == "seen\n"
    assert len(lab["one"].shell("ls -d /proc/[0-9]*").stdout.split()) < 10


def test_a_host_is_reached_until_its_cable_is_pulled_or_it_is_switched_off(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab("one", "two")

    def reached() -> bool:
        return lab["two"].run("python3", "-c", CONNECT, check=False).stdout == "here\n"

    def listen() -> None:
        lab["one"].start("python3", "-c", LISTEN, log=tmp_path / "listen.log")
        lab["one"].shell("until ss -ltn | grep -q 4000; do sleep 0.02; done")

    listen()
    lab.unplug("one")
    assert not reached()
    lab.plug("one")
    assert reached()
    listen()
    ran = lab["one"].processes()
    assert len(ran) >= 2
    lab["one"].kill()
    assert not any(Path(f"/proc/{pid}").exists() for pid in ran)
    assert not reached()
    lab.add("one")
    listen()
    assert reached()


def test_users_come_from_host_to_host_by_ssh(make_lab: MakeLab) -> None:
    lab = make_lab("one", "two", users=("alice",), ssh=True)
    said = lab["one"].shell("ssh -o BatchMode=yes two 'hostname; whoami'", user="alice").stdout
    assert said.split() == ["two", "alice"]
