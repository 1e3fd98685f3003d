"""The connection to a controller: each failing step has a message. With a real controller over TCP."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticd.ctl import reach
from elasticd.ctl.client import Client
from elasticd.ctl.doctor.checks import Outcome
from elasticd.ctl.reach import Step
from elasticd.protocol.errors import ClusterUnreachable
from elasticd.protocol.messages import Ping
from elasticd.runtime.keys import KeyDirectory, KeyFile
from verification.ports import free_port

pytestmark = pytest.mark.cluster
PATIENCE_S = 120.0


class Controller:
    """A real controller over TCP, with keys of alice and of the server s1."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keys = KeyDirectory(directory / "keys")
        self.keys.make()
        ports = [free_port(), free_port()]
        self.clients, self.agents = (f"tcp://127.0.0.1:{port}" for port in ports)
        self.alice = self.keys.add("user:alice", "alice", directory / "alice.key", self.clients)
        self.server = self.keys.add("server:s1", "", directory / "s1.key", self.agents)
        self.file = directory / "controller.yaml"
        options = {
            "state_directory": str(directory / "state"),
            "keys_directory": str(directory / "keys"),
            "listen_clients": self.clients,
            "listen_agents": self.agents,
        }
        self.file.write_text(yaml.safe_dump(options))
        line = [sys.executable, "-m", "elasticd.controller", "--config", str(self.file)]
        self.process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while reach.as_person(self.clients, self.alice).step is not Step.THERE:
            assert time.monotonic() < deadline

    def until_refused(self, address: str, key: KeyFile, ask: Any) -> Any:
        """Poll: the controller rereads its list of keys once a second."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := ask(address, key)).there:
            assert time.monotonic() < deadline
        return found


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    made = Controller(tmp_path_factory.mktemp("controller"))
    yield made
    made.process.kill()
    made.process.wait()


def test_a_controller_that_is_there_tells_its_time_and_how_far_it_is(controller: Controller) -> None:
    found = reach.as_person(controller.clients, controller.alice)
    assert found.there
    assert found.pong is not None
    assert found.ahead_s is not None
    assert abs(found.ahead_s) < 1.0
    assert 0 < found.round_trip_s < PATIENCE_S
    assert reach.as_server(controller.agents, controller.server).there


def test_a_revoked_key_and_one_for_the_other_port_are_refused(controller: Controller) -> None:
    bob = controller.keys.add("user:bob", "bob", controller.directory / "bob.key", controller.clients)
    server = controller.keys.add("server:s2", "", controller.directory / "s2.key", controller.agents)
    deadline = time.monotonic() + PATIENCE_S
    while not (reach.as_person(controller.clients, bob).there and reach.as_server(controller.agents, server).there):
        assert time.monotonic() < deadline
    wrong = reach.as_server(controller.clients, server)
    assert (wrong.step, "does not let server:s2 in" in wrong.found) == (Step.KEYS, True)
    assert "servers: of listen_agents" in wrong.remedy
    controller.keys.revoke("user:bob")
    controller.keys.revoke("server:s2")
    refused = controller.until_refused(controller.clients, bob, reach.as_person)
    assert (refused.step, "unknown there, or revoked" in refused.found) == (Step.KEYS, True)
    assert controller.until_refused(controller.agents, server, reach.as_server).step is Step.KEYS


def test_a_controller_that_was_set_up_anew_has_another_key(controller: Controller, tmp_path: Path) -> None:
    other = KeyDirectory(tmp_path / "keys")
    other.make()
    alice = other.add("user:alice", "alice", tmp_path / "alice.key")
    found = reach.as_person(controller.clients, alice)
    assert found.step is Step.KEYS
    assert "has another key than the key file of user:alice says" in found.found


def test_a_controller_that_hangs_says_nothing(controller: Controller) -> None:
    controller.process.send_signal(signal.SIGSTOP)
    try:
        found = reach.as_person(controller.clients, controller.alice)
    finally:
        controller.process.send_signal(signal.SIGCONT)
    assert (found.step, "says nothing" in found.found) == (Step.GREETING, True)


def test_what_is_no_controller_is_told_apart(controller: Controller) -> None:
    nothing = f"tcp://127.0.0.1:{free_port()}"
    found = reach.as_person(nothing, controller.alice)
    assert (found.step, "the connection is refused" in found.found) == (Step.CONNECTION, True)
    assert "systemctl start elasticctl-controller" in found.remedy
    found = reach.as_person("tcp://no-such-host.invalid:7700", controller.alice)
    assert (found.step, "no name that this machine knows" in found.found) == (Step.NAME, True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

        def greet() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        found = reach.as_person(address, controller.alice)
        thread.join(PATIENCE_S)
    assert (found.step, "is no controller, but another program" in found.found) == (Step.GREETING, True)


def test_a_firewall_that_drops_is_told_from_a_port_that_is_closed(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "CONNECTED_WITHIN_S", 0.5)
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)  # never accepts: the kernel drops connections beyond the queue
    waiting = []
    for _ in range(4):
        each = socket.socket()
        each.setblocking(False)
        each.connect_ex(full.getsockname())
        waiting.append(each)
    found = reach.as_person(f"tcp://127.0.0.1:{full.getsockname()[1]}", controller.alice)
    for each in (*waiting, full):
        each.close()
    assert (found.step, "a firewall drops" in found.found) == (Step.CONNECTION, True)


def test_sockets_of_the_file_system_that_are_missing_dead_or_closed(tmp_path: Path) -> None:
    found = reach.as_person(f"ipc://{tmp_path}/clients", None)
    assert (found.step, "there is no socket" in found.found) == (Step.CONNECTION, True)
    (tmp_path / "clients").write_text("")
    assert "is no socket" in reach.as_person(f"ipc://{tmp_path}/clients", None).found
    (tmp_path / "clients").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "clients"))
    assert "the controller has ended" in reach.as_person(f"ipc://{tmp_path}/clients", None).found
    tmp_path.chmod(0o777)
    assert "others may write to" in reach.as_person(f"ipc://{tmp_path}/clients", None).found


def test_the_checks_of_a_server_and_of_the_controllers_machine_say_the_same(bench: Any, controller: Controller) -> None:
    key = str(controller.directory / "s1.key")
    there = bench.target(controller=controller.agents, key_file=key, server="s1", address="127.0.0.1")
    assert bench.look("controller", there).outcome is Outcome.OK
    assert "takes this server's key" in bench.look("controller", there).found
    assert bench.look("key", there).outcome is Outcome.OK
    other = bench.target(controller=f"tcp://127.0.0.1:{free_port()}", key_file=key, server="s1")
    assert "the connection is refused" in bench.look("controller", other).found
    keyless = bench.target(controller=controller.agents)
    assert "without a key no more can be tried" in bench.look("controller", keyless).found
    text = bench.run(controller.file, "--only", "listening", "--only", "daemon", "--only", "keys", code=0)
    assert f"{controller.clients}, held by the controller" in text
    assert f"process {controller.process.pid} runs" in text
    assert "1 server;" in text or "servers;" in text


def test_status_says_who_finds_the_cause(controller: Controller) -> None:
    client = Client(f"tcp://127.0.0.1:{free_port()}", controller.alice)
    with pytest.raises(ClusterUnreachable, match="`elasticctl doctor` looks for the cause"):
        client.ask(Ping(), timeout_s=0.2)
    client.close()
