"""The comparison of average JCT and 99th percentile: its policies, means, table and picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.generated import generate
from benchmarks.policies import simulate
from benchmarks.tails import BASE, TAILS, Gittins, draw, measure, pooled, table, ways
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.policies.srtf import RemainingParameters
from elasticd.scheduler.profiles import curves as profiles
from elasticd.simulator.workload import Workload


@pytest.fixture
def crowded(tmp_path: Path) -> Workload:
    """Sixty jobs that request a third more than 16 GPUs."""
    (tmp_path / "table.csv").write_text("model,gpus,samples_per_s\na,1,10\na,2,18\na,4,30\na,8,40\n")
    return generate(57, 60, profiles.load(tmp_path / "table.csv")).workload


def test_gittins_index_of_lengths_that_all_jobs_tell_is_the_remaining_time(crowded: Workload) -> None:
    gittins = simulate(crowded, Gittins(RemainingParameters()), gpus=16)
    remaining = simulate(crowded, load_policy({"policy": "srtf-e"}, "srtf-e"), gpus=16)
    assert gittins.jct_s.tolist() == pytest.approx(remaining.jct_s.tolist())


def test_each_way_is_measured_beside_afs(crowded: Workload, tmp_path: Path) -> None:
    found = measure(crowded, 16)
    assert list(found) == list(ways())
    assert found[BASE] == (1.0, 1.0)
    assert len({found[f"elastic, half told, tail {tail:g}"] for tail in TAILS}) == len(TAILS)
    assert table(found).count("\n| ") == len(found) + 1
    draw(tmp_path / "tails.png", found)
    assert (tmp_path / "tails.png").read_bytes()[1:4] == b"PNG"


def test_means_over_workloads_are_geometric() -> None:
    assert pooled({"a": {"x": (0.5, 1.0)}, "b": {"x": (2.0, 4.0)}}) == {"x": pytest.approx((1.0, 2.0))}
