"""Fixed shares in the pipeline, and the order in which a plan changes the cluster."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.placement.buddy import Buddy, BuddyParameters
from elasticd.scheduler.placement.registry import FEWEST_SERVERS, Placement
from elasticd.scheduler.plan import Change, ChangeKind, at_once, plan, standstill
from elasticd.scheduler.policies import POLICIES
from elasticd.scheduler.sets import union
from elasticd.scheduler.view import ClusterView, Gpus, ReasonCode

from .tables import Described, gpus, job, policy, table
from .tables import servers as make_servers


def view(
    sizes: tuple[int, ...], jobs: list[Described], placements: Mapping[int, Gpus], manual: Mapping[int, int]
) -> ClusterView:
    """Servers of these sizes; placements and fixed shares by row of `jobs`."""
    servers = make_servers(*sizes)
    return ClusterView(0.0, table(*jobs, most=16), servers, placements, manual)


def decided(
    seen: ClusterView, name: str = "max-min", packing: bool = False, placement: Placement = FEWEST_SERVERS
) -> Decision:
    return decide(seen, policy(name), random.Random(0), packing, placement=placement)


def to(placements: dict[int, Gpus]) -> Decision:
    """A decision with these placements, whatever its shares."""
    return replace(decided(view((1,), [], {}, {})), placements=placements)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    """Jobs on a cluster that has lost servers, so that jobs hold GPUs that no longer exist."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    lost = draw(st.integers(0, 6))
    free = [1 << bit for bit in range(sum(sizes))] + [0] * lost
    draw(st.randoms(use_true_random=False)).shuffle(free)
    jobs, placements, manual = [], {}, {}
    for row in range(draw(st.integers(0, 5))):
        low = draw(st.integers(1, 3))
        high = draw(st.integers(low, 6))
        has = draw(st.integers(0, min(high, len(free))))
        jobs.append(job(f"j{row}", low, high, share=has))
        if has:
            placements[row], free = sum(free[:has]), free[has:]
        if draw(st.booleans()):
            manual[row] = draw(st.integers(1, high))
    return view(sizes, jobs, placements, manual)


NAMES = st.sampled_from([kind.name for kind in POLICIES])
ALL_PLACEMENTS: list[Placement] = [FEWEST_SERVERS, Buddy(BuddyParameters())]


# -------------------------------------------------------------------------------------------------------- fixed shares


def test_shares_set_by_hand_that_do_not_all_fit_are_cut_for_the_jobs_submitted_last() -> None:
    decision = decided(view((4,), [job("a", 1, 4), job("b", 1, 4), job("c", 1, 4)], {}, {0: 3, 1: 3, 2: 1}))
    assert decision.shares.tolist() == [3, 1, 0]
    assert decision.why(0) is None
    for row in (1, 2):
        reason = decision.why(row)
        assert reason is not None
        assert reason.code is ReasonCode.MANUAL


@given(clusters(), NAMES, st.booleans())
def test_shares_set_by_hand_come_before_those_of_the_policy(seen: ClusterView, name: str, packing: bool) -> None:
    decision = decided(seen, name, packing)
    free = seen.total_gpus
    for row, wanted in sorted(seen.manual_shares.items()):
        least = min(wanted, int(seen.jobs.min_gpus[row]))
        share = min(wanted, free) if free >= least else 0
        assert decision.shares[row] == share
        assert (decision.why(row) is not None) == (wanted > free)
        free -= share
    policed = [share for row, share in enumerate(decision.shares) if row not in seen.manual_shares]
    assert sum(policed) <= free


@given(clusters(), NAMES)
def test_without_packing_the_shares_are_those_that_the_policy_gives(seen: ClusterView, name: str) -> None:
    seen = msgspec.structs.replace(seen, manual_shares={})
    who = policy(name)
    jobs = seen.jobs if who.needs_lengths else seen.jobs.without_lengths()
    given_ = who.shares(jobs, seen.total_gpus, seen.now, random.Random(0))
    decision = decided(seen, name)
    assert decision.shares.tolist() == given_.gpus.tolist()
    assert decision.review_s == given_.review_s


@given(clusters(), NAMES)
def test_only_gpus_that_work_are_given_and_those_of_a_lost_server_are_replaced(seen: ClusterView, name: str) -> None:
    decision = decided(seen, name)
    for row in range(len(seen.jobs)):
        placed = decision.placements.get(row, 0)
        assert placed < 1 << seen.total_gpus
        assert placed.bit_count() == decision.shares[row]


# ------------------------------------------------------------------------------------------------------------------ plan


