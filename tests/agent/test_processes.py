"""File systems that hang, fill up or fail block only the workers that need them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticd.agent.disk import Disk, Failed, Prepared, Watched, load_identity, save_identity
from elasticd.agent.environment import Surroundings
from elasticd.agent.events import ProcessExited, ProcessFailed, ProcessStarted, StopSignal
from elasticd.agent.identity import Identity
from elasticd.agent.logfiles import JobFiles
from elasticd.agent.processes import Processes
from elasticd.agent.task_queues import TaskQueues
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import StartWorker
from elasticd.protocol.model import Fault, Gpu, GpuKind, GpuRange, JobId, JobSpec, WorkerId
from elasticd.runtime.clock import SteadyClock
from elasticd.runtime.loop import Loop

PATIENCE_S = 120.0


class SlowDisk(Disk):
    """A disk on which the checkpoint directories of some jobs hang until `answers` is set."""

    def __init__(self, state: Path, files: JobFiles, around: Surroundings) -> None:
        super().__init__(state, files, around)
        self.hangs: set[JobId] = set()
        self.asked = threading.Event()
        self.answers = threading.Event()

    def prepare(self, start: StartWorker, watched: Watched) -> Prepared | Failed:
        if start.job in self.hangs:
            self.asked.set()
            assert self.answers.wait(PATIENCE_S)
        return super().prepare(start, watched)


class Agent:
    """The processes part of an agent, with its loop."""

    def __init__(self, state: Path, address: str = "127.0.0.1") -> None:
        self.state = state
        self.told: list[ProcessStarted | ProcessExited | ProcessFailed] = []
        self.loop = Loop(SteadyClock(), self._on_turn, lambda: time.time() + 0.01)
        self.around = around = Surroundings(
            agent_address="ipc:///nowhere",
            address=address,
            checkpoints=state / "checkpoints",
            gpus=(Gpu(index=0, kind=GpuKind.CPU, name="cpu"),),
        )
        files = JobFiles(state / "jobs")
        self.tasks = TaskQueues(self.loop.wake)
        self.disk = SlowDisk(state, files, around)
        self.processes = Processes(
            files, around, self.loop, SteadyClock(), None, self.told.append, self.tasks, self.disk
        )

    def _on_turn(self) -> None:
        self.tasks.deliver()
        self.processes.pass_time()

    def start(self, job: str, *command: str, uid: str = "") -> WorkerId:
        spec = JobSpec(
            name="digits", command=command, gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/", env={}
        )
        worker = WorkerId(f"{job}.0")
        start = StartWorker(job=JobId(job), worker=worker, gpu=0, spec=spec, generation=1, uid=uid)
        assert self.processes.start(start) is None
        return worker

    def until(self, holds: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up_at, f"it did not come to pass; told: {self.told}"
            self.loop.turn()

    def heard(self, kind: type, worker: WorkerId) -> bool:
        return any(isinstance(event, kind) and event.worker == worker for event in self.told)

    def close(self) -> None:
        self.disk.answers.set()
        self.processes.close()
        self.tasks.close()
        self.loop.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


def test_no_worker_starts_while_no_interface_has_the_servers_address_as_nccl_would_choose_any(tmp_path: Path) -> None:
    agent = Agent(tmp_path, address="203.0.113.77")
    try:
        early = agent.start("early-1", "true")
        agent.until(lambda: agent.heard(ProcessFailed, early))
        (failed,) = agent.told
        assert isinstance(failed, ProcessFailed)
        assert failed.fault is Fault.SERVER
        assert "no network interface of this server has its address 203.0.113.77" in failed.reason
        agent.disk.surround(replace(agent.around, address="127.0.0.1"))  # as if the tunnel was up now
        later = agent.start("later-2", "sh", "-c", f"echo $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME > {tmp_path}/told")
        agent.until(lambda: agent.heard(ProcessExited, later))
        assert (tmp_path / "told").read_text() == "=lo lo\n"
    finally:
        agent.close()


def test_checkpoints_that_do_not_answer_hold_up_neither_the_loop_nor_other_jobs(agent: Agent) -> None:
    agent.disk.hangs.add(JobId("hangs-1"))
    stuck = agent.start("hangs-1", "true")
    assert agent.disk.asked.wait(PATIENCE_S)
    other = agent.start("other-2", "true")
    agent.until(lambda: agent.heard(ProcessExited, other))
    assert agent.heard(ProcessStarted, other)
    assert not any(event.worker == stuck for event in agent.told)
    agent.disk.answers.set()
    agent.until(lambda: agent.heard(ProcessExited, stuck))


def test_a_worker_of_the_same_job_that_runs_already_is_noticed_when_it_ends(agent: Agent) -> None:
    first = agent.start("hangs-1", "sleep", "0.3")
    agent.until(lambda: agent.heard(ProcessStarted, first))
    agent.disk.hangs.add(JobId("hangs-1"))
    spec = JobSpec(name="digits", command=("true",), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/")
    agent.processes.start(
        StartWorker(job=JobId("hangs-1"), worker=WorkerId("hangs-1.1"), gpu=0, spec=spec, generation=1)
    )
    agent.until(lambda: agent.heard(ProcessExited, first))


def test_a_start_that_hangs_can_be_stopped_at_once_and_nothing_comes_of_it_later(agent: Agent) -> None:
    agent.disk.hangs.add(JobId("hangs-1"))
    stuck = agent.start("hangs-1", "true")
    assert agent.disk.asked.wait(PATIENCE_S)
    failed = agent.processes.signal(stuck, StopSignal.KILL)
    assert failed == ProcessFailed(stuck, "it was stopped before it began", Fault.STOPPED)
    agent.disk.answers.set()
    other = agent.start("other-2", "true")
    agent.until(lambda: agent.heard(ProcessExited, other))
    assert not list((agent.state / "jobs").glob("hangs-1*/*"))
    assert not any(event.worker == stuck for event in agent.told)


def test_a_signal_that_comes_while_the_shim_is_being_started_is_sent_afterwards(agent: Agent) -> None:
    worker = agent.start("digits-1", "sleep", "60")
    agent.until(lambda: agent.heard(ProcessStarted, worker) or _executing(agent, worker))
    agent.processes.signal(worker, StopSignal.TERMINATE)
    agent.until(lambda: agent.heard(ProcessExited, worker))


def _executing(agent: Agent, worker: WorkerId) -> bool:
    start = agent.processes._starts.get(worker)
    return start is not None and start.stage.value == "executing"


def test_checkpoints_that_cannot_be_made_fail_the_start_with_the_reason(agent: Agent) -> None:
    (agent.state / "checkpoints").write_text("a file is in the way")
    worker = agent.start("digits-1", "true")
    agent.until(lambda: agent.told)
    assert agent.told == [ProcessFailed(worker, "cannot be started: Not a directory", Fault.SERVER)]


def test_jobs_with_one_number_and_different_uids_have_different_files(agent: Agent) -> None:
    worker = agent.start("digits-1", "sh", "-c", "echo one; exit 1", uid="aa")
    agent.until(lambda: agent.heard(ProcessExited, worker))
    agent.told.clear()
    agent.start("digits-1", "sh", "-c", "echo two; exit 2", uid="bb")
    agent.until(lambda: agent.heard(ProcessExited, worker))
    assert "one" in (agent.state / "jobs/digits-1.aa/digits-1.0.log").read_text()
    assert "two" in (agent.state / "jobs/digits-1.bb/digits-1.0.log").read_text()
    assert {path.name for path in (agent.state / "checkpoints").iterdir()} == {"digits-1.aa", "digits-1.bb"}


def test_an_identity_outlives_its_agent_and_counts_its_starts(tmp_path: Path) -> None:
    first = load_identity(tmp_path, "made")
    assert first == Identity(agent="made", start=1)
    assert save_identity(tmp_path, first) == ""
    assert load_identity(tmp_path, "another") == Identity(agent="made", start=2)


def test_an_identity_that_cannot_be_written_or_read_is_one_clear_sentence(tmp_path: Path) -> None:
    assert "cannot be written: No such file" in save_identity(tmp_path / "gone", Identity(agent="a"))
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(OperatorError, match="is not the identity of an agent"):
        load_identity(tmp_path, "made")
