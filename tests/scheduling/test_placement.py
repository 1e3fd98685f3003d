"""Placements: the paper's proposition, worked examples, and comparison with all possible placements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import GpuAddress, ServerId
from elasticd.scheduler.placement.fewest_servers import IncrementalFewestServers, Placements, addresses, in_order, place
from elasticd.scheduler.view import Gpus, ServerInView

from .tables import anywhere, gpus, servers

Counts = tuple[int, ...]  # a job's GPUs on each server


def counts(placement: Gpus, sizes: Sequence[int]) -> Counts:
    found = []
    for size in sizes:
        found.append((placement & ((1 << size) - 1)).bit_count())
        placement >>= size
    return tuple(found)


def fewest(share: int, sizes: Sequence[int]) -> int:
    room = itertools.accumulate(sorted(sizes, reverse=True))
    return next(n for n, gpus in enumerate(room, 1) if gpus >= share)


def flaws(placed: Mapping[int, Counts], sizes: Sequence[int]) -> int:
    """Servers beyond the minimum, and jobs beyond one per server that communicate with other servers."""
    beyond = sum(sum(map(bool, own)) - fewest(sum(own), sizes) for own in placed.values())
    spread = [own for own in placed.values() if sum(map(bool, own)) > 1]
    return beyond + sum(max(0, sum(bool(own[s]) for own in spread) - 1) for s in range(len(sizes)))


def check(placed: Mapping[int, Gpus], shares: Mapping[int, int], sizes: Sequence[int]) -> None:
    """Each job has its share, on existing GPUs of its own."""
    assert {row: own.bit_count() for row, own in placed.items()} == {row: n for row, n in shares.items() if n}
    union = 0
    for own in placed.values():
        assert not own & union
        union |= own
    assert union < 1 << sum(sizes)


# ---------------------------------------------------------------------------------------------------------- packed shares


@st.composite
def packed_shares(draw: st.DrawFn, size: int, count: int, most_jobs: int = 12) -> dict[int, int]:
    allowed = sorted({2**k for k in range(5) if 2**k < size} | {size * k for k in range(1, count + 1)})
    left, shares = size * count - draw(st.integers(0, size)), {}
    for row in range(draw(st.integers(0, most_jobs))):
        fitting = [share for share in allowed if share <= left]
        if fitting and draw(st.booleans()):
            shares[row] = draw(st.sampled_from(fitting))
            left -= shares[row]
    return shares


@given(st.data())
def test_packed_shares_can_always_be_placed_without_sharing_a_servers_network(data: st.DataObject) -> None:
    """AFS App. E, Proposition 1: for all shares and present placements."""
    size, count = 2 ** data.draw(st.integers(0, 4)), data.draw(st.integers(1, 6))
    shares = data.draw(packed_shares(size, count))
    present = data.draw(anywhere(size * count))
    placed = place(servers(*[size] * count), present, shares)
    check(placed, shares, [size] * count)
    assert flaws({row: counts(own, [size] * count) for row, own in placed.items()}, [size] * count) == 0


@given(st.data())
def test_decision_after_decision_packed_shares_stay_well_placed_and_who_need_not_move_keeps_its_gpus(
    data: st.DataObject,
) -> None:
    size, count = 2 ** data.draw(st.integers(0, 3)), data.draw(st.integers(1, 5))
    sizes = [size] * count
    placed: dict[int, Gpus] = {}
    for _ in range(4):
        shares, before = data.draw(packed_shares(size, count)), placed
        placed = place(servers(*sizes), before, shares)
        check(placed, shares, sizes)
        assert flaws({row: counts(own, sizes) for row, own in placed.items()}, sizes) == 0
        assert place(servers(*sizes), placed, shares) == placed
        taken = {row for row in placed if placed[row] & ~before.get(row, 0)}
        grown = {row for row in placed if shares[row] > before.get(row, 0).bit_count()}
        assert not taken or grown, "somebody moved although everybody could stay"


def possible(share: int, sizes: Sequence[int]) -> Iterator[Counts]:
    """All placements of a job on the fewest servers."""
    for used in itertools.combinations(range(len(sizes)), fewest(share, sizes)):
        for parts in itertools.product(*(range(1, min(sizes[server], share) + 1) for server in used)):
            if sum(parts) == share:
                own = dict(zip(used, parts, strict=True))
                yield tuple(own.get(server, 0) for server in range(len(sizes)))


def price(
    placed: Mapping[int, Counts], before: Mapping[int, Counts], untouched: Mapping[int, Counts], sizes: Sequence[int]
) -> tuple[int, int, int, int]:
    """Flaws; jobs that keep no GPU; unnecessary moves; kept GPUs, negative."""
    kept = {row: sum(map(min, own, before[row])) for row, own in placed.items() if row in before}
    moved = sum(kept.get(row, -1) < sum(own) for row, own in untouched.items())
    return flaws(placed, sizes), sum(not n for n in kept.values()), moved, -sum(kept.values())


def cheapest(
    shares: Mapping[int, int], before: Mapping[int, Counts], untouched: Mapping[int, Counts], sizes: Sequence[int]
) -> tuple[int, int, int, int]:
    """Exhaustive search."""
    best = (10**6, 0, 0, 0)
    rows = [row for row, share in shares.items() if share]
    for choice in itertools.product(*(list(possible(shares[row], sizes)) for row in rows)):
        if all(sum(used) <= size for used, size in zip(zip(*choice, strict=True), sizes, strict=True)):
            best = min(best, price(dict(zip(rows, choice, strict=True)), before, untouched, sizes))
    return best


@st.composite
def small_clusters(draw: st.DrawFn) -> tuple[list[int], dict[int, Gpus], dict[int, int]]:
    """GPUs per server, placements, and packed shares; half of the jobs keep their share."""
    sizes = [draw(st.sampled_from([2, 4]))] * draw(st.integers(1, 3))
    total = sum(sizes)
    earlier = draw(packed_shares(sizes[0], len(sizes), 6))
    present = place(servers(*sizes), draw(anywhere(total, 6, 4)), earlier)
    left = total
    shares = {}
    for row in range(6):
        same = present.get(row, 0).bit_count()
        allowed = [n for n in {0, 1, sizes[0] // 2, sizes[0], 2 * sizes[0], same} if n <= left]
        shares[row] = same if same <= left and draw(st.booleans()) else draw(st.sampled_from(sorted(allowed)))
        left -= shares[row]
    return sizes, present, shares


@given(small_clusters())
def test_no_placement_is_better_than_the_one_that_is_found(
    cluster: tuple[list[int], dict[int, Gpus], dict[int, int]],
) -> None:
    sizes, present, shares = cluster
    before = {row: counts(own, sizes) for row, own in present.items()}
    untouched = {row: own for row, own in before.items() if shares[row] == sum(own)}
    placed = place(servers(*sizes), present, shares)
    check(placed, shares, sizes)
    if placed:
        found = price({row: counts(own, sizes) for row, own in placed.items()}, before, untouched, sizes)
        assert found == cheapest(shares, before, untouched, sizes)


def test_a_job_moves_to_make_room_for_one_that_fits_on_no_server_otherwise() -> None:
    present = {0: gpus(0), 1: gpus(2), 2: gpus(3)}
    placed = place(servers(2, 2), present, {0: 1, 1: 1, 3: 2})
    assert placed == {0: gpus(0), 1: gpus(1), 3: gpus(2, 3)}


def test_a_job_that_is_to_stay_does_not_make_room() -> None:
    present = {0: gpus(0), 1: gpus(4)}
    assert place(servers(4, 4), present, {0: 1, 1: 1, 2: 4}, stay={1}) == {0: gpus(5), 1: gpus(4), 2: gpus(0, 1, 2, 3)}
    spread = place(servers(4, 4), present, {0: 1, 1: 1, 2: 4}, stay={0, 1})
    assert {row: spread[row] for row in present} == present
    assert counts(spread[2], [4, 4]) == (3, 1)


def test_the_job_submitted_last_moves_where_one_of_several_has_to() -> None:
    assert place(servers(2, 2), {0: gpus(0), 1: gpus(2)}, {0: 1, 1: 1, 2: 2}) == {0: gpus(0), 1: gpus(1), 2: gpus(2, 3)}


def test_a_job_that_is_placed_well_does_not_make_room_for_one_that_can_go_elsewhere() -> None:
    placed = place(servers(4, 4), {0: gpus(0, 1), 1: gpus(2, 3)}, {0: 4, 1: 2})
    assert placed == {0: gpus(4, 5, 6, 7), 1: gpus(2, 3)}


def test_a_job_moves_if_two_others_would_have_to_move_instead() -> None:
    present = {0: gpus(0), 1: gpus(1), 2: gpus(2), 3: gpus(3), 4: gpus(4, 5, 6, 7)}
    placed = place(servers(8, 8), present, {0: 2, 1: 2, 2: 2, 3: 2, 4: 4})
    assert all(placed[row] & present[row] for row in range(4))
    assert placed[4] == gpus(8, 9, 10, 11)


def test_hundreds_of_servers_that_are_too_full_at_once_are_all_relieved() -> None:
    sizes = [2] * 1200
    present = {row: gpus(row) for row in range(2400)}
    shares = {row: 2 if row % 4 < 2 else 0 for row in range(2400)}  # on every other server both jobs grow
    placed = place(servers(*sizes), present, shares)
    check(placed, shares, sizes)
    assert sum(bool(own & present[row]) for row, own in placed.items()) == 600
    assert all(max(counts(own, sizes)) == 2 for own in placed.values())


# ------------------------------------------------------------------------------------------------------- growing, shrinking


def test_a_job_that_shrinks_stays_on_the_fewest_servers_and_with_its_first_worker_if_that_costs_nothing() -> None:
    present = {0: gpus(0, 4, 5, 6)}
    assert place(servers(4, 4), present, {0: 3}) == {0: gpus(4, 5, 6)}
    assert place(servers(4, 4), present, {0: 1}) == {0: gpus(0)}
    assert place(servers(4, 4), present, {0: 1}, first={0: gpus(6)}) == {0: gpus(6)}
    assert place(servers(4, 4, 4), {0: 2**12 - 1}, {0: 4}, first={0: gpus(9)}) == {0: gpus(8, 9, 10, 11)}
    assert place(servers(4, 4, 4), {0: 2**12 - 1}, {0: 8}, first={0: gpus(9)}) == {0: gpus(0, 1, 2, 3, 8, 9, 10, 11)}


def test_a_job_that_grows_takes_the_free_gpus_of_its_own_server_before_a_new_job_does() -> None:
    assert place(servers(2, 2), {1: gpus(0)}, {0: 2, 1: 2}) == {0: gpus(2, 3), 1: gpus(0, 1)}


def test_a_job_takes_gpus_that_were_idle_before_those_that_others_give_up() -> None:
    assert place(servers(8), {0: gpus(0, 1)}, {0: 1, 1: 1}) == {0: gpus(0), 1: gpus(2)}


@given(st.data())
def test_on_one_server_nobody_gives_up_a_gpu_without_need(data: st.DataObject) -> None:
    present = data.draw(anywhere(16))
    left, shares = 16, {}
    for row in range(8):
        shares[row] = data.draw(st.integers(0, min(left, 8)))
        left -= shares[row]
    placed = place(servers(16), present, shares)
    check(placed, shares, [16])
    for row, own in placed.items():
        kept = own & present.get(row, 0)
        assert kept.bit_count() == min(shares[row], present.get(row, 0).bit_count())


# ----------------------------------------------------------------------------------------------- other shares and servers


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], dict[int, Gpus], dict[int, int]]:
    """Any servers, any placements, any shares that fit."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    present = draw(anywhere(sum(sizes), 8))
    left, shares = sum(sizes), {}
    for row in range(draw(st.integers(0, 8))):
        shares[row] = draw(st.one_of(st.integers(0, left), st.just(min(left, present.get(row, 0).bit_count()))))
        left -= shares[row]
    return sizes, present, shares


