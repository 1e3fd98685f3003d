"""Throughput curves estimated from a few known shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.hull import concave
from elasticd.scheduler.speedup_curve import (
    KEPT_RATES,
    NOISE,
    Known,
    Measured,
    Rate,
    Source,
    combined,
    estimate,
    fewest_servers,
    layer,
    peak,
    points,
)

ONE_SERVER = fewest_servers([16], 16)


def hull(curve: np.ndarray) -> np.ndarray:
    return concave(curve[None, :])[0]


def measured(**rates: float) -> Known:
    """`g4=19.0`: with 4 GPUs on one server; `g4s2`: on two."""
    found = {}
    for name, rate in rates.items():
        share, _, servers = name[1:].partition("s")
        found[int(share), int(servers or 1)] = Rate(rate, Source.MEASURED)
    return found


def test_a_job_that_nothing_is_known_of_scales_linearly() -> None:
    assert estimate({}, ONE_SERVER).tolist() == list(range(17))


def test_one_figure_says_how_fast_a_linear_job_is() -> None:
    curve = estimate(measured(g4=20.0), ONE_SERVER)
    assert curve[[1, 4, 8]].tolist() == pytest.approx([5.0, 20.0, 40.0])


def test_a_job_that_stops_growing_is_not_expected_to_grow_further_on() -> None:
    curve = estimate(measured(g1=10.0, g2=19.0, g4=19.5), ONE_SERVER)
    assert curve[4] == pytest.approx(19.5, rel=0.02)
    assert curve[8] < 21
    assert peak(hull(curve), 1, 16) == 2


def test_a_job_that_still_grows_is_expected_to_go_on_as_it_did() -> None:
    curve = estimate(measured(g1=10.0, g2=18.0, g4=32.0), ONE_SERVER)
    assert curve[8] == pytest.approx(32 + 4 * 7)
    assert peak(hull(curve), 1, 16) == 16


def test_neighbours_that_differ_by_noise_do_not_end_the_growth() -> None:
    curve = estimate(measured(g1=10.0, g4=40.0, g5=40.0), ONE_SERVER)
    assert curve[8] > 50
    assert peak(hull(curve), 1, 16) > 5


def test_a_dent_that_could_be_noise_is_filled_and_a_deeper_one_stays() -> None:
    noisy = estimate(measured(g1=10.0, g2=20.0, g3=29.0, g4=40.0), ONE_SERVER)
    assert noisy[3] == pytest.approx(30.0)
    dented = estimate(measured(g1=10.0, g2=20.0, g3=23.0, g4=40.0), ONE_SERVER)
    assert dented[[2, 3, 4]].tolist() == pytest.approx([20.0, 23.0, 40.0])


def test_a_dent_does_not_end_the_growth() -> None:
    curve = estimate(measured(g1=10.0, g2=20.0, g3=20.0, g4=40.0), ONE_SERVER)
    assert curve[3] == pytest.approx(20.0)
    assert peak(hull(curve), 1, 16) == 16


def test_the_peak_is_within_what_the_job_may_have() -> None:
    flat = estimate(measured(g1=10.0, g2=10.0), ONE_SERVER)
    assert [peak(hull(flat), least, most) for least, most in [(1, 16), (3, 16), (3, 3), (5, 4)]] == [1, 3, 3, 5]


def test_the_fewest_servers_of_a_share_are_the_largest_ones() -> None:
    assert fewest_servers([2, 4], 7).tolist() == [0, 1, 1, 1, 1, 2, 2, 0]
    assert fewest_servers([], 2).tolist() == [0, 0, 0]


def test_a_figure_on_more_servers_than_need_be_is_a_lower_bound_only() -> None:
    fewest = fewest_servers([4, 4], 8)
    known = measured(g2=20.0, g4s2=12.0)
    assert set(points(known, fewest)) == {2}
    assert estimate(known, fewest)[4] == pytest.approx(40.0)  # it was slow across servers; on one it may be fast
    assert estimate(measured(g2=20.0, g4=21.0, g3s2=30.0), fewest)[3] == pytest.approx(30.0)


def test_a_figure_on_fewer_servers_than_there_can_be_is_an_upper_bound() -> None:
    fewest = fewest_servers([2, 2], 4)  # a server of 4 has gone
    curve = estimate(measured(g1=10.0, g2=20.0, g4=30.0), fewest)
    assert curve[4] == pytest.approx(30.0)


def test_other_placements_stand_in_where_there_is_nothing_else() -> None:
    assert estimate(measured(g4s2=12.0), fewest_servers([4, 4], 8))[[2, 4]].tolist() == pytest.approx([6.0, 12.0])


def test_a_real_figure_puts_a_whole_table_in_its_place() -> None:
    table = {(share, 0): Rate(rate, Source.PROFILE) for share, rate in {1: 10.0, 2: 19.0, 4: 30.0}.items()}
    known = combined((table, measured(g2=9.5)))
    found = {share: (rate.steps_per_s, rate.source) for share, rate in points(known, ONE_SERVER).items()}
    assert found == {
        1: (5.0, Source.PROFILE),
        2: (9.5, Source.MEASURED),
        4: (15.0, Source.PROFILE),
    }
    within = combined((table, measured(g3=49.0)))  # between two of its shares: twice as fast
    assert within[4, 0].steps_per_s == pytest.approx(60.0)
    beyond = combined((table, measured(g8=30.0)))  # beyond them: as if it scaled linearly from there
    assert beyond[4, 0].steps_per_s == pytest.approx(15.0)


def test_a_figure_is_the_median_of_the_last_few() -> None:
    entry = Measured(share=2, servers=1, recent=(10.0,), times=1, at_s=5.0)
    for rate in (10.5, 99.0, 10.2):
        entry = entry.again(rate, 7.0)
    assert (entry.steps_per_s, entry.times, entry.at_s) == (10.35, 4, 7.0)
    for _ in range(10):
        entry = entry.again(12.0, 8.0)
    assert (entry.steps_per_s, entry.times, len(entry.recent)) == (12.0, 14, KEPT_RATES)
    assert layer([entry], Source.HISTORY) == {(2, 1): Rate(12.0, Source.HISTORY, 14, 8.0)}


figures = st.dictionaries(
    st.tuples(st.integers(1, 20), st.integers(0, 4)),
    st.builds(Rate, st.floats(0.01, 1e4), st.sampled_from(Source)),
    max_size=8,
)
clusters = st.tuples(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.integers(1, 16)).map(
    lambda pair: fewest_servers(*pair)
)


@given(figures, clusters)
def test_estimates_grow_and_are_what_was_measured_but_for_dents_that_could_be_noise(
    known: Known, fewest: np.ndarray
) -> None:
    curve = estimate(known, fewest)
    assert len(curve) == len(fewest)
    assert curve[0] == 0
    slack = 1e-9 * float(curve[-1])
    assert (np.diff(curve) >= -slack).all()
    most = 0.0
    for share, rate in sorted(points(known, fewest).items()):
        most = max(most, rate.steps_per_s)
        assert most - slack <= curve[share] <= max(most, float(curve[share - 1])) / (1 - NOISE) + slack
    assert curve[1] > 0


@given(figures, figures, clusters)
def test_what_is_measured_of_a_job_is_not_changed_by_what_is_known_beside(
    weak: Known, strong: Known, fewest: np.ndarray
) -> None:
    known = combined((weak, strong))
    assert known.keys() == weak.keys() | strong.keys()
    assert {where: known[where] for where in strong} == strong
    assert all(rate.steps_per_s > 0 for rate in known.values())
    assert estimate(known, fewest)[1] > 0


@given(figures, clusters, st.integers(1, 16), st.integers(1, 16))
def test_what_lies_beyond_the_peak_is_not_worth_a_gpu(known: Known, fewest: np.ndarray, least: int, most: int) -> None:
    curve = hull(estimate(known, fewest))
    most = min(most, len(curve) - 1)
    best = peak(curve, least, most)
    assert best == least or least < best <= most
    if best < most:
        assert curve[best + 1] - curve[best] < 0.1 * curve[best] / best
