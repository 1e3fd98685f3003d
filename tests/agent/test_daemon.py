"""A real agent with real workers; the controller is a ROUTER socket of the test that speaks the protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from elasticd.agent import shim
from elasticd.agent.environment import FIRST_LINE
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    ForgetWorkers,
    LogPiece,
    Message,
    Order,
    ReadLog,
    StartWorker,
    Status,
    StatusReceived,
    StopWorker,
    ToControllerFromAgent,
    ToWorkerFromAgent,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import (
    Fault,
    GpuAddress,
    GpuRange,
    JobId,
    JobSpec,
    Member,
    Roster,
    ServerId,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)
from elasticd.runtime import transport

JOB, WORKER = JobId("digits-1"), WorkerId("digits-1.0")
PATIENCE_S = 120.0  # on a loaded machine
M = TypeVar("M", bound=Message)


def start_worker(
    *command: str, worker: WorkerId = WORKER, gpu: int = 0, env: dict[str, str] | None = None
) -> StartWorker:
    spec = JobSpec(
        name="digits",
        command=command,
        gpus=GpuRange(min=1, max=2),
        virtual_workers=2,
        workdir="/",
        env={"PATH": os.environ["PATH"]} | (env or {}),
    )
    return StartWorker(job=JOB, worker=worker, gpu=gpu, spec=spec, generation=1)


class Controller:
    """The test's controller."""

    def __init__(self, context: zmq.Context, directory: Path) -> None:
        self.socket = transport.router(context)
        self.address = transport.bind(self.socket, f"ipc://{directory}/controller")
        self.codec: Codec[ToControllerFromAgent] = Codec(ToControllerFromAgent)
        self.incarnation, self.sent = "c1", 0
        self.answers = True
        self.agent = b""  # routing id of its connection
        self.name = b""  # name in its hello

    def send(self, message: Message) -> None:
        self.sent += 1
        assert transport.send(self.socket, self.agent, self.codec.encode(message))

    def receive(self) -> Message | None:
        """The next message, answered as a controller does."""
        if not self.socket.poll(100):
            return None
        self.agent, self.name, data = self.socket.recv_multipart()
        message = self.codec.decode(data)
        if isinstance(message, AgentHello | AgentHeartbeat) and self.answers:
            self.sent = 0 if isinstance(message, AgentHello) else self.sent
            answer = Acknowledged(incarnation=self.incarnation, sent=self.sent)
            transport.send(self.socket, self.agent, self.codec.encode(answer))
        return message

    def expect(self, kind: type[M], such_that: Callable[[M], bool] = lambda message: True) -> M:
        """The next message of `kind` that fits, also inside a heartbeat; others are skipped."""
        give_up_at, skipped = time.monotonic() + PATIENCE_S, []
        while time.monotonic() < give_up_at:
            message = self.receive()
            for told in (message, *(message.reports if isinstance(message, AgentHeartbeat) else ())):
                if isinstance(told, kind) and such_that(told):
                    return told
            skipped.append(message)
        raise AssertionError(f"no such {kind.__name__}; came last: {[m for m in skipped if m][-10:]}")


class Cluster:
    """A controller, and an agent that can be killed and restarted."""

    def __init__(self, directory: Path, options: str = "warm_start: false") -> None:
        self.directory = directory
        self.context = zmq.Context()
        self.controller = Controller(self.context, directory)
        self.agent: subprocess.Popen[str] | None = None
        self.command = [sys.executable, "-m", "elasticd.agent"]
        self._met: set[str] = set()
        self.config = directory / "agent.yaml"
        self.config.write_text(
            f"server: s1\ncontroller: {self.controller.address}\nstate_directory: {directory}/state\n"
            f"socket_directory: {directory}/run\ncpu_slots: 2\nheartbeat_interval_s: 0.2\nlog_file: {directory}/agent.log\n"
            f"allow_root_jobs: true\n{options}\n"
        )

    def start_agent(self) -> AgentHello:
        environment = os.environ | {"SECRET_OF_THE_DAEMON": "x"}
        self.agent = subprocess.Popen([*self.command, "--config", str(self.config)], env=environment)
        hello = self.controller.expect(AgentHello, lambda hello: hello.incarnation not in self._met)
        self._met.add(hello.incarnation)  # an earlier agent may have sent several hellos
        return hello

    def kill_agent(self, number: int = signal.SIGKILL) -> int:
        assert self.agent is not None
        self.agent.send_signal(number)
        return self.agent.wait(timeout=PATIENCE_S)

    def record(self, worker: WorkerId = WORKER) -> dict:
        path = self.directory / "state" / "jobs" / JOB / f"{worker}.json"
        eventually(lambda: path.exists() and json.loads(path.read_text()).get("pid"))
        return json.loads(path.read_text())

    def log(self, worker: WorkerId = WORKER) -> str:
        path = self.directory / "state" / "jobs" / JOB / f"{worker}.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
        for path in (self.directory / "state").glob("jobs/*/*.json"):
            record = json.loads(path.read_text())
            if record.get("shim_pid") and shim.start_ticks(record["shim_pid"]) == record["shim_start_ticks"]:
                os.kill(record["shim_pid"], signal.SIGKILL)
        self.context.destroy(linger=0)


