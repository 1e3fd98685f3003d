"""The GPU benchmark on a machine without GPUs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_kills import QUICK_TURNS
from benchmarks.gpu_races import LONGEST_SLEEP_S, SLEEPS, Sleeps, measure, rosters
from benchmarks.runtime.processes import MeasurementFailed

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails() -> None:
    done = bench()
    assert done.returncode == 2
    assert done.stderr.startswith("no GPU was found")


@pytest.mark.cluster
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
def test_peers_are_killed_inside_operations_and_the_page_says_what_was_not_run(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = bench("--device", "cpu", "--quick", "--workers", "3", "--only", "kills", "--json", str(result))
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert [(row["value"], row["count"]) for row in rows] == [(0, QUICK_TURNS)] * 2
    for row in rows:
        assert all(len(turn["took_s"]) == 2 for turn in row["detail"]["turns"] if turn["inside"])
    page = result.with_suffix(".md").read_text()
    assert "races: not asked for" in page
    assert "neither NCCL nor streams nor torch's sanitizer" in page
    assert "a peer of 3 killed inside an all-to-all" in page


def test_rosters_of_histories_hand_the_state_on() -> None:
    for seed in range(100):
        found = rosters(random.Random(seed), 4)
        assert all(each and set(each) <= set(range(4)) for each in found)
        assert all(set(a) & set(b) and a != b for a, b in pairwise(found))
    assert rosters(random.Random(1), 1) == [[0]]


def test_every_stream_sleeps_sometimes() -> None:
    slept: list[tuple[int, float]] = []
    sleeps = Sleeps(random.Random(1), lambda stream, seconds: slept.append((stream, seconds)))
    for stream in (0, 7, 8, 7):
        sleeps.add(stream)
    for _ in range(100):
        sleeps.turn()
    assert {stream for stream, _ in slept} == {0, 7, 8}
    assert all(0 <= seconds <= LONGEST_SLEEP_S for _, seconds in slept)


def test_a_race_and_other_bits_are_counted_and_other_failures_raised() -> None:
    said = {0: "same", 1: MeasurementFailed("CUDASanitizerErrors: ..."), 2: "other"}

    def play(rosters: object, variables: Mapping[str, str]) -> str:
        found = said[int(variables[SLEEPS])] if variables else "same"
        if isinstance(found, MeasurementFailed):
            raise found
        return found

    (row,) = measure(play, "cuda", 2, quick=True)
    assert (row.value, row.detail["sanitizer"], list(row.detail["races"])) == (1.0, True, [1])
    said[1] = MeasurementFailed("no memory")
    with pytest.raises(MeasurementFailed, match="no memory"):
        measure(play, "cuda", 2, quick=True)


@pytest.mark.cluster
def test_a_job_on_a_real_cluster_ends_with_the_bits_of_one_worker_alone(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = bench("--device", "cpu", "--quick", "--only", "cluster", "--json", str(result))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(result.read_text())["rows"]
    assert row["value"] == 0
    assert len(row["detail"]["digests"]) == 2
    assert row["detail"]["acts"][-1] == "ends"
