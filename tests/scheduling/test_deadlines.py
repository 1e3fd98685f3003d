"""Deadlines: minimum satisfactory shares, admission, and the present division of GPUs (ElasticFlow 4)."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from elasticd.protocol.model import ServerId
from elasticd.scheduler.deadlines.allocation import allocate, soft_too
from elasticd.scheduler.deadlines.decision import Commitments, counter_offer, decided
from elasticd.scheduler.deadlines.promises import Plan, Promise, continued, plan, settle
from elasticd.scheduler.deadlines.reserve import reserved_gpus, reserved_servers
from elasticd.scheduler.deadlines.table import DeadlineTerms, told_deadline_s
from elasticd.scheduler.deadlines.table import situations as of_view
from elasticd.scheduler.deadlines.timeline import Timeline, Want
from elasticd.scheduler.levels import Levels, levels
from elasticd.scheduler.schedule import Schedule
from elasticd.scheduler.view import ClusterView, Reservation, ServerInView

from .tables import Described, job, table

FIGURE_3 = levels([0, 1, 1.5])
FIGURE_4 = levels([0, 1, 1.5, 1.75, 2])
LINEAR = levels(range(9))


@st.composite
def concave(draw: st.DrawFn, most: int = 4) -> list[float]:
    steps = sorted(draw(st.lists(st.floats(0.05, 1), min_size=most - 1, max_size=most - 1)), reverse=True)
    return [0.0, *itertools.accumulate([1.0, *steps])]


@st.composite
def busy(draw: st.DrawFn, gpus: int = 4) -> Timeline:
    """Some GPUs are taken for a while."""
    timeline = Timeline(0.0, gpus)
    for begin in draw(st.lists(st.integers(0, 4), max_size=2, unique=True)):
        timeline.occupy(begin, begin + 1, draw(st.integers(0, gpus)))
    return timeline


def taken(before: Timeline, after: Timeline, until_s: float) -> list[tuple[float, int]]:
    """A plan's pieces: (duration, GPUs)."""
    was, then = before.copy(), after.copy()
    for begin, _ in [*before.pieces, *after.pieces, (until_s, 0)]:
        was._cut(begin)
        then._cut(begin)
    ends = [*[begin for begin, _ in then.pieces][1:], math.inf]
    return [
        (min(end, until_s) - begin, had - has)
        for (begin, had), (_, has), end in zip(was.pieces, then.pieces, ends, strict=True)
        if begin < until_s
    ]


def least_gpu_s(curve: Levels, left_s: float, pieces: list[tuple[float, int]]) -> float:
    """Least GPU time by exhaustive search: a level in each piece, and a second level for a part of one of them."""
    best = math.inf
    able = [[at for at, count in enumerate(curve.counts) if count <= free] for _, free in pieces]
    for chosen in itertools.product(*able):
        work = [curve.rates[at] * lasts for at, (lasts, _) in zip(chosen, pieces, strict=True)]
        gpu_s = sum(curve.counts[at] * lasts for at, (lasts, _) in zip(chosen, pieces, strict=True))
        if sum(work) >= left_s - 1e-9:
            best = min(best, gpu_s)
        for piece, (lasts, _) in enumerate(pieces):
            missing = left_s - sum(work)
            for other in able[piece]:
                more = (curve.rates[other] - curve.rates[chosen[piece]]) * lasts
                if 0 < missing <= more:
                    extra = (curve.counts[other] - curve.counts[chosen[piece]]) * lasts
                    best = min(best, gpu_s + extra * missing / more)
    return best


# -- the figures


def test_two_jobs_that_earliest_deadline_first_fails_each_keep_their_deadlines_with_one_gpu() -> None:
    """ElasticFlow Fig. 3: EDF gives both GPUs to A, which then ends at 2, and B ends at 4 instead of 3.5."""
    a, b = Promise(0, 3.0, 3.0, FIGURE_3), Promise(1, 3.0, 3.5, FIGURE_3)
    found = plan([a, b], Timeline(0.0, 2))
    assert found.holds
    assert [one.gpus for one in found.found.values()] == [1, 1]
    assert [one.finish_s for one in found.found.values()] == [3.0, 3.0]


