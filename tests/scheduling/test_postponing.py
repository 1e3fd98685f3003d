"""Postponement of promised jobs in favour of others, and its duration."""

from __future__ import annotations

import random

import numpy as np
import pytest

from elasticd.scheduler.curves import Curves
from elasticd.scheduler.deadline_guard import Needs, raised
from elasticd.scheduler.deadlines.allocation import soft_too
from elasticd.scheduler.deadlines.decision import Commitments
from elasticd.scheduler.deadlines.postponing import CUSHION, LEAST_S, MOST_S, postponed
from elasticd.scheduler.deadlines.promises import Promise, settle
from elasticd.scheduler.decision import Stage
from elasticd.scheduler.levels import levels_of
from elasticd.scheduler.policies.base import Shares
from elasticd.scheduler.reasons import Reasons
from elasticd.scheduler.sharing import Sharing
from elasticd.scheduler.view import ClusterView, JobTable, Reason, ReasonCode

from .tables import job, servers, table

CONCAVE = levels_of(Curves((np.arange(9.0) ** 0.5)[None, :]), 0, 1, 8, powers=False)


def promise(key: int, left_s: float, deadline_s: float, **rest) -> Promise:
    return Promise(key=key, left_s=left_s, deadline_s=deadline_s, levels=CONCAVE, **rest)


def waits(jobs: list[Promise], gpus: int, useful: int = 8, busy=()):
    """Each job's present share, and until when it holds."""
    asked = Commitments(0.0, gpus, [one for one in jobs if not one.soft], busy)
    plan = settle(asked.promised, asked.timeline())
    soft_too(plan, [one for one in jobs if one.soft])
    found = postponed(asked, plan, {one.key: one for one in jobs}, useful)
    return None if found is None else ({key: one.gpus for key, one in found[0].found.items()}, found[1])


def test_a_job_with_time_waits_for_an_eighth_of_it() -> None:
    assert waits([promise(1, 100.0, 1000.0)], 1) == ({1: 0}, pytest.approx((0.9 * 1000 - 100) / 8))
    assert waits([promise(1, 100.0, 1e6)], 1) == ({1: 0}, MOST_S)


def test_a_job_waits_no_longer_than_it_can() -> None:
    needs_s = 100.0
    assert waits([promise(1, needs_s, (needs_s + LEAST_S) / (1 - CUSHION) + 0.1)], 1) is not None
    assert waits([promise(1, needs_s, (needs_s + LEAST_S) / (1 - CUSHION) - 0.1)], 1) is None


def test_only_those_wait_that_need_no_more_gpu_time_by_that() -> None:
    """The second one needs two GPUs nearly all the time: with two it is 1.41 times as fast as with one."""
    found = waits([promise(1, 100.0, 1000.0), promise(2, 700.0, 500.0)], 3)
    assert found is not None
    assert found[0] == {1: 0, 2: 2}


def test_nobody_waits_who_would_need_a_higher_share_later() -> None:
    """With a linear curve waiting costs no GPU time, but the job would have no reserve. The second job has time."""
    linear = levels_of(Curves(np.arange(9.0)[None, :]), 0, 1, 8, powers=False)
    jobs = [Promise(1, 950.0, 500.0, linear), Promise(2, 100.0, 1000.0, linear)]
    asked = Commitments(0.0, 8, jobs)
    plan = settle(jobs, asked.timeline())
    found = postponed(asked, plan, {one.key: one for one in jobs}, 8)
    assert found is not None
    assert [found[0].found[key].level for key in (1, 2)] == [plan.found[key].level for key in (1, 2)] == [2, 1]


def test_nobody_waits_where_nobody_gains_by_it() -> None:
    assert waits([promise(1, 100.0, 1000.0)], 4, useful=3) is None
    assert waits([promise(1, 100.0, 1000.0)], 4, useful=4) is not None
    assert waits([], 4) is None


def test_nobody_waits_while_a_promise_breaks() -> None:
    assert waits([promise(1, 100.0, 1000.0), promise(2, 1000.0, 50.0)], 4) is None


