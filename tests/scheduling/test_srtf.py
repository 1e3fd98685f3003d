"""Shortest remaining time and service first: worked examples, and the toy example of AFS App. A to its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.view import ReasonCode
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

from .tables import Case, Described, ask, by_name, cases, given_to, job, policy, reasons, table

HOUR_S = 3600.0
RIGID = {"srtf": lambda left_s, gpus: left_s, "srsf": lambda left_s, gpus: left_s * gpus}


def seconds_left(one: Described) -> float:
    """Remaining time with the requested GPUs."""
    return one.left_s / one.speedup[min(one.requested_gpus, len(one.speedup) - 1)]


@given(cases(), st.sampled_from(list(RIGID)))
def test_jobs_get_what_they_requested_in_ascending_order_as_long_as_it_fits(case: Case, name: str) -> None:
    widest = max([one.max_gpus for one in case.jobs] + [one.requested_gpus for one in case.jobs], default=1)
    jobs = table(*case.jobs, most=widest)
    free, expected = case.gpus, {}
    for one in sorted(case.jobs, key=lambda one: RIGID[name](seconds_left(one), one.requested_gpus)):
        if one.requested_gpus <= free:
            expected[one.name] = one.requested_gpus
            free -= one.requested_gpus
    assert by_name(jobs, ask(name, jobs, case.gpus)) == expected


@given(cases(), st.sampled_from(list(RIGID)))
def test_the_altruistic_variants_only_give_away_what_is_left(case: Case, name: str) -> None:
    rigid = ask(name, case.table, case.gpus).gpus
    elastic = ask(f"{name}-e", case.table, case.gpus).gpus
    assert (elastic >= rigid).all()
    assert ((elastic > 0) == (rigid > 0)).all()
    idle = case.gpus - int(elastic.sum())
    for one, share in zip(case.jobs, elastic.tolist(), strict=True):
        assert not idle or not share or share >= one.max_gpus or one.speedup[share] == one.speedup[share + 1]


def test_a_shorter_job_interrupts_a_longer_one() -> None:
    long, short = job("long", 1, 4, left_s=400.0, share=4), job("short", 1, 4, left_s=399.0)
    jobs = table(long, short)
    given_ = ask("srtf", jobs, 4)
    assert by_name(jobs, given_) == {"short": 4}
    assert reasons(jobs, given_)["long"].code is ReasonCode.NO_FREE_GPUS


def test_who_does_not_fit_is_passed_over() -> None:
    jobs = [job("a", 1, 3, left_s=1.0), job("b", 1, 2, left_s=2.0), job("c", 1, 1, left_s=3.0)]
    assert given_to("srtf", 4, *jobs) == {"a": 3, "c": 1}


def test_the_remaining_time_is_that_with_the_requested_gpus() -> None:
    """On one GPU b would end first, but a has requested four."""
    a, b = job("a", 1, 4, left_s=200.0), job("b", 1, 4, requested=1, left_s=100.0)
    assert given_to("srtf", 4, a, b) == {"a": 4}


def test_service_counts_the_gpus() -> None:
    """a takes 50 s on four GPUs, which is 200 GPU-seconds; b 100 s on one."""
    a, b = job("a", 1, 4, left_s=200.0), job("b", 1, 4, requested=1, left_s=100.0)
    assert given_to("srsf", 4, a, b) == {"b": 1}


def test_of_equal_jobs_the_one_submitted_first_goes_first() -> None:
    jobs = [job(name, 1, 2, left_s=100.0) for name in "abc"]
    assert given_to("srtf", 4, *jobs) == given_to("srsf", 4, *jobs) == {"a": 2, "b": 2}


def test_leftovers_go_one_by_one_to_the_largest_relative_gain_of_throughput() -> None:
    """From two GPUs on: a gains 50 %, then 33 %; b 40 %, then 29 %. c has none, and gets none."""
    a = job("a", 1, 4, requested=2, left_s=100.0)
    b = job("b", 1, 4, requested=2, speedup=[0.0, 1.0, 2.0, 2.8, 3.6], left_s=100.0)
    c = job("c", 1, 8, requested=8, left_s=1000.0)
    shares = [given_to("srtf-e", gpus, a, b, c) for gpus in range(4, 8)]
    assert [(given_["a"], given_["b"]) for given_ in shares] == [(2, 2), (3, 2), (3, 3), (4, 3)]
    assert given_to("srsf-e", 7, a, b, c) == shares[-1]


def test_a_job_may_ask_for_the_gpus_of_its_greatest_throughput() -> None:
    """AFS Fig. 6: the effect on rigid policies."""
    a = job("a", 1, 4, requested=2, speedup=[0.0, 1.0, 1.5, 1.7, 1.8], left_s=100.0)
    b = job("b", 1, 2, left_s=150.0)
    assert given_to("srtf", 4, a, b) == {"a": 2, "b": 2}
    assert given_to(policy("srtf", peak=True), 4, a, b) == {"a": 4}
    assert given_to(policy("srsf", peak=True), 4, a, b) == {"b": 2}


# ------------------------------------------------------------------------------------------------------------- AFS App. A


def average_jct_h(name: str, jobs: Sequence[tuple[float, float]]) -> float:
    """Average JCT on two GPUs. Jobs: submission (h), and duration on two GPUs (h); on one GPU each takes two hours."""
    load = Workload(
        names=tuple(JobId(f"j{number}") for number in range(len(jobs))),
        submit_s=np.array([at for at, _ in jobs]) * HOUR_S,
        min_gpus=np.full(len(jobs), 1),
        max_gpus=np.full(len(jobs), 2),
        requested_gpus=np.full(len(jobs), 2),
        work_s=np.full(len(jobs), 2 * HOUR_S),
        curve=np.arange(len(jobs)),
        curves=Curves(np.array([[0.0, 1.0, 2 / hours] for _, hours in jobs])),
        models=tuple(f"m{number}" for number in range(len(jobs))),
    )
    ends_s = Simulation(load, servers(1, 2), policy(name)).run().end_s
    return float((ends_s - load.submit_s).mean()) / HOUR_S


A_AND_B = [(0.0, 1.0), (0.0, 1.5)]


def test_two_jobs_alone_are_best_served_one_after_the_other() -> None:
    """A takes 1 h, then B 1.5 h: AFS states 1.25 h on average, which is the running time; B's wait adds half an hour."""
    assert average_jct_h("srtf", A_AND_B) == pytest.approx((1.0 + 2.5) / 2)
    assert average_jct_h("max-min", A_AND_B) == pytest.approx(2.0)


