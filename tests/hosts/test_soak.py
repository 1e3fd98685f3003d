"""Faults between hosts: one minute of `make soak`, and single stories that it found or must show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elasticd.protocol.messages import Cancel, Cancelled, EventKind

if TYPE_CHECKING:
    from verification.soak.stories import Story

pytestmark = pytest.mark.campaign
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("back", [True, False], ids=["both ways", "one way"])
def test_a_job_goes_on_with_what_is_left_when_its_hosts_do_not_reach_each_other(
    make_story: Callable[..., Story], back: bool
) -> None:
    """Both reach the controller: no server is lost, and messages from one to the other are dropped."""
    from verification.hosts.links import CUT
    from verification.soak.faults import DATA
    from verification.soak.jobs import Kind

    story = make_story(hosts=2, slots=1)
    kind = Kind(epochs=60, virtual=2)
    story.jobs.prepare([kind])
    job = story.until("a job is taken in", lambda: story.jobs.submit(kind))
    story.trains_on(job, servers=2)
    cut = story.links.between(["h2"], ["h1"], [DATA], back)
    story.links.spoil(cut, CUT)
    story.until("the job is told to be cut off", lambda: EventKind.CUT_OFF in story.events())
    story.trains_on(job, servers=1)
    story.links.mend(cut, CUT)
    story.ends(job)
    assert job.view is not None
    assert job.view.restarts == 0, "it went on from memory"


def test_a_sample_of_soak_loses_nothing(tmp_path: Path) -> None:
    arguments = ["--minutes", "1", "--hosts", "3", "--jobs", "2", "--faults", "60", "--no-page", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "verification.soak", *arguments],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "struck.jsonl").read_bytes()


def test_what_a_cut_off_job_saves_does_not_replace_what_its_successor_has_saved(
    make_story: Callable[..., Story],
) -> None:
    """The only worker of a job is cut off from the controller, trains on, and ends before its successor does."""
    from verification.hosts.links import CUT
    from verification.soak.faults import CONTROL
    from verification.soak.jobs import Kind

    story = make_story(hosts=2, slots=1)
    kind = Kind(epochs=60, virtual=2)
    story.jobs.prepare([kind])
    jobs = [story.until("a job is taken in", lambda: story.jobs.submit(kind)) for _ in range(2)]
    for job in jobs:
        story.trains_on(job, servers=1)
    (there,) = [job for job in jobs if job.servers() == {"h2"}]
    (here,) = [job for job in jobs if job.servers() == {"h1"}]
    checkpoints = story.directory / "checkpoints"
    story.until("there is a checkpoint", lambda: list(checkpoints.glob(f"**/{there.id}.*/*.pt")))
    cut = story.links.between(["h2"], ["h1"], [CONTROL])
    story.links.spoil(cut, CUT)
    assert isinstance(story.desk.ask(Cancel(job=here.id), timeout_s=30.0), Cancelled)

    def goes_on_here() -> bool:
        story.jobs.look(ask=True)
        return there.servers() == {"h1"}

    def was_refused() -> bool:
        logs = (story.directory / "disks" / "h2").rglob("*.log")
        return any("is not written: generation" in log.read_text(errors="replace") for log in logs)

    story.until("the job goes on elsewhere", goes_on_here)
    story.until("what the one that is cut off saves is refused", was_refused)
    story.links.mend(cut, CUT)
    story.ends(there)
    assert there.view is not None
    assert there.view.restarts == 1
