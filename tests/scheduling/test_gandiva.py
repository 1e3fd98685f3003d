"""Gandiva: time slices, and that every job gets one."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.policies import Shares
from elasticd.scheduler.policies.reviews import LATE_S

from .tables import Case, Described, ask, by_name, cases, job, policy, reasons, table

SLICE_S = 60.0


def decided(now: float, gpus: int, *jobs: Described) -> tuple[dict[str, int], Shares]:
    seen = table(*jobs)
    shares = ask("gandiva", seen, gpus, now)
    return by_name(seen, shares), shares


def after(jobs: list[Described], shares: dict[str, int], now: float, seconds: float) -> list[Described]:
    """The jobs after `seconds` with these shares."""
    later = []
    for one in jobs:
        share = shares.get(one.name, 0)
        lost = one.share and not share
        later.append(
            replace(
                one,
                share=share,
                executed_s=one.executed_s + (seconds if share else 0.0),
                waiting_since_s=math.nan if share else (now if lost else one.waiting_since_s),
            )
        )
    return later


def turns(gpus: int, slices: int, jobs: list[Described]) -> list[set[str]]:
    """The running jobs in each of so many slices."""
    ran = []
    for turn in range(slices):
        shares, _ = decided(turn * SLICE_S, gpus, *jobs)
        ran.append(set(shares))
        jobs = after(jobs, shares, turn * SLICE_S, SLICE_S)
    return ran


def test_where_all_fit_all_run_and_nobody_is_asked_again() -> None:
    shares, found = decided(0.0, 4, job("a", 1, 3), job("b", 1, 1))
    assert shares == {"a": 3, "b": 1}
    assert found.review_s == math.inf


def test_in_the_middle_of_a_slice_running_jobs_go_on_and_the_end_of_the_slice_is_awaited() -> None:
    a = job("a", 1, 3, share=3, executed_s=30.0)
    jobs = table(a, job("b", 1, 3, submitted_s=10.0))
    given_ = ask("gandiva", jobs, 4, now=90.0)
    assert by_name(jobs, given_) == {"a": 3}
    assert given_.review_s == 120.0
    assert reasons(jobs, given_)["b"].text == "waits for 3 GPUs: 1 of 4 left by jobs whose turn it is"


def test_in_the_middle_of_a_slice_free_gpus_go_to_the_longest_wait() -> None:
    a, b = job("a", 1, 2, waiting_since_s=20.0, executed_s=10.0), job("b", 1, 2, submitted_s=10.0)
    assert decided(90.0, 2, a, b)[0] == {"b": 2}


def test_at_the_end_of_a_slice_those_that_wait_get_their_turn() -> None:
    a, b = job("a", 1, 3, share=3, executed_s=60.0), job("b", 1, 3, waiting_since_s=10.0)
    assert decided(120.0, 4, a, b)[0] == {"b": 3}


@given(st.floats(-1e-6, LATE_S / 2))
def test_a_decision_somewhat_late_is_still_that_of_the_end_of_the_slice(late_s: float) -> None:
    """With Unix times, as in a controller."""
    end_s = 1_700_000_040.0
    a = job("a", 1, 3, submitted_s=end_s - 90.0, share=3, executed_s=60.0 + late_s)
    b = job("b", 1, 3, submitted_s=end_s - 50.0)
    shares, found = decided(end_s + late_s, 4, a, b)
    assert shares == {"b": 3}
    assert found.review_s == end_s + SLICE_S


def test_a_decision_right_after_the_end_of_a_slice_does_not_undo_it() -> None:
    end_s = 6000.0
    jobs = [job("a", 1, 3, share=3, executed_s=6000.0), job("b", 1, 3, submitted_s=end_s - 50.0)]
    shares, _ = decided(end_s, 4, *jobs)
    again, _ = decided(end_s + LATE_S / 2, 4, *after(jobs, shares, end_s, LATE_S / 2))
    assert shares == again == {"b": 3}


def test_equal_jobs_take_equal_turns() -> None:
    ran = turns(4, 20, [job(name, 1, 1) for name in "abcde"])
    assert [sum(name in turn for turn in ran) for name in "abcde"] == [16] * 5


def test_two_jobs_that_want_the_whole_cluster_alternate() -> None:
    assert turns(4, 4, [job("a", 1, 4), job("b", 1, 4)]) == [{"a"}, {"b"}, {"a"}, {"b"}]


def test_a_job_that_wants_the_whole_cluster_gets_its_turn_among_small_ones() -> None:
    ran = turns(4, 12, [*(job(f"j{i}", 1, 1) for i in range(6)), job("all", 1, 4)])
    assert sum(turn == {"all"} for turn in ran) >= 3


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_nobody_waits_longer_than_it_would_take_to_run_all_others_one_by_one(wanted: list[int]) -> None:
    names = [f"j{i}" for i in range(len(wanted))]
    ran = turns(4, 4 * len(wanted), [job(name, 1, gpus) for name, gpus in zip(names, wanted, strict=True)])
    for name in names:
        for begin in range(len(ran) - len(wanted) + 1):
            assert any(name in turn for turn in ran[begin : begin + len(wanted)])


@given(cases(), st.sampled_from([0.0, 30.0, 59.0]))
def test_only_the_end_of_a_slice_interrupts_a_running_job(case: Case, into_s: float) -> None:
    rigid = [one for one in case.jobs if one.share in (0, one.requested_gpus)]
    shares, _ = decided(SLICE_S * 1000 + into_s, case.gpus, *rigid)
    held = {one.name: one.share for one in rigid if one.share}
    if into_s > LATE_S and sum(held.values()) <= case.gpus:
        assert held.items() <= shares.items()


def test_the_length_of_a_slice_is_a_parameter() -> None:
    jobs = table(job("a", 1, 4), job("b", 1, 4))
    assert ask(policy("gandiva", slice_s=600), jobs, 4, now=100.0).review_s == 600.0