def test_each_kind_of_change_is_named_and_the_kinds_come_in_their_order() -> None:
    jobs = [
        job("starts", 2),
        job("moves", share=1),
        job("grows", share=1),
        job("shrinks", share=2),
        job("stops", share=1),
    ]
    before = {1: gpus(0), 2: gpus(1), 3: gpus(4, 5), 4: gpus(6), 5: gpus(3, 7)}
    seen = view((4, 4), [*jobs, job("stays", share=2)], before, {})
    after = {0: gpus(0, 6), 1: gpus(2), 2: gpus(1, 5), 3: gpus(4), 5: gpus(3, 7)}
    assert plan(seen, to(after)) == (
        Change(ChangeKind.STOP, 4, 0),
        Change(ChangeKind.RESIZE, 3, gpus(4)),
        Change(ChangeKind.RESIZE, 2, gpus(1, 5)),
        Change(ChangeKind.MIGRATE, 1, gpus(2)),
        Change(ChangeKind.START, 0, gpus(0, 6)),
    )


def test_a_job_that_only_gives_back_comes_before_one_that_also_takes() -> None:
    seen = view((3,), [job("half-lost", share=4), job("gives", share=2)], {0: gpus(0), 1: gpus(1, 2)}, {})
    assert [change.row for change in plan(seen, to({0: gpus(0, 2), 1: gpus(1)}))] == [1, 0]


def test_a_job_that_has_lost_gpus_changes_even_if_it_is_to_have_just_what_is_left() -> None:
    seen = view((2,), [job("half-lost", share=2), job("lost", share=1)], {0: gpus(0), 1: 0}, {})
    assert plan(seen, to({0: gpus(0)})) == (Change(ChangeKind.STOP, 1, 0), Change(ChangeKind.RESIZE, 0, gpus(0)))


def test_a_job_grows_after_the_one_that_makes_room_has_moved() -> None:
    seen = view((4, 4), [job("grows", share=2), job("moves", share=1)], {0: gpus(0, 1), 1: gpus(2)}, {})
    changes = plan(seen, to({0: gpus(0, 1, 2, 3), 1: gpus(4)}))
    assert [(change.kind, change.row) for change in changes] == [(ChangeKind.MIGRATE, 1), (ChangeKind.RESIZE, 0)]


def test_of_jobs_that_exchange_gpus_one_shrinks_first_to_what_it_keeps() -> None:
    seen = view((4,), [job("a", 1, 4, share=2), job("b", 1, 4, share=2)], {0: gpus(0, 1), 1: gpus(2, 3)}, {})
    assert plan(seen, to({0: gpus(0, 2), 1: gpus(1, 3)})) == (
        Change(ChangeKind.RESIZE, 1, gpus(3)),
        Change(ChangeKind.RESIZE, 0, gpus(0, 2)),
        Change(ChangeKind.RESIZE, 1, gpus(1, 3)),
    )


def test_jobs_that_would_only_change_places_stay_where_they_are() -> None:
    jobs = [job("a", 2), job("b", 2), job("c", 2)]
    before = {0: gpus(0, 1), 1: gpus(2, 3), 2: gpus(4, 5)}
    after = {0: gpus(2, 3), 1: gpus(4, 5), 2: gpus(0, 1)}
    assert plan(view((2, 2, 2), [replace(one, share=2) for one in jobs], before, {}), to(after)) == ()


def test_a_job_does_not_move_for_one_that_starts_and_can_as_well_have_what_is_idle() -> None:
    seen = view((2, 2), [job("runs", share=2), job("starts", 2)], {0: gpus(0, 1)}, {})
    assert plan(seen, to({0: gpus(2, 3), 1: gpus(0, 1)})) == (Change(ChangeKind.START, 1, gpus(2, 3)),)


def test_places_on_more_servers_are_not_as_good_as_those_on_fewer() -> None:
    seen = view((2, 2, 2), [job("a", 2, share=2), job("b", 2, share=2)], {0: gpus(0, 1), 1: gpus(2, 4)}, {})
    changes = plan(seen, to({0: gpus(2, 4), 1: gpus(0, 1)}))
    assert carry_out(seen, changes) == {0: gpus(2, 4), 1: gpus(0, 1)}
    assert ChangeKind.STOP not in {change.kind for change in changes}


def test_out_of_a_circle_one_moves_aside_to_idle_gpus_and_everybody_gets_what_was_decided() -> None:
    """Rigid jobs of different shares: one of 2 GPUs changes places with two of 1; one GPU is idle."""
    jobs = [job("large", 2, share=2), job("small", share=1), job("other", share=1)]
    seen = view((2, 2, 1), jobs, {0: gpus(0, 1), 1: gpus(2), 2: gpus(3)}, {})
    after = {0: gpus(2, 3), 1: gpus(0), 2: gpus(1)}
    changes = plan(seen, to(after))
    assert carry_out(seen, changes) == after
    assert {change.kind for change in changes} <= {ChangeKind.RESIZE, ChangeKind.MIGRATE}
    assert changes[0].gpus & gpus(4), "the idle GPU is what gets them out of it"


