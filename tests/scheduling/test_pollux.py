"""Pollux: the power mean of speedups against all divisions of the GPUs, the threshold of changes, and intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.policies import pollux
from elasticd.scheduler.policies.power_mean import FLOOR, divide, total, worth

from .tables import Case, Described, ask, by_name, cases, given_to, job, linear, policy, reasons, table

WAITING = policy("pollux", start_at_once=False)
BETWEEN_S = 90.0  # not a time at which GPUs are divided
POWERS = st.sampled_from([-4.0, -1.0, -0.5, 0.0, 0.5, 1.0])
HALF = (0.0, 1.0, 1.5, 1.75, 1.875)  # each GPU adds half of the previous one's gain


# --------------------------------------------------------------------------------------------------- jobs that are alike


@pytest.mark.parametrize("many", [pollux.MANY_KINDS, 0], ids=["a place for each", "sorted"])
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(60, 64)), min_size=1, max_size=30))
def test_of_jobs_that_are_alike_the_first_stands_for_all(many: int, rows: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pollux, "MANY_KINDS", many)
        first, of = pollux.first_of_each(*np.array(rows).T)
    assert [rows[one] for one in first.tolist()] == sorted(set(rows))
    assert [rows[one] for one in first[of].tolist()] == rows
    assert first.tolist() == [rows.index(rows[one]) for one in first.tolist()]


# ------------------------------------------------------------------------------------------------------------- the solver


@st.composite
def knapsacks(draw: st.DrawFn, concave: bool) -> tuple[list[np.ndarray], int, np.ndarray]:
    """Values of shares for some jobs, GPUs, and present shares. Not concave: with holes, dents, and one share on a peak."""
    values = []
    for _ in range(draw(st.integers(1, 4))):
        gains = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
        if concave:
            gains.sort(reverse=True)
        found = np.cumsum([0.0, *gains])
        if not concave:
            found[1 : draw(st.integers(1, len(gains)))] = -np.inf
            found[draw(st.integers(0, len(gains)))] += draw(st.sampled_from([0.0, 3.0, 15.0]))
        values.append(found)
    present = np.array([draw(st.integers(0, len(one) - 1)) for one in values])
    return values, draw(st.integers(0, 12)), present


def best(values: Sequence[np.ndarray], gpus: int) -> float:
    """Exhaustive search."""
    ranges = [range(len(one)) for one in values]
    return max(
        sum(float(one[share]) for one, share in zip(values, shares, strict=True))
        for shares in itertools.product(*ranges)
        if sum(shares) <= gpus
    )


@given(knapsacks(concave=True))
def test_where_values_are_concave_no_division_is_worth_more(made: tuple[list[np.ndarray], int, np.ndarray]) -> None:
    values, gpus, present = made
    shares = divide(values, gpus, present)
    assert shares.sum() <= gpus
    assert total(values, shares) == pytest.approx(best(values, gpus))


@given(knapsacks(concave=False))
def test_elsewhere_less_is_missed_than_one_step_of_one_job_brings(
    made: tuple[list[np.ndarray], int, np.ndarray],
) -> None:
    values, gpus, present = made
    shares = divide(values, gpus, present)
    assert shares.sum() <= gpus
    largest = max(float(one.max() - one[0]) for one in values)
    assert total(values, shares) >= best(values, gpus) - largest - 1e-9
    if present.sum() <= gpus and math.isfinite(total(values, present)):
        assert total(values, shares) >= total(values, present) - 1e-9


@given(knapsacks(concave=False))
def test_the_relaxed_knapsack_bounds_what_is_missed(made: tuple[list[np.ndarray], int, np.ndarray]) -> None:
    """The result equals the linear relaxation, except for the one step that does not fit."""
    values, gpus, _ = made
    steps = sorted(_hull_steps(values), key=lambda step: -step[0] / step[1])
    relaxed, free, last = sum(float(one[0]) for one in values), gpus, 0.0
    for gain, size in steps:
        if size > free:
            relaxed += gain * free / size
            last = gain
            break
        relaxed, free = relaxed + gain, free - size
    found = total(values, divide(values, gpus, np.zeros(len(values), dtype=np.int64)))
    assert relaxed - last - 1e-9 <= found <= relaxed + 1e-9
    assert best(values, gpus) <= relaxed + 1e-9


def _hull_steps(values: Sequence[np.ndarray]) -> list[tuple[float, int]]:
    """Gain and size of each step along the least concave function above the values, up to its maximum."""
    found = []
    for one in values:
        at = 0
        while True:
            slopes = [(float(one[then] - one[at]) / (then - at), then) for then in range(at + 1, len(one))]
            slope, then = max(slopes, default=(0.0, 0), key=lambda pair: (pair[0], -pair[1]))
            if slope <= 0:
                break
            found.append((float(one[then] - one[at]), then - at))
            at = then
    return found


# ------------------------------------------------------------------------------------------------------------- the policy


def power_mean(jobs: Sequence[Described], shares: Sequence[int], gpus: int, power: float) -> float:
    """The sum that the power mean grows with, as in the paper; no job has run yet, so there are no changes."""
    fair = math.ceil(gpus / len(jobs))
    speedups = [
        one.speedup[share] / one.speedup[min(max(fair, one.min_gpus), one.max_gpus, gpus)]
        for one, share in zip(jobs, shares, strict=True)
    ]
    return sum(float(worth(np.array(x), power)) for x in speedups)


@given(cases(most_jobs=4, most_gpus=8, most_share=4, dents=False), POWERS)
def test_new_jobs_get_the_shares_of_the_greatest_power_mean(case: Case, power: float) -> None:
    jobs = [job(one.name, 1, one.max_gpus, speedup=one.speedup) for one in case.jobs]
    if not jobs or not case.gpus:
        return
    given_ = given_to(policy("pollux", power=power), case.gpus, *jobs)
    found = power_mean(jobs, [given_.get(one.name, 0) for one in jobs], case.gpus, power)
    ranges = [range(one.max_gpus + 1) for one in jobs]
    greatest = max(
        power_mean(jobs, shares, case.gpus, power) for shares in itertools.product(*ranges) if sum(shares) <= case.gpus
    )
    assert found == pytest.approx(greatest, rel=1e-9)


def test_the_lower_the_power_the_more_the_worst_off_job_counts() -> None:
    """One scales without loss, one hardly. On average of speedups the first should have nearly all; for the worst-off the second
    gets more.
    """
    well, badly = (
        job("well", 1, 8, speedup=linear(8)),
        job("badly", 1, 8, speedup=[0, 1, 1.6, 2, 2.3, 2.5, 2.6, 2.7, 2.75]),
    )
    by_power = [given_to(policy("pollux", power=power), 8, well, badly)["badly"] for power in (1.0, -1.0, -10.0)]
    assert by_power == sorted(by_power)
    assert by_power[0] < by_power[-1]


def test_equal_jobs_get_equal_shares_where_there_are_more_gpus_than_jobs() -> None:
    jobs = [job(f"j{number}", 1, 8, speedup=linear(8)) for number in range(4)]
    assert set(given_to("pollux", 16, *jobs).values()) == {4}


def test_where_jobs_are_more_than_gpus_those_run_that_came_first_and_go_on() -> None:
    jobs = [job(f"j{number}", 1, 4, speedup=HALF, submitted_s=-1e4 + number) for number in range(6)]
    assert given_to("pollux", 4, *jobs) == {"j0": 1, "j1": 1, "j2": 1, "j3": 1}
    running = [
        job("new", 1, 4, speedup=HALF, submitted_s=-9000.0),
        job("runs", 1, 4, speedup=HALF, share=1, submitted_s=-8000.0),
    ]
    assert given_to("pollux", 1, *running) == {"runs": 1}


def test_a_crowd_of_waiting_jobs_is_looked_at_by_kind() -> None:
    """Those that need four GPUs each cannot all run; those that need one can."""
    large = [job(f"large{number}", 4, 4, submitted_s=-1e4) for number in range(20)]
    small = [job(f"small{number}", 1, 4, speedup=HALF, submitted_s=-1.0) for number in range(20)]
    assert given_to("pollux", 8, *large, *small) == {f"small{number}": 1 for number in range(8)}


# ---------------------------------------------------------------------------------------------------------------- changes


def test_a_change_has_to_be_worth_a_restart() -> None:
    """An old job takes the GPUs that another has left; a young one, or one with many changes, keeps its share."""

    def grows(age_s: float, changes: int = 0, **parameters: float) -> int:
        one = job("a", 1, 4, speedup=HALF, share=2, submitted_s=-age_s, executed_s=age_s, changes=changes)
        return given_to(policy("pollux", **parameters), 4, one)["a"]

    assert grows(3600.0) == 4  # 1.875 / 1.5 = 1.25 times as fast, of which 3600 / 3630 is left
    assert grows(60.0) == 2  # of which 60 / 90 is left
    assert grows(60.0, restart_s=1.0) == 4
    assert grows(3600.0, changes=30) == 2  # (3600 - 900) / 3630
    assert grows(0.0, restart_s=0.0) == 4


@given(cases(most_jobs=4, most_gpus=8, most_share=4), st.integers(0, 40))
def test_the_power_mean_is_no_less_than_without_any_change(case: Case, changes: int) -> None:
    """With the factor for changes, as the paper has it."""
    jobs = [one for one in case.jobs if one.min_gpus <= case.gpus]
    if not jobs or sum(one.share for one in jobs) > case.gpus:
        return
    seen = table(*jobs)
    given_ = ask("pollux", seen, case.gpus).gpus
    fair = math.ceil(case.gpus / len(jobs))

    def objective(shares: Sequence[int]) -> float:
        found = 0.0
        for one, share in zip(jobs, shares, strict=True):
            x = one.speedup[share] / one.speedup[min(max(fair, one.min_gpus), one.max_gpus, case.gpus)]
            if one.share and share != one.share:
                x *= -one.submitted_s / (-one.submitted_s + 30.0)
            found -= 1 / (x + FLOOR)
        return found

    assert objective(given_.tolist()) >= objective([one.share for one in jobs]) - 1e-6


# -------------------------------------------------------------------------------------------------------------- intervals


def test_between_intervals_idle_gpus_go_to_those_who_have_none_and_nothing_is_taken() -> None:
    runs, new = job("runs", 1, 8, share=2, submitted_s=-1000.0), job("new", 1, 8)
    assert given_to("pollux", 8, runs, new, now=BETWEEN_S) == {"runs": 2, "new": 6}
    full = [job("all", 1, 8, share=8, submitted_s=-1000.0), new]
    assert given_to("pollux", 8, *full, now=BETWEEN_S) == {"all": 8}
    assert set(given_to("pollux", 8, *full, now=120.0)) == {"all", "new"}
    told = ask("pollux", table(*full), 8, now=BETWEEN_S)
    assert told.review_s == 120.0
    assert reasons(table(*full), told)["new"].text == "waits for 1 GPU: 0 of 8 left by jobs that go first"


@given(cases())
def test_between_intervals_whoever_has_gpus_keeps_them_and_no_more_are_given_than_are_idle(case: Case) -> None:
    found = given_to("pollux", case.gpus, *case.jobs, now=BETWEEN_S)
    kept = given_to(WAITING, case.gpus, *case.jobs, now=BETWEEN_S)
    assert kept.items() <= found.items()
    assert sum(found.values()) <= case.gpus
    idle = case.gpus - sum(found.values())
    assert all(one.min_gpus > idle for one in case.jobs if one.name not in found)


def test_who_comes_between_intervals_waits_where_that_is_asked_for() -> None:
    runs, new = job("runs", 1, 8, share=2, submitted_s=-1000.0), job("new", 1, 8)
    assert given_to(WAITING, 8, runs, new, now=BETWEEN_S) == {"runs": 2}


def test_where_gpus_were_lost_those_that_came_last_give_way_until_the_next_interval() -> None:
    jobs = [job(f"j{number}", 1, 4, share=2) for number in range(3)]
    assert given_to("pollux", 4, *jobs, now=BETWEEN_S) == {"j0": 2, "j1": 2}


@pytest.mark.parametrize(("now", "review_s"), [(0.0, 60.0), (59.9, 60.0), (60.0, 120.0), (1e9, 1_000_000_020.0)])
def test_it_asks_to_be_asked_at_the_next_interval(now: float, review_s: float) -> None:
    assert ask("pollux", table(job("a", 1, 4)), 4, now=now).review_s == review_s


def test_nobody_is_asked_again_where_nothing_would_change_without_a_penalty() -> None:
    alone = job("a", 1, 4, share=4, submitted_s=-100.0)
    assert ask("pollux", table(alone), 4).review_s == math.inf
    held = job("a", 1, 4, speedup=HALF, share=2, submitted_s=-60.0)  # a change pays off later
    assert ask("pollux", table(held), 4).review_s == 60.0
    assert ask("pollux", table(), 4).review_s == math.inf
    assert ask("pollux", table(job("giant", 8)), 4).review_s == math.inf


def test_shares_are_by_throughput_where_a_job_can_use_no_more() -> None:
    flat = job("flat", 1, 8, speedup=[0.0, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5])
    seen = table(flat, job("steep", 1, 4))
    assert by_name(seen, ask("pollux", seen, 8)) == {"flat": 2, "steep": 4}
