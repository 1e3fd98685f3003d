"""Regulated shares: the paper's proposition, and comparison with all possible choices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.packing import pack, rounded_down

UNLIMITED = 10**6


def packed(
    gpus: Sequence[int], servers: Sequence[int], low: Sequence[int] | None = None, high: Sequence[int] | None = None
) -> list[int]:
    least = np.array(low if low is not None else [1] * len(gpus), dtype=np.int64)
    most = np.array(high if high is not None else [UNLIMITED] * len(gpus), dtype=np.int64)
    return pack(np.array(gpus, dtype=np.int64), servers, least, most).tolist()


def is_allowed(share: int, size: int) -> bool:
    return share % size == 0 or (share < size and share & (share - 1) == 0)


def floor(share: int, size: int) -> int:
    """x of Proposition 2, word for word."""
    if share > size:
        return share // size * size
    return 2 ** int(math.log2(share)) if share else 0


def nearest(gpus: Sequence[int], size: int, low: Sequence[int], high: Sequence[int]) -> tuple[int, int]:
    """Over all regulated shares from `floor` to the maximum with a sum up to the wanted one: the largest sum, and the least
    distance of shares with that sum from the wanted shares.
    """
    total = sum(gpus)
    reachable = {0: 0}
    for wanted, least, most in zip(gpus, low, high, strict=True):
        own = floor(wanted, size)
        choices = [share for share in range(own, min(most, total) + 1) if is_allowed(share, size)] if wanted else [0]
        if own < least:
            choices = [wanted]
        found: dict[int, int] = {}
        for so_far, distance in reachable.items():
            for share in choices:
                if so_far + share <= total:
                    new = distance + abs(share - wanted)
                    found[so_far + share] = min(new, found.get(so_far + share, new))
        reachable = found
    return max(reachable), reachable[max(reachable)]


def distance(gpus: Sequence[int], others: Sequence[int]) -> int:
    return sum(abs(a - b) for a, b in zip(gpus, others, strict=True))


@st.composite
def full_clusters(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Shares that use up servers of 2^k GPUs: shares, GPUs per server, servers."""
    size, count = 2 ** draw(st.integers(0, 4)), draw(st.integers(1, 6))
    left, gpus = size * count, []
    while left:
        gpus.append(draw(st.integers(0, left) if len(gpus) < 12 else st.just(left)))
        left -= gpus[-1]
    return gpus, size, count


@given(full_clusters())
def test_shares_that_use_all_gpus_are_regulated_to_the_same_sum_each_at_least_its_floor(
    case: tuple[list[int], int, int],
) -> None:
    """AFS App. E, Proposition 2."""
    gpus, size, count = case
    found = packed(gpus, [size] * count)
    assert sum(found) == size * count
    for share, regulated in zip(gpus, found, strict=True):
        assert is_allowed(regulated, size)
        assert regulated >= floor(share, size)
        assert (regulated == 0) == (share == 0)


@given(full_clusters())
def test_shares_that_use_all_gpus_become_the_nearest_that_are_allowed(case: tuple[list[int], int, int]) -> None:
    gpus, size, count = case
    found = packed(gpus, [size] * count)
    assert distance(gpus, found) == nearest(gpus, size, [1] * len(gpus), [UNLIMITED] * len(gpus))[1]


@given(st.data())
def test_with_maximums_and_idle_gpus_the_sum_is_the_largest_that_can_be_and_the_shares_are_the_nearest(
    data: st.DataObject,
) -> None:
    size, count = 2 ** data.draw(st.integers(0, 3)), data.draw(st.integers(1, 4))
    gpus, low, high, left = [], [], [], size * count
    while left and len(gpus) < 10:
        share = data.draw(st.integers(0, left))
        left -= share
        gpus.append(share)
        low.append(data.draw(st.integers(1, max(share, 1))))
        high.append(data.draw(st.integers(max(share, 1), max(2 * share, 2))))
    found = packed(gpus, [size] * count, low, high)
    assert (sum(found), distance(gpus, found)) == nearest(gpus, size, low, high)
    for share, regulated, least, most in zip(gpus, found, low, high, strict=True):
        if floor(share, size) < least:
            assert regulated == share
        else:
            assert is_allowed(regulated, size)
            assert floor(share, size) <= regulated <= most or not share
        assert not share or least <= regulated


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]))
def test_rounding_down_gives_the_largest_share_that_is_allowed(gpus: list[int], size: int) -> None:
    down = rounded_down(np.array(gpus), size).tolist()
    parts = [part for part in range(1, size + 1) if rounded_down(np.array([part]), size)[0] == part]
    assert parts[0] == 1
    assert all(large % small == 0 for small, large in zip(parts, [*parts[1:], size], strict=True))
    for share, rounded in zip(gpus, down, strict=True):
        assert rounded == max(n for n in range(1, share + 1) if n in parts or n % size == 0)


