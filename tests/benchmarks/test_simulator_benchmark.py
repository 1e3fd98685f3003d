"""The benchmark of the simulator, with small inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulator import report

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.simulator", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


def test_what_needs_missing_inputs_is_skipped_with_a_reason(tmp_path: Path) -> None:
    done = bench("--only", "growth", "--data", str(tmp_path), "--json", str(tmp_path / "result.json"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("growth: skipped, afs_models_gtx1080.csv and philly_jobs.csv.gz not in ")


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is absent")
def test_a_decision_and_a_simulation_are_measured(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = bench("--only", "decisions", "--only", "growth", "--policy", "fifo", "--json", str(result))
    assert done.returncode == 0, done.stderr
    groups = json.loads(result.read_text())["groups"]
    assert [row["what"] for row in groups["growth"]["rows"]] == ["fifo, 1,000 jobs", "fifo, 2,000 jobs"]
    decisions = groups["decisions"]["rows"][0]
    assert decisions["decisions"] > 0
    assert 0 < decisions["p50_decision_ms"] <= decisions["p99_decision_ms"]


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is absent")
def test_peers_are_named_with_how_many_times_our_time_they_took(tmp_path: Path) -> None:
    done = bench("--only", "traces", "--policy", "fifo", "--json", str(tmp_path / "result.json"))
    assert done.returncode == 0, done.stderr
    assert "PCS, FIFO: 2.71 s" in done.stdout


def test_a_row_that_is_measured_again_replaces_the_one_before_it() -> None:
    before = [{"what": "fifo", "cpu_s": 1}, {"what": "srtf", "cpu_s": 2}]
    again = [{"what": "afs-l", "cpu_s": 3}, {"what": "fifo", "cpu_s": 4}]
    assert report.merged(before, again) == [
        {"what": "fifo", "cpu_s": 4},
        {"what": "srtf", "cpu_s": 2},
        {"what": "afs-l", "cpu_s": 3},
    ]
