"""The benchmark of GPUs where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails() -> None:
    done = bench()
    assert done.returncode == 2
    assert done.stderr.startswith("no GPU was found")


def test_the_same_code_runs_on_processors(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = bench("--device", "cpu", "--quick", "--only", "exchange", "--json", str(result))
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert [row["unit"] for row in rows] == ["of its time", "GB/s"]
    assert all(row["value"] > 0 for row in rows)


def test_workers_that_share_a_gpu_are_asked_for_no_times() -> None:
    done = bench("--shared", "--only", "steps")
    assert done.returncode == 2
    assert "workers that share a GPU show no times" in done.stderr


@pytest.mark.cluster
def test_a_job_on_a_real_cluster_ends_with_the_bits_of_one_worker_alone(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = bench("--device", "cpu", "--quick", "--only", "cluster", "--json", str(result))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(result.read_text())["rows"]
    assert row["value"] == 0
    assert len(row["detail"]["digests"]) == 2
    assert row["detail"]["acts"][-1] == "ends"
