"""Deadlines in clusters with several GPU types: what is admitted is kept, and each type's GPUs are promised once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import JobId, ServerId
from elasticd.runtime import config
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.kinds import Demand, GpuSort
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.scheduler.view import ServerInView
from elasticd.simulator import clusters
from elasticd.simulator.assign import Assigned
from elasticd.simulator.costs import NONE, preset
from elasticd.simulator.metrics import Metrics
from elasticd.simulator.replay import own_setups, prepare
from elasticd.simulator.runs import Setup, run
from elasticd.simulator.typed import differs
from elasticd.simulator.workload import Workload
from verification.promises.workloads import drawn, judged

A100, V100 = GpuSort("A100"), GpuSort("V100")
LINEAR = np.arange(5.0)
A, V, EITHER = Demand(types=("A100",)), Demand(types=("V100",)), Demand()


def cluster(*sorts: GpuSort) -> tuple[ServerInView, ...]:
    """A server with 4 GPUs of each of these sorts."""
    return tuple(ServerInView(ServerId(f"server-{at}"), (0, 1, 2, 3), (sort,) * 4) for at, sort in enumerate(sorts))


def workload(*jobs: tuple[float, float, float, Demand], slower: float = 1.0) -> Workload:
    """Jobs as (submission, seconds on one A100, deadline after the submission, demand). `slower`: a V100's speed."""
    n = len(jobs)
    each = np.array([max(demand.per_server, 1) for *_, demand in jobs])
    submit_s = np.array([job[0] for job in jobs])
    return Workload(
        names=tuple(JobId(f"j{number}") for number in range(n)),
        submit_s=submit_s,
        min_gpus=each,
        max_gpus=4 // each * each,
        requested_gpus=each,
        work_s=np.array([job[1] for job in jobs]),
        curve=np.zeros(n, dtype=np.int64),
        curves=Curves(np.array([LINEAR, slower * LINEAR]), on={"V100": np.array([1, 1])}),
        models=("any", "any"),
        deadline_s=submit_s + np.array([job[2] for job in jobs]),
        soft=np.zeros(n, dtype=np.int64),
        demands=[job[3] for job in jobs],
    )


def refused(load: Workload, there: tuple[ServerInView, ...], policy: str = "elasticflow") -> list[bool]:
    """Whom the admission refuses; all others end in time."""
    terms = {"start_s": 0.0, "resize_s": 0.0, "margin_s": 0.0}
    document: dict[str, Any] = {"policy": policy, "admission": {"name": "elasticflow", "parameters": terms}}
    document["parameters"] = terms if policy == "elasticflow" else {}
    scheduler = load_scheduler(document, "test")
    assert load.deadline_s is not None
    setup = Setup(Assigned(load, load.deadline_s), there, NONE, seed=0)
    found = run(own_setups(setup, {"one": scheduler}).get("one", setup), scheduler.policy)
    kept = ~found.refused
    assert (found.end_s[kept] <= load.deadline_s[kept] + 1e-6).all()
    assert np.isnan(found.end_s[found.refused]).all()
    return found.refused.tolist()


TWO = cluster(A100, V100)


@pytest.mark.parametrize("policy", ["elasticflow", "elastic", "max-min"])
def test_gpus_of_one_type_are_promised_once_and_those_of_another_do_not_help(policy: str) -> None:
    assert refused(workload((0, 400, 110, A), (1, 400, 110, A), (2, 400, 110, V)), TWO, policy) == [False, True, False]


def test_a_job_that_names_no_type_is_promised_the_type_that_has_room() -> None:
    assert refused(workload((0, 400, 110, EITHER), (1, 400, 110, EITHER), (2, 400, 110, EITHER)), TWO) == [
        False,
        False,
        True,
    ]


def test_a_promise_counts_with_the_speed_on_the_type_that_has_room() -> None:
    jobs = (0.0, 400.0, 110.0, A), (1.0, 300.0, 110.0, EITHER)
    assert refused(workload(*jobs), TWO) == [False, False]
    assert refused(workload(*jobs, slower=0.5), TWO) == [False, True]


