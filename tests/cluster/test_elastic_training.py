"""What a user and an operator are promised, against real processes: resizing, losses, restarts, equal results."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.messages import GetEvents, PolicySet, SetPolicy
from elasticd.protocol.model import JobPhase

SCRIPT = Path(__file__).with_name("train_small.py")
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


@pytest.mark.timeout(400)
def test_jobs_that_take_turns_lose_neither_a_step_nor_a_bit(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Two jobs, two workers each, and two GPUs. Their checkpoints are an hour apart: a preempted job saves its state at once."""
    cluster = make_cluster(servers=2, slots=1)
    policy = {"policy": "afs-p", "parameters": {"unit_s": 6.0}}
    answer = cluster.client.ask(SetPolicy(document=policy, source="test"), timeout_s=60)
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
        view = cluster.until_final(job, timeout_s=180)
        assert view.restarts == 0
        counts = collections.Counter(touched[name].read_text().splitlines())
        assert len(counts) == 6 * 250, "a step was lost"
        again = sum(count - 1 for count in counts.values())
        turns = sum(event.kind == "preempted" for event in cluster.client.ask(GetEvents(job=job)).events)
        assert turns >= 1, "it was never its turn to give way"
        assert again <= turns * 16, (
            "more than the step in progress was repeated"
        )  # of 4 virtual workers, 4 samples each
        assert_same_bits(load(tmp_path / f"{name}.pt"), reference)


def test_resizing_keeps_the_first_worker_every_sample_and_every_bit(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=2, slots=2)
    touched, output = tmp_path / "touched", tmp_path / "model.pt"
    arguments = ("--epochs", "40", "--size", "250")  # a short last step in every epoch
    job = cluster.submit(str(output), *arguments, "--pace", "0.01", "--touched", str(touched), gpus=(1, 1))
    cluster.until_step(job, 5)
    (first,) = cluster.pids(job).values()
    for share in (3, 1, 4, 2):
        cluster.scale(job, share)
        assert first in cluster.pids(job).values(), "the first worker was replaced"
    view = cluster.until_final(job)
    assert view.step == view.total_steps - 1
    assert view.restarts == 0
    assert not any(r.recovery for r in view.resizes[1:])

    counts = collections.Counter(touched.read_text().splitlines())
    assert len(counts) == 40 * 250
    assert set(counts.values()) == {1}, "a sample was read twice"
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *arguments))


def test_a_killed_worker_costs_no_checkpoint_and_no_bit(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=4)
    output = tmp_path / "model.pt"
    arguments = ("--epochs", "24")
    touched = tmp_path / "touched"
    job = cluster.submit(str(output), *arguments, "--pace", "0.02", "--touched", str(touched), gpus=(3, 3))
    cluster.until_share(job, 3)
    for victim in (-1, 0):  # a follower, then the leader
        before = cluster.until_step(job, (cluster.job(job).step or 0) + 5)
        pids = cluster.pids(job)
        os.kill(list(pids.values())[victim], signal.SIGKILL)
        after = cluster.until_step(job, before.step + 5)
        assert after.restarts == 0
        cluster.until_share(job, 3)
    view = cluster.until_final(job)
    assert view.restarts == 0
    assert sum(r.recovery for r in view.resizes) >= 2
    (only,) = (
        tmp_path / "checkpoints" / job
    ).iterdir()  # the one of the end: none was written, so none was read, before
    assert only.name.endswith(f"-step-{view.step:012d}.pt")
    counts = collections.Counter(touched.read_text().splitlines())
    assert len(counts) == 24 * 512
    assert sum(counts.values()) - len(counts) <= 2 * 4 * 4, "more than one step was repeated for a loss"
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *arguments))


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


def test_training_goes_on_without_a_controller_and_a_restarted_one_finds_it_again(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    output = tmp_path / "model.pt"
    job = cluster.submit(str(output), "--epochs", "30", "--pace", "0.01", gpus=(2, 2))
    cluster.until_share(job, 2)
    before = cluster.until_step(job, 5)
    cluster.kill("controller")
    cluster.start("controller")
    after = cluster.until_step(job, before.step + 20)
    assert {w.worker: w.pid for w in after.workers} == {w.worker: w.pid for w in before.workers}
    assert (after.generation, after.restarts) == (before.generation, 0)
    assert cluster.scale(job, 1).workers_after == 1
    assert cluster.until_final(job).step == after.total_steps - 1


def test_workers_outlive_their_agent_and_a_restarted_one_adopts_them(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=2)
    output = tmp_path / "model.pt"
    job = cluster.submit(str(output), "--epochs", "30", "--pace", "0.01", gpus=(2, 2))
    cluster.until_share(job, 2)
    before = cluster.until_step(job, 5)
    cluster.kill("s1")
    cluster.start("s1")
    after = cluster.until_step(job, before.step + 40)
    assert {w.worker: w.pid for w in after.workers} == {w.worker: w.pid for w in before.workers}
    os.kill(next(iter(cluster.pids(job).values())), signal.SIGKILL)  # an adopted one is still watched
    view = cluster.until_final(job)
    assert view.restarts == 0
    assert view.exit_code == 0


def test_a_script_that_fails_at_once_fails_its_job_with_its_reason(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=1)
    job = cluster.submit(str(tmp_path / "model.pt"), "--no-such-option", gpus=(1, 1))
    view = cluster.until_over(job)
    assert view.phase is JobPhase.FAILED
    assert view.exit_code == 2
    assert "no-such-option" in view.reason


@pytest.mark.parametrize("policy", ["fifo", "max-min"])
def test_a_policy_file_decides_who_shares(make_cluster: MakeCluster, tmp_path: Path, policy: str) -> None:
    cluster = make_cluster(servers=1, slots=2, policy=policy)
    first = cluster.submit(str(tmp_path / "a.pt"), "--epochs", "12", "--pace", "0.01", gpus=(1, 2), name="first")
    cluster.until_share(first, 2)
    second = cluster.submit(str(tmp_path / "b.pt"), "--epochs", "2", "--pace", "0.01", gpus=(1, 2), name="second")
    if policy == "fifo":
        cluster.until_step(first, cluster.until_step(first, 0).step + 20)
        assert cluster.job(second).share_gpus == 0
        assert "GPU" in cluster.job(second).reason
    else:
        cluster.until_share(first, 1)
        cluster.until_share(second, 1)
    started = [cluster.until_final(job).started_s for job in (first, second)]
    assert started[0] < started[1]