def test_minimum_satisfactory_share_rises_where_others_have_the_gpus() -> None:
    """ElasticFlow Fig. 4: job C needs two GPUs and 4 units of GPU time alone, four GPUs and 5 units beside A and B."""
    c = Promise(2, 3.0, 2.0, FIGURE_4)
    (alone,) = decided(Commitments(0.0, 4), [c])[0]
    assert (alone.admitted, alone.gpus, alone.gpu_s, alone.finish_s) == (True, 2, 4.0, 2.0)
    others = [Promise(0, 1.0, 1.0, levels([0, 1])), Promise(1, 1.5, 1.0, levels([0, 1, 1.5]))]
    (beside,) = decided(Commitments(0.0, 4, others), [c])[0]
    assert (beside.admitted, beside.gpus, beside.gpu_s, beside.finish_s) == (True, 4, 5.0, 2.0)


def test_a_deadline_of_two_thirds_needs_two_gpus() -> None:
    """ElasticFlow 4.1, the example of minimum satisfactory share."""
    (one,) = decided(Commitments(0.0, 4), [Promise(0, 1.0, 1.0, FIGURE_4)])[0]
    (two,) = decided(Commitments(0.0, 4), [Promise(0, 1.0, 2 / 3, FIGURE_4)])[0]
    assert (one.gpus, two.gpus) == (1, 2)


# -- one job


@given(concave(), busy(), st.floats(0.1, 12), st.integers(1, 5))
def test_a_job_takes_the_least_gpu_time_that_ends_it_in_time(
    curve: list[float], timeline: Timeline, left_s: float, until_s: int
) -> None:
    least = least_gpu_s(levels(curve), left_s, taken(Timeline(0.0, 0), _negative(timeline), until_s))
    before = timeline.copy()
    found = timeline.fill(Want(left_s, until_s, levels(curve)))
    assert (found is not None) == (least < math.inf)
    if found is not None:
        pieces = taken(before, timeline, until_s)
        assert found.gpu_s == pytest.approx(least)
        assert sum(lasts * gpus for lasts, gpus in pieces) == pytest.approx(least)
        assert sum(lasts * curve[gpus] for lasts, gpus in pieces) == pytest.approx(left_s)
        assert min(free for _, free in timeline.pieces) >= 0
        assert found.gpus == pieces[0][1]


def _negative(timeline: Timeline) -> Timeline:
    """Free GPUs, as if taken from a timeline without GPUs."""
    found = timeline.copy()
    found._free = -found._free
    return found


@given(st.lists(st.floats(0.5, 8), min_size=1, max_size=8), busy(8), st.floats(0.1, 30), st.integers(1, 5))
def test_a_curve_with_dents_is_never_promised_more_than_it_does(
    rates: list[float], timeline: Timeline, left_s: float, until_s: int
) -> None:
    curve = [0.0, *rates]
    before = timeline.copy()
    found = timeline.fill(Want(left_s, until_s, levels(curve, powers=True)))
    if found is not None:
        pieces = taken(before, timeline, until_s)
        assert sum(lasts * curve[gpus] for lasts, gpus in pieces) >= left_s - 1e-5
        assert {gpus for _, gpus in pieces} <= {0, 1, 2, 4, 8}


def test_pauses_of_resizes_are_work_lost() -> None:
    want = Want(10.0, 10.0, FIGURE_4, lead_s=1.0)
    found = Timeline(0.0, 4).fill(want)
    assert found is not None
    assert (found.level, found.finish_s) == (2, 10.0)
    assert found.gpu_s == pytest.approx(10 + 3.0)  # with two GPUs for 3 s: one is idle meanwhile, two compensate for it
    assert Timeline(0.0, 4).fill(replace(want, left_s=18.5)) is None  # 9 s at a rate of 2


# -- Theorem 1


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=1, max_size=6), st.integers(1, 4))
def test_linear_jobs_are_admitted_exactly_if_their_gpu_time_fits_before_each_deadline(
    jobs: list[tuple[int, int]], gpus: int
) -> None:
    """ElasticFlow Theorem 1: condition (1) is necessary and sufficient."""
    promises = [Promise(key, work, until, levels(range(gpus + 1))) for key, (work, until) in enumerate(jobs)]
    fits = all(sum(work for work, other in jobs if other <= until) <= gpus * until for _, until in jobs)
    assert plan(promises, Timeline(0.0, gpus)).holds == fits


def _slots(gpus: int, jobs: int) -> list[tuple[int, ...]]:
    return [one for one in itertools.product(range(gpus + 1), repeat=jobs) if sum(one) <= gpus]


