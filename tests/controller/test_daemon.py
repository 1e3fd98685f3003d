"""The real controller over real sockets, with an agent and a client of the test that speak the protocol."""

from __future__ import annotations

import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
import zmq

from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHello,
    Envelope,
    ForgetWorkers,
    GetJob,
    JobView,
    Order,
    Ping,
    Pong,
    Refused,
    Reply,
    Request,
    StartWorker,
    Submit,
    Submitted,
    ToAgentFromController,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import (
    Gpu,
    GpuKind,
    GpuRange,
    JobPhase,
    JobSpec,
    Server,
    ServerId,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)
from elasticd.runtime import transport

PATIENCE_S = 120.0
SPEC = JobSpec(name="digits", command=("train",), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/")


class Controller:
    """A controller process, with one client and one agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "controller.yaml"
        options = {
            "cluster": "test",
            "state_directory": str(directory / "state"),
            "listen_clients": f"ipc://{directory}/clients",
            "listen_agents": f"ipc://{directory}/agents",
            "server_lease_s": 120.0,
        }
        self.config.write_text(yaml.safe_dump(options))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.client = transport.dealer(self.context, str(options["listen_clients"]))
        self.agent = transport.dealer(self.context, str(options["listen_agents"]))
        self.replies: Codec[Reply] = Codec(Reply)
        self.orders: Codec[ToAgentFromController] = Codec(ToAgentFromController)
        self.received: list[Any] = []
        self.start()

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            command = [sys.executable, "-m", "elasticd.controller", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def ask(self, request: Request, request_id: str = "") -> Any:
        """Send a request as a client does: with the same id again and again until the answer comes."""
        envelope = Envelope(id=request_id or secrets.token_hex(16), request=request)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.client.send(msgspec.msgpack.encode(envelope))
            while self.client.poll(1000):
                reply = self.replies.decode(self.client.recv())
                if reply.id == envelope.id:
                    return reply.answer
        raise AssertionError(f"no answer to {request}\n{self.log()}")

    def job_once(self, job: str, phase: JobPhase) -> JobView:
        """The job as soon as it is in `phase`: the agent's reports and the client's requests race."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.ask(GetJob(job=job)).job).phase is not phase:
            assert time.monotonic() < deadline, f"{found}\n{self.log()}"
            time.sleep(0.02)
        return found

    def say(self, message: msgspec.Struct) -> None:
        self.agent.send_multipart([b"s1", msgspec.msgpack.encode(message)])

    def hear(self, kind: type) -> Any:
        """The next message of this kind to the agent."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.agent.poll(200):
                message = self.orders.decode(self.agent.recv_multipart()[-1])
                self.received.append(message)
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came, but {self.received}\n{self.log()}")

    def hello(self, *statuses: WorkerStatus) -> None:
        self.say_hello(*statuses)
        self.hear(Acknowledged)

    def say_hello(self, *statuses: WorkerStatus, term: int = 0) -> None:
        """term: the highest that the agent has heard."""
        slots = (Gpu(index=0, kind=GpuKind.CPU, name="CPU slot"),)
        server = Server(server=ServerId("s1"), address="127.0.0.1", gpus=slots)
        self.say(AgentHello(server=server, incarnation="a", workers=statuses, starting=(), exited=(), term=term))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.context.destroy(linger=0)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    controller = Controller(tmp_path)
    yield controller
    controller.close()


def status(job: str, phase: WorkerPhase, generation: int, applied: int | None, sequence: int) -> WorkerStatus:
    return WorkerStatus(
        job=job,
        worker=WorkerId(f"{job}.0"),
        pid=4711,
        address="tcp://127.0.0.1:5000",
        phase=phase,
        generation=generation,
        order=generation,
        floor=generation,
        applied=applied,
        sequence=sequence,
    )


def test_a_job_lives_through_the_death_of_its_controller(controller: Controller) -> None:
    controller.hello()
    assert controller.ask(Ping()).servers == 1
    submitted = controller.ask(Submit(spec=SPEC), "first")
    assert isinstance(submitted, Submitted)
    start = controller.hear(StartWorker)
    order = next(message for message in controller.received if isinstance(message, Order))
    assert order.roster.workers == (start.worker,)
    controller.say(WorkerReport(status=status(start.job, WorkerPhase.TRAINING, 1, 5, 1)))
    controller.job_once(start.job, JobPhase.RUNNING)

    controller.process.send_signal(signal.SIGKILL)
    controller.process.wait()
    controller.start()
    assert controller.ask(Submit(spec=SPEC), "first") == submitted
    controller.hello(status(start.job, WorkerPhase.TRAINING, 1, 9, 2))
    found = controller.ask(GetJob(job=start.job)).job
    assert (found.phase, found.step, found.restarts) == (JobPhase.RUNNING, 9, 0)

    controller.say(WorkerReport(status=status(start.job, WorkerPhase.FINISHED, 1, 10, 3)))
    controller.say(WorkerExit(job=start.job, worker=start.worker, exit_code=0, reason="", phase=WorkerPhase.FINISHED))
    assert controller.hear(ForgetWorkers).workers == (start.worker,)
    assert controller.job_once(start.job, JobPhase.FINISHED).exit_code == 0
    controller.process.send_signal(signal.SIGTERM)
    assert controller.process.wait(PATIENCE_S) == 0


def test_bytes_that_are_no_message_are_dropped_and_a_readable_id_is_answered(controller: Controller) -> None:
    assert isinstance(controller.ask(Ping()), Pong)
    controller.agent.send(b"\xc1 nothing that anybody sends")
    controller.agent.send_multipart([b"s1", b"\xc1 nothing that anybody sends"])
    controller.client.send(b"\x00")
    controller.client.send(
        msgspec.msgpack.encode({"type": "Envelope", "id": "strange", "request": {"type": "Explode"}})
    )
    reply = None
    while reply is None or reply.id != "strange":  # a repeated ping is answered twice
        assert controller.client.poll(int(PATIENCE_S * 1000))
        reply = controller.replies.decode(controller.client.recv())
    assert isinstance(reply.answer, Refused)
    assert reply.answer.bad_input
    assert isinstance(controller.ask(Ping()), Pong)


def test_a_second_controller_on_the_same_state_is_refused_with_one_line(controller: Controller) -> None:
    controller.ask(Ping())
    command = [sys.executable, "-m", "elasticd.controller", "--config", str(controller.config)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert second.returncode == 2
    assert len([line for line in second.stderr.splitlines() if "elasticd.controller:" in line]) == 1
    assert "another controller runs with this state directory" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_second_controller_does_not_take_over_the_socket_of_the_first(controller: Controller) -> None:
    options = yaml.safe_load(controller.config.read_text())
    options["listen_clients"] = f"ipc://{controller.directory}/clients-1"
    options["state_directory"] = str(controller.directory / "first")
    first, second = controller.directory / "first.yaml", controller.directory / "second.yaml"
    options["listen_agents"] = f"ipc://{controller.directory}/agents-1"
    first.write_text(yaml.safe_dump(options))
    options["listen_agents"] = f"ipc://{controller.directory}/agents-2"
    second.write_text(yaml.safe_dump({**options, "state_directory": str(controller.directory / "second")}))
    command = [sys.executable, "-m", "elasticd.controller", "--config"]
    with subprocess.Popen([*command, str(first)], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        while "listening" not in running.stderr.readline():
            assert running.poll() is None
        refused = subprocess.run(
            [*command, str(second)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        running.kill()
    assert refused.returncode == 2
    assert "another process listens there" in refused.stderr


def test_a_controller_whose_store_is_locked_refuses_with_the_reason_and_goes_on(controller: Controller) -> None:
    controller.ask(Ping())
    other = sqlite3.connect(controller.directory / "state" / "cluster.db", isolation_level=None)
    other.execute("begin immediate")
    refused = controller.ask(Submit(spec=SPEC), "first")
    assert isinstance(refused, Refused)
    assert "database is locked" in refused.reason
    assert isinstance(controller.ask(Ping()), Refused)
    other.execute("rollback")
    other.close()
    deadline = time.monotonic() + PATIENCE_S
    while isinstance(controller.ask(Ping()), Refused):
        assert time.monotonic() < deadline, controller.log()
        time.sleep(0.1)
    assert isinstance(controller.ask(Submit(spec=SPEC), "second"), Submitted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clutser: x\n", "clutser"),
        ("server_lease_s: soon\n", "server_lease_s"),
        ("listen_clients: tcp://0.0.0.0\n", "listen_clients"),
        ("listen_clients: tcp://127.0.0.1:7700\n", "need keys"),
        ("policy: best\n", "best"),
        ("policy: missing/file.yaml\n", "no such file"),
        ("state_directory: /proc/nothing\n", "state_directory"),
        ("cluster: [\n", "line"),
    ],
)
def test_a_wrong_configuration_ends_with_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "controller.yaml"
    state = "" if "state_directory" in text else f"state_directory: {tmp_path / 'state'}\n"
    config.write_text(state + text)
    command = [sys.executable, "-m", "elasticd.controller", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_the_controller_does_without_torch() -> None:
    code = "import sys, elasticd.controller.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, check=False).returncode == 0
