"""Extrapolation of a reported metric: after how many steps it reaches its target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from elasticd.controller.jobs.metric_forecast import FEW, KEPT, Reports
from elasticd.protocol.model import Until

ACCURACY = Until(metric="accuracy", bound=0.9)
LOSS = Until(metric="loss", bound=0.3, at_least=False)


def accuracy(steps: int) -> float:
    return 0.97 - 1.0 / (0.002 * steps + 1.3)  # 0.9 after 6,493


def loss(steps: int) -> float:
    return 0.1 + 1.0 / (0.004 * steps + 0.5)  # 0.3 after 1,125


def reports(curve: Callable[[int], float], steps: Iterable[int], noise: float = 0.0) -> Reports:
    found, rng = Reports(), np.random.default_rng(0)
    for step in steps:
        found.add(step, curve(step) + noise * float(rng.standard_normal()))
    return found


@pytest.mark.parametrize(("curve", "until", "true"), [(accuracy, ACCURACY, 6493), (loss, LOSS, 1125)])
def test_the_curve_of_the_reports_is_followed_to_where_the_figure_is_reached(
    curve: Callable[[int], float], until: Until, true: int
) -> None:
    upto, every = round(0.5 * true), round(0.025 * true)
    assert reports(curve, range(every, upto, every)).steps_until(until) == pytest.approx(true, rel=0.05)
    assert reports(curve, range(every, upto, every), noise=0.003).steps_until(until) == pytest.approx(true, rel=0.25)


def test_another_kind_of_curve_is_followed_the_better_the_closer_it_comes() -> None:
    def curve(steps: int) -> float:
        return 0.95 - 0.8 * math.exp(-steps / 1500)  # 0.9 after 4,159

    found = [reports(curve, range(100, upto, 100)).steps_until(ACCURACY) for upto in (1500, 2500, 3500)]
    errors = [abs(each - 4159) / 4159 for each in found if each is not None]
    assert len(errors) == 3
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.15


def test_what_is_never_reached_or_only_far_away_is_not_known() -> None:
    assert reports(accuracy, range(500, 20_000, 500)).steps_until(Until(metric="accuracy", bound=0.98)) is None
    assert reports(accuracy, range(1, 60, 5)).steps_until(Until(metric="accuracy", bound=0.969)) is None
    assert reports(lambda steps: 0.5 - 1e-5 * steps, range(100, 2000, 100)).steps_until(ACCURACY) is None
    assert reports(lambda steps: 0.5, range(100, 2000, 100)).steps_until(ACCURACY) is None


def test_few_reports_say_nothing() -> None:
    assert reports(accuracy, range(500, 500 * FEW, 500)).steps_until(ACCURACY) is None


def test_what_was_reached_once_is_reached() -> None:
    assert reports(accuracy, range(500, 8000, 500)).steps_until(ACCURACY) == 6500


def test_what_was_reported_before_a_restart_of_later_steps_is_forgotten() -> None:
    whole = reports(accuracy, range(100, 3000, 100))
    again = reports(accuracy, range(100, 2000, 100))
    for steps in range(2000, 2900, 100):
        again.add(steps, 0.1)  # of a lost training run
    for steps in range(2000, 3000, 100):
        again.add(steps, accuracy(steps))
    assert again.steps_until(ACCURACY) == whole.steps_until(ACCURACY)


def test_a_status_that_repeats_a_report_is_no_news_and_a_long_job_keeps_few_of_them() -> None:
    found = reports(accuracy, range(10, 5000, 10))
    assert not found.add(6000, accuracy(4990))
    assert len(found._points) <= KEPT
    assert found.steps_until(ACCURACY) == pytest.approx(6493, rel=0.05)