def eventually(holds: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come to pass"
        time.sleep(0.02)


SPEAKING = """
import os, sys, time, zmq
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import Status, ToWorkerFromAgent
from elasticd.protocol.model import WorkerPhase, WorkerStatus
from elasticd.runtime import transport
worker = os.environ["ELASTICD_WORKER"]
line = transport.dealer(zmq.Context(), os.environ["ELASTICD_AGENT"], worker.encode())
for sequence in range(1, 10**6):
    status = WorkerStatus(job="digits-1", worker=worker, pid=os.getpid(), address="tcp://127.0.0.1:9", phase=WorkerPhase.TRAINING,
                          generation=1, order=1, floor=0, applied=sequence, sequence=sequence)
    line.send(Codec(ToWorkerFromAgent).encode(Status(status=status)))
    time.sleep(0.1)
"""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("c"))
    yield cluster
    cluster.close()


def test_a_worker_runs_and_its_end_is_told_until_it_is_forgotten(cluster: Cluster) -> None:
    hello = cluster.start_agent()
    assert [gpu.kind.value for gpu in hello.server.gpus] == ["cpu", "cpu"]
    cluster.controller.send(start_worker("sh", "-c", "echo hi; echo 'no data' >&2; exit 3"))
    gone = cluster.controller.expect(WorkerExit)
    assert (gone.worker, gone.exit_code, gone.reason) == (WORKER, 3, "exit code 3: no data")
    assert cluster.controller.expect(WorkerExit) == gone
    cluster.controller.send(ForgetWorkers(workers=(WORKER,)))
    eventually(lambda: cluster.controller.receive() and not list(cluster.directory.glob("state/jobs/*/*.json")))
    cluster.controller.send(ReadLog(request="r", job=JOB, worker=WORKER, offset=0, limit=1000))
    piece = cluster.controller.expect(LogPiece)
    assert [line.split(b" ", 1)[1] for line in piece.data.splitlines()] == [b"o hi", b"e no data"]
    assert piece.end


