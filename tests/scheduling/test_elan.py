"""Shares by marginal gain: `optimus`, `elastic-fifo`, `elastic-backfill`; against exhaustive search, and Elan as printed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elasticd.scheduler.view import UNKNOWN_S, ReasonCode

from .tables import Case, Described, ask, by_name, cases, given_to, job, linear, policy, reasons, table

ELASTIC = st.sampled_from(["elastic-fifo", "elastic-backfill"])


def left_s(one: Described, gpus: int) -> float:
    return one.left_s / one.speedup[gpus]


def least_sum_s(jobs: Sequence[Described], gpus: int) -> float:
    """The least sum of remaining times over all divisions."""
    ranges = [range(one.min_gpus, one.max_gpus + 1) for one in jobs]
    return min(
        sum(left_s(one, share) for one, share in zip(jobs, shares, strict=True))
        for shares in itertools.product(*ranges)
        if sum(shares) <= gpus
    )


# ---------------------------------------------------------------------------------------------------------------- optimus


@given(cases(most_jobs=4, most_gpus=10, dents=False), st.sampled_from(["optimus", "elastic-fifo", "elastic-backfill"]))
def test_the_jobs_that_run_could_not_be_over_sooner_in_sum(case: Case, name: str) -> None:
    given_ = by_name(case.table, ask(name, case.table, case.gpus))
    running = [one for one in case.jobs if one.name in given_]
    found_s = sum(left_s(one, given_[one.name]) for one in running)
    assert found_s == pytest.approx(least_sum_s(running, case.gpus), rel=1e-12)


@given(cases())
def test_optimus_admits_each_job_whose_minimum_fits_beside_those_of_earlier_jobs(case: Case) -> None:
    given_ = by_name(case.table, ask("optimus", case.table, case.gpus))
    free = case.gpus
    for one in case.jobs:
        assert (one.name in given_) == (one.min_gpus <= free)
        free -= one.min_gpus if one.name in given_ else 0


def test_optimus_gives_the_next_gpu_to_the_job_whose_remaining_time_it_shortens_most() -> None:
    """300 s: 150 less, 50 less, 25 less. 100 s: 50 less, 17 less. Of equal gains (50 s) the first one counts."""
    long, short = job("long", 1, 8, left_s=300.0), job("short", 1, 8, left_s=100.0)
    shares = [given_to("optimus", gpus, short, long) for gpus in range(2, 7)]
    assert [(given_["long"], given_["short"]) for given_ in shares] == [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]


def test_optimus_leaves_gpus_idle_that_help_nobody() -> None:
    flat = job("flat", 1, 8, speedup=[0.0, 1.0, 1.5, 1.5, 1.5], left_s=100.0)
    over = job("over", 1, 8, left_s=0.0)
    assert given_to("optimus", 8, flat, over) == {"flat": 2, "over": 1}


def test_a_job_of_unknown_length_counts_as_very_long() -> None:
    assert given_to("optimus", 4, job("a", 1, 4, left_s=1e6), job("b", 1, 4)) == {"a": 1, "b": 3}


def test_optimus_gives_no_turn_to_short_jobs_behind_long_ones() -> None:
    jobs = table(job("a", 1, 4, left_s=1e6), job("b", 1, 4, left_s=1e6), job("c", 1, 4, left_s=1.0))
    given_ = ask("optimus", jobs, 2)
    assert by_name(jobs, given_) == {"a": 1, "b": 1}
    assert reasons(jobs, given_)["c"].text == "waits for 1 GPU: 0 of 2 left by the minimums of earlier jobs"


# ---------------------------------------------------------------------------------------------------------- Elan's rules


class Ambiguous(Exception):
    """Two sums of times are so close that rounding decides."""


def allocation(jobs: Sequence[Described], gpus: int) -> dict[str, int]:
    """Elan's allocation rule, GPU by GPU."""
    shares = {one.name: one.min_gpus for one in jobs}
    for _ in range(gpus - sum(shares.values())):
        gains = [
            (left_s(one, shares[one.name]) - left_s(one, shares[one.name] + 1), -row, one.name)
            for row, one in enumerate(jobs)
            if shares[one.name] < one.max_gpus
        ]
        if not gains or max(gains)[0] <= 0:
            break
        near = sorted((gain for gain, _, _ in gains), reverse=True)[:2]
        if len(near) == 2 and near[0] != near[1] and math.isclose(near[0], near[1], rel_tol=1e-9):
            raise Ambiguous
        shares[max(gains)[2]] += 1
    return shares


