"""`elastic`: the value of work, and the shares that follow from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import JobId
from elasticd.scheduler.arrays import Floats
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.length_statistics import LENGTHS_S, NOTHING_ENDED, Ended
from elasticd.scheduler.policies import expected_lengths
from elasticd.scheduler.policies import waiting_worth as worth_module
from elasticd.scheduler.policies.waiting_worth import with_minimum, worths
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

from .tables import (
    Case,
    Described,
    ask,
    by_name,
    cases,
    concave_speedups,
    given_to,
    job,
    linear,
    policy,
    speedups,
    table,
)

half = tuple(math.sqrt(n) for n in range(65))


# ------------------------------------------------------------------------------------------------------ value of work


@given(st.integers(1, 12))
def test_on_one_gpu_work_is_worth_the_number_of_jobs_that_wait_for_it(jobs: int) -> None:
    assert worths([linear(1)] * jobs, 1) == pytest.approx(list(range(jobs, 0, -1)))


@given(st.integers(1, 20), st.integers(1, 8))
def test_jobs_of_one_gpu_each_are_worth_the_rounds_that_wait_for_theirs(jobs: int, gpus: int) -> None:
    """On M machines the k-th job from the end delays itself and the jobs behind it on its machine."""
    assert worths([linear(1)] * jobs, gpus) == pytest.approx([-(-k // gpus) for k in range(jobs, 0, -1)])


@given(st.data())
def test_what_is_remembered_of_earlier_questions_changes_no_worth(data: st.DataObject) -> None:
    """Jobs arrive and end anywhere in the order of ends, and the GPUs and the number of copies change."""
    kinds = [tuple(share**power for share in range(9)) for power in (0.3, 0.6, 0.9)]
    remembering = worth_module.Recursion()
    order = data.draw(st.lists(st.sampled_from(kinds), max_size=40))
    for _ in range(8):
        gpus, copies = data.draw(st.sampled_from([(8, 1), (16, 1), (24, 3)]))
        urgency = data.draw(st.sampled_from([None, [1.0 + 0.01 * number for number in range(len(order))]]))
        question = order, gpus, data.draw(st.sampled_from([0, 50, 51])), copies, urgency
        assert remembering.worths(*question) == worths(*question)
        if order and data.draw(st.booleans()):
            del order[data.draw(st.integers(0, len(order) - 1))]
        order.insert(data.draw(st.integers(0, len(order))), data.draw(st.sampled_from(kinds)))


def test_no_more_is_remembered_than_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old entries are evicted, and the last one is not, however large it is."""
    monkeypatch.setattr(worth_module, "REMEMBERED", 500)
    remembering = worth_module.Recursion()
    for behind in range(200):
        remembering.worths([half[:9]] * 10, 8, behind)
        remembered = sum(8 * len(steps) for steps in remembering._known.values())
        assert remembered <= 500
        assert (8, behind, 1) in remembering._known


@pytest.mark.parametrize("power", [0.3, 0.5, 0.8])
def test_with_power_law_speedups_worths_are_those_of_hesrpt(power: float) -> None:
    """k-th longest: (k^c - (k-1)^c)^(1/c) / s(M), c = 1 / (1 - p); exact in the limit of many GPUs."""
    gpus, c = 2000, 1.0 / (1.0 - power)
    curve = [n**power for n in range(gpus + 1)]
    expected = [(k**c - (k - 1) ** c) ** (1.0 / c) / curve[gpus] for k in range(4, 0, -1)]
    assert worths([curve] * 4, gpus) == pytest.approx(expected, rel=2e-2)


@settings(max_examples=50)
@given(st.lists(concave_speedups(4), min_size=1, max_size=4), st.integers(1, 5))
def test_the_best_division_saves_as_much_waiting_as_there_are_jobs(curves: list[tuple[float, ...]], gpus: int) -> None:
    """The Hamilton-Jacobi-Bellman equation, against trying all divisions."""
    worth = worths(curves, gpus)
    best = max(
        sum(w * curve[share] for w, curve, share in zip(worth, curves, shares, strict=True))
        for shares in itertools.product(range(5), repeat=len(curves))
        if sum(shares) <= gpus
    )
    assert best == pytest.approx(len(curves))


