"""Evaluations and decisions with real processes: the same numbers for every number of workers, and through every loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.messages import Scale, Scaled

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).with_name("train_deciding.py")
MakeCluster = Callable[..., Any]


def alone(output: Path, *arguments: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC")}
    subprocess.run([sys.executable, str(SCRIPT), str(output), *arguments], env=environment, check=True)
    return load(output)


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def assert_as_alone(result: dict[str, Any], tmp_path: Path, *arguments: str) -> None:
    """The same job alone, told what the workers have agreed upon, ends with the same, and has found out the same."""
    agreed = [value for what, _, value in result["found"] if what == "agreed"]
    reference = alone(tmp_path / "alone.pt", *arguments, "--secrets", json.dumps(agreed))
    assert result["found"] == reference["found"]
    assert (result["steps"], result["best"]) == (reference["steps"], reference["best"])
    for name, value in reference["model"].items():
        assert torch.equal(value, result["model"][name]), name


def submit(cluster: Any, *arguments: str, workers: int, **changes: Any) -> str:
    job: str = cluster.submit(*arguments, gpus=(workers, workers), script=SCRIPT, **changes)
    return job


def grow_to_3_until_one_is_killed(cluster: Any, job: str, mark: Path) -> None:
    """The job evaluates slowly until then: however long newcomers take to start, they come before it ends."""
    cluster.until_step(job, 9)
    answer = cluster.client.ask(Scale(job=job, share=3))
    assert isinstance(answer, Scaled), answer
    cluster.until("a worker is killed", mark.exists)
    Path(f"{mark}.enough").touch()


def assert_all_found_the_same(log: Path) -> None:
    """Whatever any worker has found out at a place is what every worker has."""
    found: dict[tuple[str, int], set[str]] = {}
    for line in log.read_text().splitlines():
        _, what, steps, value = json.loads(line)
        found.setdefault((what, steps), set()).add(json.dumps(value, sort_keys=True))
    assert found
    assert {place: values for place, values in found.items() if len(values) > 1} == {}


@pytest.mark.parametrize("workers", [2, 3])
def test_what_is_found_out_does_not_depend_on_the_number_of_workers(
    workers: int, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=workers)
    log = tmp_path / "log"
    cluster.until_final(submit(cluster, str(tmp_path / "model.pt"), "--log", str(log), workers=workers))
    assert_all_found_the_same(log)
    assert_as_alone(load(tmp_path / "model.pt"), tmp_path)


@pytest.mark.parametrize(
    ("at", "rank"), [("evaluate", 1), ("evaluate", 0), ("every", 2), ("told", 0), ("untold", 0)], ids=str
)
def test_a_worker_killed_in_the_middle_changes_nothing_that_is_found_out(
    at: str, rank: int, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=4)
    log, mark = tmp_path / "log", tmp_path / "mark"
    killed = ("--die", at, "--rank", str(rank), "--mark", str(mark))
    job = submit(cluster, str(tmp_path / "model.pt"), *killed, "--log", str(log), workers=3)
    view = cluster.until_final(job)
    assert mark.exists(), "nobody was killed"
    assert view.restarts == 0
    assert_all_found_the_same(log)
    assert_as_alone(load(tmp_path / "model.pt"), tmp_path)


def test_an_early_stop_comes_after_the_same_step_for_whoever_trains(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=4)
    arguments = ("--epochs", "40", "--patience", "2")
    mark = tmp_path / "mark"
    job = submit(cluster, str(tmp_path / "model.pt"), *arguments, "--pace", "0.5",
                 "--die", "evaluate", "--rank", "1", "--epoch", "2", "--mark", str(mark), workers=1)  # fmt: skip
    grow_to_3_until_one_is_killed(cluster, job, mark)
    cluster.until_final(job)
    result = load(tmp_path / "model.pt")
    assert result["steps"] < 40 * 8, "it did not stop early"
    assert_as_alone(result, tmp_path, *arguments)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)], ids=str)
def test_a_resize_in_the_middle_of_an_evaluation_changes_nothing(
    before: int, after: int, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=4)
    mark, log = tmp_path / "mark", tmp_path / "log"
    evaluating = Path(f"{mark}.evaluating")
    arguments = ("--epochs", "4", "--every", "1000")
    job = submit(cluster, str(tmp_path / "model.pt"), *arguments, "--pace", "0.5", "--mark", str(mark), "--log", str(log),
                 workers=before)  # fmt: skip
    cluster.until("it evaluates", evaluating.exists)
    answer = cluster.client.ask(Scale(job=job, share=after))
    assert isinstance(answer, Scaled), answer
    cluster.until("the newcomers are there", lambda: len(cluster.pids(job)) >= after)
    evaluating.unlink()
    cluster.until("it evaluates another batch", evaluating.exists)
    Path(f"{mark}.enough").touch()
    cluster.until("it trains on", lambda: any(resize.workers_after == after for resize in cluster.job(job).resizes))
    assert cluster.until_final(job).restarts == 0
    assert_all_found_the_same(log)
    assert_as_alone(load(tmp_path / "model.pt"), tmp_path, *arguments)


def test_a_training_that_is_stopped_by_a_function_ends_everywhere_after_the_same_step(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """A third worker joins before that, and is killed in an evaluation."""
    cluster = make_cluster(servers=1, slots=4)
    log, mark = tmp_path / "log", tmp_path / "mark"
    arguments = ("--epochs", "40", "--every", "10", "--stop", "100")
    killed = ("--die", "every", "--rank", "2", "--mark", str(mark))
    job = submit(
        cluster, str(tmp_path / "model.pt"), *arguments, "--pace", "0.5", *killed, "--log", str(log), workers=2
    )
    grow_to_3_until_one_is_killed(cluster, job, mark)
    cluster.until_final(job)
    assert_all_found_the_same(log)
    result = load(tmp_path / "model.pt")
    assert result["steps"] == 100
    assert_as_alone(result, tmp_path, *arguments)


def test_a_job_preempted_in_the_middle_of_an_evaluation_loses_nothing(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """The evaluation takes longer than the time that the job has to save its state: it is begun again later."""
    cluster = make_cluster(servers=1, slots=2)
    mark = tmp_path / "mark"
    arguments = ("--epochs", "2", "--every", "1000")
    job = submit(cluster, str(tmp_path / "model.pt"), *arguments, "--pace", "4", "--mark", str(mark), workers=2,
                 save_timeout_s=20.0)  # fmt: skip
    cluster.until("it evaluates", Path(f"{mark}.evaluating").exists)
    other = cluster.submit(str(tmp_path / "other.pt"), gpus=(2, 2))
    cluster.client.ask(Scale(job=other, share=2))
    cluster.until("the job is preempted", lambda: not cluster.pids(job))
    (saved,) = (tmp_path / "checkpoints").glob(f"{job}.*/*")
    assert saved.name.endswith(f"-step-{7:012d}.pt"), "it has lost steps"
    Path(f"{mark}.enough").touch()
    view = cluster.until_final(job)
    assert view.restarts == 0
    assert_as_alone(load(tmp_path / "model.pt"), tmp_path, *arguments)
