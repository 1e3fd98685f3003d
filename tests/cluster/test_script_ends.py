"""What it means for a job that a script leaves its loop, as the table in `docs/scripts.md` says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.model import JobPhase

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).with_name("train_small.py")
MakeCluster = Callable[..., Any]
USUAL = ("--epochs", "4", "--size", "250")


def alone(output: Path, *arguments: str) -> dict[str, Any]:
    """The result of the same script outside a cluster."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC")}
    environment["ELASTIC_VIRTUAL_WORKERS"] = "4"
    subprocess.run([sys.executable, str(SCRIPT), str(output), *arguments], env=environment, check=True)
    return load(output)


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def assert_same(ours: dict[str, Any], reference: dict[str, Any]) -> None:
    assert ours["epochs_seen"] == reference["epochs_seen"]
    for name, tensor in ours["model"].items():
        assert torch.equal(tensor, reference["model"][name]), name


@pytest.mark.parametrize("end", ["raise", "exit"])
def test_one_worker_that_leaves_its_loop_by_an_exception_costs_the_others_nothing(
    end: str, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    output, once = tmp_path / "model.pt", tmp_path / "ended"
    job = cluster.submit(
        str(output), *USUAL, "--pace", "0.02", "--end", end, "--end-at", "30", "--once", str(once), gpus=(2, 2)
    )
    view = cluster.until_final(job)
    assert once.exists(), "no worker ended in the middle"
    assert view.phase is JobPhase.FINISHED
    assert_same(load(output), alone(tmp_path / "alone.pt", *USUAL))


def test_a_script_that_raises_wherever_it_runs_fails_its_job_with_what_it_said(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=2)
    job = cluster.submit(str(tmp_path / "model.pt"), *USUAL, "--end", "raise", "--end-at", "20", gpus=(2, 2))
    view = cluster.until_over(job)
    assert view.phase is JobPhase.FAILED
    assert "told to fail here" in str(view)


def test_a_break_ends_the_training_of_the_whole_job(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=2, slots=1)
    output, end = tmp_path / "model.pt", ("--end", "break", "--end-at", "20")
    view = cluster.until_over(cluster.submit(str(output), *USUAL, *end, gpus=(2, 2)))
    assert view.phase is JobPhase.FINISHED
    assert view.step == 19
    assert_same(load(output), alone(tmp_path / "alone.pt", *USUAL, *end))