@given(st.lists(speedups(8), min_size=1, max_size=8), st.integers(1, 12))
def test_of_jobs_that_are_alike_who_ends_first_is_worth_most(curves: list[tuple[float, ...]], gpus: int) -> None:
    worth = worths([curves[0]] * len(curves), gpus)
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(worth))


def test_many_jobs_behind_count_like_so_many_of_one_gpu_each() -> None:
    gpus, behind = 4, 400
    whole = worths([linear(1)] * (behind + 8), gpus)[:8]
    assert worths([linear(1)] * 8, gpus, behind) == pytest.approx(whole, rel=0.01)


def test_counting_jobs_as_ending_together_changes_what_they_are_worth_by_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    curves = [[n**power for n in range(65)] for power in (0.5, 0.7, 0.9)]
    many = [curves[number % 3] for number in range(96)]
    together = worths(many, 64, 300)
    monkeypatch.setattr(worth_module, "LATER_PER_JOB", 10**9)
    assert together == pytest.approx(worths(many, 64, 300), rel=0.05)


def test_the_gpus_of_a_minimum_bring_equally_much() -> None:
    assert with_minimum((0.0, 1.0, 1.8, 2.4, 2.6), 3) == pytest.approx([0.0, 0.8, 1.6, 2.4, 2.6])


# ----------------------------------------------------------------------------------------------------- lengths are given


def flow_s(
    left_s: Sequence[float] | Floats, gpus: int, name: str, told_s: Floats | None = None, **parameters: object
) -> float:
    """The sum of the JCTs of jobs with s(k) = sqrt(k) that all arrive at the beginning."""
    count = len(left_s)
    load = Workload(
        names=tuple(JobId(f"j{number}") for number in range(count)),
        submit_s=np.zeros(count),
        min_gpus=np.ones(count, dtype=np.int64),
        max_gpus=np.full(count, gpus),
        requested_gpus=np.ones(count, dtype=np.int64),
        work_s=np.array(left_s),
        curve=np.zeros(count, dtype=np.int64),
        curves=Curves(np.array([half[: gpus + 1]])),
        models=("m",),
        told_s=told_s,
    )
    return float(Simulation(load, servers(1, gpus), policy(name, **parameters)).run().end_s.sum())


@settings(max_examples=25)
@given(st.lists(st.floats(10, 1000), min_size=2, max_size=6))
def test_where_nobody_else_comes_the_sum_of_jcts_is_near_the_least_possible(left_s: list[float]) -> None:
    """The least possible sum with arbitrarily divisible GPUs is heSRPT's."""
    longest = sorted(left_s, reverse=True)
    least_s = sum(math.sqrt(k**2 - (k - 1) ** 2) * left / 8 for k, left in enumerate(longest, start=1))
    taken_s = flow_s(left_s, 64, "elastic", constancy=0, inertia=0)
    assert least_s * (1 - 1e-6) <= taken_s <= least_s * 1.02


def test_a_short_job_gets_more_gpus_than_a_long_one_that_is_alike() -> None:
    taken = given_to(
        "elastic", 16, *(job(name, speedup=half[:17], left_s=left) for name, left in (("l", 900), ("s", 9)))
    )
    assert taken["s"] > taken["l"] > 0


def test_the_more_constant_the_load_the_more_equal_the_shares() -> None:
    jobs = [job(name, speedup=half[:17], left_s=left) for name, left in (("l", 900), ("s", 9))]
    seen = [given_to(policy("elastic", constancy=constancy), 16, *jobs)["s"] for constancy in (0.0, 0.4, 1.0)]
    assert seen[0] > seen[1] > seen[2] == 8


def test_while_there_are_far_more_jobs_than_gpus_the_shortest_get_one_each() -> None:
    jobs = [job(f"j{number}", speedup=half[:9], left_s=1000.0 - number) for number in range(400)]
    assert given_to("elastic", 4, *jobs) == {f"j{number}": 1 for number in range(396, 400)}


def test_a_gpu_goes_where_it_helps_most_though_that_job_is_the_longer_one() -> None:
    flat = job("flat", speedup=(0.0, 1.0, 1.01, 1.02, 1.03), left_s=100)
    assert given_to("elastic", 4, flat, job("steep", high=4, left_s=1000)) == {"flat": 1, "steep": 3}


