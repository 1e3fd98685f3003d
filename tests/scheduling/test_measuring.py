"""The decreasing shares at which a new job's throughput is measured."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.measuring import (
    Measuring,
    first_share,
    smaller_shares,
    unknown,
    worth_measuring,
)

LINEAR = np.arange(65.0)


def test_a_new_job_gets_its_fair_share_at_first_rounded_up() -> None:
    assert [first_share(8, jobs) for jobs in (0, 1, 2, 3, 8, 20)] == [8, 8, 4, 3, 1, 1]


def test_the_way_down_goes_by_halves_to_the_minimum() -> None:
    assert smaller_shares(8, 1, None) == (4, 2, 1)
    assert smaller_shares(7, 1, None) == (3, 1)
    assert smaller_shares(8, 3, None) == (4,)
    assert smaller_shares(1, 1, None) == ()


def test_with_network_packing_only_allowed_shares_are_measured() -> None:
    assert smaller_shares(12, 1, 4) == (4, 2, 1)
    assert smaller_shares(64, 1, 4) == (32, 16, 8, 4, 2, 1)
    assert smaller_shares(12, 1, 6) == (6, 3, 1)


def test_a_share_near_to_a_known_one_need_not_be_measured() -> None:
    assert unknown((4, 2, 1), {8}) == (4, 2, 1)
    assert unknown((4, 2, 1), {8, 3, 1}) == (4,)
    assert unknown((4, 2, 1), {7}) == (4, 2, 1)[1:]


def test_nothing_is_measured_where_it_would_only_disturb() -> None:
    measuring = Measuring(steps=20, longest_s=60, most_of_rest=0.05)
    assert worth_measuring(measuring, (4, 2, 1), LINEAR) == (4, 2, 1)
    assert worth_measuring(measuring, (4, 2, 1), LINEAR, left_s=700.0) == (4, 2, 1)  # 5 s, 10 s and 20 s
    assert worth_measuring(measuring, (4, 2, 1), LINEAR, left_s=690.0) == ()
    assert worth_measuring(measuring, (4, 2, 1), LINEAR / 4) == (4, 2)  # 80 s with one GPU
    assert worth_measuring(measuring, (4, 2, 1), LINEAR / 1000) == ()


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([None, 1, 2, 4, 6, 8]), st.sets(st.integers(1, 64)))
def test_shares_on_the_way_are_smaller_each_time_and_once_measured_leave_none(
    share: int, least: int, server_gpus: int | None, known: set[int]
) -> None:
    way = smaller_shares(share, least, server_gpus)
    assert list(way) == sorted(set(way), reverse=True)
    assert all(least <= below <= share // 2 for below in way)
    assert len(way) <= math.log2(64)
    wanted = unknown(way, known | {share})
    assert set(wanted) <= set(way)
    assert unknown(way, known | {share} | set(wanted)) == ()
