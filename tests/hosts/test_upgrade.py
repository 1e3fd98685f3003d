"""Three hosts are upgraded one after the other while jobs train, then downgraded; meanwhile both versions communicate.

The earlier version, n, is the commit in last_version.txt; its package is taken from the history of this checkout. n + 1 is the
checkout itself. Without the history (an archive, a shallow clone) the tests are skipped with this reason.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from verification.soak.stories import Story

pytestmark = pytest.mark.campaign
ROOT = Path(__file__).resolve().parents[2]
LAST_VERSION = Path(__file__).with_name("last_version.txt").read_text().strip()


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Directory for PYTHONPATH with the package of the earlier version, visible on all hosts."""
    place = tmp_path / "shared" / "version-before"
    place.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", LAST_VERSION], capture_output=True)
    if archive.returncode:
        pytest.skip(f"commit {LAST_VERSION} is not in this checkout's history: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return place / "src"


def version_of(command: Sequence[str], pid: int) -> str:
    """PYTHONPATH of a process."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((line[11:].decode() for line in variables if line.startswith(b"PYTHONPATH=")), "")


@pytest.mark.parametrize("first", ["controller", "agents"])
def test_hosts_are_upgraded_and_taken_back_while_jobs_of_both_versions_train(
    make_story: Callable[..., Story], before: Path, first: str
) -> None:
    from verification.soak.cluster import What
    from verification.soak.jobs import Kind

    daemons = [(What.AGENT, name) for name in ("h1", "h2", "h3")]
    daemons = [(What.CONTROLLER, "h1"), *daemons] if first == "controller" else [*daemons, (What.CONTROLLER, "h1")]
    story = make_story(hosts=3, slots=2, versions=dict.fromkeys(daemons, before))
    kind = Kind(epochs=60, virtual=4)
    story.jobs.prepare([kind])
    story.jobs.calm.touch()
    old = story.until("a job is taken in", lambda: story.jobs.submit(kind, PYTHONPATH=str(before)))
    story.goes_on(old)
    assert {version_of(w.command, w.pid) for n in story.lab.hosts for w in story.workers(n)} == {str(before)}
    jobs = [old]
    for number, (what, name) in enumerate([*daemons, *reversed(daemons)]):
        (running,) = [each for each in story.cluster.processes(name) if each.what is what]
        upgrades = number < len(daemons)
        assert (version_of(running.command, running.pid) == str(before)) == upgrades
        if upgrades:
            del story.cluster.versions[what, name]
        else:
            story.cluster.versions[what, name] = before
        story.restart(what, name)
        if number == len(daemons) // 2:  # half is new, half is old
            new = story.until("a job is taken in", lambda: story.jobs.submit(kind))
            jobs.append(new)
        for job in jobs:
            story.goes_on(job)
    for job in jobs:
        assert job.view is not None
        assert job.view.restarts == 0, "it was taken for dead"
    story.jobs.calm.unlink()
    for job in jobs:
        story.ends(job)


def test_a_job_whose_environment_is_upgraded_under_it_comes_to_its_end_with_the_same_result(
    make_story: Callable[..., Story], before: Path
) -> None:
    """Its workers were started from one version; a lost one is replaced by one of the other; likewise after the downgrade.

    Workers of two versions need not understand each other: the job may have to restart from its last checkpoint.
    """
    from verification.soak.cluster import signal_process
    from verification.soak.jobs import Kind

    story = make_story(hosts=2, slots=2)
    present = before.parent.parent / "present"
    present.symlink_to(before)
    kind = Kind(epochs=60, virtual=4)
    story.jobs.prepare([kind])
    story.jobs.calm.touch()
    job = story.until("a job is taken in", lambda: story.jobs.submit(kind, PYTHONPATH=str(present)))

    def one_is_replaced(version: Path) -> None:
        story.until("all of its workers train", lambda: (story.goes_on(job), len(job.view.workers) == 4)[1])
        present.unlink()
        present.symlink_to(version)
        known = {found.pid for found in story.workers("h1")}
        signal_process(min(known), signal.SIGKILL)
        story.until("it is replaced", lambda: {found.pid for found in story.workers("h1")} - known)

    one_is_replaced(ROOT / "src")
    one_is_replaced(before)
    story.jobs.calm.unlink()
    story.ends(job)