def test_inertia_keeps_a_gpu_where_it_is_for_little_gain() -> None:
    runs = job("runs", speedup=half[:4], left_s=101, share=2)
    other = job("other", speedup=half[:4], left_s=100, share=1)
    assert given_to(policy("elastic", inertia=0), 3, runs, other) == {"runs": 1, "other": 2}
    assert given_to(policy("elastic", inertia=1), 3, runs, other) == {"runs": 2, "other": 1}


def behind_a_long_queue(long: int, after_s: float, told_s: Floats | None = None) -> tuple[Floats, Floats]:
    """A backlog of long jobs on 8 GPUs, then a short job every 50 s, for which one GPU is enough: the waiting times and the
    JCTs of the short ones.
    """
    short = 60
    count = long + short
    load = Workload(
        names=tuple(JobId(f"j{number:03d}") for number in range(count)),
        submit_s=np.concatenate([np.zeros(long), after_s + 50.0 * np.arange(short)]),
        min_gpus=np.ones(count, dtype=np.int64),
        max_gpus=np.full(count, 8),
        requested_gpus=np.ones(count, dtype=np.int64),
        work_s=np.concatenate([np.linspace(20_000, 200_000, long), np.full(short, 30.0)]),
        curve=np.zeros(count, dtype=np.int64),
        curves=Curves(np.array([half[:9]])),
        models=("m",),
        told_s=told_s,
    )
    done = Simulation(load, servers(2, 4), policy("elastic")).run()
    return (done.start_s - load.submit_s)[long:], (done.end_s - load.submit_s)[long:]


def test_short_jobs_behind_a_long_queue_wait_for_each_other_only() -> None:
    waits_s, jct_s = behind_a_long_queue(long=800, after_s=1000.0)
    assert waits_s.max() == 0
    assert jct_s.max() <= 30.0 + 1e-6


def test_a_minimum_is_given_whole_or_not_at_all_and_what_it_leaves_goes_to_others() -> None:
    wide = job("wide", 3, 4, left_s=10)
    assert given_to("elastic", 2, wide, job("narrow", 1, 1, left_s=1e6)) == {"narrow": 1}
    assert given_to("elastic", 5, wide, job("narrow", 1, 1, left_s=1e6)) == {"wide": 4, "narrow": 1}


@settings(max_examples=100)
@given(case=cases())
def test_nothing_stays_idle_that_a_job_could_use(case: Case) -> None:
    shares = ask("elastic", case.table, case.gpus).gpus
    free = case.gpus - int(shares.sum())
    for one, share in zip(case.jobs, shares.tolist(), strict=True):
        if share:
            assert not free or share == one.max_gpus or one.speedup[share + 1] <= one.speedup[share] * (1 + 1e-9)
        else:
            assert one.min_gpus > free


# ------------------------------------------------------------------------------ estimates: correct, wrong, or missing


def ran(name: str, done_s: float, **more: Any) -> Described:
    """A job without an estimate that has done so much work."""
    return job(name, attained_gpu_s=done_s, executed_s=done_s, **more)


def ended(*lengths_s: float, requested: int = 1) -> Ended:
    found = NOTHING_ENDED
    for length_s in lengths_s:
        found = found.and_one(requested, length_s, math.nan)
    return found


def errors(*parts: float) -> Ended:
    """Finished jobs that estimated 1000 s, and have taken these fractions of it."""
    found = NOTHING_ENDED
    for part in parts:
        found = found.and_one(1, 1000.0 * part, 1000.0)
    return found


def given_after(past: Ended, gpus: int, *jobs: Described) -> dict[str, int]:
    seen = table(*jobs)
    seen.ended = past
    return by_name(seen, ask("elastic", seen, gpus))


def test_where_all_tell_the_truth_what_is_expected_is_what_is_told() -> None:
    seen = table(job("a", left_s=70.0, done_s=0.0), job("b", left_s=500.0, done_s=1500.0))
    for past in (NOTHING_ENDED, errors(*[1.0] * 50)):
        seen.ended = past
        left_s, _ = expected_lengths.left_s(seen)
        assert left_s == pytest.approx(np.array([[70.0, 500.0]]))


def test_where_users_err_by_a_factor_what_is_expected_spreads_as_far() -> None:
    seen = table(job("a", left_s=1000.0, done_s=0.0))
    seen.ended = errors(*np.exp(np.linspace(-math.log(2), math.log(2), 200)).tolist())
    (least, middle, most), _ = expected_lengths.left_s(seen)
    assert 500 < least < 750
    assert 850 < middle < 1200
    assert 1350 < most < 2000


