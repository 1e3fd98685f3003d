"""Simulations in which policies must learn how jobs scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.measuring import OFF, Measuring
from elasticd.scheduler.pipeline import Decision
from elasticd.scheduler.policies import POLICIES, load_policy
from elasticd.scheduler.view import ClusterView
from elasticd.simulator.costs import NONE, STOP_RESUME, Costs
from elasticd.simulator.engine import Simulation
from elasticd.simulator.outcome import Outcome
from elasticd.simulator.workload import Workload, servers

LINEAR = tuple(float(n) for n in range(9))
HALVES = Measuring()
FLAT_FROM_2 = (0.0, 1.0, *(2.0 for _ in range(7)))


def workload(*jobs: tuple[float, float, tuple[float, ...]], most: int = 8) -> Workload:
    """Jobs as (submission, work on one GPU (s), speedup)."""
    n = len(jobs)
    return Workload(
        names=[JobId(f"j{row}") for row in range(n)],
        submit_s=np.array([job[0] for job in jobs]),
        min_gpus=np.ones(n, dtype=np.int64),
        max_gpus=np.full(n, most, dtype=np.int64),
        requested_gpus=np.full(n, most, dtype=np.int64),
        work_s=np.array([job[1] for job in jobs]),
        curve=np.arange(n),
        curves=Curves(np.array([job[2] for job in jobs])),
        models=tuple(f"m{row}" for row in range(n)),
    )


def run(
    load: Workload, policy: str = "max-min", costs: Costs = NONE, measuring: Measuring = HALVES, gpus: int = 8
) -> Outcome:
    chosen = load_policy({"policy": policy}, "test")
    return Simulation(load, servers(1, gpus), chosen, costs, measuring=measuring).run()


def used(outcome: Outcome) -> list[tuple[float, int]]:
    """Number of GPUs in use over time, without repetitions."""
    found: list[tuple[float, int]] = []
    for at, gpus in zip(outcome.timeline.time_s, outcome.timeline.used_gpus, strict=True):
        if not found or found[-1][1] != gpus:
            found.append((round(at, 3), gpus))
    return found


def test_a_job_is_measured_by_halves_while_its_gpus_stay_its_own_and_goes_back_up() -> None:
    outcome = run(workload((0.0, 100_000.0, LINEAR)))
    way_s = 20 / 8 + 20 / 4 + 20 / 2 + 20 / 1
    assert outcome.resizes == 4  # to 4, 2, 1 and back
    assert outcome.end_s[0] == pytest.approx(way_s + (100_000 - 4 * 20) / 8)
    assert used(outcome) == [(0.0, 8), (round(float(outcome.end_s[0]), 3), 0)]


def test_a_job_that_stops_growing_is_found_out() -> None:
    outcome = run(workload((0.0, 10_000.0, FLAT_FROM_2)))
    # Measured with 8 and 4 it is no faster with 8; with 2 not even with 4.
    assert [gpus for _, gpus in used(outcome)][:3] == [8, 4, 2]
    assert outcome.end_s[0] == pytest.approx(10_000 / 2 + 20 - 20 / 2, abs=15.0)


def test_a_new_job_gets_its_fair_share_until_it_is_measured() -> None:
    outcome = run(workload((0.0, 1e6, FLAT_FROM_2), (1000.0, 1e6, LINEAR)))
    after = [gpus for at, gpus in used(outcome) if at >= 1000.0]
    assert after[:2] == [2 + 4, 2 + 6]


@pytest.mark.parametrize("policy", ["afs-l", "afs-p", "elastic", "themis"])
def test_policies_see_what_is_known_now_whether_they_look_at_columns_or_at_rows(policy: str) -> None:
    seen: set[tuple[float, ...]] = set()

    def watch(view: ClusterView, decision: Decision) -> None:
        for curve in view.jobs.curve.tolist():
            assert view.jobs.curves.row(curve) == view.jobs.curves.speedup[curve].tolist()
            seen.add(tuple(view.jobs.curves.row(curve)))

    load = workload((0.0, 10_000.0, FLAT_FROM_2), (10.0, 20_000.0, LINEAR), (300.0, 5_000.0, FLAT_FROM_2))
    chosen = load_policy({"policy": policy}, "test")
    Simulation(load, servers(1, 8), chosen, watch=watch, measuring=HALVES).run()
    assert len(seen) > 2


def test_going_down_and_up_costs_what_every_change_costs() -> None:
    load = workload((0.0, 100_000.0, LINEAR))
    free, dear = run(load), run(load, costs=STOP_RESUME)
    assert dear.end_s[0] - free.end_s[0] == pytest.approx(30.0 * 5)  # the start, three steps down, one up


def test_a_job_that_is_nearly_over_is_left_alone() -> None:
    assert run(workload((0.0, 2000.0, LINEAR))).resizes == 0


def test_nothing_is_measured_on_the_way_down_where_that_is_off_or_the_policy_does_not_ask() -> None:
    load = workload((0.0, 100_000.0, LINEAR))
    assert run(load, measuring=OFF).resizes == 0
    assert run(load, "fifo").resizes == 0


@given(
    st.lists(
        st.tuples(st.floats(0, 500), st.floats(10, 20_000), st.sampled_from([LINEAR, FLAT_FROM_2])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([kind.name for kind in POLICIES]),
    st.sampled_from([NONE, STOP_RESUME, Costs("late", 3.0, 0.3, 0.05)]),
)
@settings(max_examples=60)
def test_every_job_ends_no_sooner_than_it_could_and_runs_are_repeated_to_the_bit(
    jobs: list[tuple[float, float, tuple[float, ...]]], policy: str, costs: Costs
) -> None:
    load = workload(*sorted(jobs))
    outcome, again = run(load, policy, costs), run(load, policy, costs)
    assert outcome.end_s.tolist() == again.end_s.tolist()
    assert not np.isnan(outcome.end_s).any()
    soonest = load.submit_s + load.work_s / load.curves.speedup.max(axis=1)
    assert (outcome.end_s >= soonest - 1e-6).all()
    assert max(outcome.timeline.used_gpus) <= 8
    assert math.isfinite(outcome.timeline.blocking[-1])


def test_known_curves_are_what_they_were() -> None:
    load = workload((0.0, 1000.0, LINEAR), (10.0, 1000.0, FLAT_FROM_2))
    known = Simulation(load, servers(1, 8), load_policy({"policy": "afs-l"}, "test")).run()
    assert known.end_s.tolist() == pytest.approx([10 + 920 / 6, 10 + 500])


def test_what_is_measured_while_new_gpus_are_awaited_counts_for_the_gpus_that_work() -> None:
    slowing = (0.0, 1.0, 1.8, 2.4, 3.0, 3.25, 3.5, 3.75, 4.0)
    seen: list[list[float]] = []

    def watch(view: ClusterView, decision: Decision) -> None:
        if len(view.jobs):
            seen.append(view.jobs.curves.row(int(view.jobs.curve[0])))

    # Each has 4 GPUs until the second one ends at 2 s; the first one's other GPUs are ready at 42 s.
    load = workload((0.0, 10_000.0, slowing), (0.0, 8.0, LINEAR))
    chosen, late = load_policy({"policy": "max-min"}, "test"), Costs("late", 0.0, 40.0, 0.0)
    Simulation(load, servers(1, 8), chosen, late, measuring=OFF, watch=watch).run()
    assert seen[-1][8] / seen[-1][4] == pytest.approx(4.0 / 3.0)