@pytest.mark.parametrize("x", [1.25, 1.4, 1.6, 1.9])
def test_with_further_jobs_coming_equal_shares_beat_the_order_that_was_best_without_them(x: float) -> None:
    """Fig. 12: the first one arrives after an hour, the others every x hours; they take x hours on two GPUs."""
    later = [(1.0 + x * number, x) for number in range(30)]
    assert average_jct_h("max-min", A_AND_B + later) < average_jct_h("srtf", A_AND_B + later)


def test_jobs_that_are_shorter_than_the_one_that_waits_make_it_wait_to_the_end() -> None:
    """Fig. 12c: 1 < x < 1.5. A runs for an hour, each later job for x hours from its arrival, and B after them all."""
    x, count = 1.25, 10
    later = [(1.0 + x * number, x) for number in range(count)]
    b_h = 1.0 + count * x + 1.5
    assert average_jct_h("srtf", A_AND_B + later) == pytest.approx((1.0 + count * x + b_h) / (count + 2))


def test_jobs_that_are_longer_than_the_one_that_waits_all_wait_as_long_as_it_takes() -> None:
    """Fig. 12b: 1.5 < x < 2. A, B, then each later job, which has waited 1.5 hours by then."""
    x, count = 1.75, 10
    later = [(1.0 + x * number, x) for number in range(count)]
    assert average_jct_h("srtf", A_AND_B + later) == pytest.approx((1.0 + 2.5 + count * (1.5 + x)) / (count + 2))
