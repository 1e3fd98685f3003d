"""Plans of state transfers: the paper's example, real machines, properties of every plan, and optimality."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from elasticd.protocol.model import GpuAddress, GpuPlace, ServerId
from elasticd.protocol.topology import LaneKind, Link, Spot, lanes, link
from elasticd.worker.transfer_plan import Transfer, plan_transfers

DGX_1_NVLINKS = (
    *((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3)),
    *((2, 6), (3, 7), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)),
)


def spots(server: str, places: Sequence[GpuPlace]) -> list[Spot]:
    return [Spot(GpuAddress(server=ServerId(server), index=i), place) for i, place in enumerate(places)]


def unknown(server: str, count: int = 8) -> list[Spot]:
    """GPUs of a server whose agent reports no topology."""
    return spots(server, [GpuPlace()] * count)


def four_pcie(server: str) -> list[Spot]:
    """Four GPUs, two sockets, no switch."""
    return spots(server, [GpuPlace(socket=i // 2, switch=i) for i in range(4)])


def eight_pcie(server: str) -> list[Spot]:
    """Eight GPUs, two sockets, a switch for each two."""
    return spots(server, [GpuPlace(socket=i // 4, switch=i // 2) for i in range(8)])


def dgx_1(server: str) -> list[Spot]:
    """Eight GPUs as above, each with NVLink to four others."""
    peers = [tuple(sorted({a, b} - {i}).pop() for a, b in DGX_1_NVLINKS if i in (a, b)) for i in range(8)]
    return spots(server, [GpuPlace(socket=i // 4, switch=i // 2, nvlinks=peers[i]) for i in range(8)])


def dgx_a100(server: str) -> list[Spot]:
    """Eight GPUs, NVLink between any two through NVSwitches."""
    everyone = [tuple(j for j in range(8) if j != i) for i in range(8)]
    return spots(server, [GpuPlace(socket=i // 4, switch=i // 2, nvlinks=everyone[i]) for i in range(8)])


def plan(where: Sequence[Spot], holders: Sequence[int], relays: bool = True) -> tuple[Transfer, ...]:
    """A plan in which all ranks without the state join."""
    joiners = [rank for rank in range(len(where)) if rank not in holders]
    return plan_transfers([spot.gpu for spot in where], holders, joiners, [spot.place for spot in where], relays)


def pairs(transfers: Sequence[Transfer], number: int) -> list[tuple[int, int]]:
    return [(each.source_rank, each.target_rank) for each in transfers if each.round == number]


def rounds(transfers: Sequence[Transfer]) -> int:
    return 1 + max((transfer.round for transfer in transfers), default=-1)


# ------------------------------------------------------------------------------------------------------------------- links


def test_links_from_near_to_far() -> None:
    here, there = dgx_1("a"), dgx_1("b")
    assert link(here[0], here[4]) is Link.NVLINK
    assert link(here[0], there[0]) is Link.NETWORK
    plain = eight_pcie("a")
    assert [link(plain[0], other) for other in plain[1:6]] == [
        *(Link.SWITCH, Link.BRIDGE, Link.BRIDGE),
        *(Link.SOCKET, Link.SOCKET),
    ]


def test_gpus_of_which_nothing_is_known_are_as_far_apart_as_a_server_allows() -> None:
    known, silent = eight_pcie("a"), unknown("a")
    assert link(silent[0], silent[1]) is Link.SOCKET
    assert link(known[0], silent[1]) is Link.SOCKET
    assert link(silent[0], unknown("b")[1]) is Link.NETWORK
    assert lanes(silent[0], silent[1]) == ()


def test_cpu_slots_have_no_plug_of_their_own_so_one_serves_many_at_once() -> None:
    slots = spots("a", [GpuPlace(socket=0)] * 4)
    assert plan(slots, [0]) == plan(unknown("a", 4), [0]) == (Transfer(0, 1), Transfer(0, 2), Transfer(0, 3))
    across = plan([*slots, *spots("b", [GpuPlace(socket=0)] * 3)], range(4))
    assert pairs(across, 0) == [(0, 4)]
    assert pairs(across, 1) == [(4, 5), (4, 6)]


def test_what_a_transfer_occupies() -> None:
    here, there = four_pcie("a"), four_pcie("b")
    slots = [LaneKind.OUT_OF_GPU, LaneKind.INTO_GPU]
    assert [lane.kind for lane in lanes(here[0], here[1])] == slots
    assert [lane.kind for lane in lanes(here[0], here[2])] == [*slots, LaneKind.BETWEEN_SOCKETS]
    assert [lane.kind for lane in lanes(here[0], there[0])] == [*slots, LaneKind.OUT_OF_SERVER, LaneKind.INTO_SERVER]
    assert lanes(dgx_1("a")[0], dgx_1("a")[4]) == ()


def test_nvlink_that_one_end_tells_of_is_enough() -> None:
    a, b = dgx_a100("a")[0], unknown("a")[1]
    assert link(a, b) is link(b, a) is Link.NVLINK


def test_the_two_directions_of_a_link_are_two_lanes() -> None:
    where = [*four_pcie("a"), *four_pcie("b")]
    assert not set(lanes(where[0], where[2])) & set(lanes(where[2], where[0]))
    assert not set(lanes(where[0], where[4])) & set(lanes(where[5], where[1]))
    assert len(set(lanes(where[0], where[2])) & set(lanes(where[1], where[3]))) == 1


# ---------------------------------------------------------------------------------------------------------------- examples


def test_elan_figure_9_two_joiners_are_served_at_once_each_by_its_nearest() -> None:
    """A and B are on one switch, C on the other socket of their server, D on another server; E joins near C, F near D."""
    near = spots(
        "s1", [GpuPlace(socket=0, switch=0)] * 2 + [GpuPlace(socket=1, switch=1), GpuPlace(socket=1, switch=2)]
    )
    far = spots("s2", [GpuPlace(socket=0, switch=0), GpuPlace(socket=0, switch=1)])
    a, b, c, d, e, f = range(6)
    where = [near[0], near[1], near[2], far[0], near[3], far[1]]
    assert plan(where, [a, b, c, d]) == plan(where, [a, b, c, d], relays=False) == (Transfer(c, e), Transfer(d, f))


def test_a_joiner_gets_the_state_from_its_own_server_if_that_has_it() -> None:
    where = [unknown("a")[0], *unknown("b", 2), unknown("a")[1]]
    assert plan(where, [0, 1]) == (Transfer(1, 2), Transfer(0, 3))


def test_equally_near_holders_share_the_load() -> None:
    where = [*dgx_a100("a")[:2], *dgx_a100("a")[4:]]
    assert Counter(transfer.source_rank for transfer in plan(where, [0, 1])) == {0: 2, 1: 2}


def test_transfers_between_sockets_go_in_turn_where_joiners_do_not_serve() -> None:
    transfers = plan(four_pcie("a"), [0, 1], relays=False)
    assert transfers == (Transfer(0, 2), Transfer(1, 3, round=1, after=(0,)))


def test_the_link_between_sockets_is_crossed_once_and_the_others_there_are_served_behind_it() -> None:
    transfers = plan(four_pcie("a"), [0])
    assert pairs(transfers, 0) == [(0, 2)]  # first the one that can serve another
    assert pairs(transfers, 1) == [(0, 1), (2, 3)]
    assert [transfer.after for transfer in transfers] == [(), (0,), ()]


def test_a_new_server_is_reached_across_the_network_once() -> None:
    where = [*eight_pcie("a"), *eight_pcie("b")]
    transfers = plan(where, range(8))
    assert [link(where[t.source_rank], where[t.target_rank]) for t in transfers].count(Link.NETWORK) == 1
    assert transfers[0] == Transfer(0, 8)
    assert rounds(transfers) == 4  # 1, 2, 4, 8 there


def in_rack(name: str, where: Sequence[Spot]) -> list[Spot]:
    return [Spot(s.gpu, replace(s.place, rack=name)) for s in where]


def test_the_state_comes_from_the_rack_of_the_joiner_and_crosses_racks_once() -> None:
    where = [*in_rack("r", unknown("a", 1)), *in_rack("q", unknown("b", 1)), *in_rack("q", unknown("c", 1))]
    assert link(where[0], where[1]) is Link.RACKS
    assert link(where[1], where[2]) is Link.NETWORK
    assert link(where[0], unknown("d")[0]) is Link.NETWORK, "a rack that nobody has told is no other one"
    assert {kind.kind for kind in lanes(where[0], where[1])} == {LaneKind.OUT_OF_SERVER, LaneKind.INTO_SERVER}
    assert pairs(plan(where, [0, 1]), 0) == [(1, 2)]
    new = [*in_rack("r", unknown("a", 2)), *in_rack("q", unknown("b", 2)), *in_rack("q", unknown("c", 2))]
    crossed = [link(new[t.source_rank], new[t.target_rank]) for t in plan(new, [0, 1])]
    assert (crossed.count(Link.RACKS), crossed.count(Link.NETWORK)) == (1, 1)


def test_dgx_a100_all_joiners_at_once_over_nvlink() -> None:
    transfers = plan(dgx_a100("a"), [0, 1])
    assert rounds(transfers) == 1
    assert not any(transfer.after for transfer in transfers)


def test_dgx_1_those_without_nvlink_to_a_holder_wait_for_a_neighbour_that_has_it() -> None:
    transfers = plan(dgx_1("a"), [0])
    assert pairs(transfers, 0) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert pairs(transfers, 1) == [(1, 5), (2, 6), (3, 7)]


def test_nobody_having_the_state_is_an_error() -> None:
    with pytest.raises(ValueError, match="nobody has the state"):
        plan_transfers([spot.gpu for spot in unknown("a", 2)], [], [0, 1])


def test_nobody_joining_is_an_empty_plan() -> None:
    assert plan(unknown("a", 2), [0, 1]) == ()


@pytest.mark.parametrize("count", [*range(1, 10), 31, 32, 33])
def test_a_server_more_for_each_joiner_doubles_those_who_have_the_state_in_each_round(count: int) -> None:
    where = [unknown(f"s{number}", 1)[0] for number in range(count + 1)]
    assert rounds(plan(where, [0])) == math.ceil(math.log2(count + 1))
    assert rounds(plan(where, [0], relays=False)) == count


# -------------------------------------------------------------------------------------------------------------- properties

MACHINES = (unknown, four_pcie, eight_pcie, dgx_1, dgx_a100)


@st.composite
def clusters(draw: st.DrawFn, most: int = 14) -> tuple[list[Spot], list[int]]:
    """Some GPUs of some servers in any order, and the holders of the state."""
    machines = draw(st.lists(st.sampled_from(MACHINES), min_size=1, max_size=4))
    everywhere = [spot for number, machine in enumerate(machines) for spot in machine(f"s{number}")]
    where = draw(st.lists(st.sampled_from(everywhere), min_size=2, max_size=most, unique_by=lambda spot: spot.gpu))
    holds = draw(st.lists(st.booleans(), min_size=len(where), max_size=len(where)).filter(any))
    return where, [rank for rank, has in enumerate(holds) if has]


def has_state_from(transfers: Sequence[Transfer], holders: Sequence[int]) -> dict[int, int]:
    """The round from which each rank can serve."""
    return {**dict.fromkeys(holders, 0), **{t.target_rank: t.round + 1 for t in transfers}}


@given(clusters(), st.booleans())
def test_every_joiner_is_served_once_by_somebody_who_has_the_state_by_then(
    cluster: tuple[list[Spot], list[int]], relays: bool
) -> None:
    where, holders = cluster
    transfers = plan(where, holders, relays)
    assert sorted(t.target_rank for t in transfers) == [rank for rank in range(len(where)) if rank not in holders]
    able = has_state_from(transfers, holders)
    for transfer in transfers:
        assert able[transfer.source_rank] <= transfer.round
        assert relays or transfer.source_rank in holders


@given(clusters(), st.booleans())
def test_no_two_transfers_of_a_round_share_a_lane(cluster: tuple[list[Spot], list[int]], relays: bool) -> None:
    where, holders = cluster
    transfers = plan(where, holders, relays)
    used = Counter(
        (transfer.round, lane)
        for transfer in transfers
        for lane in lanes(where[transfer.source_rank], where[transfer.target_rank])
    )
    assert not [each for each, times in used.items() if times > 1]


@given(clusters(), st.booleans())
def test_however_long_each_takes_those_that_share_a_lane_follow_each_other(
    cluster: tuple[list[Spot], list[int]], relays: bool
) -> None:
    where, holders = cluster
    transfers = plan(where, holders, relays)
    before: list[set[int]] = []  # for each transfer the ranks that are complete when it begins
    for position, transfer in enumerate(transfers):
        assert all(earlier < position and transfers[earlier].round < transfer.round for earlier in transfer.after)
        before.append({each for earlier in transfer.after for each in (earlier, *before[earlier])})
    occupied = [set(lanes(where[t.source_rank], where[t.target_rank])) for t in transfers]
    for first, second in itertools.combinations(range(len(transfers)), 2):
        assert not occupied[first] & occupied[second] or first in before[second]


@given(clusters(), st.booleans())
def test_no_source_is_farther_than_the_nearest_that_has_the_state_to_begin_with(
    cluster: tuple[list[Spot], list[int]], relays: bool
) -> None:
    where, holders = cluster
    for transfer in plan(where, holders, relays):
        joiner = where[transfer.target_rank]
        nearest = min(link(where[holder], joiner) for holder in holders)
        assert link(where[transfer.source_rank], joiner) <= nearest


@given(clusters())
def test_no_lane_is_left_idle_that_would_serve_a_waiting_joiner_nearest(cluster: tuple[list[Spot], list[int]]) -> None:
    """A joiner that waits for a round had no source in the round before that is as near as its present one."""
    where, holders = cluster
    transfers = plan(where, holders)
    able = has_state_from(transfers, holders)
    for transfer in transfers:
        joiner, level = transfer.target_rank, link(where[transfer.source_rank], where[transfer.target_rank])
        for number in range(transfer.round):
            busy = {
                lane
                for each in transfers
                if each.round == number
                for lane in lanes(where[each.source_rank], where[each.target_rank])
            }
            for source, since in able.items():
                if since <= number and link(where[source], where[joiner]) <= level:
                    assert busy & set(lanes(where[source], where[joiner]))


# ------------------------------------------------------------------------------------------------------------- brute force


def fewest_rounds(where: Sequence[Spot], holders: Sequence[int]) -> int:
    """Exhaustive search over plans within the rules: lanes, sources that have the state, and none farther than the nearest
    holder.
    """
    everyone = frozenset(range(len(where)))
    farthest = {j: min(link(where[h], where[j]) for h in holders) for j in everyone - set(holders)}

    def after_one_round(have: frozenset[int]) -> set[frozenset[int]]:
        found = {(have, frozenset())}
        for joiner in sorted(everyone - have):
            found |= {
                (now | {joiner}, busy | used)
                for now, busy in found
                for source in have
                for used in [frozenset(lanes(where[source], where[joiner]))]
                if link(where[source], where[joiner]) <= farthest[joiner] and not busy & used
            }
        return {now for now, _ in found}

    reached, number = {frozenset(holders)}, 0
    while everyone not in reached:
        reached = {now for have in reached for now in after_one_round(have)}
        number += 1
    return number


@given(clusters(most=6))
def test_small_plans_take_at_most_a_round_more_than_the_best_there_is(cluster: tuple[list[Spot], list[int]]) -> None:
    where, holders = cluster
    assert fewest_rounds(where, holders) <= rounds(plan(where, holders)) <= fewest_rounds(where, holders) + 1


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("holders", [[0], [0, 1], [0, 2]])
def test_on_one_server_plans_for_five_are_the_shortest_there_are(machine: object, holders: list[int]) -> None:
    assert callable(machine)
    where = machine("a")[:5]
    assert rounds(plan(where, holders)) == fewest_rounds(where, holders)
