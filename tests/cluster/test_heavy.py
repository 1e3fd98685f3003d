"""Campaigns with real processes: a state of two gigabytes, and a step of two minutes. `make verify-heavy`"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.messages import Scale, Scaled

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).with_name("train_heavy.py")
GIB = 1 << 30
MakeCluster = Callable[..., Any]


def alone(output: Path, *arguments: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC")}
    subprocess.run([sys.executable, str(SCRIPT), str(output), *arguments], env=environment, check=True)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def wait(what: str, probe: Callable[[], Any], seconds: float, story: Callable[[], str]) -> Any:
    """What `probe` gives at last."""
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{story()}"
        time.sleep(0.05)
    return found


def scale(cluster: Any, job: str, share: int | None) -> None:
    """None: the policy decides again."""
    answer = cluster.client.ask(Scale(job=job, share=share))
    assert isinstance(answer, Scaled), answer


def steps_done(cluster: Any, job: str) -> int:
    step = cluster.job(job).step
    return 0 if step is None else int(step) + 1


def checkpoints(tmp_path: Path, job: str) -> list[Path]:
    """The files of its checkpoints, those that are being written too."""
    return [path for folder in (tmp_path / "checkpoints").glob(f"{job}.*") for path in folder.iterdir()]


def whole(tmp_path: Path, job: str) -> list[Path]:
    return [path for path in checkpoints(tmp_path, job) if path.suffix == ".pt"]


def test_a_state_of_two_gigabytes_is_handed_on_saved_and_found_again(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """It grows, is preempted, comes back, loses all workers while it writes a checkpoint, and begins again from the last one."""
    cluster = make_cluster(servers=1, slots=2)
    arguments = ("--layers", "4", "--steps", "30")
    job = cluster.submit(str(tmp_path / "out"), *arguments, "--pace", "1", gpus=(1, 2), virtual_workers=2, script=SCRIPT,
                         checkpoint_every_s=5.0, save_timeout_s=300.0)  # fmt: skip

    def until(what: str, probe: Callable[[], Any]) -> Any:
        return wait(what, probe, 600.0, cluster.story)

    scale(cluster, job, 1)
    until("it trains", lambda: steps_done(cluster, job) >= 2)
    scale(cluster, job, 2)
    until("a second worker trains", lambda: cluster.job(job).share_gpus == 2 and len(cluster.pids(job)) == 2)
    scale(cluster, job, None)
    other = cluster.submit(str(tmp_path / "other.pt"), gpus=(2, 2))
    scale(cluster, other, 2)
    until("it is preempted", lambda: not cluster.pids(job))
    assert max(path.stat().st_size for path in whole(tmp_path, job)) >= 2 * GIB
    saved = steps_done(cluster, job)
    until("the other job is over", lambda: cluster.job(other).phase.final)
    until("it trains again", lambda: steps_done(cluster, job) > saved + 2)
    assert cluster.job(job).restarts == 0
    before = set(whole(tmp_path, job))
    until("it writes a checkpoint", lambda: set(checkpoints(tmp_path, job)) - before)
    for pid in cluster.pids(job).values():
        os.kill(pid, signal.SIGKILL)
    wait("it is over", lambda: cluster.job(job).phase.final, 1800.0, cluster.story)
    view = cluster.until_final(job)
    assert view.restarts == 1
    assert json.loads((tmp_path / "out").read_text()) == alone(tmp_path / "alone", *arguments)


def test_nothing_is_lost_of_steps_that_last_two_minutes(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """In the middle of a step it grows; in that of another one a worker is killed; in a third it is preempted."""
    cluster = make_cluster(servers=1, slots=3)
    job = cluster.submit(str(tmp_path / "out"), "--steps", "4", "--pace", "60", gpus=(1, 2), virtual_workers=2, script=SCRIPT,
                         checkpoint_every_s=600.0, save_timeout_s=600.0)  # fmt: skip

    def until(what: str, probe: Callable[[], Any]) -> Any:
        return wait(what, probe, 900.0, cluster.story)

    scale(cluster, job, 1)
    until("it trains", lambda: cluster.job(job).phase.value == "running")
    time.sleep(20.0)
    assert not steps_done(cluster, job), "a step lasts two minutes on one GPU"
    scale(cluster, job, 2)
    until("a second worker is there", lambda: len(cluster.pids(job)) == 2)
    until("the first step is done", lambda: steps_done(cluster, job) == 1)
    until("two of them train", lambda: cluster.job(job).share_gpus == 2)
    time.sleep(20.0)
    victim = sorted(cluster.pids(job).items())[-1]
    os.kill(victim[1], signal.SIGKILL)
    until("it is replaced", lambda: len(cluster.pids(job)) == 2 and victim[0] not in cluster.pids(job))
    until("another step is done", lambda: steps_done(cluster, job) == 2)
    scale(cluster, job, None)
    other = cluster.submit(str(tmp_path / "other.pt"), gpus=(3, 3), virtual_workers=3)
    scale(cluster, other, 3)
    until("it is preempted", lambda: not cluster.pids(job))
    assert steps_done(cluster, job) >= 2, "it has lost a step"
    view = until("it is over", lambda: (view := cluster.job(job)).phase.final and view)
    assert cluster.until_final(job).restarts == view.restarts == 0
    assert json.loads((tmp_path / "out").read_text()) == alone(tmp_path / "alone", "--steps", "4")
