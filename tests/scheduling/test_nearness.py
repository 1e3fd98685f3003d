"""Near GPUs of one server: worked examples, and comparison with all possible sets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import GpuAddress, GpuPlace, ServerId
from elasticd.protocol.topology import Spot, link
from elasticd.scheduler.nearness import Near, cut, leaves, nearest, tree

CUBE = (
    *((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3)),
    *((2, 6), (3, 7), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)),
)  # NVLink in a DGX-1


def pcie(switch: int, socket: int, count: int = 8) -> list[GpuPlace]:
    """So many GPUs on each switch, and on each socket."""
    return [GpuPlace(socket=i // socket, switch=i // switch) for i in range(count)]


def wired(places: Sequence[GpuPlace], links: Sequence[tuple[int, int]]) -> list[GpuPlace]:
    def ends(gpu: int) -> tuple[int, ...]:
        return tuple(sorted(b if a == gpu else a for a, b in links if gpu in (a, b)))

    return [GpuPlace(socket=p.socket, switch=p.switch, nvlinks=ends(i)) for i, p in enumerate(places)]


def gpus(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


def test_switches_and_sockets_are_a_tree() -> None:
    pairs = (gpus(0, 1), gpus(2, 3), gpus(4, 5), gpus(6, 7))
    assert tree(range(8), pcie(2, 4)) == (pairs, (gpus(0, 1, 2, 3), gpus(4, 5, 6, 7)))
    assert tree(range(8), pcie(4, 4)) == ((gpus(0, 1, 2, 3), gpus(4, 5, 6, 7)),)


def test_where_nothing_is_known_or_all_is_equally_near_there_is_no_tree() -> None:
    assert tree(range(4), [GpuPlace()] * 4) == ()
    assert tree(range(4), pcie(1, 4, 4)) == ()
    assert tree(range(8), wired(pcie(2, 4), list(itertools.combinations(range(8), 2)))) == ()


def test_nvlink_counts_where_it_connects_all_with_all() -> None:
    assert tree(range(4), wired(pcie(1, 4, 4), [(0, 2), (1, 3)])) == ((gpus(0, 2), gpus(1, 3)),)
    assert tree(range(8), wired(pcie(2, 4), CUBE)) == tree(range(8), pcie(2, 4))


def test_gpus_have_the_numbers_that_they_stand_with_in_their_server() -> None:
    assert tree([1, 3, 5, 6], [GpuPlace(nvlinks=(6,)), GpuPlace(nvlinks=(5,)), GpuPlace(nvlinks=(3,)), GpuPlace()]) == (
        (gpus(0, 3), gpus(1, 2)),
    )


def test_what_is_left_of_a_tree_when_gpus_are_missing() -> None:
    near = tree(range(8), pcie(2, 4))
    assert cut(near, (0, 2, 3, 4, 5)) == ((gpus(1, 2), gpus(3, 4)), (gpus(0, 1, 2), gpus(3, 4)))
    assert cut(near, (0, 2, 4)) == ((gpus(0, 1),),)


def test_nodes_stand_in_aligned_blocks_for_buddy_allocation() -> None:
    assert leaves(tree(range(8), pcie(2, 4)), 8) == tuple(range(8))
    crossed = [GpuPlace(socket=i % 2) for i in range(8)]
    assert leaves(tree(range(8), crossed), 8) == (0, 4, 1, 5, 2, 6, 3, 7)
    assert leaves(cut(tree(range(8), pcie(2, 4)), (0, 1, 2, 4, 5, 6, 7)), 7) == (0, 1, 2, 4, 5, 6, 7)


def test_two_gpus_come_from_one_switch_and_leave_larger_holes() -> None:
    near = tree(range(8), pcie(2, 4))
    assert nearest(near, 8, 2, 0xFF) == (1, gpus(0, 1))
    assert nearest(near, 8, 2, gpus(0, 1, 2, 3, 5, 6, 7)) == (1, gpus(6, 7))  # beside the GPU that is in use
    assert nearest(near, 8, 1, gpus(0, 1, 2, 3, 5, 6, 7)) == (0, gpus(5))
    assert nearest(near, 8, 2, gpus(0, 2, 5, 7)) == (2, gpus(0, 2))
    assert nearest(near, 8, 3, gpus(0, 2, 3, 4, 6)) == (2, gpus(0, 2, 3))
    assert nearest(near, 8, 4, gpus(0, 2, 3, 4, 6, 7)) == (3, gpus(0, 2, 3, 4))


def test_what_a_job_takes_lies_near_what_it_has() -> None:
    near = tree(range(8), pcie(2, 4))
    assert nearest(near, 8, 1, gpus(0, 1, 2, 5), own=gpus(4)) == (1, gpus(5))
    assert nearest(near, 8, 1, gpus(0, 1, 6), own=gpus(4, 5)) == (2, gpus(6))
    assert nearest(near, 8, 2, gpus(0, 1, 6, 7), own=gpus(5)) == (2, gpus(6, 7))


@st.composite
def servers(draw: st.DrawFn) -> list[GpuPlace]:
    """Trees of switches and sockets, with or without NVLink between pairs, whose GPUs are numbered in any order."""
    count, on_switch, switches = draw(st.integers(2, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    places = [GpuPlace(socket=i // (on_switch * switches), switch=i // on_switch) for i in range(count)]
    if draw(st.booleans()):
        places = wired(places, [(i, i + 1) for i in range(0, count - 1, 2)])
    order = draw(st.permutations(range(count)))
    at = {old: new for new, old in enumerate(order)}
    return [
        GpuPlace(
            socket=places[old].socket, switch=places[old].switch, nvlinks=tuple(at[b] for b in places[old].nvlinks)
        )
        for old in order
    ]


def farthest(chosen: int, places: Sequence[GpuPlace]) -> int:
    spots = [Spot(GpuAddress(server=ServerId("s"), index=i), place) for i, place in enumerate(places)]
    there = [spot for i, spot in enumerate(spots) if chosen >> i & 1]
    return max((link(a, b) for a, b in itertools.combinations(there, 2)), default=-1)


@given(servers(), st.data())
def test_no_other_set_has_its_farthest_gpus_nearer(places: list[GpuPlace], data: st.DataObject) -> None:
    """Against all sets. Pairs with NVLink may be in different sockets; NVLink then defines the node."""
    count = len(places)
    near: Near = tree(range(count), places)
    free = data.draw(st.integers(1, (1 << count) - 1))
    own = data.draw(st.integers(0, (1 << count) - 1)) & ~free
    wanted = data.draw(st.integers(1, free.bit_count()))
    _, chosen = nearest(near, count, wanted, free, own)
    assert chosen.bit_count() == wanted
    assert not chosen & ~free
    others = [
        sum(1 << bit for bit in bits)
        for bits in itertools.combinations([bit for bit in range(count) if free >> bit & 1], wanted)
    ]
    nested = all(  # a pair is on one switch; otherwise the tree is coarser than the links
        places[a].switch == places[b].switch for a in range(count) for b in places[a].nvlinks
    )
    if nested:
        assert farthest(chosen | own, places) == min(farthest(other | own, places) for other in others)


@given(servers(), st.data())
def test_of_the_nearest_sets_one_is_taken_that_leaves_the_fewest_idle_beside_it(
    places: list[GpuPlace], data: st.DataObject
) -> None:
    """A set that fills a node is taken, if there is one of this size."""
    count = len(places)
    near = tree(range(count), places)
    free = data.draw(st.integers(1, (1 << count) - 1))
    wanted = data.draw(st.integers(2, max(2, free.bit_count())))
    nodes = [(1 << count) - 1, *(node for level in near for node in level)]
    if wanted > free.bit_count() or not any((free & node).bit_count() == wanted for node in nodes):
        return
    distance, chosen = nearest(near, count, wanted, free)
    exact = [
        level
        for level, level_nodes in enumerate([(), *near, ((1 << count) - 1,)])
        for node in level_nodes
        if (free & node).bit_count() == wanted
    ]
    if distance in exact:
        assert any(free & node == chosen for node in nodes)