def test_out_of_a_circle_one_shrinks_to_its_minimum_where_nothing_is_idle() -> None:
    jobs = [job("elastic", 1, 2, share=2), job("small", share=1), job("other", share=1)]
    seen = view((2, 2), jobs, {0: gpus(0, 1), 1: gpus(2), 2: gpus(3)}, {})
    after = {0: gpus(2, 3), 1: gpus(0), 2: gpus(1)}
    changes = plan(seen, to(after))
    assert carry_out(seen, changes) == after
    assert ChangeKind.STOP not in {change.kind for change in changes}


def test_rigid_jobs_that_cannot_get_out_of_their_circle_stay_as_they_are() -> None:
    jobs = [job("large", 2, share=2), job("small", share=1), job("other", share=1)]
    seen = view((2, 2), jobs, {0: gpus(0, 1), 1: gpus(2), 2: gpus(3)}, {})
    assert plan(seen, to({0: gpus(2, 3), 1: gpus(0), 2: gpus(1)})) == ()


def test_who_grows_and_who_shrinks_can_change_places() -> None:
    jobs = [job("shrinks", 2, 3, share=3), job("grows", 1, 2, share=1)]
    seen = view((4,), jobs, {0: gpus(0, 1, 2), 1: gpus(3)}, {})
    changes = plan(seen, to({0: gpus(2, 3), 1: gpus(0, 1)}))
    assert carry_out(seen, changes) == {0: gpus(2, 3), 1: gpus(0, 1)}
    assert ChangeKind.STOP not in {change.kind for change in changes}


def carry_out(seen: ClusterView, changes: tuple[Change, ...]) -> dict[int, Gpus]:
    """The placements after the changes, one at a time. Fails if a change takes a GPU that another job still has."""
    held = dict(seen.placements)
    for change in changes:
        held.pop(change.row, None)
        assert change.gpus < 1 << seen.total_gpus
        assert not any(change.gpus & others for others in held.values())
        if change.gpus:
            held[change.row] = change.gpus
    return held


def sizes_of(placements: Mapping[int, Gpus]) -> dict[int, int]:
    return {row: held.bit_count() for row, held in placements.items() if held}


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[ClusterView, Decision]:
    """Any placements before and after, of jobs of any minimum."""
    both: list[dict[int, Gpus]] = []
    for _ in range(2):
        free = [1 << bit for bit in range(8)]
        draw(st.randoms(use_true_random=False)).shuffle(free)
        placements = {}
        for row in range(6):
            has = draw(st.integers(0, min(3, len(free))))
            if has:
                placements[row], free = sum(free[:has]), free[has:]
        both.append(placements)
    jobs = [job(f"j{row}", draw(st.integers(1, 3)), 8, share=both[0].get(row, 0).bit_count()) for row in range(6)]
    return view(draw(st.sampled_from([(8,), (4, 4), (2, 2, 2, 2)])), jobs, both[0], {}), to(both[1])


def check_kindness(seen: ClusterView, decision: Decision, changes: tuple[Change, ...]) -> None:
    """Only jobs with a target of zero are stopped; no job has temporarily less than its minimum, its old and its new share."""
    for change in changes:
        wanted = decision.placements.get(change.row, 0).bit_count()
        assert (change.kind is ChangeKind.STOP) == (wanted == 0)
        has = seen.placements.get(change.row, 0).bit_count()
        if has and wanted:
            assert change.gpus.bit_count() >= min(int(seen.jobs.min_gpus[change.row]), has, wanted)
    stopped = [change.row for change in changes if change.kind is ChangeKind.STOP]
    assert len(stopped) == len(set(stopped))


@settings(max_examples=400)
@given(exchanges())
def test_any_exchange_of_gpus_ends_in_the_decided_shares_and_restarts_nobody(
    case: tuple[ClusterView, Decision],
) -> None:
    seen, decision = case
    changes = plan(seen, decision)
    assert sizes_of(carry_out(seen, changes)) == sizes_of(decision.placements)
    check_kindness(seen, decision, changes)


@given(exchanges())
def test_what_is_ordered_at_once_leaves_every_gpu_to_one_job_and_the_rest_follows_when_it_has_been_carried_out(
    case: tuple[ClusterView, Decision],
) -> None:
    seen, decision = case
    changes = plan(seen, decision)
    now, more = at_once(seen.placements, changes, seen.placements)
    assert set(now) <= set(changes)
    targets = carry_out(seen, now)
    assert bool(now) or not changes, "something can always be done"
    if not more:
        assert targets == carry_out(seen, changes)
    for row in targets:
        own = [change.gpus for change in now if change.row == row]
        assert all(not earlier & ~later for earlier, later in itertools.pairwise(own)), "a way that the job is not told"