def free_after(wanted: int, jobs: Sequence[Described], shares: dict[str, int], gpus: int) -> tuple[float, int]:
    """The first time at which so many GPUs are free, now or at the end of a job, and their number then."""
    ends = [(left_s(one, shares[one.name]), shares[one.name]) for one in jobs]
    for at in (-math.inf, *sorted(end for end, _ in ends)):
        free = gpus - sum(held for end, held in ends if end > at)
        if free >= wanted:
            return max(at, 0.0), free
    raise AssertionError


def not_more(a: float, b: float) -> bool:
    if a != b and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9):
        raise Ambiguous
    return a <= b


def as_printed(case: Case, backfill: bool) -> dict[str, int]:
    """Elan VI-C, with sums of remaining times as the average JCT; every quantity computed afresh at each use."""
    gpus, running, free = case.gpus, [], case.gpus
    for one in case.jobs:
        if one.share and one.min_gpus <= free:
            running.append(one)
            free -= one.min_gpus
    free = max(0, gpus - sum(one.share for one in running))
    head = None
    for one in case.jobs:
        if one in running or one.min_gpus > gpus or (head and not backfill):
            continue
        joined = sorted([*running, one], key=case.jobs.index)
        admitted = sum(each.min_gpus for each in joined) <= gpus
        if admitted:
            shares, grown = allocation(running, gpus), allocation(joined, gpus)
            if one.min_gpus > free:
                started_s = left_s(one, grown[one.name])
                for each in running:
                    both_run_s = min(left_s(one, grown[one.name]), left_s(each, grown[each.name]))
                    done = both_run_s * each.speedup[grown[each.name]]
                    started_s += both_run_s + (each.left_s - done) / each.speedup[shares[each.name]]
                wait_s, then = free_after(one.min_gpus, running, shares, gpus)
                waiting_s = sum(left_s(each, shares[each.name]) for each in running)
                waiting_s += wait_s + left_s(one, min(then, one.max_gpus))
                admitted = not_more(started_s, waiting_s)
            if admitted and head:
                before_s, _ = free_after(head.min_gpus, running, shares, gpus)
                after_s, _ = free_after(head.min_gpus, joined, grown, gpus)
                if not not_more(after_s, before_s):
                    continue
        if admitted:
            free = free - one.min_gpus if one.min_gpus <= free else gpus - sum(grown.values())
            running = joined
        elif head is None:
            head = one
    return allocation(running, gpus)


@settings(max_examples=200)
@given(cases(most_jobs=5), ELASTIC)
def test_elastic_policies_decide_as_printed(case: Case, name: str) -> None:
    assume(all(one.left_s < UNKNOWN_S for one in case.jobs))  # sums that contain it hide the others' remaining time
    try:
        printed = as_printed(case, backfill=name == "elastic-backfill")
    except Ambiguous:
        assume(False)
    assert by_name(case.table, ask(name, case.table, case.gpus)) == printed


@given(cases(), ELASTIC)
def test_running_jobs_may_shrink_but_are_not_stopped(case: Case, name: str) -> None:
    given_ = by_name(case.table, ask(name, case.table, case.gpus))
    if sum(one.min_gpus for one in case.jobs if one.share) <= case.gpus:
        assert all(one.name in given_ for one in case.jobs if one.share)


@given(cases())
def test_elastic_fifo_starts_nobody_behind_one_who_has_to_wait(case: Case) -> None:
    jobs = case.table
    given_ = ask("elastic-fifo", jobs, case.gpus)
    queue = [one for one in case.jobs if not one.share and one.min_gpus <= case.gpus]
    started = [one for one in queue if one.name in by_name(jobs, given_)]
    assert started == queue[: len(started)]


def test_a_job_starts_with_its_minimum_where_a_rigid_one_would_wait() -> None:
    a, b = job("a", 1, 4, requested=3, left_s=100.0, share=3), job("b", 1, 4, requested=3, left_s=100.0)
    assert given_to("fifo", 4, a, b) == {"a": 3}
    assert given_to("elastic-fifo", 4, a, b) == {"a": 2, "b": 2}


