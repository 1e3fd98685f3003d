"""The workers' sockets of an agent that is root, and their access control."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from elasticd.agent import cgroups, config
from elasticd.agent.cgroups import Cgroups, Limits
from elasticd.protocol.messages import AgentHeartbeat, AgentHello, StartWorker, WorkerReport
from elasticd.protocol.model import JobId, WorkerId
from tests.runtime.held_up import hold_up, is_held_up, needs_stacks

from .accounts_stories import ALICE, BOB, SITE, SOURCE, as_account, only_root, public_directory, uid
from .test_daemon import JOB, PATIENCE_S, WORKER, Cluster, eventually, start_worker

pytestmark = only_root
OTHER_JOB, OTHER = JobId("other-2"), WorkerId("other-2.0")

# Sends workers' messages at full speed over new connections: SOCKET JOB WORKER SECONDS.
FLOODER = """
import sys, time, zmq
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import Status, ToAgentFromWorker
from elasticd.protocol.model import WorkerPhase, WorkerStatus
address, job, worker, seconds = sys.argv[1:]
context = zmq.Context()
status = WorkerStatus(job=job, worker=worker, pid=1, address="tcp://127.0.0.1:1", phase=WorkerPhase.TRAINING, generation=1,
                      order=1, floor=1, applied=5, sequence=1, note="x" * 60_000)
data = Codec(ToAgentFromWorker).encode(Status(status=status))
until, said = time.monotonic() + float(seconds), 0
while time.monotonic() < until:
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.identity = worker.encode()
    socket.connect(address)
    for _ in range(20_000):
        if time.monotonic() > until or not socket.poll(500, zmq.POLLOUT):
            break
        socket.send(data)
        said += 1
    socket.close()
print(said)
"""

# Opens connections and sends nothing: SOCKET SECONDS.
SILENT = """
import socket, sys, time
address, seconds = sys.argv[1:]
lines, opened, until = [], 0, time.monotonic() + float(seconds)
while time.monotonic() < until:
    try:
        line = socket.socket(socket.AF_UNIX)
        line.connect(address.removeprefix("ipc://"))
        lines.append(line)
        opened += 1
    except OSError:
        lines.clear()
print(opened)
"""

# Sends messages in the name of a worker: SOCKET JOB WORKER SEQUENCE MILLISECONDS.
SPEAKER = """
import sys, time, zmq
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import Status, ToAgentFromWorker
from elasticd.protocol.model import WorkerPhase, WorkerStatus
address, job, worker, sequence, wait_ms = sys.argv[1:]
socket = zmq.Context().socket(zmq.DEALER)
socket.identity = worker.encode()
socket.connect(address)
status = WorkerStatus(job=job, worker=worker, pid=1, address="tcp://127.0.0.1:1", phase=WorkerPhase.TRAINING, generation=1,
                      order=1, floor=1, applied=5, sequence=int(sequence))
socket.send(Codec(ToAgentFromWorker).encode(Status(status=status)))
print("heard" if socket.poll(int(wait_ms)) else "not heard", flush=True)
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with public_directory() as place:
        # workers report only when the test wants it
        cluster = Cluster(place, "warm_start: false\nworker_silence_s: 600")
        yield cluster
        cluster.close()
        left = Cgroups(config.tag(place / "state"), Limits(), None, cgroups.mounted())
        for path in left.others(frozenset()):
            cgroups.remove((path,))
        left.close()


PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"
ENV = {"PYTHONPATH": f"{SITE}:{SOURCE}"}
needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs the system's Python")
FLOOD_S = 6.0
MOST_BYTES = 300 << 20  # growth of the agent's memory
MOST_DESCRIPTORS = 1000  # growth of the agent's open files


