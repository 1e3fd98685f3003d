"""The workers' sockets of an agent that is root: who may speak as whom."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elasticd.agent import cgroups, config
from elasticd.agent.cgroups import Cgroups, Limits
from elasticd.protocol.messages import AgentHello, StartWorker, WorkerReport
from elasticd.protocol.model import JobId, WorkerId

from .accounts_stories import ALICE, BOB, SITE, SOURCE, as_account, only_root, public_directory, uid
from .test_daemon import JOB, WORKER, Cluster, eventually, start_worker

pytestmark = only_root
OTHER_JOB, OTHER = JobId("other-2"), WorkerId("other-2.0")

# Speaks as a worker, whoever executes it: SOCKET JOB WORKER SEQUENCE.
SPEAKER = """
import sys, time, zmq
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import Status, ToAgentFromWorker
from elasticd.protocol.model import WorkerPhase, WorkerStatus
address, job, worker, sequence = sys.argv[1:]
socket = zmq.Context().socket(zmq.DEALER)
socket.identity = worker.encode()
socket.connect(address)
status = WorkerStatus(job=job, worker=worker, pid=1, address="tcp://127.0.0.1:1", phase=WorkerPhase.TRAINING, generation=1,
                      order=1, floor=1, applied=5, sequence=int(sequence))
socket.send(Codec(ToAgentFromWorker).encode(Status(status=status)))
print("heard" if socket.poll(1500) else "not heard", flush=True)
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with public_directory() as place:
        cluster = Cluster(place)
        yield cluster
        cluster.close()
        left = Cgroups(config.tag(place / "state"), Limits(), None, cgroups.mounted())
        for path in left.others(frozenset()):
            cgroups.remove((path,))
        left.close()


def speak(account: str, address: str, job: str, worker: str, sequence: int) -> str:
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    env = {"PYTHONPATH": f"{SITE}:{SOURCE}"}
    return as_account(account, python, "-c", SPEAKER, address, job, worker, str(sequence), env=env).stdout.strip()


def started(cluster: Cluster, start: StartWorker, account: str) -> None:
    cluster.controller.send(msgspec.structs.replace(start, account=account))
    path = cluster.directory / "state" / "accounts" / account / start.job / f"{start.worker}.json"
    eventually(lambda: path.exists() and b'"pid"' in path.read_bytes())


@pytest.mark.skipif(not Path(f"/usr/bin/python3.{sys.version_info.minor}").exists(), reason="needs the system's Python")
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
    assert speak(BOB, sockets[ALICE], JOB, WORKER, 2) == "not heard"  # the kernel lets nobody else connect
    assert speak(BOB, f"ipc://{cluster.directory}/run/workers", JOB, WORKER, 2) == "not heard"
    assert speak(BOB, sockets[BOB], JOB, WORKER, 3) == "not heard"  # it connects, and is not believed
    assert "of another account" in (cluster.directory / "agent.log").read_text()
    assert speak(ALICE, sockets[ALICE], JOB, WORKER, 4) == "heard"

    assert "Permission denied" in as_account(BOB, "ls", f"{cluster.directory}/run").stderr
    assert "denied" in as_account(ALICE, "rm", "-f", sockets[ALICE].removeprefix("ipc://")).stderr
    cluster.kill_agent()
    hello: AgentHello = cluster.start_agent()
    assert {process.worker for process in hello.processes} == {WORKER, OTHER}
    assert speak(ALICE, sockets[ALICE], JOB, WORKER, 5) == "heard"
