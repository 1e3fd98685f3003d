"""Cores and memory of workers in simulations: no server has more workers than it has cores and memory for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticd.protocol.errors import UserError
from elasticd.scheduler.pipeline import Decision
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.quotas.dividing import Tenancy
from elasticd.scheduler.quotas.terms import Quota, Quotas
from elasticd.scheduler.view import ClusterView
from elasticd.simulator import simulate, traces
from elasticd.simulator.assign import assign
from elasticd.simulator.clusters import ClusterFile, Servers, build
from elasticd.simulator.engine import Simulation
from elasticd.simulator.owners import By

HEADER = "job,submit_s,duration_s,gpus,user,cpus,memory_gib\n"
CLUSTER = {"servers": [{"gpus": 4, "count": 2, "cpus": 8, "memory_gib": 64}]}


def trace_of(seed: int, jobs: int) -> str:
    rng = random.Random(seed)
    rows = (
        f"j{at},{10 * at},{rng.uniform(20, 200):.3f},{rng.choice([1, 2, 4, 8])},{rng.choice(['ann', 'bob'])},"
        f"{rng.choice(['', 1, 2, 3, 4])},{rng.choice(['', 8, 24])}\n"
        for at in range(jobs)
    )
    return HEADER + "".join(rows)


def run(text: str, tmp_path: Path, **options: Any) -> Any:
    (tmp_path / "trace.csv").write_text(text)
    return simulate(tmp_path / "trace.csv", **{"cluster": CLUSTER, **options})


@pytest.mark.parametrize("quotas", [None, Quotas(users={"ann": Quota(gpus=5)})])
@pytest.mark.parametrize("policy", ["elastic", "max-min", "fifo"])
def test_no_server_has_more_workers_than_its_cores_and_memory_allow(
    tmp_path: Path, policy: str, quotas: Quotas | None
) -> None:
    if policy == "fifo" and quotas is not None:
        quotas = Quotas(users={"ann": Quota(jobs=100)})
    (tmp_path / "trace.csv").write_text(trace_of(4, 40))
    load = assign(traces.load(tmp_path / "trace.csv"), 8, None, 0, peaks_known=True).workload
    assert load.demands is not None
    demands = load.demands
    cluster = build(ClusterFile([Servers(gpus=4, count=2, cpus=8, memory_gib=64)]), "test")
    full = 0

    def watch(view: ClusterView, decision: Decision) -> None:
        nonlocal full
        for mask in (0b1111, 0b11110000):
            here = {row: (gpus & mask).bit_count() for row, gpus in decision.placements.items()}
            each = {row: demands[int(view.jobs.rows[row])].need.each for row in here}
            cores = sum(each[row].millicores * count for row, count in here.items())
            assert cores <= 8000
            assert sum(each[row].memory_bytes * count for row, count in here.items()) <= 64 << 30
            full += cores == 8000 and sum(here.values()) < 4

    tenancy = None if quotas is None else Tenancy(quotas, load.owners[By.USER])
    outcome = Simulation(load, cluster, load_policy({"policy": policy}, "test"), watch=watch, tenancy=tenancy).run()
    assert policy == "fifo" or not np.isnan(outcome.end_s).any()
    assert full, "cores were never the limit"


def test_jobs_wait_for_cores_though_gpus_are_idle(tmp_path: Path) -> None:
    rows = HEADER + "a,0,100,1,ann,8,\nb,0,100,1,ann,8,\nc,0,100,1,ann,8,\nd,0,100,1,ann,,\n"
    jobs = run(rows, tmp_path)["max-min"].jobs()
    assert jobs["started_s"] == [0, 0, 100, 0]
    story = run(rows, tmp_path, explain="c")["max-min"].explain()
    assert "waits for cores: each worker asks for 8 cores" in story["why"][0]
    uncounted = {"servers": [{"gpus": 4, "count": 2, "memory_gib": 64}]}
    assert run(rows, tmp_path, cluster=uncounted)["max-min"].jobs()["started_s"] == [0, 0, 0, 0]


def test_what_servers_do_not_state_is_not_counted_and_remarked(tmp_path: Path) -> None:
    text = trace_of(5, 20)
    plain = "\n".join(line.rsplit(",", 2)[0] for line in text.splitlines()) + "\n"
    found = run(text, tmp_path, cluster=None, servers=2)
    (remark,) = found.remarks
    assert "ask for cores or memory, which the simulated servers do not state" in remark
    assert found["max-min"].jobs() == run(plain, tmp_path, cluster=None, servers=2)["max-min"].jobs()


def test_a_job_that_no_server_could_run_is_remarked_and_dropped(tmp_path: Path) -> None:
    found = run(HEADER + "a,0,100,1,ann,9,\nb,0,100,1,ann,1,\n", tmp_path)
    assert found.remarks == (
        "1 job can never start; a: each of its workers asks for 9 cores, and the largest server, server-0, has "
        "8 cores and 64 GiB of memory",
    )
    assert found["max-min"].jobs()["ended_s"] == [None, 100]


@pytest.mark.parametrize(
    ("values", "said"), [("many,", "column cpus: 'many' is not a number"), (",-1", "column memory_gib: -1 is below 0")]
)
def test_invalid_cores_and_memory_are_named_by_line_and_column(tmp_path: Path, values: str, said: str) -> None:
    with pytest.raises(UserError, match=f"line 3, {said}"):
        run(HEADER + f"a,0,9,1,ann,,\nb,0,9,1,ann,{values}\n", tmp_path)