def test_with_four_gpus_per_server_shares_are_one_two_or_whole_servers() -> None:
    assert packed([3, 3, 2], [4, 4]) == [4, 2, 2]
    assert packed([5, 3], [4, 4]) == [4, 4]
    assert packed([7, 5], [4, 4, 4]) == [8, 4]
    assert packed([1, 7], [4, 4]) == [4, 4]


def test_of_jobs_that_lose_as_much_by_rounding_the_one_submitted_first_is_rounded_up() -> None:
    assert packed([3, 3, 3, 3], [4, 4, 4]) == [4, 4, 2, 2]


def test_shares_that_are_allowed_are_not_touched() -> None:
    gpus = np.array([0, 4, 2, 1, 0, 8, 1])
    assert pack(gpus, [4] * 4, np.ones(7, dtype=np.int64), np.full(7, 8)) is gpus


def test_a_job_whose_minimum_does_not_allow_rounding_down_keeps_its_share() -> None:
    assert packed([3, 3, 2], [4, 4], low=[1, 3, 1]) == [2, 3, 2]


def test_nobody_gets_more_than_its_maximum_even_if_gpus_stay_idle() -> None:
    assert packed([3, 5], [4, 4], high=[3, 5]) == [2, 4]
    assert packed([3, 5], [4, 4], high=[4, 5]) == [4, 4]


def test_what_a_policy_leaves_idle_stays_idle() -> None:
    assert packed([3], [4, 4]) == [2]
    assert packed([3, 1], [4, 4]) == [2, 2]


def test_gpus_per_server_that_are_no_power_of_two_are_halved_as_long_as_that_goes() -> None:
    assert packed([5, 4, 3], [6, 6]) == [6, 3, 3]
    assert packed([11, 1, 6, 6], [12, 12]) == [6, 6, 6, 6]


def test_one_broken_gpu_changes_no_share_of_those_that_can_stay() -> None:
    assert packed([8, 4, 2, 1, 8, 4, 4], [8, 8, 8, 7]) == [8, 4, 2, 1, 8, 4, 4]


def test_on_servers_that_are_not_alike_nothing_is_left_idle_that_a_job_wanted() -> None:
    assert packed([7], [4, 3]) == [7]
    assert packed([28, 3], [8, 8, 8, 7]) == [27, 4]
    assert packed([27, 4], [8, 8, 8, 7]) == [27, 4]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_on_any_servers_every_job_goes_on_and_no_gpu_is_given_that_was_not_wanted(
    servers: list[int], data: st.DataObject
) -> None:
    gpus, left = [], sum(servers)
    while left:
        gpus.append(data.draw(st.integers(1, left)))
        left -= gpus[-1]
    high = [data.draw(st.integers(share, 2 * share)) for share in gpus]
    found = packed(gpus, servers, high=high)
    assert sum(found) <= sum(gpus)
    assert sum(found) == sum(gpus) or len(set(servers)) == 1
    assert all(0 < regulated <= most for regulated, most in zip(found, high, strict=True))


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_jobs_with_maximums_in_the_way_are_nearly_as_near_as_can_be(seed: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    gpus = draw.choice([1, 1, 1, 1, 2, 2, 2, 3, 3, 5, 6, 9], 1000)
    high = np.maximum(gpus, np.minimum(gpus + draw.integers(0, 9, 1000), 3 * gpus))
    servers = [size] * -(-int(gpus.sum()) // size)
    found = packed(gpus.tolist(), servers, high=high.tolist())
    total, least = _nearest_of_many(gpus, size, high)
    assert sum(found) == total
    assert distance(gpus.tolist(), found) <= 1.01 * least


def _nearest_of_many(gpus: np.ndarray, size: int, high: np.ndarray) -> tuple[int, int]:
    """As `nearest`, with arrays over the sum above the floors."""
    floors = [floor(share, size) for share in gpus.tolist()]
    left = int(gpus.sum()) - sum(floors)
    best = np.full(left + 1, 10**6)
    best[0] = 0
    for wanted, own, most in zip(gpus.tolist(), floors, high.tolist(), strict=True):
        found = best + wanted - own
        for share in range(own + 1, most + 1):
            if is_allowed(share, size) and share - own <= left:
                more = share - own
                found[more:] = np.minimum(found[more:], best[: left + 1 - more] + abs(share - wanted))
        best = found
    reached = int(np.flatnonzero(best < 10**6)[-1])
    return sum(floors) + reached, int(best[reached])