def test_a_worker_sees_what_it_was_given_and_nothing_of_the_daemons_environment(cluster: Cluster) -> None:
    cluster.start_agent()
    cluster.controller.send(start_worker("env", env={"MODE": "fast", "ELASTICD_WORKER": "forged"}))
    cluster.controller.expect(WorkerExit)
    lines = [line.split(" ", 2)[2] for line in cluster.log().splitlines()]
    seen = dict(line.split("=", 1) for line in lines)
    assert seen["MODE"] == "fast"
    assert seen["ELASTICD_WORKER"] == WORKER
    assert seen["ELASTICD_AGENT"] == f"ipc://{cluster.directory}/run/workers"
    assert (seen["OMP_NUM_THREADS"], seen["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    others = {name for name in seen if not name.startswith("ELASTICD_")}
    expected = {"PATH", "HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "THP_MEM_ALLOC_ENABLE"}
    expected |= {"MODE", "CUDA_VISIBLE_DEVICES", "USER", "LOGNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
    expected |= {
        "CUBLAS_WORKSPACE_CONFIG",
        "NCCL_NVLS_ENABLE",
        "PYTHONHASHSEED",
        "PYTHONPATH",
        "TORCHELASTIC_ERROR_FILE",
    }
    assert others - {"PWD", "SHLVL", "_"} == expected
    assert (seen["PYTHONHASHSEED"], seen["PYTHONPATH"]) == ("0", FIRST_LINE)
    assert seen["TORCHELASTIC_ERROR_FILE"].startswith(f"{seen['TMPDIR']}/")


def test_a_worker_is_stopped_by_sigterm_or_after_the_grace_by_sigkill(cluster: Cluster) -> None:
    cluster.start_agent()
    stubborn = WorkerId("digits-1.1")
    cluster.controller.send(start_worker("sleep", "60"))
    cluster.controller.send(
        start_worker("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done", worker=stubborn, gpu=1)
    )
    cluster.record()
    eventually(lambda: "up" in cluster.log(stubborn))
    cluster.controller.send(StopWorker(job=JOB, worker=WORKER, grace_s=20.0))
    assert cluster.controller.expect(WorkerExit, lambda e: e.worker == WORKER).reason == "killed by SIGTERM"
    cluster.controller.send(StopWorker(job=JOB, worker=stubborn, grace_s=0.3))
    assert cluster.controller.expect(WorkerExit, lambda e: e.worker == stubborn).reason == "killed by SIGKILL"


def test_workers_survive_the_sigkill_of_their_agent_and_the_next_one_adopts_them(cluster: Cluster) -> None:
    cluster.start_agent()
    second = WorkerId("digits-1.1")
    cluster.controller.send(start_worker("sh", "-c", "while :; do date +%s.%N; sleep 0.05; done"))
    cluster.controller.send(start_worker("sh", "-c", "echo up; sleep 0.5; exit 5", worker=second, gpu=1))
    record = cluster.record()
    eventually(lambda: "up" in cluster.log(second))
    cluster.kill_agent()
    exit_record = cluster.directory / "state" / "jobs" / JOB / f"{second}.exit"
    eventually(exit_record.exists)
    lines = len(cluster.log().splitlines())
    eventually(lambda: len(cluster.log().splitlines()) > lines)

    hello = cluster.start_agent()
    assert hello.starting == (WORKER,)
    assert [(gone.worker, gone.exit_code) for gone in hello.exited] == [(second, 5)]
    assert shim.start_ticks(record["pid"]) == record["start_ticks"]
    cluster.controller.send(start_worker("true"))  # already running: no second start
    os.kill(record["pid"], signal.SIGKILL)  # not a child of the restarted agent
    gone = cluster.controller.expect(WorkerExit, lambda message: message.worker == WORKER)
    assert gone.reason == "killed by SIGKILL"


def test_a_worker_that_an_agent_only_had_time_to_write_down_is_reported_as_ended(cluster: Cluster) -> None:
    directory = cluster.directory / "state" / "jobs" / JOB
    directory.mkdir(parents=True)
    record = {"job": JOB, "worker": WORKER, "gpu": 0, "argv": ["true"], "shim_pid": None}
    (directory / f"{WORKER}.json").write_text(json.dumps(record))
    (gone,) = cluster.start_agent().exited
    assert (gone.worker, gone.exit_code, gone.reason) == (WORKER, None, "it never started")


def test_a_process_that_only_has_the_number_of_a_worker_is_not_taken_for_it(cluster: Cluster) -> None:
    directory = cluster.directory / "state" / "jobs" / JOB
    directory.mkdir(parents=True)
    ours = {"shim_pid": os.getpid(), "shim_start_ticks": 1, "pid": os.getpid(), "start_ticks": 1}
    record = {"job": JOB, "worker": WORKER, "gpu": 0, "argv": ["true"], "boot_id": shim.boot_id()} | ours
    (directory / f"{WORKER}.json").write_text(json.dumps(record))
    hello = cluster.start_agent()
    assert hello.starting == ()
    assert [gone.worker for gone in hello.exited] == [WORKER]


def test_a_file_that_does_not_answer_stops_neither_heartbeats_nor_other_jobs(cluster: Cluster) -> None:
    cluster.start_agent()
    directory = cluster.directory / "state" / "jobs" / "stuck-7"
    directory.mkdir(parents=True)
    os.mkfifo(directory / "stuck-7.0.log")  # opening it blocks until a writer comes
    cluster.controller.send(
        ReadLog(request="r", job=JobId("stuck-7"), worker=WorkerId("stuck-7.0"), offset=0, limit=1000)
    )
    for _ in range(5):
        cluster.controller.expect(AgentHeartbeat)
    cluster.controller.send(start_worker("true"))
    assert cluster.controller.expect(WorkerExit).exit_code == 0
    assert cluster.kill_agent(signal.SIGTERM) == 0  # the exit does not wait for the file either


def test_an_agent_keeps_its_identity_and_tells_which_cluster_it_is_a_member_of(cluster: Cluster) -> None:
    first = cluster.start_agent()
    assert cluster.controller.name == f"s1#{first.agent}".encode()
    cluster.controller.send(start_worker("true"))
    cluster.controller.expect(WorkerExit)
    cluster.kill_agent()
    again = cluster.start_agent()
    assert (again.agent, again.start, again.highest_job) == (first.agent, first.start + 1, 1)


def test_a_full_disk_fails_starts_and_nothing_else(cluster: Cluster) -> None:
    """The agent cannot write a byte to a file."""
    full = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    full += f"sys.argv = ['agent', '--config', '{cluster.config}']; "
    full += "runpy.run_module('elasticd.agent', run_name='__main__')"
    cluster.agent = subprocess.Popen([sys.executable, "-c", full], stderr=subprocess.DEVNULL)
    cluster.controller.expect(AgentHello)
    cluster.controller.send(start_worker("true"))
    gone = cluster.controller.expect(WorkerExit)
    assert (gone.reason, gone.fault) == ("cannot be started: File too large", Fault.SERVER)
    cluster.controller.send(ForgetWorkers(workers=(WORKER,)))
    for _ in range(3):
        cluster.controller.expect(AgentHeartbeat)
    assert cluster.kill_agent(signal.SIGTERM) == 0


def test_an_agent_whose_state_cannot_be_written_works_on(cluster: Cluster) -> None:
    (cluster.directory / "state").mkdir(mode=0o700)
    (cluster.directory / "state" / "identity.json.new").mkdir()  # blocks the next write of the identity
    cluster.start_agent()
    cluster.controller.send(start_worker("true"))
    assert cluster.controller.expect(WorkerExit).exit_code == 0
    eventually(lambda: "identity.json cannot be written" in (cluster.directory / "agent.log").read_text())


def test_bytes_that_are_no_message_do_no_harm(cluster: Cluster) -> None:
    cluster.start_agent()
    stranger = transport.dealer(cluster.context, f"ipc://{cluster.directory}/run/workers", b"stranger")
    for data in (b"", b"\xc1", b"\x80", b"x" * 1000):
        stranger.send(data)
        transport.send(cluster.controller.socket, cluster.controller.agent, data)
    cluster.controller.send(start_worker("true"))
    assert cluster.controller.expect(WorkerExit).exit_code == 0
    stranger.close()


def test_sigterm_ends_the_agent_alone(cluster: Cluster) -> None:
    cluster.start_agent()
    cluster.controller.send(start_worker("sleep", "60"))
    record = cluster.record()
    assert cluster.kill_agent(signal.SIGTERM) == 0
    assert shim.start_ticks(record["pid"]) == record["start_ticks"]


def test_a_worker_whose_shim_is_killed_is_reported_as_ended(cluster: Cluster) -> None:
    cluster.start_agent()
    cluster.controller.send(start_worker("sleep", "60"))
    record = cluster.record()
    os.kill(record["shim_pid"], signal.SIGKILL)
    assert cluster.controller.expect(WorkerExit).exit_code is None
    eventually(lambda: shim.start_ticks(record["pid"]) is None)


def test_a_restarted_controller_gets_a_hello_with_all_it_has_to_know(cluster: Cluster) -> None:
    cluster.start_agent()
    cluster.controller.send(start_worker("sleep", "60"))
    cluster.record()
    cluster.controller.incarnation, cluster.controller.sent = "c2", 0
    hello = cluster.controller.expect(
        AgentHello, lambda hello: bool(hello.starting)
    )  # one from before may be on its way
    assert hello.starting == (WORKER,)


def test_orders_and_statuses_pass_between_controller_and_worker_also_after_a_restart_of_the_agent(
    cluster: Cluster,
) -> None:
    cluster.start_agent()
    cluster.controller.send(start_worker("sleep", "60"))
    pid = cluster.record()["pid"]
    codec: Codec[ToWorkerFromAgent] = Codec(ToWorkerFromAgent)
    speaks_for_it = transport.dealer(cluster.context, f"ipc://{cluster.directory}/run/workers", WORKER.encode())
    roster = Roster(
        generation=4,
        members=(Member(worker=WORKER, gpu=GpuAddress(server=ServerId("s1"), index=0)),),
        leader=WORKER,
    )
    order = Order(job=JOB, roster=roster, leader_address="tcp://127.0.0.1:9")
    status = WorkerStatus(
        job=JOB,
        worker=WORKER,
        pid=pid,
        address="tcp://127.0.0.1:9",
        phase=WorkerPhase.READY,
        generation=0,
        order=0,
        floor=0,
        applied=None,
        sequence=1,
    )

    def say_and_hear() -> list[Message]:
        speaks_for_it.send(codec.encode(Status(status=status)))
        heard: list[Message] = []
        eventually(lambda: speaks_for_it.poll(100) and not heard.append(codec.decode(speaks_for_it.recv())))
        while speaks_for_it.poll(200):
            heard.append(codec.decode(speaks_for_it.recv()))
        return heard

    assert say_and_hear() == [StatusReceived(sequence=1)]
    assert cluster.controller.expect(WorkerReport).status == status
    cluster.controller.send(order)
    eventually(lambda: speaks_for_it.poll(100))
    assert codec.decode(speaks_for_it.recv()) == order

    cluster.kill_agent()
    cluster.start_agent()
    cluster.controller.send(order)
    heard = say_and_hear()
    assert StatusReceived(sequence=1) in heard
    eventually(lambda: order in heard or heard.extend(say_and_hear()))
    speaks_for_it.close()


def test_a_worker_that_is_stopped_is_killed_and_its_fellow_goes_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("c"), "warm_start: false\nworker_silence_s: 5")
    second = WorkerId("digits-1.1")
    try:
        cluster.start_agent()
        cluster.controller.send(start_worker(sys.executable, "-c", SPEAKING))
        cluster.controller.send(start_worker(sys.executable, "-c", SPEAKING, worker=second, gpu=1))
        for worker in (WORKER, second):
            cluster.controller.expect(WorkerReport, lambda report, worker=worker: report.status.worker == worker)
        os.kill(cluster.record()["pid"], signal.SIGSTOP)
        gone = cluster.controller.expect(WorkerExit)
        assert (gone.worker, gone.exit_code, gone.reason) == (WORKER, -9, "said nothing for 5 s")
        cluster.controller.expect(WorkerReport, lambda report: report.status.worker == second)

        assert cluster.agent is not None
        applied = cluster.controller.expect(WorkerReport).status.applied or 0
        cluster.agent.send_signal(signal.SIGSTOP)  # time while the agent is stopped is not silence of the worker
        pid = cluster.record(second)["pid"]
        time.sleep(6.0)  # there is nothing to poll for: the agent is stopped
        cluster.agent.send_signal(signal.SIGCONT)
        cluster.controller.expect(WorkerReport, lambda report: (report.status.applied or 0) > applied + 20)
        assert shim.start_ticks(pid) is not None
    finally:
        cluster.close()


def test_the_death_of_a_worker_that_has_spoken_is_told_while_its_shim_still_ends(cluster: Cluster) -> None:
    cluster.start_agent()
    cluster.controller.send(start_worker(sys.executable, "-c", SPEAKING))
    cluster.controller.expect(WorkerReport)
    record = cluster.record()
    cluster.controller.expect(WorkerReport)
    exit_record = cluster.directory / "state" / "jobs" / JOB / f"{WORKER}.exit"
    os.kill(record["shim_pid"], signal.SIGSTOP)
    exit_record.write_text(json.dumps({"exit_code": -9, "reason": "killed by SIGKILL"}))  # as the shim would
    os.kill(record["pid"], signal.SIGKILL)
    assert cluster.controller.expect(WorkerExit).reason == "killed by SIGKILL"
    assert shim.start_ticks(record["shim_pid"]) is not None
    os.kill(record["shim_pid"], signal.SIGKILL)


def test_a_second_agent_on_the_same_state_is_refused_with_one_line(cluster: Cluster) -> None:
    cluster.start_agent()
    second = subprocess.run(
        [sys.executable, "-m", "elasticd.agent", "--config", cluster.config],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    assert second.stdout == ""
    assert second.stderr.count("\n") == 1
    assert "another agent" in second.stderr


def test_a_worker_for_a_gpu_that_is_not_there_or_with_a_wicked_name_is_refused_and_nothing_is_written(
    cluster: Cluster,
) -> None:
    cluster.start_agent()
    cluster.controller.send(start_worker("true", gpu=9))
    assert cluster.controller.expect(WorkerExit).reason == "this server has no GPU 9"
    wicked = WorkerId("../../../wicked.0")
    cluster.controller.send(start_worker("true", worker=wicked))
    assert "is not the id" in cluster.controller.expect(WorkerExit, lambda e: e.worker == wicked).reason
    cluster.controller.send(ForgetWorkers(workers=(WORKER, wicked)))
    cluster.controller.send(ReadLog(request="r", job=JOB, worker=wicked, offset=0, limit=1000))
    assert "is not the id" in cluster.controller.expect(LogPiece).error
    assert not list(cluster.directory.glob("state/jobs/**/*"))