def test_where_many_end_early_some_are_expected_to_until_they_have_come_far() -> None:
    seen = table(job("new", left_s=1000.0, done_s=0.0), job("late", left_s=100.0, done_s=900.0))
    seen.ended = errors(*[0.02, 0.1, 0.4] * 10, *[1.0] * 70)
    left_s, _ = expected_lengths.left_s(seen)
    assert left_s[0, 0] < 500
    assert left_s[:, 1] == pytest.approx([100.0] * expected_lengths.COPIES)


def test_who_is_over_what_he_has_told_is_not_taken_to_end_at_once() -> None:
    """Otherwise an underestimated job would keep the whole cluster as long as it runs (the danger of such rules)."""
    over = job("over", left_s=0.0, told_s=1000.0, done_s=3000.0)
    left_s, _ = expected_lengths.left_s(table(over))
    assert left_s.min() >= 300
    assert left_s[1] >= 1000
    assert given_to("elastic", 1, over, job("short", left_s=300.0)) == {"short": 1}


def test_a_job_that_has_told_nothing_is_compared_with_those_that_request_as_many_gpus() -> None:
    past = ended(*[100.0] * 100)
    for _ in range(100):
        past = past.and_one(8, 1e5, math.nan)
    small, large = job("small", requested=1), job("large", 1, 8, requested=8)
    seen = table(large, small)
    seen.ended = past
    left_s, _ = expected_lengths.left_s(seen)
    assert (left_s[:, 0] > 5e4).all()
    assert (left_s[:, 1] < 200).all()
    assert given_after(past, 1, large, small) == {"small": 1}


def test_who_has_told_nothing_stands_between_those_who_have_told_less_and_more_than_is_usual() -> None:
    past = ended(*np.geomspace(500, 2000, 100).tolist())
    untold, less, more = job("untold"), job("less", left_s=100.0), job("more", left_s=50_000.0)
    assert given_after(past, 1, untold, less) == {"less": 1}
    assert given_after(past, 1, more, untold) == {"untold": 1}


def test_before_anybody_has_ended_who_has_done_least_comes_first() -> None:
    assert given_to("elastic", 1, ran("had", 50_000.0, share=1), ran("new", 0.0)) == {"new": 1}
    assert given_to("elastic", 1, ran("waits", 4000.0), ran("runs", 4010.0, share=1)) == {"runs": 1}


def test_jobs_that_are_alike_and_have_told_nothing_share_alike() -> None:
    jobs = [job(name, speedup=half[:17]) for name in ("a", "b")]
    assert min(given_to("elastic", 16, *jobs).values()) >= 7


def test_the_policy_asks_again_when_more_will_be_known_of_who_runs_while_others_wait() -> None:
    runs = ran("runs", 100.0, share=1)
    assert ask("elastic", table(runs), 1).review_s == math.inf
    asked = ask("elastic", table(runs, ran("waits", 1e6)), 1, now=7.0)
    assert 7.0 < asked.review_s < 7.0 + 100.0
    told = table(job("told", left_s=100.0, done_s=0.0), job("waits", left_s=900.0, done_s=0.0))
    assert ask("elastic", told, 1, now=7.0).review_s > 7.0 + 100.0  # its estimate has been correct: it will end first


def test_a_review_comes_when_a_job_has_passed_a_bin_by_a_quarter_of_its_work() -> None:
    """So one review serves the jobs that pass a bin of lengths soon after each other."""
    begins_s, ends_s = float(LENGTHS_S[20]), float(LENGTHS_S[21])
    first, second = ran("first", begins_s, share=1), ran("second", 0.98 * begins_s + 0.02 * ends_s, share=1)
    asked = ask("elastic", table(first, second, ran("waits", 1e6)), 2)
    assert asked.gpus.tolist() == [1, 1, 0]
    assert asked.review_s == pytest.approx(1.25 * ends_s - second.done_s)
    assert asked.review_s > ends_s - begins_s  # the other job has passed its bin, too


def test_reviews_come_the_later_the_longer_jobs_have_been_there() -> None:
    """A queue of days needs no review after seconds."""
    jobs = table(ran("runs", float(LENGTHS_S[1]) - 1.0, share=1), ran("waits", 1e6))
    soon, late = (ask("elastic", jobs, 1, now=age_s).review_s - age_s for age_s in (1e3, 1e6))
    assert (soon, late) == pytest.approx((10.0, 500.0))


