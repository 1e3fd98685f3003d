"""What users and operators are promised, shown once with real processes: resizing, losses, restarts, turns, equal results.

The simulated cluster (`make world`) searches what lies between; `make test-cluster` has longer stories with real processes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.messages import EventKind, GetEvents, PolicySet, SetPolicy

from .touched import repeated

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "train_small.py"
MakeCluster = Callable[..., Any]


def alone(output: Path, *arguments: str, virtual_workers: int = 4) -> dict[str, Any]:
    """The result of the same script run as `python train_small.py`, outside a cluster."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC")}
    environment["ELASTIC_VIRTUAL_WORKERS"] = str(virtual_workers)
    subprocess.run([sys.executable, str(SCRIPT), str(output), *arguments], env=environment, check=True)
    return load(output)


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flatten(item, f"{prefix}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in flatten(item, f"{prefix}/{i}").items()}
    return {prefix: value}


def assert_same_bits(ours: dict[str, Any], reference: dict[str, Any]) -> None:
    left, right = flatten(ours), flatten(reference)
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[key].dtype
            assert torch.equal(value, right[key]), f"{key} differs"
        else:
            assert value == right[key], f"{key}: {value} != {right[key]}"


def test_resizing_keeps_the_first_worker_every_sample_and_every_bit(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=2, slots=2)
    touched, output, enough = tmp_path / "touched", tmp_path / "model.pt", tmp_path / "enough"
    arguments = ("--epochs", "16", "--size", "250")  # a short last step in every epoch
    pace = ("--pace", "0.15", "--enough", str(enough))
    job = cluster.submit(str(output), *arguments, *pace, "--touched", str(touched), gpus=(1, 1))
    cluster.until_step(job, 5)
    (first,) = cluster.pids(job).values()
    for share in (3, 1, 4, 2):
        cluster.scale(job, share)
        assert first in cluster.pids(job).values(), "the first worker was replaced"
    enough.touch()
    view = cluster.until_final(job)
    assert view.step == view.total_steps - 1
    assert view.restarts == 0
    assert not any(r.recovery for r in view.resizes[1:])

    assert not repeated(touched, 16 * 250, view), "a step was trained twice"
    told = view.gpu_seconds
    ends = [change.time_s for change in view.shares[1:]]
    shares = zip(view.shares, [*ends, view.finished_s], strict=True)
    trained_gpu_s = sum(change.share * (end - change.time_s) for change, end in shares)
    assert told.used_gpu_s + told.paused_gpu_s == pytest.approx(trained_gpu_s, rel=0.2, abs=2.0)
    assert told.idle_gpu_s > 0, "workers have started"
    assert told.lost_gpu_s == 0
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *arguments))


@pytest.mark.cluster
def test_a_killed_worker_costs_no_checkpoint_and_no_bit(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=4)
    touched, output, enough = tmp_path / "touched", tmp_path / "model.pt", tmp_path / "enough"
    arguments = ("--epochs", "8")
    pace = ("--pace", "0.2", "--enough", str(enough))
    job = cluster.submit(str(output), *arguments, *pace, "--touched", str(touched), gpus=(3, 3))
    cluster.until_share(job, 3)
    for victim in (-1, 0):  # a follower, then the leader
        before = cluster.until_step(job, (cluster.job(job).step or 0) + 3)
        pids = cluster.pids(job)
        os.kill(list(pids.values())[victim], signal.SIGKILL)
        after = cluster.until_step(job, before.step + 3)
        assert after.restarts == 0
        cluster.until_share(job, 3)
    enough.touch()
    view = cluster.until_final(job)
    assert view.restarts == 0
    assert sum(r.recovery for r in view.resizes) >= 2
    (only,) = (tmp_path / "checkpoints").glob(f"{job}.*/*.pt")  # of the end: none was written, so none was read, before
    assert only.name.endswith(f"-step-{view.step:012d}.pt")
    assert len(repeated(touched, 8 * 512, view)) <= 2, "more than one step was repeated for a loss"
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *arguments))