def test_a_waiting_job_moves_to_another_type_if_a_newcomer_can_use_no_other() -> None:
    first = (0.0, 236.0, 60.0, V), (0.0, 396.0, 100.0, A)  # all V100s until 60 s, all A100s until 100 s
    moves = (1.0, 80.0, 130.0, EITHER)
    newcomer = (2.0, 270.0, 129.0, V)
    assert refused(workload(*first, moves, newcomer), TWO) == [False] * 4
    assert refused(workload(*first, (1.0, 80.0, 130.0, V), newcomer), TWO) == [False, False, False, True]


def test_memory_and_gpus_per_server_bind_a_promise_to_the_servers_that_have_them() -> None:
    large = replace(V100, memory_bytes=32 << 30)
    there = cluster(A100, large)
    wide = Demand(memory_bytes=32 << 30)
    assert refused(workload((0, 400, 110, wide), (1, 400, 110, wide)), there) == [False, True]
    each = Demand(types=("A100",), per_server=4)
    assert refused(workload((0, 400, 110, each), (1, 400, 110, each), (102, 400, 110, each)), there) == [
        False,
        True,
        False,
    ]


def test_a_job_that_may_use_only_a_part_of_a_types_gpus_gets_no_hard_promise() -> None:
    there = cluster(replace(A100, memory_bytes=40 << 30), replace(A100, memory_bytes=80 << 30))
    assert refused(workload((0, 40, 110, Demand(memory_bytes=80 << 30)), (0, 40, 110, EITHER)), there) == [True, False]


@settings(max_examples=20)
@given(st.integers(0, 10**6))
@example(878)  # servers for a job with GPUs per server were counted that a soft deadline's job kept
def test_no_admitted_job_is_late_on_any_type(seed: int) -> None:
    case = drawn(seed)
    assert differs(case.load, case.cluster) == (case.load.demands is not None)
    assert judged(seed).late_s == {}


# -- from files


def _simulated(path: Path, servers: str, rows: str) -> Metrics:
    (path / "cluster.yaml").write_text(servers)
    (path / "trace.csv").write_text(f"job_id,submission_time,duration,num_gpu,model_name,deadline,gpu_type\n{rows}")
    (path / "profiles.csv").write_text(
        "model,gpu_type,gpus,samples_per_s\nbert,A100,1,100\nbert,A100,4,400\nbert,V100,1,50\nbert,V100,4,200\n"
    )
    there = clusters.build(config.load(path / "cluster.yaml", clusters.ClusterFile, UserError), "cluster.yaml")
    scheduler = load_scheduler({"policy": "elasticflow"}, "test")
    (prepared,) = prepare(
        path / "trace.csv", there, profiles=path / "profiles.csv", costs=preset("none", ""), stages=scheduler.stages
    )
    return run(prepared.setup, scheduler.policy).metrics


def test_a_file_of_servers_names_their_gpus_and_a_table_has_the_throughput_on_each(tmp_path: Path) -> None:
    servers = "servers: [{gpus: 4, gpu_type: A100}, {gpus: 4, gpu_type: V100}]"
    slow = _simulated(tmp_path, servers, "a,0,100,4,bert,150,V100\n")
    assert (slow.refused, slow.finished) == (1, 0)
    fast = _simulated(tmp_path, servers, "a,0,100,4,bert,150,A100\nb,0,100,4,bert,250,V100\n")
    assert (fast.refused, fast.finished, fast.missed_admitted) == (0, 2, 0)


def test_a_type_without_throughput_is_refused_with_the_name(tmp_path: Path) -> None:
    servers = "servers: [{gpus: 4, gpu_type: A100}, {gpus: 4, gpu_type: T4}]"
    with pytest.raises(UserError, match="bert was not measured on T4"):
        _simulated(tmp_path, servers, "a,0,100,4,bert,150,A100\n")
