"""Transient GPUs: how long idle ones last by experience, and whether growing onto them pays (EDL 3.2, 6.2)."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import ServerId
from elasticd.scheduler.pipeline import decide
from elasticd.scheduler.policies import POLICIES
from elasticd.scheduler.sets import union
from elasticd.scheduler.transient import (
    EDGES_S,
    LEAST,
    MOST,
    Cost,
    Idle,
    Past,
    confine,
    counted,
    left_s,
    pays,
    pays_after_s,
)
from elasticd.scheduler.view import ClusterView, ReasonCode

from .tables import job, policy, servers, table

S1 = ServerId("s0")
NOW_S = 1000.0
COST = Cost(start_s=5.0, pause_s=1.0)
times = st.floats(0.0, 1e5)
elastic = sorted(kind.name for kind in POLICIES if "deadline" not in kind.name)


def after(*lasted_s: float) -> tuple[int, ...]:
    """The counts after these idle times."""
    counts = Idle().counts
    for each in lasted_s:
        counts = counted(counts, each)
    return counts


def given_back(lasted_s: float, gpus: int = 4, ago_s: float = 0.0, times_: int = 10) -> Past:
    """GPUs 4 and more have been given back just now, and lasted for so long before."""
    since_s = dict.fromkeys(range(4, 4 + gpus), NOW_S - ago_s)
    return Past({S1: Idle(after(*[lasted_s] * times_), since_s=since_s)})


def seen(*shares: int, most: int = 8) -> ClusterView:
    """Jobs on the first GPUs of a server with eight."""
    rows = [job(f"job{row}", 1, most, share=share) for row, share in enumerate(shares)]
    places, begin = {}, 0
    for row, share in enumerate(shares):
        if share:
            places[row] = ((1 << share) - 1) << begin
            begin += share
    return ClusterView(NOW_S, table(*rows, most=8), servers(8), places)


def shares(view: ClusterView, name: str = "max-min") -> list[int]:
    return decide(view, policy(name), random.Random(0), packing=False).shares.tolist()


def test_edl_s_example_is_a_loss_with_stop_and_resume_and_a_gain_in_the_background() -> None:
    """4 GPUs, and 2 more for two minutes. A change takes 30 s with stop-and-resume (3.2), a second in the background (6.1)."""
    rest = [120.0] * LEAST
    assert not pays(rest, Cost(0.0, 30.0), 4.0, 6.0)
    assert pays(rest, Cost(30.0, 1.0), 4.0, 6.0)
    assert pays_after_s(Cost(0.0, 30.0), 4.0, 6.0) == pytest.approx(150.0)


@given(
    st.lists(times, min_size=LEAST, max_size=30), st.floats(0, 60), st.floats(0, 60), st.floats(0.1, 8), st.floats(0, 8)
)
def test_what_pays_still_pays_for_longer_or_at_a_lower_cost(
    rest: list[float], start_s: float, pause_s: float, before: float, more: float
) -> None:
    cost = Cost(start_s, pause_s)
    if pays(rest, cost, before, before + more):
        assert pays([each * 1.5 + 1 for each in rest], cost, before, before + more)
        assert pays(rest, Cost(start_s / 2, pause_s / 2), before, before + more)
    if pause_s and rest:
        assert not pays([0.0] * len(rest), cost, before, before + more)


@given(times, st.floats(0.1, 8), st.floats(0.2, 8))
def test_gpus_that_surely_stay_for_long_enough_pay_and_others_do_not(rest_s: float, before: float, more: float) -> None:
    least_s = pays_after_s(COST, before, before + more)
    if abs(rest_s - least_s) > 1e-6 * least_s:
        assert pays([rest_s] * LEAST, COST, before, before + more) == (rest_s > least_s)


@given(st.lists(times, max_size=3 * MOST))
def test_counts_stay_bounded(lasted_s: list[float]) -> None:
    assert sum(after(*lasted_s)) <= MOST
    assert len(after(*lasted_s)) == len(EDGES_S)


@given(st.lists(times, min_size=1, max_size=50), times)
def test_the_rest_is_that_of_times_that_lasted_longer(lasted_s: list[float], idle_s: float) -> None:
    rest = left_s(after(*lasted_s), idle_s)
    longer = sum(each > idle_s for each in lasted_s)
    assert not rest or longer <= len(rest) <= len(lasted_s)
    assert rest or longer < LEAST
    assert all(each >= 0 for each in rest)


@given(st.lists(st.tuples(st.floats(0, 1000), st.frozensets(st.integers(0, 7))), max_size=30))
def test_a_gpu_is_borrowed_or_given_back_and_each_time_is_counted_once(
    seen_: list[tuple[float, frozenset[int]]],
) -> None:
    idle, now, had = Idle(), 0.0, frozenset[int]()
    for passed_s, borrowed in seen_:
        now += passed_s
        before, idle = idle, idle.seen(now, borrowed)
        had |= borrowed
        assert idle.borrowed == borrowed
        assert set(idle.since_s) == had - borrowed, "each GPU that a borrower has had"
        taken = {before.since_s[gpu] for gpu in borrowed if gpu in before.since_s}
        assert sum(idle.counts) == sum(before.counts) + len(taken)


def test_a_job_does_not_grow_onto_gpus_that_will_be_taken_and_says_why() -> None:
    view, review_s = confine(seen(4), given_back(6.0), {0: COST})
    decision = decide(view, policy("max-min"), random.Random(0), packing=False)
    assert decision.shares.tolist() == [4]
    reason = decision.why(0)
    assert reason is not None
    assert reason.code is ReasonCode.TRANSIENT
    assert "4 GPUs are left idle: as before, a borrower takes them in about" in reason.text
    assert NOW_S < review_s < NOW_S + 6.0


def test_it_grows_when_they_have_lasted_for_longer_than_before_or_if_they_always_do() -> None:
    for past in (given_back(6.0, ago_s=30.0), given_back(120.0), given_back(6.0, times_=LEAST - 1), Past()):
        view, review_s = confine(seen(4), past, {0: COST})
        assert (view.transient, review_s) == (None, math.inf)
        assert shares(view) == [8]


def test_a_waiting_job_starts_on_them_and_a_running_one_keeps_its_own() -> None:
    view, _ = confine(seen(4, 0), given_back(6.0), {0: COST})
    assert shares(view) == [4, 4]
    view, _ = confine(seen(6), given_back(6.0), {0: COST})
    assert shares(view) == [6]


def test_a_server_with_few_times_is_judged_by_all() -> None:
    past = given_back(6.0, times_=1)
    assert not sum(past.counts(S1)) >= LEAST
    both = Past({**past.servers, ServerId("s9"): Idle(after(*[6.0] * LEAST))})
    view, _ = confine(seen(4), both, {0: COST})
    assert shares(view) == [4]


@given(
    st.sampled_from(elastic),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.floats(0, 300),
    st.integers(1, 2),
    st.floats(0, 30),
)
def test_only_running_jobs_are_confined_and_nobody_loses_anything(
    name: str, held: list[int], lasted_s: float, gpus: int, ago_s: float
) -> None:
    view = seen(*held)
    past = Past({S1: Idle(after(*[lasted_s] * 8), since_s=dict.fromkeys(range(7, 7 - gpus, -1), NOW_S - ago_s))})
    costs = dict.fromkeys(view.placements, COST)
    bound, review_s = confine(view, past, costs)
    assert bound.placements == view.placements
    if bound.transient is None:
        assert bound is view
        return
    assert review_s > NOW_S
    taken = union(view.placements.values())
    for row in range(len(held)):
        away = bound.transient.away.get(row, 0)
        assert not away & taken
        assert row in view.placements or not away
        assert bound.usable(row, view.placements.get(row, 0)) == 0xFF & ~away
    decision = decide(bound, policy(name), random.Random(0), packing=False)
    for row, away in bound.transient.away.items():
        assert not decision.placements.get(row, 0) & away
