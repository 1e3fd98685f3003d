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