@given(st.lists(st.tuples(concave(3), st.integers(1, 3), st.floats(0.2, 4)), min_size=1, max_size=2), st.integers(1, 3))
def test_whatever_a_search_over_slots_can_serve_is_served(
    jobs: list[tuple[list[float], int, float]], gpus: int
) -> None:
    """Two jobs: exhaustive search over shares in slots of length 1 finds no feasible case that the plan misses."""
    promises = [Promise(key, work, until, levels(curve)) for key, (curve, until, work) in enumerate(jobs)]
    found = settle(promises, Timeline(0.0, gpus)).holds
    options = [one for one in _slots(gpus, len(jobs)) if all(n <= 3 for n in one)]
    by_slots = any(
        all(sum(curve[slot[job]] for slot in slots[:until]) >= work for job, (curve, until, work) in enumerate(jobs))
        for slots in itertools.product(options, repeat=3)
    )
    assert found or not by_slots


# -- Theorem 2


@given(
    st.lists(st.tuples(concave(), st.floats(2, 6), st.floats(1, 5)), min_size=1, max_size=3),
    st.lists(st.tuples(concave(), st.floats(1, 5)), max_size=1),
    st.integers(4, 6),
)
def test_no_other_division_of_the_gpus_now_needs_less_gpu_time(
    jobs: list[tuple[list[float], float, float]], others: list[tuple[list[float], float]], gpus: int
) -> None:
    """ElasticFlow Theorem 2, by exhaustive search over the shares of the next slot, where the jobs have room afterwards."""
    slot_s = 1e-4
    promised = {key: Promise(key, work, until, levels(curve)) for key, (curve, until, work) in enumerate(jobs)}
    late = [Promise(key, work, 1e6, levels(curve)) for key, (curve, work) in enumerate(others, len(jobs))]
    found = plan(list(promised.values()), Timeline(0.0, 64))
    if not found.holds or sum(one.gpus for one in found.found.values()) > gpus:
        return
    given_gpus = allocate(found, promised, late, gpus)

    def gpu_s(division: tuple[int, ...]) -> float:
        total = 0.0
        for one, share in zip([*promised.values(), *late], division, strict=True):
            rest = Timeline(slot_s, 64).fill(
                Want(one.left_s - slot_s * one.levels.rates[share], one.deadline_s, one.levels)
            )
            total += slot_s * share + (rest.gpu_s if rest is not None else math.inf)
        return total

    everybody = [*promised, *(one.key for one in late)]
    chosen = tuple(given_gpus.get(key, 0) for key in everybody)
    least = [found.found[key].gpus if key in promised else 0 for key in everybody]
    used = min(gpus, sum(len(one.levels) for one in [*promised.values(), *late]))
    assert sum(chosen) == used
    divisions = itertools.product(*[range(low, 5) for low in least])
    best = min(gpu_s(one) for one in divisions if sum(one) == used)
    assert gpu_s(chosen) <= best + 1e-9


def test_jobs_without_deadlines_get_a_gpu_before_any_job_gets_more_than_it_needs() -> None:
    promise = Promise(0, 3.0, 3.0, FIGURE_4)
    found = plan([promise], Timeline(0.0, 4))
    late = [Promise(1, 50.0, math.inf, FIGURE_4), Promise(2, 10.0, math.inf, FIGURE_4)]
    assert allocate(found, {0: promise}, late, 3) == {0: 1, 1: 1, 2: 1}
    assert allocate(found, {0: promise}, late, 2) == {0: 1, 2: 1}, "the shorter one first"


def test_a_soft_deadline_is_promised_only_if_it_harms_nobody() -> None:
    hard = Promise(0, 4.0, 2.0, levels([0, 1, 2]))
    found = plan([hard], Timeline(0.0, 2))
    early, later = Promise(1, 1.0, 1.0, LINEAR, soft=True), Promise(2, 2.0, 4.0, LINEAR, soft=True)
    assert soft_too(found, [early, later]) == [early]
    assert set(found.found) == {0, 2}


# -- a turn


def test_newcomers_of_one_turn_are_admitted_together_whatever_their_order() -> None:
    late, early = Promise(0, 4.0, 4.0, LINEAR), Promise(1, 4.0, 2.0, LINEAR)
    assert [one.admitted for one in decided(Commitments(0.0, 2), [late, early])[0]] == [True, True]


def test_where_not_all_have_room_as_many_as_possible_are_admitted() -> None:
    large, small = Promise(0, 8.0, 4.0, LINEAR), [Promise(key, 2.0, 4.0, LINEAR) for key in (1, 2, 3, 4)]
    found = decided(Commitments(0.0, 2), [large, *small], offers=False)[0]
    assert [one.admitted for one in found] == [False, True, True, True, True]