def test_a_soft_deadline_that_holds_still_holds() -> None:
    soft = promise(2, 920.0, 1000.0, soft=True)
    assert waits([soft], 1) is None, "it would end 80 s before its deadline, and keeps 100 s in reserve"
    found = waits([promise(1, 100.0, 2000.0), promise(2, 300.0, 1000.0, soft=True)], 2)
    assert found is not None
    assert found[0] == {1: 0, 2: 0}


@pytest.mark.parametrize("change_s", [0.0, 5.0])
def test_who_runs_waits_only_if_that_costs_nothing(change_s: float) -> None:
    """Other jobs hold the GPU at times, so that changes are planned anyway."""
    busy = ((300.0, 320.0, 1), (700.0, 720.0, 1))
    found = waits([promise(1, 350.0, 2000.0, share=1, change_s=change_s)], 1, busy=busy)
    assert (found is None) == bool(change_s)
    assert waits([promise(1, 350.0, 2000.0, lead_s=change_s, change_s=change_s)], 1, busy=busy) is not None


def test_who_is_to_end_at_once_does_not_wait() -> None:
    """Rounding has left a tiny rest of the job."""
    found = waits([promise(1, 1e-12, 1e-11), promise(2, 100.0, 1000.0)], 2)
    assert found is not None
    assert found[0] == {1: 1, 2: 0}


class Alike:
    """A policy of equal shares; the first jobs get the rest."""

    name, needs_lengths = "alike", False

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given = np.zeros(len(jobs), dtype=np.int64)
        for at in range(gpus):
            given[at % len(jobs)] += 1
        return Shares(given, lambda row: Reason(ReasonCode.BEHIND_ANOTHER, f"{row} of {len(jobs)}"))


def shared(jobs: JobTable, least: list[int], stay: frozenset[int] = frozenset()) -> Sharing:
    """The shares of 8 GPUs. `least`: what promises need, by row; -1: the job has none."""
    view = ClusterView(0.0, jobs, servers(8), {})
    homes = {row: (1 << 8) - 1 for row, gpus in enumerate(least) if gpus >= 0}
    needs = Needs({row: gpus for row, gpus in enumerate(least) if gpus > 0}, homes, stay)
    sharing = Sharing(view, Alike(), random.Random(0), needs=needs)
    sharing.share_out()
    sharing.grow_promised(jobs.max_gpus)
    return sharing


def test_the_policy_divides_what_promises_leave_and_then_what_nobody_else_can_use() -> None:
    jobs = table(*[job(name, 1, 8) for name in "abcd"])
    found = shared(jobs, [-1, 3, -1, 0])
    assert found.given.tolist() == [3, 3, 2, 0]
    told = found.told(2)
    assert told is not None
    reason = told[0].why(told[1])
    assert reason is not None
    assert reason.text == "1 of 2"


def test_who_has_no_time_for_a_change_gets_what_it_needs_and_no_more() -> None:
    jobs = table(*[job(name, 1, 8) for name in "ab"])
    assert shared(jobs, [3, 1]).given.tolist() == [4, 4]
    assert shared(jobs, [3, 1], frozenset({0})).given.tolist() == [3, 5]
    assert shared(jobs, [3, -1], frozenset({0})).given.tolist() == [3, 5]


def test_a_minimum_that_is_beyond_what_promises_leave_waits() -> None:
    jobs = table(job("a", 4, 8), job("b", 1, 8), job("c", 1, 8))
    found = shared(jobs, [-1, 6, -1])
    assert found.given.tolist() == [0, 6, 2]
    placed = {1: 0b111111, 2: 0b11000000}
    view = ClusterView(0.0, jobs, servers(8), {})
    reason = Reasons(view, found, None, [(Stage.POLICY, found.given)], placed)(0)
    assert reason is not None
    assert reason.text == "waits for 4 GPUs: 0 of 8 left by jobs that go first"


def test_who_has_too_little_gets_it_from_whom_it_costs_least() -> None:
    jobs = table(*[job(name, 1, 8) for name in "abc"])
    assert raised(jobs, np.array([4, 4, 0]), {2: 3}, 8).tolist() == [2, 3, 3]
    assert raised(jobs, np.array([4, 4, 0]), {0: 4, 2: 3}, 8).tolist() == [4, 1, 3]
