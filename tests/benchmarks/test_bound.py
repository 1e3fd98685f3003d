"""No policy's average JCT is below the bound; where the optimum is known, the bound is near it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bound import shortest_average_s
from elasticd.protocol.model import JobId
from elasticd.scheduler.arrays import Floats
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.policies import load_policy
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

GPUS = 4


def workload(jobs: list[tuple[float, float, float]]) -> Workload:
    """Each job: seconds after the previous arrival, work (s), exponent p of the speedup k^p."""
    count = len(jobs)
    after, work_s, power = (np.array(column) for column in zip(*jobs, strict=True))
    return Workload(
        names=tuple(JobId(f"j{number}") for number in range(count)),
        submit_s=np.cumsum(after) - after[0],
        min_gpus=np.ones(count, dtype=np.int64),
        max_gpus=np.full(count, GPUS),
        requested_gpus=np.ones(count, dtype=np.int64),
        work_s=work_s,
        curve=np.arange(count),
        curves=Curves(np.arange(GPUS + 1) ** power[:, None]),
        models=("m",) * count,
    )


def ends_s(jobs: Workload, name: str) -> Floats:
    return Simulation(jobs, servers(1, GPUS), load_policy({"policy": name}, name)).run().end_s


some = st.lists(st.tuples(st.floats(0, 400), st.floats(10, 1000), st.floats(0.3, 1)), min_size=1, max_size=8)


@settings(max_examples=20)
@given(jobs=some, name=st.sampled_from(["elastic", "afs-l", "srtf-e", "max-min"]), cell_s=st.sampled_from([0.0, 100.0]))
def test_no_policy_is_below_the_bound(jobs: list[tuple[float, float, float]], name: str, cell_s: float) -> None:
    load = workload(jobs)
    end_s = ends_s(load, name)
    assert shortest_average_s(load, end_s, GPUS, 5, cell_s) <= (end_s - load.submit_s).mean() * (1 + 1e-9)


@given(work_s=st.floats(10, 1000), power=st.floats(0.3, 1))
def test_a_job_that_is_alone_takes_all_gpus(work_s: float, power: float) -> None:
    load = workload([(0.0, work_s, power)])
    assert shortest_average_s(load, ends_s(load, "max-min"), GPUS, 3) == pytest.approx(work_s / GPUS**power)


def test_where_the_shortest_first_is_best_the_bound_is_near_it() -> None:
    load = workload([(0.0, 100.0 * number, 1.0) for number in range(1, 15)])
    end_s = np.cumsum(load.work_s) / GPUS
    assert 0.88 * end_s.mean() <= shortest_average_s(load, end_s, GPUS, 40) <= end_s.mean()