def walk(held: dict[int, int], targets: dict[int, int]) -> dict[int, int]:
    """Final places of processes that move to any free place, and release a foreign place as soon as they have another."""
    held = dict(held)
    while True:
        before = dict(held)
        for row in {*held, *targets}:
            target = targets.get(row, 0)
            others = union(gpus for other, gpus in held.items() if other != row)
            if not target or target & ~others:
                held[row] = target & ~others
        if held == before:
            return held


@given(exchanges(), st.randoms())
def test_whatever_is_decided_while_an_earlier_plan_is_carried_out_everybody_can_get_to_where_he_is_to_be(
    case: tuple[ClusterView, Decision], rng: random.Random
) -> None:
    seen, decision = case
    held = dict(seen.placements)
    targets = dict(seen.placements)
    for _ in range(4):
        shuffled = list(decision.placements)
        rng.shuffle(shuffled)
        other = dict(zip(shuffled, decision.placements.values(), strict=True))
        now_seen = msgspec.structs.replace(seen, placements=targets)
        changes = plan(now_seen, replace(decision, placements=rng.choice([other, decision.placements])))
        ordered, _ = at_once(targets, changes, held)
        targets = carry_out(now_seen, ordered)
        assert not standstill(held, targets)
        if rng.random() < 0.3:
            held = walk(held, targets)
        assert all(walk(held, targets).get(row, 0) == target for row, target in targets.items())


@given(st.data())
def test_those_stand_still_who_never_get_to_their_targets(data: st.DataObject) -> None:
    total = data.draw(st.integers(2, 8))
    places = st.lists(st.integers(0, 4), min_size=total, max_size=total)

    def drawn() -> dict[int, int]:
        owners = data.draw(places)
        return {row: union(1 << gpu for gpu, owner in enumerate(owners) if owner == row) for row in range(4)}

    held, targets = drawn(), drawn()
    ends = walk(held, targets)
    assert standstill(held, targets) == {
        row for row in range(4) if targets[row] and held[row] & ~targets[row] and ends[row] & ~targets[row]
    }


def test_an_exchange_of_two_jobs_is_a_standstill_and_one_with_a_gpu_to_spare_is_not() -> None:
    assert standstill({0: 0b011, 1: 0b100}, {0: 0b100, 1: 0b011}) == {0, 1}
    assert not standstill({0: 0b011, 1: 0b100}, {0: 0b1100, 1: 0b0011})
    assert not standstill({0: 0b011, 1: 0b100}, {0: 0b001, 1: 0b010})
    assert standstill({0: 0b011, 1: 0b100, 2: 0b1000}, {0: 0b100, 1: 0b001, 2: 0b010}) == {0, 1, 2}
    assert standstill({0: 0b011, 1: 0b100, 2: 0b1000}, {0: 0b100, 1: 0b011, 2: 0b10000}) == {0, 1}


@given(clusters(), NAMES, st.booleans(), st.sampled_from(ALL_PLACEMENTS))
def test_a_plan_carried_out_in_its_order_leads_to_the_decided_shares_and_never_takes_a_gpu_in_use(
    seen: ClusterView, name: str, packing: bool, placement: Placement
) -> None:
    decision = decided(seen, name, packing, placement)
    changes = plan(seen, decision)
    assert sizes_of(carry_out(seen, changes)) == sizes_of(decision.placements)
    check_kindness(seen, decision, changes)


@given(clusters(), NAMES)
def test_a_plan_has_only_jobs_whose_gpus_change(seen: ClusterView, name: str) -> None:
    decision = decided(seen, name)
    shares = seen.jobs.share.tolist()
    changed = {
        row
        for row in range(len(seen.jobs))
        if seen.placements.get(row, 0) != (after := decision.placements.get(row, 0)) or shares[row] != after.bit_count()
    }
    assert {change.row for change in plan(seen, decision)} <= changed


@given(clusters(), NAMES, st.booleans(), st.sampled_from(ALL_PLACEMENTS))
def test_a_decision_that_has_been_carried_out_asks_for_nothing_more(
    seen: ClusterView, name: str, packing: bool, placement: Placement
) -> None:
    held = carry_out(seen, plan(seen, decided(seen, name, packing, placement)))
    servers = tuple(len(server.gpus) for server in seen.servers)
    jobs = [
        job(str(seen.jobs.name(row)), int(low), int(high), share=held.get(row, 0).bit_count())
        for row, (low, high) in enumerate(zip(seen.jobs.min_gpus, seen.jobs.max_gpus, strict=True))
    ]
    settled = view(servers, jobs, held, seen.manual_shares)
    assert plan(settled, decided(settled, name, packing, placement)) == ()
