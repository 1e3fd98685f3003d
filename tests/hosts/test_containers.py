"""A user's job in a container, on a host with control groups of version 2: an agent that is root, and rootless podman."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.images import IMAGE, archive, containers_of, mounts, needed

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.cluster, pytest.mark.campaign]

SCRIPT = ROOT / "tests" / "cluster" / "train_small.py"
ELASTICCTL = Path(sys.executable).with_name("elasticctl")
PATIENCE_S = 150.0
THERE = Path("/srv/lab")  # not in /tmp, of which each job has its own


class Server:
    """One host with a controller and an agent, both root, and a user."""

    def __init__(self, lab: Any, here: Path, user: str) -> None:
        """here: the directory that is `THERE` on the host."""
        self.host, self.here, self.user = lab["gpu1"], here, user
        self.keep, self.log = THERE / "keep", here / "daemons.log"
        shared = THERE
        storage = f'[storage]\ndriver = "overlay"\nrootless_storage_path = "{shared}/images/$USER"\nrunroot = "/run/containers"\n'
        self.host.write("/etc/containers/storage.conf", storage.encode())
        for name in ("images", "keep"):
            (here / name).mkdir()
            (here / name).chmod(0o1777)
        clients, agents = f"ipc://{shared}/sockets/clients", f"ipc://{shared}/sockets/agents"
        (here / "sockets").mkdir(mode=0o755)
        self.clients = clients
        self._write("controller", cluster="test", state_directory=str(shared / "controller"), listen_clients=clients,
                    listen_agents=agents, policy="max-min", measuring={"way_down": False})  # fmt: skip
        self._write("agent", server="gpu1", controller=agents, state_directory=str(shared / "agent"), cpu_slots=3,
                    container_mounts=list(mounts()), scratch_directory=str(shared / "s"))  # fmt: skip
        self.start("controller")
        self.start("agent")

    def _write(self, name: str, **options: object) -> None:
        (self.here / f"{name}.yaml").write_text(yaml.safe_dump(options))

    def start(self, name: str) -> None:
        module = f"elasticd.{name}"
        self.host.start(sys.executable, "-m", module, "--config", str(THERE / f"{name}.yaml"), log=self.log)

    def types(self, line: str, user: str | None = None, check: bool = True) -> str:
        path = f"export PATH={ELASTICCTL.parent}:$PATH ELASTICCTL_CONTROLLER={self.clients}; cd {self.keep}; "
        done = self.host.shell(path + line, user=user or self.user, check=check)
        return str(done.stdout + done.stderr)

    def until(self, line: str, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, found := self.types(line, check=False), re.MULTILINE | re.DOTALL):
            assert time.monotonic() < deadline, f"{pattern} does not come:\n{found}\n{self.log.read_text()[-6000:]}"
            time.sleep(0.3)
        return found

    def workers(self, job: str) -> dict[str, list[int]]:
        found = self.types(f"elasticctl status {job}")
        return {worker: containers_of(worker) for worker in re.findall(rf"({job}\.\d+) +gpu1:\d", found)}


def test_a_users_job_in_a_rootless_container_is_resized_killed_and_leaves_nothing(
    make_lab: Callable[..., Any], same_bits: Callable[..., None], tmp_path: Path
) -> None:
    if problem := needed():
        pytest.skip(problem)
    shared = tmp_path / "shared"
    shared.mkdir()
    lab = make_lab("gpu1", users=("alice",), shared={shared: str(THERE)})
    server = Server(lab, shared, "alice")
    server.until("elasticctl servers", r"gpu1 +alive")
    server.host.run("sh", "-c", "cat > /tmp/image.tar; chmod 644 /tmp/image.tar", given=archive())
    server.types(f"XDG_RUNTIME_DIR=/tmp/alice podman import /tmp/image.tar {IMAGE}")

    train = f"{sys.executable} {SCRIPT} {server.keep}/model.pt --epochs 12 --pace 0.15 --enough {server.keep}/enough"
    job = server.types(f"elasticctl submit --image {IMAGE} --name c --gpus 1:3 --virtual-workers 4 -- {train}").split()[
        0
    ]
    server.until("elasticctl status", rf"{job} .*running +3 +\d")
    server.types(f"elasticctl scale {job} 2")
    server.until("elasticctl events", rf"{job}.* 3 -> 2 GPUs")
    deadline = time.monotonic() + PATIENCE_S
    while len(inside := {worker: pids for worker, pids in server.workers(job).items() if pids}) != 2:
        assert time.monotonic() < deadline, inside
    account = int(server.types("id -u"))
    for pids in inside.values():
        for pid in pids:
            status = Path(f"/proc/{pid}/status").read_text()
            assert f"Uid:\t{account}\t{account}\t{account}\t{account}" in status, "a worker runs as another account"
            room = Path(f"/proc/{pid}/mountinfo").read_text()
            assert re.search(r"/rooms/\S+ /tmp ", room), "a worker sees the machine's /tmp"
            assert "CapEff:\t0000000000000000" in status
            assert "NoNewPrivs:\t1" in status
            assert f"/{job}." in Path(f"/proc/{pid}/cgroup").read_text(), "a worker is not in its control group"
    victim, (pid, *_) = max(inside.items())
    os.kill(pid, signal.SIGKILL)
    server.until("elasticctl events", rf"{victim} .*killed by SIGKILL")
    server.until("elasticctl status", rf"{job} .*running +2 +\d")
    refused = server.types(f"elasticctl exec {job} -- id", check=False)
    assert "runs in a container, which `exec` and `attach` cannot enter" in refused
    server.types("touch enough")
    server.until("elasticctl status --all", rf"{job} .*finished")
    same_bits(shared / "keep" / "model.pt", tmp_path / "alone.pt", "--epochs", "12", virtual_workers=4)
    deadline = time.monotonic() + PATIENCE_S
    places = [shared / "s", shared / "agent" / "rooms"]
    while left := [
        *(str(each) for place in places for each in place.iterdir()),
        *(pid for pids in inside.values() for pid in pids if Path(f"/proc/{pid}").exists()),
    ]:
        assert time.monotonic() < deadline, f"left of containers: {left}"
        time.sleep(0.2)
