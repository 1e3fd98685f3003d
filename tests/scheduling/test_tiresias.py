"""Queues by attained service, and EDL's two rules."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.errors import OperatorError
from elasticd.scheduler.policies import Policy
from elasticd.scheduler.view import ReasonCode

from .tables import Case, Described, ask, by_name, cases, given_to, job, linear, policy, reasons, table

TIRESIAS = policy("tiresias-l", thresholds_gpu_s=[100, 1000])


def elastic(pending: int) -> Policy:
    return policy("elastic-tiresias", thresholds_gpu_s=[100, 1000], pending=pending)


# ------------------------------------------------------------------------------------------------------------- queues


def test_who_has_attained_less_service_than_a_threshold_goes_before_who_has_attained_it() -> None:
    jobs = [
        job("third", attained_gpu_s=5000, executed_s=1),
        job("second", attained_gpu_s=100, executed_s=1),
        job("first", attained_gpu_s=90, executed_s=1),
    ]
    assert given_to(TIRESIAS, 1, *jobs) == {"first": 1}
    assert given_to(TIRESIAS, 2, *jobs) == {"first": 1, "second": 1}


def test_service_counts_gpus_and_time() -> None:
    """Two-dimensional: of two jobs that have run for 50 s, the one with four GPUs is in the second queue."""
    wide = job("wide", 4, 4, executed_s=50, attained_gpu_s=200)
    assert given_to(TIRESIAS, 4, wide, job("narrow", 1, 1, executed_s=50, attained_gpu_s=50)) == {"narrow": 1}


def test_a_new_job_interrupts_one_of_a_lower_queue_but_not_one_of_its_own() -> None:
    old = job("old", share=1, attained_gpu_s=500, executed_s=500)
    young = job("young", share=1, attained_gpu_s=50, executed_s=50)
    assert given_to(TIRESIAS, 1, old, job("new")) == {"new": 1}
    assert given_to(TIRESIAS, 1, young, job("new")) == {"young": 1}


def test_a_job_that_wants_more_than_is_left_is_passed_over() -> None:
    assert given_to(TIRESIAS, 4, job("a", 2), job("b", 3), job("c", 1)) == {"a": 2, "c": 1}


def test_a_job_gets_the_gpus_that_it_requested_or_none_and_with_peak_those_of_its_greatest_throughput() -> None:
    flexible = job("a", 1, 8, requested=3)
    assert given_to("tiresias-l", 8, flexible) == {"a": 3}
    assert given_to(policy("tiresias-l", peak=True), 8, flexible) == {"a": 8}
    seen = table(flexible)
    shares = ask("tiresias-l", seen, 2)
    assert by_name(seen, shares) == {}
    assert reasons(seen, shares)["a"].code is ReasonCode.CLUSTER_TOO_SMALL


def test_a_job_that_comes_down_into_a_queue_goes_behind_those_that_wait_there() -> None:
    waits = job("waits", attained_gpu_s=150, executed_s=150, waiting_since_s=-10)
    assert given_to(TIRESIAS, 1, job("comes", share=1, attained_gpu_s=100, executed_s=100), waits) == {"waits": 1}
    assert given_to(TIRESIAS, 1, job("is there", share=1, attained_gpu_s=150, executed_s=150), waits) == {"is there": 1}


def test_those_that_wait_are_in_the_order_in_which_they_began_to() -> None:
    jobs = [
        job("later", attained_gpu_s=500, executed_s=1, waiting_since_s=-10),
        job("earlier", attained_gpu_s=150, executed_s=1, waiting_since_s=-20),
    ]
    assert given_to(TIRESIAS, 1, *jobs) == {"earlier": 1}


def test_jobs_of_the_first_queue_that_have_not_run_are_in_the_order_of_submission() -> None:
    assert given_to(TIRESIAS, 2, *(job(name, submitted_s=k) for k, name in enumerate("abc")), now=10.0) == {
        "a": 1,
        "b": 1,
    }


# ------------------------------------------------------------------------------------------------------------- reviews


def test_the_policy_asks_to_be_asked_when_the_first_running_job_crosses_its_threshold() -> None:
    seen = table(
        job("a", 1, share=1, attained_gpu_s=20, executed_s=20),
        job("b", 4, share=4, attained_gpu_s=800, executed_s=200),
        job("c", 2, share=2, attained_gpu_s=9000, executed_s=200),
    )
    assert ask(TIRESIAS, seen, 8, now=1000.0).review_s == pytest.approx(1050.0)
    assert ask(TIRESIAS, seen.cut(seen.rows[2:]), 8).review_s == math.inf


@given(cases(), st.sampled_from(["tiresias-l", "elastic-tiresias"]))
def test_a_review_is_never_asked_for_now_or_the_past(case: Case, name: str) -> None:
    for promotion in (None, 2.0):
        assert ask(policy(name, promotion=promotion), case.table, case.gpus, now=5000.0).review_s > 5000.0


class Cluster:
    """A cluster that applies a policy to endless jobs; reviews come a little early or late."""

    def __init__(self, who: Policy, gpus: int, *jobs: Described, late_s: float = 0.0) -> None:
        self.who, self.gpus, self.jobs, self.late_s = who, gpus, list(jobs), late_s
        self.now = 0.0
        self.interruptions: dict[str, int] = defaultdict(int)

    def decide(self) -> float:
        """Time of the next review."""
        shares = ask(self.who, table(*self.jobs), self.gpus, now=self.now)
        for row, (one, share) in enumerate(zip(self.jobs, shares.gpus.tolist(), strict=True)):
            waiting_since_s = math.nan if share else self.now if one.share else one.waiting_since_s
            self.interruptions[one.name] += one.share > 0 and share == 0
            self.jobs[row] = replace(one, share=share, waiting_since_s=waiting_since_s)
        return shares.review_s + self.late_s

    def run(self, until_s: float) -> dict[str, float]:
        """Running time of each job."""
        while self.now < until_s:
            passed = min(self.decide(), until_s) - self.now
            self.now += passed
            for row, one in enumerate(self.jobs):
                if one.share:
                    attained = one.attained_gpu_s + passed * one.share
                    self.jobs[row] = replace(one, attained_gpu_s=attained, executed_s=one.executed_s + passed)
        return {one.name: one.executed_s for one in self.jobs}


@pytest.mark.parametrize("late_s", [-1e-4, 0.0, 0.05])
def test_jobs_pass_from_queue_to_queue_one_after_the_other(late_s: float) -> None:
    """Alone on a GPU that four jobs want: each its 100 s in turn, then each its 900 s, and from there on the first one alone."""
    cluster = Cluster(TIRESIAS, 1, *(job(f"j{k}") for k in range(4)), late_s=late_s)
    ran = [cluster.run(until_s) for until_s in (250, 400.5, 1300.5, 4000.5, 20_000)]
    slack = 1.0 + 40 * abs(late_s)
    assert list(ran[0].values()) == pytest.approx([100, 100, 50, 0], abs=slack)
    assert list(ran[1].values()) == pytest.approx([100, 100, 100, 100], abs=slack)
    assert list(ran[2].values()) == pytest.approx([1000, 100, 100, 100], abs=slack)
    assert list(ran[3].values()) == pytest.approx([1000, 1000, 1000, 1000], abs=slack)
    assert list(ran[4].values()) == pytest.approx([17_000, 1000, 1000, 1000], abs=slack)
    assert max(cluster.interruptions.values()) <= 2


# ----------------------------------------------------------------------------------------------------------- promotion


def test_without_promotion_a_job_of_a_lower_queue_waits_as_long_as_there_are_others() -> None:
    old = job("old", submitted_s=-1e6, attained_gpu_s=500, executed_s=500, waiting_since_s=-1e5)
    assert given_to(TIRESIAS, 1, old, job("new", share=1, attained_gpu_s=50, executed_s=50)) == {"new": 1}


def test_a_job_that_has_waited_long_enough_goes_back_to_the_first_queue_and_stays_for_its_service() -> None:
    who = policy("tiresias-l", thresholds_gpu_s=[100, 1000], promotion=3.0)
    old = job("old", submitted_s=0, attained_gpu_s=500, executed_s=500, waiting_since_s=500)
    new = [job(f"new{k}", submitted_s=1990 + k) for k in range(3)]
    seen = table(old, *new)
    early = ask(who, seen, 1, now=1992.5)
    assert by_name(seen, early) == {"new0": 1}
    assert early.review_s == pytest.approx(2000), "three times 500 s after the 500 s that it ran"
    assert given_to(who, 1, old, now=2000.0) == {"old": 1}
    in_its_turn = replace(old, share=1, executed_s=590, attained_gpu_s=590, waiting_since_s=math.nan)
    seen = table(in_its_turn, *new)
    then = ask(who, seen, 1, now=2090.0)
    assert by_name(seen, then) == {"old": 1}
    assert then.review_s == pytest.approx(2100)
    through = replace(in_its_turn, executed_s=600, attained_gpu_s=600)
    assert given_to(who, 1, through, *new, now=2100.0) == {"new0": 1}


def test_a_promoted_job_goes_behind_those_that_wait_in_the_first_queue_already() -> None:
    who = policy("tiresias-l", thresholds_gpu_s=[100, 1000], promotion=3.0)
    old = job("old", submitted_s=0, attained_gpu_s=500, executed_s=500, waiting_since_s=500)
    before, after = job("before", submitted_s=1999), job("after", submitted_s=2001)
    assert given_to(who, 1, old, before, after, now=2002.0) == {"before": 1}
    assert given_to(who, 1, old, after, now=2002.0) == {"old": 1}


@pytest.mark.parametrize("late_s", [-1e-4, 0.0, 0.05])
def test_with_promotion_nobody_starves(late_s: float) -> None:
    jobs = [job(f"j{k}") for k in range(4)]
    who = policy("tiresias-l", thresholds_gpu_s=[100, 1000], promotion=5.0)
    cluster = Cluster(who, 1, *jobs, late_s=late_s)
    ran = cluster.run(100_000)
    assert sum(ran.values()) == pytest.approx(100_000)
    assert min(ran.values()) > 100_000 / 6 - 1200
    assert sum(cluster.interruptions.values()) < 1000 + 4 * 10, "turns are no shorter than the first queue's service"


# ------------------------------------------------------------------------------------------------------ EDL's two rules


def old(name: str, requested: int, high: int = 8, low: int = 1, **more: Any) -> Described:
    """A job outside the first queue."""
    return replace(job(name, low, high, requested=requested), attained_gpu_s=500.0, executed_s=100.0, **more)


def test_r1_halves_all_but_the_first_queue_when_too_many_would_wait() -> None:
    jobs = [job("new", 1, 8, requested=3), old("a", 5), old("b", 4), old("c", 1)]
    assert given_to(elastic(2), 8, *jobs) == {"new": 3, "a": 5}, "two wait: not more than allowed"
    assert given_to(elastic(1), 8, *jobs) == {"new": 3, "a": 2, "b": 2, "c": 1}, "there is no half of one GPU"


def test_r1_leaves_each_job_its_minimum() -> None:
    assert given_to(elastic(0), 5, old("a", 4, low=3), old("b", 4)) == {"a": 3, "b": 2}


def test_r1_goes_by_what_jobs_want_so_that_shrunk_jobs_stay_shrunk_while_the_queue_is_long() -> None:
    shrunk = [old(name, 4, share=2, waiting_since_s=math.nan) for name in "ab"]
    assert given_to(elastic(0), 4, *shrunk) == {"a": 2, "b": 2}
    assert given_to(elastic(0), 4, shrunk[0]) == {"a": 4}


def test_r2_gives_idle_gpus_one_by_one_to_the_greatest_relative_gain_if_nobody_waits() -> None:
    steep = job("steep", 1, 4, requested=1, speedup=(0, 1, 1.9, 2.6, 3.1))
    flat = job("flat", 1, 4, requested=1, speedup=(0, 1, 1.5, 1.7, 1.8))
    gains = {
        2: {"steep": 1, "flat": 1},
        3: {"steep": 2, "flat": 1},
        4: {"steep": 2, "flat": 2},
        5: {"steep": 3, "flat": 2},
    }
    for gpus, expected in gains.items():
        assert given_to(elastic(9), gpus, steep, flat) == expected
    assert given_to(elastic(9), 3, steep, flat, job("waits", 2)) == {"steep": 1, "flat": 1}, "GPUs stay idle"


def test_r2_stops_where_throughput_does_not_grow_any_more() -> None:
    assert given_to(elastic(9), 8, job("a", 1, 4, requested=2, speedup=(0, 1, 1.5, 1.7, 1.7))) == {"a": 3}


def test_r1_and_r2_make_one_plan() -> None:
    """8 + 8 GPUs wanted of 12: shrunk to 4 + 4 nobody waits, and the other four go where they are worth most."""
    a = old("a", 8, speedup=(0, 1, 1.9, 2.7, 3.4, 4.0, 4.5, 4.9, 5.2))
    b = old("b", 8, speedup=linear(8))
    assert given_to(elastic(0), 12, a, b) == {"a": 5, "b": 7}


def test_a_job_that_is_too_large_for_the_cluster_does_not_keep_gpus_idle() -> None:
    assert given_to(elastic(0), 4, job("giant", 16), job("a", 1, 4, requested=1)) == {"a": 4}


@given(cases())
def test_with_a_queue_that_may_be_long_and_no_idle_gpus_nothing_differs_from_tiresias(case: Case) -> None:
    seen = case.table
    rigid = ask(TIRESIAS, seen, case.gpus).gpus
    shares = ask(elastic(10**6), seen, case.gpus).gpus
    idle = case.gpus - int(rigid.sum())
    waits = any(share == 0 and want <= case.gpus for share, want in zip(rigid, seen.requested_gpus, strict=True))
    assert waits or not idle or (shares >= rigid).all()
    if waits or not idle:
        assert shares.tolist() == rigid.tolist()


# ------------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize("thresholds", [[], [0], [200, 100], [100, 100], [-5, 10]])
def test_thresholds_that_do_not_ascend_are_refused(thresholds: list[float]) -> None:
    with pytest.raises(OperatorError, match="thresholds_gpu_s"):
        policy("tiresias-l", thresholds_gpu_s=thresholds)


def test_one_threshold_makes_two_queues() -> None:
    two = policy("tiresias-l", thresholds_gpu_s=[57_600])
    low = job("low", attained_gpu_s=60_000, executed_s=1, waiting_since_s=-5)
    lower = job("lower", attained_gpu_s=600_000, executed_s=1, waiting_since_s=-10)
    assert given_to(two, 1, low, lower) == {"lower": 1}, "in one queue; it has waited longer"