def test_a_decision_does_not_depend_on_what_was_asked_before() -> None:
    who, past = policy("elastic"), ended(*[100.0] * 9)
    one, other = table(job("a"), job("b", left_s=9.0)), table(ran("c", 500.0), job("d"))
    other.ended = past
    fresh = ask(policy("elastic"), one, 3).gpus.tolist()
    ask(who, other, 3)
    assert ask(who, one, 3).gpus.tolist() == fresh


def test_short_jobs_that_tell_nothing_do_not_starve_behind_a_long_queue() -> None:
    """While no job of the queue has run, a new job is like all of them; then the job with the least work done comes first."""
    waits_s, jct_s = behind_a_long_queue(long=100, after_s=2000.0, told_s=np.full(160, math.nan))
    assert waits_s.max() <= 30.0
    assert jct_s.max() <= 90.0


def test_a_thousand_jobs_that_go_on_do_not_make_a_newcomer_look_long() -> None:
    old = [ran(f"old{number}", 50_000.0 + number, share=int(number < 4)) for number in range(300)]
    for past in (NOTHING_ENDED, ended(*[60.0] * 5)):
        assert "new" in given_after(past, 4, *old, ran("new", 0.0))


def test_with_half_of_the_lengths_told_jobs_are_over_sooner_than_with_none_and_later_than_with_all() -> None:
    rng = np.random.default_rng(5)
    left_s = np.exp(rng.uniform(math.log(60), math.log(60_000), 120))
    told = {part: np.where(rng.random(120) < part, left_s, math.nan) for part in (0.0, 0.5)}
    whole, some, none = (flow_s(left_s, 4, "elastic", told_s) for told_s in (None, told[0.5], told[0.0]))
    assert whole < some < none


# ------------------------------------------------------------------------------------------------------------------ tail


def test_the_more_the_tail_counts_the_more_gpus_a_job_gets_that_has_been_there_for_long() -> None:
    jobs = [job(name, speedup=half[:17], left_s=100.0, submitted_s=at) for name, at in (("old", 0.0), ("new", 9e4))]
    shares = [given_to(policy("elastic", tail=tail), 16, *jobs, now=1e5)["old"] for tail in (0.0, 0.5, 2.0)]
    assert shares == sorted(set(shares))


def test_the_more_the_tail_counts_the_sooner_one_gpu_goes_to_the_job_that_has_been_there_for_long() -> None:
    jobs = [job("old", left_s=300.0), job("new", left_s=100.0, submitted_s=9e4)]
    assert given_to("elastic", 1, *jobs, now=1e5) == {"new": 1}
    assert given_to(policy("elastic", tail=1.0), 1, *jobs, now=1e5) == {"old": 1}


@given(cases(), st.floats(0, 1e6))
def test_a_tail_of_zero_makes_the_time_of_submission_irrelevant(case: Case, later_s: float) -> None:
    """The policy then aims at the average JCT, where a second counts the same for each job."""
    who = policy("elastic", tail=0.0)
    given = ask(who, case.table, case.gpus, now=1e7).gpus.tolist()
    assert ask(who, case.table, case.gpus, now=1e7 + later_s).gpus.tolist() == given
    assert ask("elastic", case.table, case.gpus, now=1e7).gpus.tolist() == given


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12))
def test_on_one_gpu_work_is_worth_the_urgencies_of_the_jobs_that_wait_for_it(urgency: list[float]) -> None:
    behind = list(itertools.accumulate(reversed(urgency)))[::-1]
    assert worths([linear(1)] * len(urgency), 1, urgency=urgency) == pytest.approx(behind)


# ------------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "value"),
    [("lengths", "guessed"), ("lengths", "unknown"), ("constancy", 1.5), ("inertia", -1), ("tail", -1)],
)
def test_a_parameter_out_of_its_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(OperatorError, match=name):
        policy("elastic", **{name: value})


def test_a_file_for_an_earlier_version_with_given_lengths_still_loads() -> None:
    old = policy("elastic", lengths="given", constancy=0.4, inertia=0.05, first_turn_gpu_s=7200, turn_growth=1.1)
    jobs = [job("a", left_s=100.0), job("b", left_s=10.0)]
    assert given_to(old, 1, *jobs) == given_to("elastic", 1, *jobs) == {"b": 1}
