"""What is reported of a simulation, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasticd.simulator.engine import Outcome, Timeline
from elasticd.simulator.metrics import measure

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
    )


LINE = Timeline(
    time_s=[0.0, 10.0, 40.0, 100.0],
    queue=[0, 1, 0, 0],
    efficiency=[0.5, 1.0, 0.25, 0.0],
    blocking=[0.0, 2.0, 0.0, 0.0],
    used_gpus=[2, 4, 1, 0],
)


def test_averages_over_time_are_weighted_by_how_long_a_value_holds() -> None:
    found = measure(outcome([0, 40], [40, 100], LINE), np.array([0.0, 10.0]), np.array([NAN, NAN]), gpus=4)
    assert found.avg_queue_length == pytest.approx(30 / 100)
    assert found.avg_cluster_efficiency == pytest.approx((5 + 30 + 15) / 100)
    assert found.avg_blocking_index == pytest.approx(60 / 100)
    assert found.gpu_utilization == pytest.approx((20 + 120 + 60) / 400)


def test_times_of_jobs() -> None:
    found = measure(outcome([0, 40], [40, 100], LINE), np.array([0.0, 10.0]), np.array([NAN, NAN]), gpus=4)
    assert (found.finished, found.dropped) == (2, 0)
    assert found.avg_jct_s == 65.0
    assert found.p50_jct_s == 65.0
    assert found.p99_jct_s == pytest.approx(89.5)
    assert found.avg_queueing_s == 15.0
    assert found.makespan_s == 100.0
    assert found.deadline_ratio is None
    assert found.reconfigurations == 6


def test_jobs_that_never_end_are_dropped_and_miss_their_deadline() -> None:
    submit_s, deadline_s = np.array([0.0, 10.0, 20.0, 30.0]), np.array([40.0, 99.0, 1e6, NAN])
    found = measure(outcome([0, 40, NAN, 30], [40, 100, NAN, 50], LINE), submit_s, deadline_s, gpus=4)
    assert (found.finished, found.dropped) == (3, 1)
    assert found.deadline_ratio == pytest.approx(1 / 3)
    assert found.avg_jct_s == pytest.approx((40 + 90 + 20) / 3)


def test_what_comes_after_the_last_end_does_not_count() -> None:
    line = Timeline([0.0, 50.0, 500.0], [1, 0, 7], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [4, 0, 0])
    found = measure(outcome([0], [50], line), np.array([0.0]), np.array([NAN]), gpus=4)
    assert found.avg_queue_length == 1.0
    assert found.gpu_utilization == 1.0


def test_nothing_finished_leaves_nothing_to_average() -> None:
    found = measure(outcome([NAN], [NAN], Timeline()), np.array([0.0]), np.array([5.0]), gpus=4)
    assert (found.finished, found.dropped, found.deadline_ratio) == (0, 1, 0.0)
    assert found.avg_jct_s is None
    assert found.makespan_s is None
    assert found.avg_cluster_efficiency is None
