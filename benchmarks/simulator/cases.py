"""Measured cases, each in its own process. `python -m benchmarks.simulator.cases '{...}'` measures one and prints JSON.

A case is a simulation of a trace or of generated jobs, or a series of decisions: `crowd` jobs are present all the time, and
whenever one of them ends the next one arrives, so that each decision concerns so many. Their times are processor times, since
other load on the machine easily prolongs a single one.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from elasticd.protocol.model import GpuPlace
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.kinds import Demand, GpuSort
from elasticd.scheduler.nearness import tree
from elasticd.scheduler.pipeline import decide
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.profiles import curves as profiles
from elasticd.scheduler.view import ClusterView, Columns, JobTable, Limit, ServerInView, gpus_by_sort, limit_for
from elasticd.simulator import assign, traces
from elasticd.simulator.engine import Simulation
from elasticd.simulator.telling import Telling
from elasticd.simulator.workload import Workload, servers

from .workloads import generate

CURVES = "afs_models_gtx1080.csv"
TRACE = "philly_jobs.csv.gz"
ROUND_S = 1.0  # between two decisions of a crowd


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one process: either `vc`, a virtual cluster of the trace, or a number of generated `jobs`."""

    data: str
    policy: str
    servers: int = 16
    gpus_per_server: int = 4
    packing: bool = False
    vc: str | None = None
    jobs: int = 0
    load: float = 0.0
    crowd: int = 0  # jobs present at every decision; 0: a simulation
    mixed: bool = False  # three types of servers in racks, with switches and sockets; a third of the jobs request some
    told: float = 1.0  # fraction of the jobs that state their length
    seed: int = 0

    @property
    def gpus(self) -> int:
        return self.servers * self.gpus_per_server


def main() -> int:
    case = msgspec.json.decode(sys.argv[1], type=Case)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    load = _workload(case)
    gc.freeze()  # as the controller does
    began = time.perf_counter(), time.process_time()
    found = _decisions(case, load) if case.crowd else _simulation(case, load)
    found["wall_s"] = time.perf_counter() - began[0]
    found["cpu_s"] = time.process_time() - began[1]
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    decisions = np.array(found.pop("decision_s"))
    found |= {"decisions": len(decisions), "jobs": len(load)}
    found |= {f"p{part}_decision_ms": float(np.percentile(decisions, part)) * 1e3 for part in (50, 99)}
    print(json.dumps(found))
    return 0


def _workload(case: Case) -> Workload:
    data = Path(case.data)
    curves = profiles.load(data / CURVES)
    if case.vc is not None:
        trace = traces.load(data / TRACE, {"vc": [case.vc]})
        return assign.assign(trace, case.gpus, curves, case.seed).workload
    return generate(case.jobs, case.gpus, case.load, case.seed, curves.pool())


def _simulation(case: Case, load: Workload) -> dict[str, Any]:
    policy = load_policy({"policy": case.policy}, "benchmark")
    cluster = servers(case.servers, case.gpus_per_server)
    outcome = Simulation(load, cluster, policy, seed=case.seed, packing=case.packing).run()
    jct_s = outcome.end_s - load.submit_s
    return {"decision_s": outcome.decision_s, "events": outcome.events, "avg_jct_s": float(np.nanmean(jct_s))}


