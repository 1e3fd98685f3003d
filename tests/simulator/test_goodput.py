"""Goodput: batch sizes chosen for each share, with many measured ones; and Pollux compared with its own simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.profiles import curves as profiles
from elasticd.scheduler.profiles.placements import BATCHES, Times
from elasticd.simulator import traces
from elasticd.simulator.assign import Assigned, assign
from elasticd.simulator.goodput import chosen_batches
from elasticd.simulator.lengths import POLLUX, Convergence
from elasticd.simulator.replay import simulate

DATA = Path(__file__).parents[3] / "shared" / "data"
published = pytest.mark.skipif(not DATA.is_dir(), reason=f"no published measurements at {DATA}")

AS_THERE = {"policy": "pollux", "parameters": {"start_at_once": False}}  # as in its own simulator
WORKLOAD = "name,time,application,num_replicas,batch_size\na,0,cifar10,1,128\nb,5,cifar10,2,512\n"
# A step takes 0.1 s and 1 ms for each sample; on two GPUs 50 ms more.
PLACEMENTS = "app,gpu,local_bsz,step_time,sync_time,placement\n" + "".join(
    f"cifar10,t4,{local},{0.1 + 0.001 * local + sync},{sync},{placement}\n"
    for placement, sync in (("1", 0.0), ("2", 0.05))
    for local in (32, 128, 1024)
)


def times(alpha: float = 0.1, beta: float = 0.001, sync_s: float = 0.0) -> Times:
    local = np.array([1.0, 1000.0])
    return Times(local, alpha + beta * local + sync_s, np.full(2, sync_s))


def made(directory: Path, trace: str = WORKLOAD, measured: str = PLACEMENTS) -> Assigned:
    (directory / "trace.csv").write_text(trace)
    (directory / "profiles.csv").write_text(measured)
    return assign(traces.load(directory / "trace.csv"), 8, profiles.load(directory / "profiles.csv"), 0)


# ---------------------------------------------------------------------------------------------------------------- batches


def test_an_iteration_with_the_initial_batch_counts_one_and_a_very_large_one_no_more_than_the_noise_scale_allows() -> (
    None
):
    """(phi + M0) / (phi + M) times M / M0: 1 at M0, and at most (phi + M0) / M0."""
    one = Convergence(iterations=1000, batch=100, noise_scale=900)
    assert one.gain(np.array([100.0, 900.0, 1e12])).tolist() == pytest.approx([1.0, 5.0, 10.0])


@given(st.floats(0.01, 1.0), st.floats(1e-4, 1e-2), st.floats(0.0, 0.5), st.floats(1.0, 1e6), st.integers(1, 8))
def test_no_batch_has_a_greater_goodput_than_the_chosen_one(
    alpha: float, beta: float, sync_s: float, noise_scale: float, share: int
) -> None:
    """With step times linear in the batch size, goodput has one peak; tried sizes are 4.4 % apart."""
    converges, largest = Convergence(1000, 100, noise_scale), 1000.0
    batch, found = chosen_batches({share: times(alpha, beta, sync_s)}, converges, largest)[share]
    batches = np.linspace(100, largest, 2000)
    goodput = times(alpha, beta, sync_s).rates(batches / share) * converges.gain(batches)
    assert 100 * (1 - 1e-9) <= batch <= largest * (1 + 1e-9)
    assert found >= goodput.max() * (1 - 1e-3)


def test_the_noisier_gradients_are_the_larger_is_the_batch() -> None:
    """With steps of alpha + beta M the best batch is sqrt(phi alpha / beta), within its bounds."""
    found = [chosen_batches({1: times()}, Convergence(1000, 10, phi), 1000.0)[1][0] for phi in (1.0, 100.0, 1e4, 1e6)]
    assert found == pytest.approx([10.0, 100.0, 1000.0, 1000.0], rel=0.05)


def test_a_share_for_which_no_batch_was_measured_is_left_out() -> None:
    assert chosen_batches({1: times(), 20: times()}, Convergence(1000, 4, 100), 16.0).keys() == {1}


# ------------------------------------------------------------------------------------------------------------------- jobs


def test_a_job_with_chosen_batches_takes_no_longer_with_any_share_than_with_its_own_batch(tmp_path: Path) -> None:
    both = made(tmp_path)
    own, chosen = both.workload, both.chosen_batches
    assert chosen is not None
    for load in (own, chosen):
        assert load.requested_gpus.tolist() == [1, 2]
    for row in range(2):
        lasts_s = [
            load.work_s[row] / load.curves.speedup[load.curve[row], 1 : int(load.max_gpus[row]) + 1]
            for load in (own, chosen)
        ]
        count = min(len(one) for one in lasts_s)
        assert (lasts_s[1][:count] <= lasts_s[0][:count] * (1 + 1e-9)).all()
    assert chosen.work_s[0] < own.work_s[0] * 0.75  # with a batch of 128 nearly half of a step does not depend on it


def test_only_a_policy_that_chooses_batches_gets_them(tmp_path: Path) -> None:
    both = made(tmp_path)
    assert both.under(load_policy({"policy": "pollux"}, "test")) is both.chosen_batches
    assert both.under(load_policy({"policy": "optimus"}, "test")) is both.workload


def test_jobs_keep_their_batches_where_nobody_knows_what_others_bring(tmp_path: Path) -> None:
    plain = "model,batch_size,gpus,iters_per_s\ncifar10,128,1,10\ncifar10,512,1,5\ncifar10,512,2,9\n"
    kept = made(tmp_path, measured=plain)
    assert kept.chosen_batches is None
    assert kept.under(load_policy({"policy": "pollux"}, "test")) is kept.workload


def test_chosen_batches_hold_for_jobs_with_durations_too(tmp_path: Path) -> None:
    """ElasticFlow's traces: 100 s with a batch of 128 on one GPU."""
    trace = "job_id,submit_time,duration,num_gpu,model_name,batch_size\na,0,100,1,cifar10,128\n"
    both = made(tmp_path, trace)
    assert both.chosen_batches is not None
    assert both.workload.work_s.tolist() == [100.0]
    rate = 1 / 0.228  # iterations/s with 128
    _, goodput = chosen_batches(
        profiles.load(tmp_path / "profiles.csv").placed["cifar10", "t4"], POLLUX["cifar10"], BATCHES["cifar10"][-1]
    )[1]
    assert both.chosen_batches.work_s.tolist() == pytest.approx([100 * rate / goodput])