@given(clusters())
def test_any_shares_that_fit_can_be_placed_and_a_placement_asks_for_no_further_change(
    cluster: tuple[list[int], dict[int, Gpus], dict[int, int]],
) -> None:
    sizes, present, shares = cluster
    placed = place(servers(*sizes), present, shares)
    check(placed, shares, sizes)
    assert place(servers(*sizes), placed, shares) == placed
    assert place(servers(*sizes), present, shares) == placed


@given(clusters(), st.sets(st.integers(0, 7)))
def test_who_is_to_stay_stays_whatever_the_others_get(
    cluster: tuple[list[int], dict[int, Gpus], dict[int, int]], stay: set[int]
) -> None:
    sizes, present, shares = cluster
    placed = place(servers(*sizes), present, shares, stay=stay)
    check(placed, shares, sizes)
    for row in stay & present.keys():
        if shares.get(row) == present[row].bit_count():
            assert placed.get(row, 0) == present[row]


@given(clusters())
def test_where_no_share_changes_somebody_moves_only_if_that_makes_the_placement_better(
    cluster: tuple[list[int], dict[int, Gpus], dict[int, int]],
) -> None:
    sizes, present, _ = cluster
    placed = place(servers(*sizes), present, {row: own.bit_count() for row, own in present.items()})
    before, after = ({row: counts(own, sizes) for row, own in all_.items()} for all_ in (present, placed))
    assert placed == present or flaws(after, sizes) < flaws(before, sizes)


