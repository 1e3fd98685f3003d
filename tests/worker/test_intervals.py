"""Who owns which elements: equal shares, cuts that do not depend on the workers, and as little moved as possible."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.sharding import division
from elasticd.worker.sharding.division import Division, StateLost, first_division, mirrors_of, next_division, surviving
from elasticd.worker.sharding.intervals import Grid, Interval, Move, Owners, divide, divide_again

GRAIN = 64
BLOCK = 64 * 8
NAMES = "abcdef"

sizes = st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=4), min_size=1, max_size=2)
rosters = st.lists(st.sets(st.sampled_from(NAMES), min_size=1).map(sorted), min_size=2, max_size=5)


def held(owners: Owners) -> dict[tuple[int, int], str]:
    """The owner of each interval between two cuts, by an element in it."""
    return {
        (each.interval.flat, position): each.owner
        for each in owners
        for position in range(each.interval.begin, each.interval.end)
    }


def check(grid: Grid, owners: Owners, workers: list[str]) -> None:
    covered = [each.interval for each in owners]
    assert covered == sorted(covered)
    for flat, end in enumerate(grid.ends):
        ends = [(each.begin, each.end) for each in covered if each.flat == flat]
        assert [begin for begin, _ in ends] + [end] * bool(end) == [0] * bool(end) + [last for _, last in ends]
    assert {each.owner for each in owners} <= {*workers}
    for each in covered:
        assert grid.cut(each.flat, each.begin) == each.begin
        assert grid.cut(each.flat, each.end) == each.end


def moves(before: Owners, after: Owners) -> list[Move]:
    """What moves without mirrors."""
    return division.moves(Division(before, {}), {each.owner for each in before}, Division(after, {}))


def owned_by(owners: Owners, worker: str) -> list[Interval]:
    return Division(owners, {}).kept_by(worker)


def shares(owners: Owners, workers: list[str]) -> list[int]:
    return [sum(each.size for each in owned_by(owners, worker)) for worker in workers]


@given(sizes, rosters)
def test_every_division_is_whole_and_on_the_grid(numels: list[list[int]], rosters: list[list[str]]) -> None:
    grid = Grid(numels, GRAIN, BLOCK)
    owners = divide(grid, rosters[0])
    check(grid, owners, rosters[0])
    for before, workers in itertools.pairwise(rosters):
        after = divide_again(grid, owners, workers)
        check(grid, after, workers)
        moved = moves(owners, after)
        old, new = held(owners), held(after)
        expected = {key: (old[key], new[key]) for key in new if old[key] != new[key]}
        found = {
            (each.interval.flat, position): (each.source, each.target)
            for each in moved
            for position in range(each.interval.begin, each.interval.end)
        }
        assert found == expected
        if before == workers:
            assert not moved
        owners = after


@given(rosters)
def test_shares_stay_equal_and_no_more_moves_than_must(rosters: list[list[str]]) -> None:
    grid = Grid([[1 << 20, 77, 1 << 19, 3 << 18]], 64, 1 << 18)
    total, slack = grid.ends[0], 64 * len(NAMES) * len(grid.blocks)
    owners = divide(grid, rosters[0])
    for workers in rosters[1:]:
        after = divide_again(grid, owners, workers)
        assert max(shares(after, workers)) <= total / len(workers) + slack
        least = sum(max(0.0, total / len(workers) - have) for have in shares(owners, workers))
        moved = sum(each.interval.size for each in moves(owners, after))
        assert moved <= 1.02 * least + slack
        owners = after


def test_two_three_one_moves_the_least() -> None:
    grid = Grid([[3_000_000, 3_000_000]])
    two = divide(grid, ["a", "b"])
    three = divide_again(grid, two, ["a", "b", "c"])
    one = divide_again(grid, three, ["b"])
    moved = [sum(each.interval.size for each in moves(*pair)) for pair in ((two, three), (three, one))]
    assert sum(moved) <= 1.01 * (2_000_000 + 4_000_000)
    assert owned_by(one, "b") == [Interval(0, 0, 6_000_000)]


def test_a_cut_counts_from_the_beginning_of_its_parameter() -> None:
    grid = Grid([[100, 0, 300]], 64)
    assert [grid.cut(0, position) for position in (0, 63, 64, 99, 100, 163, 164, 399, 400)] == [
        *(0, 0, 64, 64, 100, 100, 164, 356, 400)
    ]
    assert list(grid.parameters_in(Interval(0, 64, 228))) == [
        (0, Interval(0, 64, 100)),
        (1, Interval(0, 100, 228)),
    ]


# --------------------------------------------------------------------------------------------------------------- mirrors


@given(rosters)
def test_each_owner_has_a_mirror_on_another_server_and_no_worker_mirrors_many(rosters: list[list[str]]) -> None:
    for workers in rosters:
        servers = [str(position // 2) for position in range(len(workers))]
        mirrors = mirrors_of(workers, servers)
        assert set(mirrors) == (set(workers) if len(workers) > 1 else set())
        place = dict(zip(workers, servers, strict=True))
        for worker, mirror in mirrors.items():
            assert mirror != worker
            assert place[mirror] != place[worker] or len(set(servers)) == 1
        assert all(list(mirrors.values()).count(worker) <= 2 for worker in workers)


@given(
    sizes,
    st.lists(
        st.tuples(st.sets(st.sampled_from(NAMES), min_size=1).map(sorted), st.integers(0, 5)), min_size=2, max_size=5
    ),
)
def test_everybody_has_its_pieces_after_moves_and_the_loss_of_one_worker(
    numels: list[list[int]], changes: list[tuple[list[str], int]]
) -> None:
    """Each change loses one worker of those before, if there are several, and continues with any others."""
    grid = Grid(numels, GRAIN, BLOCK)
    workers = changes[0][0]
    present = first_division(grid, workers, workers)
    kept = {worker: elements(present.kept_by(worker)) for worker in workers}
    for after, lost in changes[1:]:
        having = {each for position, each in enumerate(workers) if len(workers) == 1 or position != lost % len(workers)}
        target = next_division(grid, surviving(present, having), after, after)
        check(grid, target.owners, after)
        own = {worker: kept.get(worker, set()) if worker in having else set() for worker in after}
        for move in division.moves(present, having, target):
            moved = elements([move.interval])
            assert move.source in having
            assert moved <= kept[move.source], "sends what it has"
            assert not moved & own[move.target], "receives what it has not"
            own[move.target] |= moved
        for worker in after:
            assert elements(target.kept_by(worker)) <= own[worker]
        kept = {worker: elements(target.kept_by(worker)) for worker in after}
        workers, present = after, target


def elements(intervals: list[Interval]) -> set[tuple[int, int]]:
    return {(each.flat, position) for each in intervals for position in range(each.begin, each.end)}


def test_state_is_lost_with_its_owner_and_its_mirror() -> None:
    present = first_division(Grid([[100_000]]), ["a", "b", "c"], ["s", "s", "t"])
    mirror = present.mirrors["a"]
    surviving(present, {"a", "b", "c"} - {"a"})
    with pytest.raises(StateLost, match=f"lost with a and {mirror}"):
        surviving(present, {"a", "b", "c"} - {"a", mirror})


def test_a_division_travels_as_plain_values() -> None:
    present = first_division(Grid([[100_000], [5]]), ["a", "b"], ["s", "t"])
    assert Division.of_plain(present.plain()) == present
