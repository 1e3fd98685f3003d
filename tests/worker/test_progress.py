"""The step rate of a generation, measured over steps without disturbances."""

from __future__ import annotations

import pytest

from elasticd.protocol.model import Steady
from elasticd.worker.progress import STEADY_STEPS, StepTimes


def steps(times: StepTimes, count: int, pace_s: float, since: tuple[int, float] = (-1, 0.0)) -> tuple[int, float]:
    """Add `count` steps; returns the number and time of the last."""
    step, at = since
    for _ in range(count):
        step, at = step + 1, at + pace_s
        times.applied(step, at)
    return step, at


def test_the_pace_of_a_generation_has_none_of_the_steps_before_it() -> None:
    times = StepTimes()
    times.switched(1, 0, 4, recovery=False)
    assert times.steady() == Steady()
    last = steps(times, 40, 0.1)
    assert times.steady() == Steady(generation=1, step_s=pytest.approx(0.1), steps=STEADY_STEPS)
    times.switched(2, 4, 2, recovery=False)
    for count in (0, 1, 1):  # the first step is the switch itself, and there must be two after it
        last = steps(times, count, 0.3, last)
        assert times.steady() == Steady()
    last = steps(times, 1, 0.3, last)
    assert times.steady() == Steady(generation=2, step_s=pytest.approx(0.3), steps=1)
    steps(times, 100, 0.3, last)
    assert times.steady().steps == STEADY_STEPS


def test_who_joins_in_the_middle_says_nothing_of_the_pace() -> None:
    times = StepTimes()
    times.restarted()
    steps(times, 40, 0.1)
    assert times.steady() == Steady()


def test_two_switches_without_a_step_between_them_are_one_pause() -> None:
    times = StepTimes()
    last = steps(times, 10, 0.1)
    times.switched(2, 2, 3, recovery=False)
    times.switched(3, 3, 2, recovery=True)
    last = steps(times, 1, 1.5, last)
    times.switched(4, 2, 4, recovery=False)
    steps(times, 10, 0.1, last)
    told = [(each.generation, each.workers_before, each.workers_after, each.recovery) for each in times.resizes]
    assert told == [(3, 2, 2, True), (4, 2, 4, False)]