@given(clusters())
def test_a_job_alone_is_put_on_the_fewest_servers(cluster: tuple[list[int], dict[int, Gpus], dict[int, int]]) -> None:
    sizes, present, shares = cluster
    for row, share in shares.items():
        placed = place(servers(*sizes), {row: present.get(row, 0)}, {row: share})
        assert flaws({row: counts(own, sizes) for row, own in placed.items()}, sizes) == 0


def test_two_jobs_that_talk_across_servers_do_not_share_one_where_that_can_be_avoided() -> None:
    placed = place(servers(2, 2, 2, 2), {}, {0: 3, 1: 3})
    assert not any(map(min, *(counts(own, [2] * 4) for own in placed.values())))


def test_a_job_that_fits_into_one_server_is_not_split_to_keep_spread_jobs_apart() -> None:
    placed = place(servers(2, 2, 2, 2), {}, {0: 3, 1: 3, 2: 2})
    assert [sum(map(bool, counts(own, [2] * 4))) for own in placed.values()] == [2, 2, 1]


def test_what_fits_on_no_single_server_takes_the_largest_holes() -> None:
    placed = place(servers(4, 4, 5), {0: gpus(0, 1, 2), 1: gpus(4, 5, 6), 2: gpus(8, 9, 10)}, {0: 3, 1: 3, 2: 3, 3: 3})
    assert counts(placed[3], [4, 4, 5]) in {(1, 0, 2), (0, 1, 2)}