def test_a_refused_job_is_told_what_would_hold() -> None:
    promised = [Promise(0, 8.0, 4.0, LINEAR, priority=0), Promise(1, 4.0, 8.0, LINEAR, soft=True)]
    newcomer = Promise(2, 6.0, 5.0, LINEAR, priority=1)
    situation = Commitments(0.0, 2, promised)
    (verdict,) = decided(situation, [newcomer])[0]
    assert not verdict.admitted
    offer = verdict.offer
    assert offer is not None
    assert offer.deadline_s == pytest.approx(9.0, rel=0.01)
    assert offer.left_s == pytest.approx(2.0, abs=0.05)
    assert offer.more_gpus == 1
    assert offer.consent == (0,)
    for better in (
        decided(situation, [structs.replace(newcomer, deadline_s=offer.deadline_s)])[0],
        decided(situation, [structs.replace(newcomer, left_s=offer.left_s)])[0],
        decided(replace(situation, gpus=3), [newcomer])[0],
        decided(replace(situation, promised=promised[1:]), [newcomer])[0],
    ):
        assert better[0].admitted


def test_nothing_is_offered_where_nothing_helps() -> None:
    offer = counter_offer(Commitments(0.0, 2), Promise(0, 10.0, 1.0, levels([0, 1, 1.5])))
    assert (offer.more_gpus, offer.consent) == (None, ())
    assert counter_offer(Commitments(0.0, 2), Promise(0, 10.0, 1.0, levels(range(9), least=4))).deadline_s == math.inf


@given(
    st.lists(st.tuples(concave(), st.floats(0.1, 20), st.floats(0.5, 10)), min_size=1, max_size=5),
    st.floats(0.1, 30),
    st.floats(0.2, 6),
)
def test_every_counter_offer_holds(jobs: list[tuple[list[float], float, float]], left_s: float, until_s: float) -> None:
    promised = [Promise(key, work, until, levels(curve)) for key, (curve, work, until) in enumerate(jobs)]
    situation = Commitments(0.0, 4, [one for one in promised if one.key in plan(promised, Timeline(0.0, 4)).found])
    newcomer = Promise(9, left_s, until_s, FIGURE_4, priority=1)
    (verdict,) = decided(situation, [newcomer])[0]
    offer = verdict.offer
    if offer is None:
        assert verdict.admitted
        return
    assert situation.plan([structs.replace(newcomer, deadline_s=offer.deadline_s)]) is not None
    if offer.left_s:
        assert situation.plan([structs.replace(newcomer, left_s=offer.left_s)]) is not None
    if offer.more_gpus is not None:
        assert situation.plan([newcomer], 4 + offer.more_gpus) is not None
    if offer.consent:
        rest = [one for one in situation.promised if one.key not in offer.consent]
        assert replace(situation, promised=rest).plan([newcomer]) is not None


# -- promises


def test_a_job_with_an_earlier_deadline_may_come_after_one_that_has_filled_all_until_later() -> None:
    timeline = Timeline(0.0, 2)
    assert timeline.fill(Want(8.0, 4.0, LINEAR)) is not None
    assert timeline.fill(Want(1.0, 6.0, LINEAR)) is not None
    assert timeline.fill(Want(1.0, 2.0, LINEAR)) is None


def test_a_promise_that_cannot_be_kept_is_told_and_the_others_are_kept() -> None:
    slow, other = Promise(0, 10.0, 2.0, FIGURE_4), Promise(1, 3.0, 3.0, FIGURE_4)
    found = settle([slow, other], Timeline(0.0, 4))
    assert [one.key for one in found.broken] == [0]
    assert found.found[1].finish_s <= 3.0
    assert isinstance(found, Plan)


def test_a_plan_that_held_is_kept_where_no_new_one_in_the_order_of_deadlines_holds() -> None:
    """Of two jobs the one with the later deadline came first; now idle GPUs have moved it, and the order would fail."""
    jobs = [Promise(0, 8.0, 4.0, LINEAR), Promise(1, 1.0, 2.0, LINEAR), Promise(2, 5.0, 7.0, FIGURE_3)]
    orders = [first for first in itertools.permutations(range(3)) if plan(jobs, Timeline(0.0, 3), first).holds]
    assert orders
    kept = plan(jobs, Timeline(0.0, 3), orders[-1])
    with_plan = [structs.replace(one, schedule=kept.found[one.key].schedule) for one in jobs]
    rest = continued(with_plan, Timeline(0.0, 3))
    assert rest is not None
    assert rest.holds
    assert {key: one.gpus for key, one in rest.found.items()} == {key: one.gpus for key, one in kept.found.items()}
    assert continued(with_plan, Timeline(0.0, 1)) is None, "GPUs have been lost"
    assert continued(jobs, Timeline(0.0, 3)) is None, "there is no last plan"