def _decisions(case: Case, load: Workload) -> dict[str, Any]:
    """Decide every `ROUND_S`: the first job that is over leaves, or the one that has run longest, and another one arrives."""
    policy = load_policy({"policy": case.policy}, "benchmark")
    cluster = servers(case.servers, case.gpus_per_server)
    curves = load.curves
    columns = _columns(load, case.gpus, case.told)
    rng = random.Random(case.seed)
    types = _Types(cluster) if case.mixed else None
    cluster = types.cluster if types is not None else cluster
    active = np.arange(case.crowd)
    placed: dict[int, int] = {}  # by job
    times = []
    now = 0.0
    for newest in range(case.crowd, len(load)):
        present = {row: placed[job] for row, job in enumerate(active.tolist()) if job in placed}
        limits, limit_of = types.limits(active) if types is not None else ((), None)
        view = ClusterView(now, JobTable(columns, active, curves), cluster, present, {}, limits, limit_of)
        began = time.process_time()
        decision = decide(view, policy, rng, case.packing)
        times.append(time.process_time() - began)
        _apply(columns, active, decision.shares, now)
        placed = {int(active[row]): gpus for row, gpus in decision.placements.items()}
        if types is not None:
            types.begin(placed)
        now += ROUND_S
        _work(columns, active, curves)
        leaves = int(np.argmax(columns.executed_s[active] - np.minimum(columns.left_s[active], 1.0) * 1e9))
        placed.pop(int(active[leaves]), None)
        columns.submitted_s[newest] = columns.waiting_since_s[newest] = now
        active = np.append(np.delete(active, leaves), newest)
    return {"decision_s": times[len(times) // 10 :]}  # without those that fill the empty cluster


class _Types:
    """Three types of GPUs, and the jobs that may use each: a job that has begun on one stays there."""

    SORTS = (GpuSort("A100", 40 << 30), GpuSort("V100", 16 << 30), GpuSort("T4", 15 << 30))
    ASKED = (
        *[Demand()] * 5,
        Demand(types=("A100",)),
        Demand(types=("V100", "T4")),
        Demand(memory_bytes=16 << 30),
        Demand(mixes=True),
        Demand(mixes=True),
    )  # by the last digit of a job's number

    def __init__(self, cluster: Sequence[ServerInView]) -> None:
        self.cluster = tuple(self._server(number, server) for number, server in enumerate(cluster))
        self._sorts = gpus_by_sort(self.cluster)
        self._name = [self.SORTS[number % 3].name for number, server in enumerate(cluster) for _ in server.gpus]
        self._demands = list(dict.fromkeys(self.ASKED))
        self._demands += [replace(one, began_on=sort.name) for one in self._demands for sort in self.SORTS]
        self._limits = tuple(limit_for(demand, self._sorts) for demand in self._demands)
        self._began: dict[int, str] = {}

    def _server(self, number: int, server: ServerInView) -> ServerInView:
        places = [GpuPlace(socket=gpu // 4, switch=gpu // 2) for gpu in server.gpus]
        sorts = (self.SORTS[number % 3],) * len(server.gpus)
        return ServerInView(
            server.server, server.gpus, sorts, near=tree(server.gpus, places), rack=f"rack-{number // 16}"
        )

    def limits(self, active: Any) -> tuple[tuple[Limit, ...], Any]:
        found = [self.ASKED[job % 10] for job in active.tolist()]
        asked = [
            one if one.mixes else replace(one, began_on=self._began.get(job, ""))
            for one, job in zip(found, active.tolist(), strict=True)
        ]
        return self._limits, np.array([self._demands.index(one) for one in asked])

    def begin(self, placed: Mapping[int, int]) -> None:
        for job, gpus in placed.items():
            self._began.setdefault(job, self._name[(gpus & -gpus).bit_length() - 1])


def _columns(load: Workload, gpus: int, told: float) -> Columns:
    count = len(load)
    told_s = Telling(told).told_s(load.work_s, 0)
    return Columns(
        names=load.names,
        submitted_s=np.zeros(count),
        min_gpus=load.min_gpus,
        max_gpus=np.minimum(load.max_gpus, gpus),
        requested_gpus=load.requested_gpus,
        priority=np.zeros(count, dtype=np.int64),
        share=np.zeros(count, dtype=np.int64),
        left_s=load.work_s.copy(),
        told_s=load.work_s if told_s is None else told_s,
        done_s=np.zeros(count),
        attained_gpu_s=np.zeros(count),
        executed_s=np.zeros(count),
        waiting_since_s=np.zeros(count),
        curve=load.curve,
        deadline_s=np.full(count, np.nan),
        soft=np.zeros(count, dtype=np.int64),
        still_until_s=np.zeros(count),
        changes=np.zeros(count, dtype=np.int64),
    )


def _apply(columns: Columns, active: Any, shares: Any, now: float) -> None:
    had, has = columns.share[active] > 0, shares > 0
    columns.waiting_since_s[active[has]] = np.nan
    columns.waiting_since_s[active[had & ~has]] = now
    columns.share[active] = shares


def _work(columns: Columns, active: Any, curves: Curves) -> None:
    runs = active[columns.share[active] > 0]
    rate = curves.speedup[columns.curve[runs], np.minimum(columns.share[runs], curves.most)]
    columns.left_s[runs] = np.maximum(columns.left_s[runs] - rate * ROUND_S, 0.1)
    columns.done_s[runs] += rate * ROUND_S
    columns.executed_s[runs] += ROUND_S
    columns.attained_gpu_s[runs] += columns.share[runs] * ROUND_S


if __name__ == "__main__":
    sys.exit(main())
