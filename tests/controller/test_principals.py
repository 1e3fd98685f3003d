"""A real controller on TCP with keys: a real agent, a real user, and impostors of both."""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
import zmq

from elasticd.ctl.client import Client
from elasticd.protocol.codec import Codec
from elasticd.protocol.errors import ClusterUnreachable, ElasticError, NotAllowed, UserError
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHello,
    GetJob,
    JobFound,
    Ping,
    StartWorker,
    Submit,
    Submitted,
    ToAgentFromController,
)
from elasticd.protocol.model import Gpu, GpuKind, GpuRange, JobSpec, Server, ServerId
from elasticd.runtime import transport
from elasticd.runtime.keys import KeyDirectory, KeyFile, Pair

PATIENCE_S = 120.0
SPEC = JobSpec(name="digits", command=("train",), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/")


class Agent:
    """A server's connection to the controller."""

    def __init__(self, context: zmq.Context, address: str, key: KeyFile, name: str = "", identity: bytes = b"") -> None:
        self.name = name or key.name
        self.socket = transport.dealer(context, address, identity, key.pair, key.controller_public)
        self.socket.sndtimeo = 5000
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.codec: Codec[ToAgentFromController] = Codec(ToAgentFromController)

    def hello(self) -> None:
        gpus = (Gpu(index=0, kind=GpuKind.CPU, name="CPU slot"),)
        server = Server(server=ServerId(self.name), address="127.0.0.1", gpus=gpus)
        hello = AgentHello(server=server, incarnation="a", agent="i", workers=(), starting=(), exited=())
        self.socket.send_multipart([f"{self.name}#i".encode(), msgspec.msgpack.encode(hello)])

    def hear(self, kind: type, within_s: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self.socket.poll(50):
                message = self.codec.decode(self.socket.recv_multipart()[-1])
                if isinstance(message, kind):
                    return message
        return None


class Controller:
    """A controller process with keys for alice, bob, the operator olga and the servers s1 and s2."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keys = KeyDirectory(directory / "state" / "keys")
        self.keys.make()
        for principal in ("user:alice", "user:bob", "operator:olga", "server:s1", "server:s2"):
            self.add(principal)
        self.context: zmq.Context = zmq.Context()
        (directory / "controller.yaml").write_text(
            yaml.safe_dump(
                {
                    "state_directory": str(directory / "state"),
                    "listen_clients": ["tcp://127.0.0.1:*", f"ipc://{directory}/clients"],
                    "listen_agents": "tcp://127.0.0.1:*",
                }
            )
        )
        command = [sys.executable, "-m", "elasticd.controller", "--config", str(directory / "controller.yaml")]
        with (directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.until(lambda: "listening for clients" in self.log())
        line = next(line for line in self.log().splitlines() if "listening" in line)
        _, clients, agents = (part.split(" ")[0].rstrip(",") for part in line.split(" at "))
        self.clients, self.agents = clients, agents

    def add(self, principal: str) -> None:
        self.keys.add(principal, "", self.directory / principal.replace(":", "-"))

    def key(self, principal: str) -> KeyFile:
        return KeyFile.read(self.directory / principal.replace(":", "-"))

    def client(self, principal: str) -> Client:
        return Client(self.clients, self.key(principal))

    def agent(self, server: str, **others: Any) -> Agent:
        return Agent(self.context, self.agents, self.key(f"server:{server}"), **others)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    found = Controller(tmp_path_factory.mktemp("c"))
    yield found
    found.process.kill()
    found.process.wait()
    found.context.destroy(linger=0)


def test_a_job_belongs_to_whose_key_submitted_it_and_its_workers_get_a_key_of_their_own(controller: Controller) -> None:
    agent = controller.agent("s1")
    agent.hello()
    assert agent.hear(Acknowledged) is not None
    alice, bob = controller.client("user:alice"), controller.client("user:bob")
    submitted = alice.ask(Submit(spec=SPEC))
    assert isinstance(submitted, Submitted)
    start = agent.hear(StartWorker)
    assert (start.owner, start.account) == ("alice", "alice")
    assert Pair.of(start.key.encode())
    found = bob.ask(GetJob(job=submitted.job))
    assert isinstance(found, JobFound)
    alice.close()
    bob.close()


def test_who_has_no_key_or_another_one_is_told_so(controller: Controller) -> None:
    with pytest.raises(UserError, match="wants a key"):
        Client(controller.clients)
    for key in (
        KeyFile(controller.key("user:alice").role, "alice", Pair.new(), controller.keys.pair().public),
        controller.key("server:s1"),
    ):
        stranger = Client(controller.clients, key)
        with pytest.raises(NotAllowed, match="does not let"):
            stranger.ask(Ping())
        with pytest.raises(NotAllowed):
            stranger.ask(Ping())  # again, over a new connection
        stranger.close()
    stranger = Client(controller.agents, controller.key("operator:olga"))
    with pytest.raises(NotAllowed):
        stranger.ask(Ping())
    stranger.close()


def test_a_client_that_knows_another_controller_says_nothing_to_this_one(controller: Controller) -> None:
    alice = controller.key("user:alice")
    client = Client(controller.clients, KeyFile(alice.role, alice.name, alice.pair, Pair.new().public))
    with pytest.raises(ClusterUnreachable, match="may have another key"):
        client.ask(Ping(), timeout_s=1.0)
    client.close()


def test_a_server_speaks_for_itself_alone_and_takes_no_others_line(controller: Controller) -> None:
    honest, liar = controller.agent("s1"), controller.agent("s2", name="s1")
    honest.hello()
    assert honest.hear(Acknowledged) is not None
    liar.hello()
    assert liar.hear(Acknowledged, 0.5) is None
    assert "dropped a message of server:s2: it speaks for s1" in controller.log()
    thief = controller.agent("s2", identity=b"s1#i")
    thief.hello()
    assert thief.hear(Acknowledged, 0.5) is None
    honest.hello()
    assert honest.hear(Acknowledged) is not None


def test_an_agent_that_has_connected_anew_is_answered_there(controller: Controller) -> None:
    first = controller.agent("s2")
    first.hello()
    assert first.hear(Acknowledged) is not None
    second = controller.agent("s2")  # only now: connections that are made together may be in any order
    second.hello()
    assert second.hear(Acknowledged) is not None
    first.hello()
    assert first.hear(Acknowledged, 0.5) is None, "what comes from the old connection is of the past"


def test_a_key_that_is_added_or_revoked_while_all_runs_counts_from_then_on(controller: Controller) -> None:
    controller.add("user:carol")
    controller.add("server:s3")
    controller.process.send_signal(signal.SIGHUP)
    controller.until(lambda: "7 principals have keys" in controller.log())
    carol, alice, server = controller.client("user:carol"), controller.client("user:alice"), controller.agent("s3")
    carol.ask(Ping())
    alice.ask(Ping())
    server.hello()
    assert server.hear(Acknowledged) is not None

    controller.keys.revoke("user:carol")
    controller.keys.revoke("server:s3")
    assert server.monitor.poll(int(PATIENCE_S * 1000)), "its connection is cut"

    def refused() -> bool:
        try:
            carol.ask(Ping(), timeout_s=0.5)
        except NotAllowed:
            return True
        except ElasticError:
            pass
        return False

    controller.until(refused)
    with contextlib.suppress(zmq.Again):  # its key was rejected before: there is no connection any more
        server.hello()
    assert server.hear(Acknowledged, 0.5) is None
    alice.ask(Ping())
    log = controller.log()
    assert "cut a connection of user:carol" in log
    assert "cut a connection of server:s3" in log
    carol.close()
    alice.close()


def test_a_list_that_cannot_be_read_changes_nothing_and_is_told(controller: Controller) -> None:
    path = controller.keys.path / "known.json"
    before = path.read_bytes()
    path.write_bytes(b"{")
    controller.until(lambda: "the keys stay as they were" in controller.log())
    alice = controller.client("user:alice")
    alice.ask(Ping())
    alice.close()
    path.write_bytes(before)


def test_the_controllers_own_user_needs_no_key_on_its_machine(controller: Controller) -> None:
    local = Client(f"ipc://{controller.directory}/clients")
    local.ask(Ping())
    local.close()


def test_no_secret_is_in_the_log_or_on_a_command_line(controller: Controller) -> None:
    told = controller.log() + Path(f"/proc/{controller.process.pid}/cmdline").read_text()
    for principal in ("user:alice", "server:s1"):
        assert controller.key(principal).pair.secret.decode() not in told
    assert controller.keys.pair().secret.decode() not in told


def test_a_crowd_of_bad_bytes_costs_a_line_in_the_log_not_a_flood(controller: Controller) -> None:
    agent, alice = controller.agent("s1"), controller.key("user:alice")
    client = transport.dealer(controller.context, controller.clients, b"", alice.pair, alice.controller_public)
    before = len(controller.log().splitlines())
    for _ in range(500):
        agent.socket.send_multipart([b"s1#i", secrets.token_bytes(20)])
        agent.socket.send_multipart([secrets.token_bytes(20)])
        client.send_multipart([secrets.token_bytes(20)])
    time.sleep(1.0)
    assert controller.process.poll() is None
    assert len(controller.log().splitlines()) < before + 10
    client.close()


def test_a_real_agent_joins_with_its_key_and_is_told_when_that_is_revoked(
    controller: Controller, tmp_path: Path
) -> None:
    controller.add("server:s4")
    log, config = tmp_path / "agent.log", tmp_path / "agent.yaml"
    options = {
        "server": "s4",
        "controller": controller.agents,
        "key_file": str(controller.directory / "server-s4"),
        "state_directory": str(tmp_path / "state"),
        "cpu_slots": 1,
        "warm_start": False,
        "log_file": str(log),
    }
    config.write_text(yaml.safe_dump(options))
    agent = subprocess.Popen([sys.executable, "-m", "elasticd.agent", "--config", str(config)])
    alice = controller.client("user:alice")
    try:
        controller.until(lambda: [s for s in alice.servers().servers if s.server.server == "s4"])
        controller.keys.revoke("server:s4")
        controller.until(lambda: "does not know this server's key, or has revoked it" in log.read_text())
        assert agent.poll() is None
    finally:
        agent.kill()
        agent.wait()
        alice.close()


def test_an_agent_with_the_key_of_another_server_does_not_start(controller: Controller, tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    key = controller.directory / "server-s1"
    config.write_text(
        f"server: s9\ncontroller: {controller.agents}\nkey_file: {key}\nstate_directory: {tmp_path}/state\n"
    )
    command = [sys.executable, "-m", "elasticd.agent", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert "is the key of server:s1, not server:s9" in ended.stderr
