"""Reservations by time in simulations: GPUs that are out of use from one time to another."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.protocol.errors import UserError
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.deadlines.admitting import ElasticflowAdmission
from elasticd.scheduler.pipeline import Decision
from elasticd.scheduler.policies import ELASTIC, NAMES, load_policy
from elasticd.scheduler.sets import union
from elasticd.scheduler.view import ClusterView
from elasticd.simulator import simulate
from elasticd.simulator.engine import Simulation
from elasticd.simulator.reserved import Period, Reserved
from elasticd.simulator.workload import Workload, servers

LINEAR = Curves(np.array([[float(gpus) for gpus in range(9)]]))


def workload(*jobs: tuple[float, int, int, float]) -> Workload:
    """Jobs of (submission, fewest GPUs, most GPUs, work in GPU-seconds)."""
    submit_s, least, most, work_s = zip(*jobs, strict=True)
    return Workload(
        names=[f"j{number}" for number in range(len(jobs))],
        submit_s=np.array(submit_s, dtype=float),
        min_gpus=np.array(least),
        max_gpus=np.array(most),
        requested_gpus=np.array(most),
        work_s=np.array(work_s, dtype=float),
        curve=np.zeros(len(jobs), dtype=np.int64),
        curves=LINEAR,
        models=("",),
        told_s=np.array(work_s, dtype=float),
        priority=np.zeros(len(jobs), dtype=np.int64),
        deadline_s=np.full(len(jobs), np.nan),
        soft=np.zeros(len(jobs), dtype=np.int64),
    )


def ends_s(load: Workload, *periods: Period, policy: str = "max-min", gpus: int = 4) -> list[float]:
    made = load_policy({"policy": policy}, policy)
    return Simulation(load, servers(1, gpus), made, reserved=periods).run().end_s.tolist()


def test_an_elastic_job_shrinks_for_a_reservation_and_grows_behind_it() -> None:
    assert ends_s(workload((0.0, 1, 4, 800.0)), Period(100.0, 200.0, 2)) == pytest.approx([250.0])


def test_a_job_that_cannot_shrink_so_far_stops_and_goes_on_with_its_state() -> None:
    assert ends_s(workload((0.0, 3, 4, 800.0)), Period(100.0, 200.0, 2)) == pytest.approx([300.0])


def test_a_job_waits_for_the_end_of_a_reservation_though_no_other_job_runs() -> None:
    assert ends_s(workload((10.0, 4, 4, 400.0)), Period(0.0, 200.0, 1)) == pytest.approx([300.0])


def test_a_period_that_is_over_changes_nothing() -> None:
    assert ends_s(workload((300.0, 4, 4, 400.0)), Period(0.0, 200.0, 4)) == pytest.approx([400.0])


def test_idle_gpus_are_taken_first_on_as_few_servers_as_possible_and_those_of_fixed_jobs_never() -> None:
    reserved = Reserved([Period(10.0, 20.0, 4)], servers(3, 2))
    assert not reserved.advance(0.0, 0, 0, 0)
    assert reserved.next_s(0.0) == 10.0
    assert reserved.advance(10.0, held=0b000011, kept=0b000001, down=0b100000)
    assert reserved.gpus == 0b011110, "one of the three is held, by a job that gives it back"
    assert reserved.busy(10.0) == ()
    assert not reserved.advance(15.0, held=0, kept=0, down=0), "GPUs once taken stay"
    assert reserved.advance(20.0, held=0, kept=0, down=0)
    assert reserved.gpus == 0


def test_gpus_that_are_missing_are_taken_when_they_come_free() -> None:
    reserved = Reserved([Period(0.0, 20.0, 2, taken=0b1)], servers(1, 2))
    assert reserved.gpus == 0b1
    assert not reserved.advance(5.0, held=0b10, kept=0b10, down=0)
    assert reserved.busy(5.0) == ((5.0, 20.0, 1),)
    assert reserved.advance(7.0, held=0, kept=0, down=0)
    assert reserved.gpus == 0b11


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(sorted(NAMES)))
def test_no_job_has_a_reserved_gpu_and_all_jobs_end(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    jobs = []
    for _ in range(rng.randint(1, 12)):
        most = rng.randint(1, 8)
        least = rng.randint(1, most) if policy in ELASTIC else most
        jobs.append((rng.uniform(0, 300), least, most, rng.uniform(10, 900)))
    jobs.sort()
    periods = [
        Period(at := rng.uniform(0, 400), at + rng.uniform(1, 300), rng.randint(1, 8)) for _ in range(rng.randint(1, 4))
    ]

    def watch(view: ClusterView, decision: Decision) -> None:
        away = simulation._typed.reserved  # type: ignore[union-attr]
        assert not union(decision.placements.values()) & away
        due = [one for one in periods if one.from_s <= view.now < one.to_s]
        assert away.bit_count() == min(8, sum(one.count for one in due))

    made = load_policy({"policy": policy}, policy)
    simulation = Simulation(workload(*jobs), servers(2, 4), made, reserved=periods, watch=watch)
    assert not np.isnan(simulation.run().end_s).any()


TRACE = {"job": ["a"], "submit_s": [50.0], "duration_s": [100.0], "gpus": [4]}
COURSE = {"name": "course", "gpus": 2, "from": "2026-11-30T18:00:30+01:00", "to": "2026-11-30T18:01:30+01:00"}


def test_a_trace_that_begins_at_a_date_is_simulated_with_the_reservations_of_a_policy_file() -> None:
    document = {"policy": "max-min", "reservations": [COURSE]}
    shapes = {"servers": 1, "gpus_per_server": 4}
    found = simulate(TRACE, {"course": document, "free": "max-min"}, begin="2026-11-30T17:00Z", **shapes)
    assert found["free"].metrics.avg_jct_s == pytest.approx(100.0)
    assert found["course"].metrics.avg_jct_s == pytest.approx(130.0), "60 s with half of the GPUs"
    assert found.remarks == ()
    without = simulate(TRACE, {"course": document}, **shapes)
    assert without["course"].metrics.avg_jct_s == pytest.approx(100.0)
    assert "its reservations by time are not simulated: --begin TIME says" in without.remarks[0]
    with pytest.raises(UserError, match="begin: does not say its time zone"):
        simulate(TRACE, "fifo", begin="2026-11-30T17:00", **shapes)
    with pytest.raises(UserError, match="curves: measured: not with failures, reservations"):
        simulate(TRACE, {"course": document}, begin="2026-11-30T17:00Z", curves="measured", **shapes)


def test_an_admission_by_deadlines_reckons_with_reservations() -> None:
    load = workload((0.0, 1, 4, 400.0))
    load = Workload(**{**vars(load), "deadline_s": np.array([150.0])})
    made = load_policy({"policy": "elasticflow"}, "test")
    admission = ElasticflowAdmission(made.parameters)  # type: ignore[attr-defined]
    for periods, refused in (((), False), ((Period(20.0, 200.0, 3),), True), ((Period(120.0, 200.0, 3),), False)):
        outcome = Simulation(load, servers(1, 4), made, admission=admission, reserved=periods).run()
        assert outcome.refused.tolist() == [refused]
        assert refused or outcome.end_s[0] <= 150.0