def test_a_schedule_ends_a_job_with_its_pauses_counted_or_not_at_all() -> None:
    schedule = Schedule((0.0, 4.0, 10.0), (2, 1))
    assert list(schedule.pieces) == [(0.0, 4.0, 2), (4.0, 10.0, 1)]
    assert schedule.ends_s(0.0, 10.0, LINEAR, 2, 0.0, 0.0) == 6.0
    assert schedule.ends_s(0.0, 10.0, LINEAR, 2, 0.0, 1.0) == 7.0, "a change at 4 s"
    assert schedule.ends_s(0.0, 9.0, LINEAR, 0, 2.0, 1.0) == 10.0, "a start, and a change"
    assert schedule.ends_s(0.0, 12.0, LINEAR, 4, 0.0, 1.0) == math.inf
    assert schedule.ends_s(5.0, 5.0, LINEAR, 1, 0.0, 1.0) == 10.0
    assert schedule.ends_s(5.0, 5.0, LINEAR, 2, 0.0, 1.0) == math.inf, "to go back costs a change"


def test_gpus_that_are_not_there_are_not_taken() -> None:
    timeline = Timeline(0.0, 4)
    assert timeline.take([(0.0, 2.0, 3), (1.0, 3.0, 1), (2.0, 3.0, 2)])
    assert timeline.pieces == [(0.0, 1), (1.0, 0), (2.0, 1), (3.0, 4)]
    before = timeline.copy()
    assert not timeline.take([(0.5, 1.5, 1)])
    assert timeline.pieces == before.pieces


def test_a_reserve_covers_as_many_servers_as_fail_at_a_time() -> None:
    day_s = 86_400.0
    assert reserved_servers(100, 0.0, day_s, 0.01) == 0
    assert reserved_servers(100, 1 / (1000 * day_s), day_s, 0.01) == 1  # 0.1 away on average
    assert reserved_servers(100, 1 / (100 * day_s), day_s, 0.01) == 4  # 1 on average: more than 4 in 0.4 % of the time
    assert reserved_gpus([8, 8, 4], 1 / (10 * day_s), day_s, 0.05) == 8
    assert reserved_servers(2, 1.0, day_s, 0.01) == 2


# -- from the view


def _view(*jobs: Described, gpus: int = 4, reservation: Reservation | None = None) -> ClusterView:
    servers = tuple(ServerInView(ServerId(f"s{i}"), tuple(range(4))) for i in range(gpus // 4))
    return ClusterView(0.0, table(*jobs, most=4), servers, {}, reservation=reservation)


def test_jobs_of_the_view_with_hard_deadlines_have_promises_and_newcomers_ask_for_them() -> None:
    jobs = (
        job("promised", 1, 4, left_s=100.0, deadline_s=50.0, priority=3),
        job("without", 1, 4, left_s=100.0),
        job("soft", 1, 4, left_s=100.0, deadline_s=50.0, soft=True),
        job("untold", 1, 4, deadline_s=50.0),
        job("new", 1, 4, left_s=80.0, deadline_s=60.0),
        job("new, without", 1, 4, left_s=80.0),
    )
    these, choices = of_view(_view(*jobs), [4, 5], DeadlineTerms(margin_s=2.0, start_s=0.0))
    (situation,), newcomers = these.each, [one[0] for one in choices]
    assert [(one.key, one.deadline_s, one.grace_s, one.priority) for one in situation.promised] == [(0, 48.0, 2.0, 3)]
    assert [(one.key, one.deadline_s, one.grace_s) for one in newcomers] == [(4, 58.0, 0.0)]
    assert situation.gpus == 4
    (verdict,) = decided(situation, newcomers)[0]
    assert verdict.admitted
    assert told_deadline_s(newcomers[0].deadline_s, DeadlineTerms(margin_s=2.0, start_s=0.0)) == 60.0


def test_gpus_of_the_reserve_and_those_held_for_a_job_are_not_promised() -> None:
    held = Reservation(row=0, gpus=2, got=2, ready=True, held=3, confined=frozenset())
    view = _view(job("a", 2, 2), gpus=16, reservation=held)
    terms = DeadlineTerms(failures_per_server_day=0.1, failure_s=86_400.0, failure_chance=0.1)
    assert of_view(view, [], terms)[0].each[0].gpus == 16 - 2 - 4
