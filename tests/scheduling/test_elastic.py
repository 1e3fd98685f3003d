"""`elastic`: what work is worth, and who gets GPUs because of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_tables import Case, ask, cases, concave_speedups, given_to, job, linear, policy, speedups, table

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import JobId
from elasticd.scheduler.policies import worth as worth_module
from elasticd.scheduler.policies.worth import with_minimum, worths
from elasticd.scheduler.view import Curves
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

half = tuple(math.sqrt(n) for n in range(65))


# ---------------------------------------------------------------------------------------------------- what work is worth


@given(st.integers(1, 12))
def test_on_one_gpu_work_is_worth_the_number_of_jobs_that_wait_for_it(jobs: int) -> None:
    assert worths([linear(1)] * jobs, 1) == pytest.approx(list(range(jobs, 0, -1)))


@given(st.integers(1, 20), st.integers(1, 8))
def test_jobs_of_one_gpu_each_are_worth_the_rounds_that_wait_for_theirs(jobs: int, gpus: int) -> None:
    """On M machines the k-th job from the end delays as many as it has behind it on its machine, and itself."""
    assert worths([linear(1)] * jobs, gpus) == pytest.approx([-(-k // gpus) for k in range(jobs, 0, -1)])


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


def flow_s(left_s: Sequence[float], gpus: int, name: str, **parameters: object) -> float:
    """The sum of the times until jobs with s(k) = sqrt(k) are over that are all there at the beginning."""
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
    )
    return float(Simulation(load, servers(1, gpus), policy(name, **parameters)).run().end_s.sum())


@settings(max_examples=25)
@given(st.lists(st.floats(10, 1000), min_size=2, max_size=6))
def test_where_nobody_else_comes_the_sum_of_jcts_is_near_the_least_possible(left_s: list[float]) -> None:
    """The least possible one with GPUs that can be divided at will is that of heSRPT."""
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


def test_short_jobs_behind_a_long_queue_wait_for_each_other_only() -> None:
    """A backlog of 800 long jobs on 8 GPUs, then a short job every 50 s, for which one GPU would do."""
    long, short = 800, 60
    count = long + short
    load = Workload(
        names=tuple(JobId(f"j{number:03d}") for number in range(count)),
        submit_s=np.concatenate([np.zeros(long), 1000.0 + 50.0 * np.arange(short)]),
        min_gpus=np.ones(count, dtype=np.int64),
        max_gpus=np.full(count, 8),
        requested_gpus=np.ones(count, dtype=np.int64),
        work_s=np.concatenate([np.linspace(20_000, 200_000, long), np.full(short, 30.0)]),
        curve=np.zeros(count, dtype=np.int64),
        curves=Curves(np.array([half[:9]])),
        models=("m",),
    )
    done = Simulation(load, servers(2, 4), policy("elastic")).run()
    waits_s = (done.start_s - load.submit_s)[long:]
    assert waits_s.max() == 0
    assert (done.end_s - load.submit_s)[long:].max() <= 30.0 + 1e-6


def test_a_new_job_of_unknown_length_runs_before_those_known_to_be_long() -> None:
    jobs = [job(f"long{number}", left_s=1e6, share=1) for number in range(2)]
    assert "new" in given_to(policy("elastic", inertia=0), 2, *jobs, job("new"))


def test_a_job_of_unknown_length_counts_as_long_as_it_has_run() -> None:
    ran = job("ran", attained_gpu_s=2e6, executed_s=2e6)
    assert given_to("elastic", 1, ran, job("known", left_s=1e6)) == {"known": 1}
    assert given_to("elastic", 1, ran, job("known", left_s=3e6)) == {"ran": 1}


def test_a_minimum_is_given_whole_or_not_at_all_and_what_it_leaves_goes_to_others() -> None:
    wide = job("wide", 3, 4, left_s=10)
    assert given_to("elastic", 2, wide, job("narrow", 1, 1, left_s=1e6)) == {"narrow": 1}
    assert given_to("elastic", 5, wide, job("narrow", 1, 1, left_s=1e6)) == {"wide": 4, "narrow": 1}


both = pytest.mark.parametrize("lengths", ["given", "unknown"])


@both
@settings(max_examples=50)
@given(case=cases())
def test_nothing_stays_idle_that_a_job_could_use(lengths: str, case: Case) -> None:
    shares = ask(policy("elastic", lengths=lengths), case.table, case.gpus).gpus
    free = case.gpus - int(shares.sum())
    for one, share in zip(case.jobs, shares.tolist(), strict=True):
        if share:
            assert not free or share == one.max_gpus or one.speedup[share + 1] <= one.speedup[share] * (1 + 1e-9)
        else:
            assert one.min_gpus > free


# ------------------------------------------------------------------------------------------------- lengths are not known


def test_without_lengths_no_length_is_looked_at() -> None:
    who = policy("elastic", lengths="unknown")
    assert not who.needs_lengths
    ask(who, table(job("a", 1, 4, left_s=100), job("b", 1, 4, left_s=5)), 4)


def test_jobs_that_are_alike_share_alike_without_lengths() -> None:
    who = policy("elastic", lengths="unknown")
    jobs = [job(name, speedup=half[:17], left_s=left) for name, left in (("a", 900), ("b", 9))]
    assert given_to(who, 16, *jobs) == {"a": 8, "b": 8}


def test_the_next_gpu_goes_to_whom_it_costs_least_for_what_it_brings() -> None:
    """Bids for a second GPU: 0.9 / (1 - 0.9) = 9 and 0.6 / (1 - 0.6) = 1.5."""
    who = policy("elastic", lengths="unknown")
    jobs = [job("poor", speedup=(0.0, 1.0, 1.6)), job("good", speedup=(0.0, 1.0, 1.9))]
    assert given_to(who, 3, *jobs) == {"poor": 1, "good": 2}


def test_while_not_all_fit_who_has_got_least_comes_first_and_is_asked_about_again() -> None:
    who = policy("elastic", lengths="unknown", first_turn_gpu_s=600.0)
    had = job("had", share=1, attained_gpu_s=5000, executed_s=5000)
    new = job("new")
    assert given_to(who, 1, had, new) == {"new": 1}
    assert ask(who, table(had, new), 1, now=7.0).review_s == pytest.approx(7.0 + 600, abs=0.01)


def test_of_equal_levels_those_that_run_stay() -> None:
    who = policy("elastic", lengths="unknown", first_turn_gpu_s=600.0)
    waits = job("waits", attained_gpu_s=5000, executed_s=5000)
    runs = job("runs", share=1, attained_gpu_s=5010, executed_s=5010)
    assert given_to(who, 1, waits, runs) == {"runs": 1}


def test_who_has_come_to_the_end_of_a_level_makes_room() -> None:
    who = policy("elastic", lengths="unknown", first_turn_gpu_s=600.0)
    waits = job("waits", attained_gpu_s=599.0, executed_s=599.0)
    assert given_to(who, 1, waits, job("runs", share=1, attained_gpu_s=600.0, executed_s=600.0)) == {"waits": 1}


def test_without_lengths_more_jobs_than_gpus_all_come_to_their_end_in_turns() -> None:
    left_s = [100.0, 2000.0, 700.0, 5000.0, 700.0, 1.0]
    assert flow_s(left_s, 2, "elastic", lengths="unknown", first_turn_gpu_s=600.0) < flow_s(left_s, 2, "fifo")


def test_where_all_fit_nobody_asks_again() -> None:
    assert ask(policy("elastic", lengths="unknown"), table(job("a"), job("b")), 2).review_s == math.inf


# ------------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "value"),
    [("lengths", "guessed"), ("constancy", 1.5), ("inertia", -1), ("first_turn_gpu_s", 0), ("turn_growth", 1)],
)
def test_a_parameter_out_of_its_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(OperatorError, match=name):
        policy("elastic", **{name: value})
