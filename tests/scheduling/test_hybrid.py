"""Elan's Algorithm 1 (Elan III): the least batch with which a job can use its GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.hybrid import Curves, at_factor, grown_factor
from elasticd.scheduler.speedup_curve import NOISE, Measured


def rates(virtual_workers: int, computing_s: float, exchange_s: list[float], factor: int) -> list[float]:
    """Steps per second by number of workers, as the model has them; exchange_s: for two workers and more."""
    times = [
        factor * computing_s * -(-virtual_workers // workers) + ([0.0, *exchange_s])[workers - 1]
        for workers in range(1, len(exchange_s) + 2)
    ]
    return [0.0, *(1.0 / time for time in times)]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, float, list[float], int]:
    virtual_workers = draw(st.integers(1, 16))
    computing_s = draw(st.floats(0.001, 1.0))
    exchange_s = draw(st.lists(st.floats(0.0, 2.0), min_size=virtual_workers - 1, max_size=virtual_workers - 1))
    return virtual_workers, computing_s, sorted(exchange_s), draw(st.sampled_from([1, 2, 4]))


@given(jobs())
def test_the_curve_of_any_factor_follows_from_the_measured_one(job: tuple[int, float, list[float], int]) -> None:
    n, computing_s, exchange_s, factor = job
    curves = Curves(rates(n, computing_s, exchange_s, factor), n, factor)
    for other in (1, 2, 4, 8):
        expected = rates(n, computing_s, exchange_s, other)
        for workers in range(1, n + 1):
            assert 1 / curves.step_s(other, workers) == pytest.approx(expected[workers], rel=1e-6)


@given(jobs(), st.integers(1, 16), st.integers(1, 16), st.integers(1, 64))
def test_the_factor_is_the_least_that_the_algorithm_allows(
    job: tuple[int, float, list[float], int], before: int, after: int, ceiling: int
) -> None:
    n, computing_s, exchange_s, factor = job
    before, after = sorted((min(before, n), min(after, n)))
    curves = Curves(rates(n, computing_s, exchange_s, factor), n, factor)
    found = grown_factor(curves, factor, before, after, ceiling)
    assert factor <= found <= max(factor, ceiling), "the batch never shrinks, and the author's ceiling holds"
    assert found <= factor * (after // before), "at most weak scaling: the batch of each worker does not grow"
    growths = [2**power for power in range(6) if 2**power * before <= after]
    enough = [growth for growth in growths if curves.optimum(factor * growth) >= after]
    wanted = factor * (enough[0] if enough else after // before)
    assert found == min(wanted, max(factor, ceiling))


@given(jobs())
def test_a_larger_batch_never_has_fewer_optimal_workers(job: tuple[int, float, list[float], int]) -> None:
    n, computing_s, exchange_s, factor = job
    if computing_s < 1e-2:
        return
    curves = Curves(rates(n, computing_s, exchange_s, factor), n, factor)
    times = [[curves.step_s(each, workers) for workers in range(1, n + 1)] for each in (1, 64)]
    best = [min(range(n), key=lambda worker, own=own: own[worker]) for own in times]
    assert best[0] <= best[1]


def test_by_hand() -> None:
    """8 virtual workers of 10 ms; the exchange takes 10 ms more for each worker more: the optimum moves to the right."""
    curves = Curves(rates(8, 0.01, [0.01 * workers for workers in range(1, 8)], 1), 8, 1)
    assert [curves.optimum(factor) for factor in (1, 2, 4, 8)] == [2, 4, 4, 8]
    assert grown_factor(curves, 1, 2, 2, 64) == 1, "the present workers are the optimum"
    assert grown_factor(curves, 1, 1, 2, 64) == 1, "strong scaling is enough"
    assert grown_factor(curves, 1, 1, 4, 64) == 2, "the least factor whose optimum is 4"
    assert grown_factor(curves, 1, 1, 8, 64) == 8
    assert grown_factor(curves, 1, 2, 8, 64) == 4, "factor 8 would be needed, and weak scaling gives 4"
    assert grown_factor(curves, 1, 2, 7, 64) == 3, "weak scaling, rounded down"
    assert grown_factor(curves, 1, 1, 8, 3) == 3, "the author's ceiling"
    assert grown_factor(curves, 4, 1, 4, 3) == 4, "the batch does not shrink to a ceiling that came later"


def test_where_strong_scaling_is_enough_nothing_grows() -> None:
    linear = Curves([0.0, *(float(workers) for workers in range(1, 9))], 8, 1)
    assert [grown_factor(linear, 1, before, 8, 64) for before in (1, 2, 4, 8)] == [1, 1, 1, 1]


def test_a_gain_within_the_noise_is_none() -> None:
    flat = [0.0, 1.0, 1.9, 1.9 * (1 + NOISE / 2), 1.9 * (1 + NOISE / 2)]
    assert Curves(flat, 4, 1).optimum(1) == 2


MEASURED = tuple(
    Measured(share=share, servers=1, recent=(rate, rate * 1.01), times=2, at_s=5.0)
    for share, rate in ((1, 10.0), (2, 18.0), (4, 20.0))
)


def test_measurements_are_carried_over_to_another_factor() -> None:
    doubled = at_factor(MEASURED, 4, 1, 2)
    assert [entry.share for entry in doubled] == [1, 2, 4]
    for old, new in zip(MEASURED, doubled, strict=True):
        hosted = 4 / old.share
        median = 1 / old.steps_per_s
        assert 1 / new.steps_per_s == pytest.approx(median + hosted / (4 * MEASURED[0].steps_per_s), rel=0.02)
    back = at_factor(doubled, 4, 2, 1)
    for old, new in zip(MEASURED, back, strict=True):
        assert new.steps_per_s == pytest.approx(old.steps_per_s, rel=0.05)
    assert at_factor((), 4, 1, 2) == ()