def test_running_jobs_take_what_is_idle() -> None:
    assert given_to("elastic-fifo", 4, job("a", 1, 4, requested=2, left_s=100.0, share=2)) == {"a": 4}


def test_running_jobs_shrink_for_a_job_if_the_average_completion_time_does_not_grow_by_it() -> None:
    """Beside b, which takes 40 s on one GPU, a takes 110 s; one after the other they take 100 s and 110 s."""
    a = job("a", 1, 4, left_s=400.0, share=4)
    assert given_to("elastic-fifo", 4, a, job("b", 1, 4, left_s=40.0)) == {"a": 3, "b": 1}


def test_a_job_waits_if_the_average_completion_time_would_grow() -> None:
    """Beside each other with two GPUs each, both take 200 s; one after the other 100 s and 200 s."""
    a, b = job("a", 1, 4, left_s=400.0, share=4), job("b", 1, 4, left_s=400.0)
    jobs = table(a, b, job("c", 1, 4, left_s=1.0))
    given_ = ask("elastic-fifo", jobs, 4)
    assert by_name(jobs, given_) == {"a": 4}
    why = reasons(jobs, given_)
    assert why["b"].text == (
        "waits for 1 GPU: 0 of 4 free, and if others gave theirs, jobs would take longer on average"
    )
    assert why["c"].text == "waits behind b"


def test_a_poorly_scaling_job_gives_way() -> None:
    """On two GPUs a loses a quarter of the 200 s that b takes: 250 s and 200 s against 200 s and 300 s."""
    a = job("a", 1, 4, speedup=[0.0, 1.0, 1.5, 1.8, 2.0], left_s=400.0, share=4)
    assert given_to("elastic-fifo", 4, a, job("b", 1, 4, left_s=400.0)) == {"a": 2, "b": 2}


def overtaking(minimum_of_the_first: int) -> list[Described]:
    """x holds two GPUs for 140 s, y two for 100 s, or one for 150 s. b waits, and c, behind it, takes 30 s on one GPU, which
    costs y 10 s.
    """
    return [
        job("x", 2, 2, left_s=280.0, share=2),
        job("y", 1, 2, speedup=[0.0, 1.0, 1.5], left_s=150.0, share=2),
        job("b", minimum_of_the_first, left_s=1000.0),
        job("c", 1, left_s=30.0),
    ]


def test_elastic_backfill_lets_a_job_overtake_that_does_not_delay_the_first() -> None:
    """b needs three GPUs. It can start when x ends, whether y then has one GPU or two; c has ended before."""
    assert given_to("elastic-fifo", 4, *overtaking(3)) == {"x": 2, "y": 2}
    assert given_to("elastic-backfill", 4, *overtaking(3)) == {"x": 2, "y": 1, "c": 1}


def test_elastic_backfill_lets_nobody_overtake_for_whom_the_first_had_to_wait_longer() -> None:
    """b needs all four GPUs; y with one of them would end 10 s later than x."""
    jobs = table(*overtaking(4))
    given_ = ask("elastic-backfill", jobs, 4)
    assert by_name(jobs, given_) == {"x": 2, "y": 2}
    why = reasons(jobs, given_)
    assert why["b"].code is ReasonCode.NO_FREE_GPUS
    assert why["b"].text == "waits for 4 GPUs: 1 of 4 not needed for the minimums of running jobs"
    assert why["c"].text == "waits behind b"


def test_elastic_backfill_looks_at_no_more_waiting_jobs_than_it_is_told() -> None:
    jobs = overtaking(3)
    jobs.insert(3, job("d", 2, left_s=30.0))
    assert given_to(policy("elastic-backfill", look_ahead_jobs=1), 4, *jobs) == {"x": 2, "y": 2}
    assert given_to(policy("elastic-backfill", look_ahead_jobs=2), 4, *jobs) == {"x": 2, "y": 1, "c": 1}
    assert given_to(policy("elastic-backfill", look_ahead_jobs=0), 4, *overtaking(3)) == {"x": 2, "y": 2}


def test_a_large_cluster_is_divided_as_a_small_one() -> None:
    jobs = [job(f"j{i}", 1, 64, speedup=linear(64), left_s=1000.0, share=8) for i in range(8)]
    assert set(given_to("elastic-fifo", 256, *jobs).values()) == {32}
