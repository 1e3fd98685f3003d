"""A real agent and a real `elasticctl` with three endpoints: a silent one, a standby, and the leader."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
import zmq

from elasticd.ctl.client import Client
from elasticd.ctl.endpoints import Memory
from elasticd.protocol.errors import ClusterUnreachable
from elasticd.protocol.messages import (
    AgentHello,
    Envelope,
    GetServers,
    Ping,
    Pong,
    Refused,
    Reply,
    Servers,
    ServerState,
    Standby,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuRange, JobId, JobSpec
from elasticd.protocol.terms import stamped
from elasticd.runtime import transport

PATIENCE_S = 120.0  # on a loaded machine
ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))
SPEC = JobSpec(name="digits", command=("true",), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/")


class Standbys:
    """A small standby controller, and an endpoint that reads nothing: real sockets, served by a thread."""

    def __init__(self, directory: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.asked: list[Any] = []  # hellos and envelopes that the standby received
        self.leader = "ipc:///where/it/leads"
        self.answers: list[Any] = []  # instead of the standby's, as long as there are any
        self._silent = [transport.router(self.context) for _ in range(2)]
        self._standby = [transport.router(self.context) for _ in range(2)]
        names = ("clients", "agents")
        self.silent = [
            transport.bind(socket, f"ipc://{directory}/silent-{name}")
            for socket, name in zip(self._silent, names, strict=True)
        ]
        self.standby = [
            transport.bind(socket, f"ipc://{directory}/standby-{name}")
            for socket, name in zip(self._standby, names, strict=True)
        ]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        clients, agents = self._standby
        while not self._over.is_set():
            if clients.poll(20):
                peer, data = clients.recv_multipart()
                envelope = msgspec.msgpack.decode(data, type=Envelope)
                self.asked.append(envelope)
                standby = Refused(reason=f"stands by; {self.leader} leads", standby=True, leader=self.leader)
                answer = self.answers.pop(0) if self.answers else standby
                transport.send(clients, peer, msgspec.msgpack.encode(Reply(id=envelope.id, answer=answer)))
            if agents.poll(20):
                peer, _, data = agents.recv_multipart()
                self.asked.append(msgspec.msgpack.decode(data, type=AgentHello))
                answer_to_agent = msgspec.msgpack.encode(Standby(leader=self.leader))
                transport.send(agents, peer, *stamped(1, answer_to_agent))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.context.destroy(linger=0)


class Cluster:
    """A controller and an agent as processes, and the other two endpoints."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.others = Standbys(directory)
        self.clients = [self.others.silent[0], self.others.standby[0], f"ipc://{directory}/clients"]
        self.agents = [self.others.silent[1], self.others.standby[1], f"ipc://{directory}/agents"]
        controller = {
            "cluster": "test",
            "state_directory": str(directory / "controller"),
            "listen_clients": self.clients[2],
            "listen_agents": self.agents[2],
            "server_lease_s": 120.0,
        }
        agent = {
            "server": "s1",
            "controller": self.agents,
            "state_directory": str(directory / "agent"),
            "socket_directory": str(directory / "run"),
            "cpu_slots": 2,
            "heartbeat_interval_s": 0.2,
            "warm_start": False,
        }
        (directory / "controller.yaml").write_text(yaml.safe_dump(controller))
        (directory / "agent.yaml").write_text(yaml.safe_dump(agent))
        self.controller = self.start("controller")
        self.agent = self.start("agent")

    def start(self, kind: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"elasticd.{kind}", "--config", str(self.directory / f"{kind}.yaml")]
        with (self.directory / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def identity(self) -> dict[str, Any]:
        path = self.directory / "agent" / "identity.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def is_there(self, client: Client) -> bool:
        """Does the agent have a session with the leading controller?"""
        servers = client.ask(GetServers(), timeout_s=PATIENCE_S)
        assert isinstance(servers, Servers)
        return [server.state for server in servers.servers] == [ServerState.ALIVE]

    def elasticctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {
            "ELASTICCTL_CONTROLLER": ",".join(self.clients),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
        }
        return subprocess.run(
            [ELASTICCTL, *arguments], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def close(self) -> None:
        for process in (self.agent, self.controller):
            process.kill()
            process.wait()
        self.others.close()


def eventually(holds: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.02)


@pytest.fixture
def connect() -> Iterator[Callable[[str], Client]]:
    """Clients that are closed even if the test fails."""
    with contextlib.ExitStack() as opened:
        yield lambda address: opened.enter_context(contextlib.closing(Client(address)))


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("c"))
    yield cluster
    cluster.close()


def test_agent_and_client_find_the_controller_that_leads_and_find_it_again(
    cluster: Cluster, connect: Callable[[str], Client]
) -> None:
    client = connect(",".join(cluster.clients))
    eventually(lambda: cluster.is_there(client), "the agent is not taken in")
    hello = next(asked for asked in cluster.others.asked if isinstance(asked, AgentHello))
    assert hello.server.server == "s1"
    eventually(lambda: cluster.identity.get("term") == 1, "the term is not written down")
    cluster.controller.send_signal(signal.SIGKILL)
    cluster.controller.wait()
    silent, standby = (
        f"{cluster.clients[0]} (no answer)",
        f"{cluster.clients[1]} (stands by; {cluster.others.leader} leads)",
    )

    def told() -> bool:
        with pytest.raises(ClusterUnreachable) as failed:
            client.ask(Ping(), timeout_s=4.0)
        return all(words in str(failed.value) for words in (silent, standby, cluster.clients[2]))

    eventually(told, "the client does not say what each controller has answered")
    before = len([asked for asked in cluster.others.asked if isinstance(asked, AgentHello)])
    eventually(
        lambda: len([asked for asked in cluster.others.asked if isinstance(asked, AgentHello)]) > before,
        "an agent that has lost its controller does not ask the next one",
    )
    cluster.controller = cluster.start("controller")
    eventually(lambda: cluster.is_there(client), "the agent does not come back")
    eventually(lambda: cluster.identity.get("term") == 2, "the higher term is not written down")


def test_a_request_that_went_to_several_is_carried_out_once(cluster: Cluster, connect: Callable[[str], Client]) -> None:
    client = connect(",".join(cluster.clients))
    answer = client.ask(Submit(spec=SPEC), timeout_s=PATIENCE_S)
    assert answer == Submitted(job="digits-1")
    ids = {asked.id for asked in cluster.others.asked if isinstance(asked, Envelope)}
    assert len(ids) == 1, "the same request goes to each"
    assert client.ask(Submit(spec=SPEC), timeout_s=PATIENCE_S) == Submitted(job="digits-2")
    assert {asked.id for asked in cluster.others.asked if isinstance(asked, Envelope)} == ids, (
        "who has answered is asked first"
    )


def test_the_command_remembers_who_has_answered_last(cluster: Cluster) -> None:
    eventually(lambda: cluster.elasticctl("servers").returncode == 0, "no answer")
    assert Memory(cluster.clients, cluster.directory / "cache" / "elasticctl").first == 2
    asked = len(cluster.others.asked)
    done = cluster.elasticctl("submit", "--name", "one", "--", "true")
    assert done.returncode == 0, done.stderr
    assert not [envelope for envelope in cluster.others.asked[asked:] if isinstance(envelope, Envelope)]
    doctor = cluster.elasticctl("doctor")
    assert f"{cluster.clients[2]} leads" in doctor.stdout
    assert cluster.clients[0] in doctor.stdout, "each of the others is looked at"


def test_a_standby_alone_is_waited_for_and_then_named(tmp_path: Path, connect: Callable[[str], Client]) -> None:
    others = Standbys(tmp_path)
    client = connect(others.standby[0])

    def named_after_asking_again() -> bool:
        before = len(others.asked)
        with pytest.raises(ClusterUnreachable) as failed:
            client.ask(Ping(), timeout_s=1.0)
        asked = len(others.asked) - before
        assert asked < 30, "less and less often"
        return asked > 1 and f"stands by; {others.leader} leads" in str(failed.value)

    eventually(named_after_asking_again, "the standby is not named")
    others.close()


def test_why_a_request_has_no_answer_yet_is_said_at_once_and_once_and_the_answer_is_waited_for(
    tmp_path: Path, connect: Callable[[str], Client], capsys: pytest.CaptureFixture[str]
) -> None:
    others = Standbys(tmp_path)
    client = connect(others.standby[0])
    doubt = Refused(reason="it is not known whether this request is recorded: disk I/O error", in_doubt=True)
    others.answers = [doubt, doubt, Submitted(job=JobId("digits-1"))]
    assert client.ask(Submit(spec=SPEC)) == Submitted(job=JobId("digits-1"))
    assert capsys.readouterr().err == f"elasticctl: {doubt.reason}\n"
    others.answers = [doubt] * 9
    with pytest.raises(ClusterUnreachable, match=rf"^{doubt.reason} \(asked for 0.5 s\)$"):
        client.ask(Submit(spec=SPEC), timeout_s=0.5)
    others.answers = []
    with pytest.raises(ClusterUnreachable, match="stands by"):
        client.ask(Ping(), timeout_s=0.5)
    others.close()


def test_what_is_remembered_may_be_gone_or_wrong(tmp_path: Path) -> None:
    addresses = ["ipc:///a", "ipc:///b"]
    memory = Memory(addresses, tmp_path)
    assert memory.first == 0
    memory.answered(1)
    assert Memory(addresses, tmp_path).first == 1
    assert Memory([*addresses, "ipc:///c"], tmp_path).first == 0, "of another list nothing is known"
    (path,) = tmp_path.iterdir()
    for wrong in ("7", "-1", "x", ""):
        path.write_text(wrong)
        assert Memory(addresses, tmp_path).first == 0
    (tmp_path / "file").write_text("")
    Memory(addresses, tmp_path / "file").answered(1)


def test_an_answer_of_whoever_leads_now_is_taken(cluster: Cluster, connect: Callable[[str], Client]) -> None:
    client = connect(",".join(reversed(cluster.clients)))
    assert isinstance(client.ask(Ping(), timeout_s=PATIENCE_S), Pong)