@pytest.mark.cluster
def test_training_goes_on_while_controller_and_agent_are_killed_and_they_find_it_again(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    enough = tmp_path / "enough"
    pace = ("--pace", "0.15", "--enough", str(enough))
    job = cluster.submit(str(tmp_path / "model.pt"), "--epochs", "12", *pace, gpus=(1, 2))
    cluster.until_share(job, 2)
    before = cluster.until_step(job, 5)
    pids = cluster.pids(job)
    for daemon in ("controller", "s1"):
        cluster.kill(daemon)
    for daemon in ("controller", "s1"):
        cluster.start(daemon)
    after = cluster.until_step(job, before.step + 10)
    assert cluster.pids(job) == pids
    assert (after.generation, after.restarts) == (before.generation, 0)
    os.kill(next(w.pid for w in after.workers if w.server == "s1"), signal.SIGKILL)  # an adopted one is still watched
    cluster.until("another worker is there", lambda: len(cluster.pids(job)) == 2 and cluster.pids(job) != pids)
    assert cluster.scale(job, 1).workers_after == 1
    enough.touch()
    view = cluster.until_final(job)
    assert (view.step, view.restarts) == (after.total_steps - 1, 0)


@pytest.mark.cluster
def test_jobs_that_take_turns_lose_neither_a_step_nor_a_bit(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Two jobs, two workers each, and two GPUs. Their checkpoints are an hour apart: a preempted job saves its state at once."""
    cluster = make_cluster(servers=2, slots=1)
    policy = {"policy": "afs-p", "parameters": {"unit_s": 6.0}}
    answer = cluster.client.ask(SetPolicy(document=policy, source="test"))
    assert isinstance(answer, PolicySet), answer
    arguments = ("--epochs", "6", "--size", "250")
    touched = {name: tmp_path / f"{name}.txt" for name in ("one", "other")}
    jobs = {
        name: cluster.submit(
            str(tmp_path / f"{name}.pt"), *arguments, "--pace", "0.04", "--touched", str(touched[name]),
            gpus=(2, 2), checkpoint_every_s=3600.0,
        )
        for name in touched
    }  # fmt: skip
    reference = alone(tmp_path / "alone.pt", *arguments)
    for name, job in jobs.items():
        view = cluster.until_final(job)
        assert view.restarts == 0
        again = len(repeated(touched[name], 6 * 250, view))
        turns = sum(event.kind is EventKind.PREEMPTED for event in cluster.client.ask(GetEvents(job=job)).events)
        assert turns >= 1, "it was never its turn to give way"
        assert again <= turns, "more than the step in progress was repeated"
        assert_same_bits(load(tmp_path / f"{name}.pt"), reference)


@pytest.mark.cluster
def test_a_job_that_lost_all_workers_resumes_from_its_last_checkpoint(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=2)
    output = tmp_path / "model.pt"
    arguments = ("--epochs", "8")
    job = cluster.submit(str(output), *arguments, "--pace", "0.01", gpus=(2, 2), checkpoint_every_s=0.5)
    cluster.until_step(job, 60)
    for pid in cluster.pids(job).values():
        os.kill(pid, signal.SIGKILL)
    view = cluster.until_final(job)
    assert view.restarts == 1
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *arguments))


@pytest.fixture
def elasticctl(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """A line of a shell, in the root of the repository, about a cluster in a directory of its own. Returns what it prints."""
    environment = {**os.environ, "ELASTICCTL_DIR": str(tmp_path / "cluster")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

    def run(line: str) -> str:
        done = subprocess.run(line, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    yield run
    run("elasticctl down --purge --yes")


def first_job() -> list[str]:
    """The commands of that chapter in README.md."""
    chapter = (ROOT / "README.md").read_text().split("## The first job")[1].split("```")[1]
    lines = [line[2:].split("#")[0].strip() for line in chapter.splitlines() if line.startswith("$ elasticctl")]
    return [line for line in lines if line != "elasticctl status -w"]  # it lasts until Ctrl-C


@pytest.mark.cluster
def test_the_first_job_of_the_readme(elasticctl: Callable[[str], str]) -> None:
    said = {line: elasticctl(line) for line in first_job()}
    assert said["elasticctl submit examples/digits/job.yaml"] == "digits-1\n"
    assert "digits-1" in said["elasticctl scale digits-1 3"]
    assert "test accuracy" in said["elasticctl logs -f digits-1"]
    assert "digits-1 finished" in said["elasticctl wait digits-1 && elasticctl down"]


@pytest.mark.cluster
def test_the_page_of_the_first_job_works_on_ones_own_machine(elasticctl: Callable[[str], str], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "first-job.md").read_text()
    assert "elasticctl up --servers 2 --gpus 4" in page
    blocks = re.findall(r"```console\n(.*?)```", page.partition("## A script")[2], re.DOTALL)
    typed = [line[2:] for line in "".join(blocks).splitlines() if line.startswith(("$ ", "> ", ">"))]
    script = "\n".join(typed).replace("/opt/elasticctl/bin/python", "python").replace("sleep(0.02)", "sleep(0.002)")
    said = elasticctl(f"export HOME={tmp_path}; elasticctl up --servers 2 --gpus 4; set -e\n{script}\n")
    for words in ("first-1 finished", "model.pt", "second-2 cancelled"):
        assert words in said
