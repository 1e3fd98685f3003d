"""Buddy placement: ElasticFlow's guarantee, worked examples, and properties for any shares and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.protocol.model import ServerId
from elasticd.scheduler.placement.buddy import Buddy, BuddyParameters
from elasticd.scheduler.view import Gpus, ServerInView

from .tables import anywhere, gpus, servers

BUDDY = Buddy(BuddyParameters())


def bits(placement: Gpus) -> list[int]:
    return [bit for bit in range(placement.bit_length()) if placement >> bit & 1]


def check(placed: Mapping[int, Gpus], shares: Mapping[int, int], total: int) -> None:
    """Each job has its share, on existing GPUs of its own."""
    assert {row: own.bit_count() for row, own in placed.items()} == {row: n for row, n in shares.items() if n}
    union = 0
    for own in placed.values():
        assert not own & union
        union |= own
    assert union < 1 << total


def in_a_block(placement: Gpus, size: int) -> bool:
    """Is it an aligned block within a server of `size` GPUs, or whole servers?"""
    share, first = placement.bit_count(), bits(placement)[0]
    if share < size:
        return first % share == 0 and placement == gpus(*range(first, first + share))
    return all((placement >> begin & (1 << size) - 1) in (0, (1 << size) - 1) for begin in range(0, 1024, size))


@st.composite
def powers_of_two(draw: st.DrawFn, total: int, most_jobs: int = 12) -> dict[int, int]:
    """Shares that fit; often all GPUs are given away."""
    left, shares = total, {}
    for row in range(draw(st.integers(1, most_jobs))):
        fitting = [2**k for k in range(total.bit_length()) if 2**k <= left]
        if fitting:
            shares[row] = draw(st.sampled_from(fitting))
            left -= shares[row]
    return shares


@settings(max_examples=300)
@given(st.data())
def test_whenever_enough_gpus_are_idle_a_subtree_is_found(data: st.DataObject) -> None:
    """ElasticFlow 4.3, for powers of two, whatever the earlier placements: no fragmentation."""
    size, count = 2 ** data.draw(st.integers(0, 4)), data.draw(st.integers(1, 6))
    shares = data.draw(powers_of_two(size * count))
    placed = BUDDY.place(servers(*[size] * count), data.draw(anywhere(size * count)), shares)
    check(placed, shares, size * count)
    assert all(in_a_block(own, size) for own in placed.values())


@given(st.data())
def test_decision_after_decision_every_job_has_its_subtree_and_nobody_moves_without_need(data: st.DataObject) -> None:
    size, count = 2 ** data.draw(st.integers(0, 3)), data.draw(st.integers(1, 5))
    total = size * count
    placed: dict[int, Gpus] = {}
    for _ in range(4):
        shares, before = data.draw(powers_of_two(total)), placed
        placed = BUDDY.place(servers(*[size] * count), before, shares)
        check(placed, shares, total)
        assert all(in_a_block(own, size) for own in placed.values())
        assert BUDDY.place(servers(*[size] * count), placed, shares) == placed
        if all(shares.get(row, 0) <= own.bit_count() for row, own in before.items()) and shares.keys() <= before.keys():
            assert all(placed[row] & ~before[row] == 0 for row in placed), "somebody moved although nobody grew"


@settings(max_examples=300)
@given(st.data())
def test_any_shares_are_placed_on_any_servers(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    total, shares = sum(sizes), {}
    left = total
    for row in range(data.draw(st.integers(1, 8))):
        shares[row] = data.draw(st.integers(0, left))
        left -= shares[row]
    placed = BUDDY.place(servers(*sizes), data.draw(anywhere(total)), shares)
    check(placed, shares, total)
    again = BUDDY.place(servers(*sizes), placed, shares)
    check(again, shares, total)


@given(st.data())
def test_who_is_to_stay_stays_whatever_the_others_get(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    total, shares, left = sum(sizes), {}, sum(sizes)
    present = data.draw(anywhere(total))
    for row in range(data.draw(st.integers(1, 8))):
        shares[row] = data.draw(st.one_of(st.integers(0, left), st.just(min(left, present.get(row, 0).bit_count()))))
        left -= shares[row]
    stay = data.draw(st.sets(st.integers(0, 7)))
    placed = BUDDY.place(servers(*sizes), present, shares, stay=stay)
    check(placed, shares, total)
    for row in stay & present.keys():
        if shares.get(row) == present[row].bit_count():
            assert placed.get(row, 0) == present[row]


def test_seven_and_seven_leave_two_gpus_that_are_no_subtree_but_eight_and_four_leave_one() -> None:
    """The paper's example: shares that are no powers of two fragment the cluster, powers of two do not."""
    odd = BUDDY.place(servers(8, 8), {}, {0: 7, 1: 7, 2: 2})
    assert len({bit // 8 for bit in bits(odd[2])}) == 2
    even = BUDDY.place(servers(8, 8), {}, {0: 8, 1: 4, 2: 4})
    assert in_a_block(even[1], 8)
    assert in_a_block(even[2], 8)


def test_the_block_is_taken_that_fits_best() -> None:
    """A job of 2 GPUs is placed beside one that leaves two GPUs of its half, not in an empty half."""
    assert BUDDY.place(servers(8), {0: gpus(4, 5)}, {0: 2, 1: 2}) == {0: gpus(4, 5), 1: gpus(6, 7)}


def test_a_job_grows_into_its_buddy() -> None:
    assert BUDDY.place(servers(8), {0: gpus(2, 3), 1: gpus(4, 5)}, {0: 4, 1: 2}) == {
        0: gpus(0, 1, 2, 3),
        1: gpus(4, 5),
    }


def test_a_job_shrinks_to_the_half_where_its_first_worker_is() -> None:
    assert BUDDY.place(servers(4), {0: gpus(0, 1, 2, 3)}, {0: 2}, {0: gpus(3)}) == {0: gpus(2, 3)}


def test_the_fewest_gpus_move_to_make_room() -> None:
    before = {0: gpus(0), 1: gpus(4, 5), 2: gpus(8, 9)}
    placed = BUDDY.place(servers(4, 4, 4), before, {0: 1, 1: 2, 2: 2, 3: 4})
    assert placed[3] == gpus(0, 1, 2, 3)
    assert placed[0].bit_count() == 1
    assert {row: placed[row] for row in (1, 2)} == {1: before[1], 2: before[2]}


def test_a_share_that_is_no_power_of_two_stays_within_the_smallest_block_around_it() -> None:
    placed = BUDDY.place(servers(8), {}, {0: 3, 1: 4, 2: 1})
    assert {row: {bit // 4 for bit in bits(own)} for row, own in placed.items()} == {0: {1}, 1: {0}, 2: {1}}


def test_a_share_beyond_a_server_takes_whole_servers_and_a_block() -> None:
    placed = BUDDY.place(servers(4, 4, 4), {1: gpus(4)}, {0: 6, 1: 1})
    check(placed, {0: 6, 1: 1}, 12)
    assert sorted(sum(bit // 4 == server for bit in bits(placed[0])) for server in range(3)) == [0, 2, 4]


def test_blocks_keep_their_places_where_gpus_are_missing() -> None:
    """GPU 1 of the server is faulty: 2 and 3 are neighbours, 0 and 2 are not."""
    broken = (ServerInView(ServerId("s0"), (0, 2, 3)),)
    assert BUDDY.place(broken, {}, {0: 2}) == {0: gpus(1, 2)}


@pytest.mark.parametrize("shares", [{0: 5}, {0: 2, 1: 3}])
def test_more_than_there_is_is_refused(shares: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        BUDDY.place(servers(2, 2), {}, shares)


def sequence(sizes: Sequence[int], *steps: dict[int, int]) -> list[dict[int, Gpus]]:
    placed: list[dict[int, Gpus]] = [{}]
    for shares in steps:
        placed.append(BUDDY.place(servers(*sizes), placed[-1], shares))
    return placed[1:]


def test_who_ends_leaves_a_hole_that_the_next_one_of_its_size_takes() -> None:
    first, _, last = sequence((4, 4), {0: 2, 1: 2, 2: 4}, {0: 2, 2: 4}, {0: 2, 2: 4, 3: 2})
    assert last == {0: first[0], 2: first[2], 3: first[1]}