def test_pollux_ends_jobs_sooner_where_it_may_choose_their_batches(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(WORKLOAD)
    (tmp_path / "profiles.csv").write_text(PLACEMENTS)
    found = simulate(tmp_path / "trace.csv", [AS_THERE, "optimus"], servers=1, profiles=tmp_path / "profiles.csv")
    ours, fixed = (found[name].metrics for name in ("pollux", "optimus"))
    assert ours.finished == fixed.finished == 2
    assert ours.avg_jct_s is not None
    assert fixed.avg_jct_s is not None
    assert ours.avg_jct_s < 0.9 * fixed.avg_jct_s
    starts_s = found["pollux"].jobs()["started_s"]
    assert starts_s == [0.0, 60.0]  # only at intervals


@published
def test_pollux_jobs_take_as_long_as_in_its_own_simulator() -> None:
    """The sixth of its workloads, on its cluster; 2446 s is the result of its artifact."""
    found = simulate(
        DATA / "pollux_workloads.csv.gz",
        [AS_THERE],
        where={"set": ["workloads"], "workload": ["6"]},
        profiles=DATA / "sia_pollux_placements.csv.gz",
        gpu_type="t4",
        overhead="stop-resume",
    )
    assert found["pollux"].metrics.avg_jct_s == pytest.approx(2446.13, rel=0.05)
