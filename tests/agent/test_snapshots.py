"""A worker starts in the files of its job's snapshot, or not at all."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticd.agent.disk import Disk, lay_out
from elasticd.agent.environment import Surroundings
from elasticd.agent.events import ProcessFailed, StopSignal
from elasticd.agent.logfiles import JobFiles
from elasticd.agent.snapshots import ASK_AGAIN_S, GIVE_UP_S, Snapshots
from elasticd.agent.task_queues import TaskQueues
from elasticd.protocol.messages import ReadSnapshot, SnapshotPart, StartWorker
from elasticd.protocol.model import Fault, GpuRange, JobId, JobSpec, Snapshot, WorkerId
from elasticd.protocol.snapshots import File, pack, part_of

FILES = [File("train.py", False, os.urandom(600_000)), File("tools/run.sh", True, b"#!/bin/sh")]  # two parts
SNAPSHOT, DATA = pack(FILES)
JOB, UID = JobId("job-1"), "ab"


class Story:
    """An agent's starts; the test decides when the controller answers."""

    def __init__(self, state: Path) -> None:
        around = Surroundings("ipc://x", "127.0.0.1", state / "checkpoints", ())
        self.now = 100.0
        self.tasks = TaskQueues(lambda: None)
        self.asked: list[ReadSnapshot] = []
        self.begun: list[StartWorker] = []
        self.failed: list[ProcessFailed] = []
        self.disk = Disk(state, JobFiles(state / "jobs"), around)
        self.snapshots = Snapshots(
            self.tasks,
            self.disk,
            lambda: self.now,
            self.asked.append,
            self.begun.append,
            self.failed.append,
            lambda start: "",
        )

    def start(self, number: int = 0, snapshot: Snapshot = SNAPSHOT) -> None:
        spec = JobSpec(
            name="job",
            command=("python", "train.py"),
            gpus=GpuRange(min=1, max=1),
            virtual_workers=1,
            workdir="/home/original",
            snapshot=snapshot,
        )
        worker = WorkerId(f"{JOB}.{number}")
        self.snapshots.ask(StartWorker(job=JOB, worker=worker, gpu=0, spec=spec, generation=1, uid=UID))

    def until(self, done: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + 300
        while not done():
            assert time.monotonic() < give_up_at, "nothing came of it"
            self.tasks.deliver()
            time.sleep(0.001)

    def answer(self, data: bytes = DATA) -> None:
        """Answer the last request."""
        part = self.asked[-1].part
        self.snapshots.take(SnapshotPart(job=JOB, part=part, data=part_of(data, part), uid=UID))

    def get(self) -> None:
        self.until(lambda: self.asked)
        self.answer()
        assert [each.part for each in self.asked] == [0, 1]
        self.answer()
        self.until(lambda: self.begun or self.failed)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_worker_starts_where_the_files_of_its_job_are_and_later_ones_ask_for_nothing(story: Story) -> None:
    story.start()
    story.get()
    (begun,) = story.begun
    directory = Path(begun.spec.workdir)
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == {file.path: file.content for file in FILES}
    assert stat.S_IMODE(found["tools/run.sh"].stat().st_mode) == 0o700
    assert stat.S_IMODE(found["train.py"].stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700, "closed to others"
    story.start(1)
    story.until(lambda: len(story.begun) == 2)
    assert story.begun[1].spec.workdir == begun.spec.workdir
    assert len(story.asked) == 2


def test_several_workers_of_a_job_wait_for_one_copy(story: Story) -> None:
    story.start(0)
    story.start(1)
    story.get()
    assert [each.worker for each in story.begun] == ["job-1.0", "job-1.1"]


def test_bytes_that_are_not_the_snapshot_are_not_unpacked(story: Story, tmp_path: Path) -> None:
    story.start()
    story.until(lambda: story.asked)
    story.answer()
    story.answer(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    story.until(lambda: story.failed)
    assert "the snapshot is not whole" in story.failed[0].reason
    assert not list((tmp_path / "jobs").rglob("code-*"))


def test_a_refusal_and_a_part_of_another_size_fail_the_start_with_the_reason(story: Story) -> None:
    story.start()
    story.until(lambda: story.asked)
    story.snapshots.take(SnapshotPart(job=JOB, part=0, data=b"", uid=UID, error="the snapshot is not in the store"))
    story.start(1)
    story.until(lambda: len(story.asked) == 2)
    story.snapshots.take(SnapshotPart(job=JOB, part=0, data=b"short", uid=UID))
    reasons = [failed.reason for failed in story.failed]
    assert "not in the store" in reasons[0]
    assert "another size" in reasons[1]
    assert {failed.fault for failed in story.failed} == {Fault.SERVER}


def test_what_is_not_answered_is_asked_again_and_given_up_after_a_while(story: Story) -> None:
    story.start()
    story.until(lambda: story.asked)
    story.now += ASK_AGAIN_S
    assert story.snapshots.deadline() == story.now
    story.snapshots.pass_time()
    assert [each.part for each in story.asked] == [0, 0]
    first = SnapshotPart(job=JOB, part=0, data=part_of(DATA, 0), uid=UID)
    story.snapshots.take(first)
    story.snapshots.take(first)  # answers to the first request, and to the second
    assert [each.part for each in story.asked] == [0, 0, 1]
    story.now += GIVE_UP_S
    story.snapshots.pass_time()
    assert "has not sent the job's snapshot within 120 s" in story.failed[0].reason
    assert story.snapshots.deadline() is None


def test_a_start_that_is_stopped_meanwhile_does_not_begin(story: Story) -> None:
    story.start()
    story.until(lambda: story.asked)
    stopped = story.snapshots.stop(WorkerId("job-1.0"), StopSignal.KILL)
    assert stopped is not None
    assert stopped.fault is Fault.STOPPED
    assert story.snapshots.stop(WorkerId("job-1.0"), StopSignal.KILL) is None
    story.answer()
    assert story.begun == []


def test_the_copy_goes_with_the_last_worker(story: Story, tmp_path: Path) -> None:
    story.start()
    story.get()
    story.snapshots.remove(JOB, UID, "")
    story.until(lambda: not list((tmp_path / "jobs").glob("*/code-*")))
    story.start()
    story.until(lambda: len(story.asked) == 3)


def test_files_are_laid_out_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        lay_out(tmp_path / "code", [File("a", False, b""), File("a/b", False, b"")])
    assert list(tmp_path.iterdir()) == []
