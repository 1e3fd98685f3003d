"""Failures of GPUs and servers in simulations: jobs go on with what they have left, fall back, wait, and get repaired GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.errors import UserError
from elasticd.simulator import Replay, simulate
from elasticd.simulator.failures import Outages, Rates
from elasticd.simulator.workload import servers

PROFILES = {"model": ["m", "m", "m"], "gpus": [1, 2, 4], "iters_per_s": [1, 2, 4]}


def trace(**columns: Any) -> dict[str, Any]:
    return {"job": ["a"], "submit_s": [0], "duration_s": [100], "gpus": [4], "model": ["m"], **columns}


def failing(path: Path, *rows: str) -> Path:
    (path / "failures.csv").write_text("\n".join(["fail_s,server,gpu,repair_s", *rows]) + "\n")
    return path / "failures.csv"


def run(jobs: dict[str, Any], failures: Any, policy: str = "max-min", **options: Any) -> Replay:
    given = {"servers": 1, "gpus_per_server": 4, "profiles": PROFILES, **options}
    return simulate(jobs, policy, failures=failures, **given)[policy]


def test_an_elastic_job_goes_on_with_the_gpus_that_it_has_left_and_gets_repaired_ones_back(tmp_path: Path) -> None:
    found = run(trace(), failing(tmp_path, "50,server-0,2,20", "60,server-0,3,10"))
    # 400 s of work: 4 GPUs until 50, 3 until 60, 2 until 70, then 4
    assert found.jobs()["ended_s"] == pytest.approx([70 + (400 - 200 - 30 - 20) / 4])
    assert found.jobs()["gpu_s"] == pytest.approx([400])
    assert (found.metrics.failures, found.metrics.interrupted) == (2, 2)


def test_a_job_without_gpus_falls_back_to_its_checkpoint_and_waits_for_the_repair(tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").write_text("base: none\ndefault: {checkpoint_every_s: 30}\n")
    failures = failing(tmp_path, "50,server-0,,1000")
    found = run(trace(), failures, overhead=tmp_path / "costs.yaml")
    assert found.jobs()["ended_s"] == pytest.approx([1050 + 70])  # saved at 30 s
    assert run(trace(), failures).jobs()["ended_s"] == pytest.approx([1050 + 50])  # without checkpoints nothing is lost


def test_a_job_that_cannot_shrink_moves_to_another_server_and_nobody_gets_failed_gpus(tmp_path: Path) -> None:
    jobs = trace(
        job=["a", "b"], submit_s=[0, 60], duration_s=[100, 10], gpus=[4, 4], gpus_per_server=[4, 4], model=["m"] * 2
    )
    found = run(jobs, failing(tmp_path, "50,server-0,1,5000"), servers=2, policy="fifo")
    assert found.metrics.interrupted == 1
    assert found.jobs()["started_s"] == [0, 100]
    assert found.jobs()["ended_s"] == pytest.approx([100, 110])


def test_a_job_stays_on_its_type_and_waits_for_its_repair_while_others_run_on_another(tmp_path: Path) -> None:
    profiles = {**PROFILES, "gpu_type": ["A100"] * 3}
    for name in profiles:
        profiles[name] = profiles[name] + (["V100"] * 3 if name == "gpu_type" else PROFILES[name])
    profiles["iters_per_s"] = [2, 4, 8, 1, 2, 4]
    cluster = {"servers": [{"gpus": 4, "gpu_type": "A100"}, {"name": "old", "gpus": 4, "gpu_type": "V100"}]}
    jobs = trace(
        job=["a", "b"], submit_s=[0, 60], duration_s=[100, 10], gpus=[4, 4], model=["m"] * 2, gpu_type=["A100", ""]
    )
    options = {"profiles": profiles, "cluster": cluster, "servers": None, "gpus_per_server": None}
    found = run(jobs, failing(tmp_path, "50,server-0,,100"), **options)
    assert found.jobs()["ended_s"] == pytest.approx([200, 80])  # b: 10 s on A100 are 20 s on V100


def test_rates_give_as_many_failures_as_they_say_the_same_for_each_seed_and_every_job_ends() -> None:
    rates = {"gpu_mtbf_h": 2, "server_mtbf_h": 10, "repair_h": 0.5}
    jobs = {
        "job": list("abcdefgh"),
        "submit_s": [0] * 8,
        "duration_s": [20_000] * 8,
        "gpus": [4] * 8,
        "model": ["m"] * 8,
    }
    found = [run(jobs, rates, servers=2, overhead="background", seed=seed) for seed in (1, 1, 2)]
    assert found[0].jobs() == found[1].jobs()
    assert found[0].jobs() != found[2].jobs()
    for one in found:
        metrics = one.metrics
        assert metrics.finished == 8
        assert metrics.makespan_s is not None
        hours = metrics.makespan_s / 3600
        expected = hours * (8 / 2.5 + 2 / 10.5)  # a unit fails once in the time to its failure and its repair
        assert metrics.failures == pytest.approx(expected, rel=0.35)
        used_s = sum(one.jobs()["gpu_s"])
        assert 640_000 <= used_s < 660_000  # the work, and pauses


def test_outages_overlap() -> None:
    outages = Outages(Rates(repair_h=1, gpu_mtbf_h=1, server_mtbf_h=1), servers(2, 2), seed=0)
    assert outages.repair_s() == float("inf")
    seen = set()
    while len(seen) < 12:
        before = outages.down
        assert outages.advance(outages.next_s())
        assert 0 <= outages.down < 16
        seen.add((before, outages.down))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("5,server-9,,10", "line 2, column server: no server 'server-9'; there are server-0"),
        ("5,server-0,4,10", "line 2, column gpu: '4' is not a GPU of server-0, from 0 to 3"),
        ("5,server-0,,soon", "line 2, column repair_s: 'soon' is not a number"),
    ],
)
def test_a_wrong_trace_of_failures_is_refused_by_line_and_column(tmp_path: Path, row: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(trace(), failing(tmp_path, row))


def test_wrong_rates_are_refused_by_field(tmp_path: Path) -> None:
    (tmp_path / "rates.yaml").write_text("repair_h: 1\nmtbf_h: 2\n")
    with pytest.raises(UserError, match="mtbf_h"):
        run(trace(), tmp_path / "rates.yaml")
    with pytest.raises(UserError, match="curves: measured: not with failures"):
        run(trace(), {"repair_h": 1}, curves="measured")