def begin(account: str, code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start `code` in a process of another account."""
    entry = pwd.getpwnam(account)
    command = [PYTHON, "-c", code, *arguments]
    return subprocess.Popen(
        command, user=entry.pw_uid, group=entry.pw_gid, extra_groups=[], env=ENV, stdout=subprocess.PIPE, text=True
    )


def speak(account: str, address: str, job: str, worker: str, sequence: int, wait_s: float = PATIENCE_S) -> str:
    words = (address, job, worker, str(sequence), str(int(wait_s * 1000)))
    done = as_account(account, PYTHON, "-c", SPEAKER, *words, env=ENV)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.strip()


def started(cluster: Cluster, start: StartWorker, account: str) -> None:
    cluster.controller.send(msgspec.structs.replace(start, account=account))
    path = cluster.directory / "state" / "accounts" / account / start.job / f"{start.worker}.json"
    eventually(lambda: path.exists() and b'"pid"' in path.read_bytes())


@needs_python
@pytest.mark.parametrize("how", ["statuses", pytest.param("connections", marks=pytest.mark.cluster)])
def test_an_account_that_says_too_much_is_cut_off_and_others_are_heard(cluster: Cluster, how: str) -> None:
    cluster.start_agent()
    started(cluster, start_worker("sleep", "300"), ALICE)
    started(cluster, msgspec.structs.replace(start_worker("sleep", "300", worker=OTHER, gpu=1), job=OTHER_JOB), BOB)
    sockets = {account: f"ipc://{cluster.directory}/run/workers-{uid(account)}" for account in (ALICE, BOB)}
    assert cluster.agent is not None
    agent = psutil.Process(cluster.agent.pid)
    before, files = agent.memory_info().rss, agent.num_fds()
    flood = (
        begin(ALICE, FLOODER, sockets[ALICE], JOB, WORKER, str(FLOOD_S))
        if how == "statuses"
        else begin(ALICE, SILENT, sockets[ALICE], str(FLOOD_S))
    )
    most, most_files, heard = 0, 0, []
    while flood.poll() is None:
        heard.append(speak(BOB, sockets[BOB], OTHER_JOB, OTHER, len(heard) + 1))
        most, most_files = max(most, agent.memory_info().rss), max(most_files, agent.num_fds())
    said = int(flood.communicate()[0])
    assert said > 200
    assert set(heard) == {"heard"}
    assert most - before < MOST_BYTES, f"{(most - before) >> 20} MiB for {said} of 60 kB"
    assert most_files - files < MOST_DESCRIPTORS
    log = (cluster.directory / "agent.log").read_text()
    assert ("says more than" if how == "statuses" else "connect too often") in log, log[-2000:]
    assert len(log) < 20_000
    assert speak(ALICE, sockets[ALICE], JOB, WORKER, 99) == "heard", "when it has calmed down"


OLD_KERNEL = """
import sys
from elasticd.runtime import transport
transport.take_no_descriptors = lambda socket: None
from elasticd.agent.__main__ import main
sys.exit(main())
"""


@needs_python
@needs_stacks
def test_before_linux_6_16_an_account_can_freeze_its_own_line_and_no_others(cluster: Cluster) -> None:
    cluster.command = [sys.executable, "-c", OLD_KERNEL]
    cluster.start_agent()
    started(cluster, start_worker("sleep", "300"), ALICE)
    started(cluster, msgspec.structs.replace(start_worker("sleep", "300", worker=OTHER, gpu=1), job=OTHER_JOB), BOB)
    sockets = {account: f"ipc://{cluster.directory}/run/workers-{uid(account)}" for account in (ALICE, BOB)}
    assert speak(ALICE, sockets[ALICE], JOB, WORKER, 1) == "heard"
    agent = cluster.agent
    assert agent is not None
    here, senders = hold_up(Path(sockets[ALICE].removeprefix("ipc://")), lambda: is_held_up(str(agent.pid)))
    try:
        assert speak(BOB, sockets[BOB], OTHER_JOB, OTHER, 1) == "heard"
        assert speak(ALICE, sockets[ALICE], JOB, WORKER, 2, 1.5) == "not heard"
        cluster.controller.expect(AgentHeartbeat)
        assert cluster.kill_agent(signal.SIGTERM) == 0, "nor does its end wait"
    finally:
        here.close()
        for sender in senders:
            sender.wait(PATIENCE_S)


@needs_python
def test_only_the_account_of_a_worker_speaks_as_it(cluster: Cluster) -> None:
    cluster.start_agent()
    started(cluster, start_worker("sleep", "300"), ALICE)
    started(cluster, msgspec.structs.replace(start_worker("sleep", "300", worker=OTHER, gpu=1), job=OTHER_JOB), BOB)
    sockets = {account: f"ipc://{cluster.directory}/run/workers-{uid(account)}" for account in (ALICE, BOB)}
    for account, address in sockets.items():
        found = os.stat(address.removeprefix("ipc://"))
        assert (found.st_uid, found.st_mode & 0o777) == (uid(account), 0o600)
    assert os.stat(f"{cluster.directory}/run/workers").st_uid == 0

    assert speak(ALICE, sockets[ALICE], JOB, WORKER, 1) == "heard"
    cluster.controller.expect(WorkerReport, lambda report: report.status.worker == WORKER)
    assert speak(BOB, sockets[ALICE], JOB, WORKER, 2, 1.5) == "not heard"  # the kernel lets no other account connect
    assert speak(BOB, f"ipc://{cluster.directory}/run/workers", JOB, WORKER, 2, 1.5) == "not heard"
    assert speak(BOB, sockets[BOB], JOB, WORKER, 3, 5.0) == "not heard"  # it connects, and its messages are dropped
    eventually(lambda: "of another account" in (cluster.directory / "agent.log").read_text())
    assert speak(ALICE, sockets[ALICE], JOB, WORKER, 4) == "heard"

    assert "Permission denied" in as_account(BOB, "ls", f"{cluster.directory}/run").stderr
    assert "denied" in as_account(ALICE, "rm", "-f", sockets[ALICE].removeprefix("ipc://")).stderr
    cluster.kill_agent()
    hello: AgentHello = cluster.start_agent()
    assert {process.worker for process in hello.processes} == {WORKER, OTHER}
    eventually(lambda: (cluster.directory / "agent.log").read_text().count("is adopted") == 2)
    assert speak(ALICE, sockets[ALICE], JOB, WORKER, 5) == "heard"