def test_a_smaller_job_is_spread_rather_than_a_larger_one() -> None:
    placed = place(servers(4, 4, 4), {0: gpus(0, 1, 2), 1: gpus(4, 5, 6), 2: gpus(8, 9)}, {0: 3, 1: 3, 2: 2, 3: 3})
    assert counts(placed[3], [4, 4, 4]) == (0, 0, 3)
    assert sum(map(bool, counts(placed[2], [4, 4, 4]))) == 2


def test_a_large_job_takes_the_largest_servers() -> None:
    assert counts(place(servers(2, 8, 4, 8), {}, {0: 18})[0], [2, 8, 4, 8]) == (2, 8, 0, 8)
    assert counts(place(servers(2, 8, 4, 8), {}, {0: 20})[0], [2, 8, 4, 8]) == (0, 8, 4, 8)


def test_a_whole_column_of_shares_does_as_well() -> None:
    shares = np.array([0, 2, 0, 0, 1])
    assert place(servers(4), {}, shares) == place(servers(4), {}, {1: 2, 4: 1}) == {1: gpus(0, 1), 4: gpus(2)}


def test_shares_that_do_not_fit_are_a_bug_of_the_caller_and_are_called_one() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        place(servers(4), {}, {0: 5})


# ---------------------------------------------------------------------------------------------------------------- in order


def test_where_no_server_is_left_nobody_is_placed() -> None:
    assert place((), {0: 0}, {}) == place((), {}, np.zeros(2, dtype=np.int64)) == {}


def test_who_stays_keeps_its_place_in_the_order_of_ranks_and_the_others_follow() -> None:
    known = addresses(servers(2, 2))
    before = (known[3], known[0], GpuAddress(server=ServerId("gone"), index=0))
    assert in_order(gpus(0, 2, 3), known, before) == (known[3], known[0], known[2])
    assert in_order(gpus(1, 2), known, ()) == (known[1], known[2])
    assert in_order(0, known, before) == ()


def test_bits_stand_for_the_gpus_that_a_server_has_left() -> None:
    known = addresses((ServerInView(ServerId("a"), (0, 3)), ServerInView(ServerId("b"), (1,))))
    assert [str(gpu) for gpu in known] == ["a:0", "a:3", "b:1"]


class Attempting(IncrementalFewestServers):
    """Without the fast path for changes that fit."""

    def _into_room(self, changed: Mapping[int, int], idle: Gpus) -> Placements | None:
        return None


@given(st.data())
def test_where_there_is_room_the_short_way_comes_to_what_an_attempt_comes_to(data: st.DataObject) -> None:
    """Jobs arrive, get other shares, take turns and leave, on equal or different servers."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    cluster = [ServerInView(ServerId(f"s{number}"), tuple(range(size))) for number, size in enumerate(sizes)]
    short, long = IncrementalFewestServers(cluster), Attempting(cluster)
    shares: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        changes: dict[int, int] = {}
        free = sum(sizes)
        for job in data.draw(st.permutations(range(8))):
            change = data.draw(st.integers(0, min(free, max(sizes))))
            free -= change
            if change != shares.get(job, 0):
                changes[job] = change
        assert short.change(changes) == long.change(changes)
        shares |= changes
        assert short.gpus == long.gpus == {job: short.gpus[job] for job, share in shares.items() if share}
        for job in [job for job in short.gpus if data.draw(st.integers(0, 5)) == 0]:
            assert short.leave(job) == long.leave(job)
            shares[job] = 0
        assert (short._holes, short._idle, short._here) == (long._holes, long._idle, long._here)


def test_without_servers_a_job_that_gets_no_gpus_is_placed() -> None:
    assert IncrementalFewestServers([]).change({1: 0}) == {}
