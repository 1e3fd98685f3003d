"""Reported metrics of a simulation, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.simulator import fairness
from elasticd.simulator.metrics import measure
from elasticd.simulator.outcome import Outcome, Timeline
from elasticd.simulator.workload import Workload

NAN = math.nan


def outcome(start_s: list[float], end_s: list[float], line: Timeline) -> Outcome:
    return Outcome(
        start_s=np.array(start_s),
        end_s=np.array(end_s),
        resizes=3,
        preemptions=2,
        migrations=1,
        events=len(line.time_s),
        decisions=2,
        wall_s=0.5,
        decision_s=[0.1, 0.3],
        timeline=line,
        executed_s=np.zeros(len(end_s)),
        gpu_s=np.zeros(len(end_s)),
        changes=np.zeros(len(end_s), dtype=np.int64),
        refused=np.zeros(len(end_s), dtype=np.bool_),
    )


def load(submit_s: list[float], work_s: list[float] | None = None, requested: int = 1) -> Workload:
    """Jobs that scale linearly up to four GPUs."""
    count = len(submit_s)
    return Workload(
        names=tuple(JobId(f"j{number}") for number in range(count)),
        submit_s=np.array(submit_s),
        min_gpus=np.ones(count, dtype=np.int64),
        max_gpus=np.full(count, 4),
        requested_gpus=np.full(count, requested),
        work_s=np.array(work_s or [100.0] * count),
        curve=np.zeros(count, dtype=np.int64),
        curves=Curves(np.arange(5.0)[None, :]),
        models=("linear",),
    )


LINE = Timeline(
    time_s=[0.0, 10.0, 40.0, 100.0],
    queue=[0, 1, 0, 0],
    efficiency=[0.5, 1.0, 0.25, 0.0],
    blocking=[0.0, 2.0, 0.0, 0.0],
    used_gpus=[2, 4, 1, 0],
)


def test_averages_over_time_are_weighted_by_how_long_a_value_holds() -> None:
    found = measure(outcome([0, 40], [40, 100], LINE), load([0.0, 10.0]), np.array([NAN, NAN]), gpus=4)
    assert found.avg_queue_length == pytest.approx(30 / 100)
    assert found.avg_cluster_efficiency == pytest.approx((5 + 30 + 15) / 100)
    assert found.avg_blocking_index == pytest.approx(60 / 100)
    assert found.gpu_utilization == pytest.approx((20 + 120 + 60) / 400)


def test_times_of_jobs() -> None:
    found = measure(outcome([0, 40], [40, 100], LINE), load([0.0, 10.0]), np.array([NAN, NAN]), gpus=4)
    assert (found.finished, found.dropped) == (2, 0)
    assert found.avg_jct_s == 65.0
    assert found.p50_jct_s == 65.0
    assert found.p95_jct_s == pytest.approx(87.5)
    assert found.p99_jct_s == pytest.approx(89.5)
    assert found.max_jct_s == 90.0
    assert found.avg_queueing_s == 15.0
    assert found.makespan_s == 100.0
    assert found.deadline_ratio is None
    assert found.reconfigurations == 6


def test_jobs_that_never_end_are_dropped_and_miss_their_deadline() -> None:
    jobs, deadline_s = load([0.0, 10.0, 20.0, 30.0]), np.array([40.0, 99.0, 1e6, NAN])
    found = measure(outcome([0, 40, NAN, 30], [40, 100, NAN, 50], LINE), jobs, deadline_s, gpus=4)
    assert (found.finished, found.dropped) == (3, 1)
    assert found.deadline_ratio == pytest.approx(1 / 3)
    assert found.avg_jct_s == pytest.approx((40 + 90 + 20) / 3)


def test_what_comes_after_the_last_end_does_not_count() -> None:
    line = Timeline([0.0, 50.0, 500.0], [1, 0, 7], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [4, 0, 0])
    found = measure(outcome([0], [50], line), load([0.0]), np.array([NAN]), gpus=4)
    assert found.avg_queue_length == 1.0
    assert found.gpu_utilization == 1.0


def test_nothing_finished_leaves_nothing_to_average() -> None:
    found = measure(outcome([NAN], [NAN], Timeline()), load([0.0]), np.array([5.0]), gpus=4)
    assert (found.finished, found.dropped, found.deadline_ratio) == (0, 1, 0.0)
    assert found.avg_jct_s is None
    assert found.makespan_s is None
    assert found.avg_cluster_efficiency is None


# -------------------------------------------------------------------------------------------------------------- fairness


def test_slowdown_is_the_jct_over_the_time_with_the_requested_gpus_and_seconds_count_as_ten() -> None:
    jobs = load([0.0, 10.0, 0.0, 0.0], [100.0, 100.0, 2.0, 5.0], requested=2)
    ends_s = np.array([50.0, 160.0, 40.0, NAN])
    assert fairness.slowdowns(jobs, ends_s)[:3].tolist() == [1.0, 3.0, 4.0]
    assert np.isnan(fairness.slowdowns(jobs, ends_s)[3])


def test_finish_time_fairness_is_the_jct_over_that_on_an_equal_share() -> None:
    """Two jobs on four GPUs: the first is alone for 10 of its 40 s, so 1.75 are there on the mean, the second for 60 of 90 s."""
    rho = fairness.finish_time_fairness(load([0.0, 10.0, 5.0]), np.array([40.0, 100.0, NAN]), 4)
    assert rho[:2].tolist() == pytest.approx([40 * (4 / 1.75) / 100, 90 * 3.0 / 100])
    assert np.isnan(rho[2])


def test_jobs_that_share_alike_are_treated_fairly() -> None:
    jobs = load([0.0, 0.0])
    found = measure(outcome([0, 0], [50, 50], LINE), jobs, np.array([NAN, NAN]), gpus=4)
    assert (found.avg_finish_time_fairness, found.max_finish_time_fairness, found.jain_index) == (1.0, 1.0, 1.0)
    unfair = measure(outcome([0, 25], [25, 50], LINE), jobs, np.array([NAN, NAN]), gpus=4)
    assert unfair.jain_index == pytest.approx((25 / 50 + 50 / (100 / (4 / 1.5))) ** 2 / (2 * (0.25 + (50 / 37.5) ** 2)))


def test_jains_index_of_nothing_is_nothing() -> None:
    assert fairness.jain(np.array([NAN])) is None
    assert fairness.jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
