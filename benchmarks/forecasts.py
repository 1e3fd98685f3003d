"""Coverage of forecasts: how often a waiting job starts within the interval that `elasticctl explain` would show.

    python -m benchmarks.forecasts [--data ../shared/data] [--cluster e13805]... [--policy fifo]... [--gpus 48]
        [--told 0.5]... [--samples 100] [--json FILE]

A simulation of a published trace stands for the real cluster. At times spread evenly over its decisions one of the jobs
that wait is drawn, the forecast is made from what a controller would know then, and it is compared with when the job
really starts. The forecasts see neither later arrivals nor lengths that jobs have not told. 80 % is wanted: intervals
that always hold the truth are too wide to be of use. `width`: the median of an interval's length over the real wait.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from elasticd.controller.requests.outlook import facts
from elasticd.protocol.messages import Outlook
from elasticd.scheduler.pipeline import Decision
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.view import ClusterView
from elasticd.simulator.costs import BACKGROUND
from elasticd.simulator.engine import Simulation
from elasticd.simulator.forecast import starts
from elasticd.simulator.telling import Telling
from elasticd.simulator.workload import Workload, servers

from .policies import MODELS, TRACE, Load, read

LATELY_S = 24 * 3600.0
POLICIES = ("fifo", "backfill", "elastic-fifo", "srtf", "tiresias-l")
CLUSTERS = ("e13805", "ed69ec", "0e4a51")
PER_SERVER = 4


@dataclass
class Watch:
    """Draws waiting jobs at some decisions, and makes their forecasts."""

    policy: str
    workload: Workload
    every: int  # decisions
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    decisions: int = 0
    cpu_s: list[float] = field(default_factory=list)
    found: list[tuple[int, float, float, float]] = field(default_factory=list)  # job, now, and the interval from now

    def __call__(self, view: ClusterView, decision: Decision) -> None:
        self.decisions += 1
        if self.decisions % self.every:
            return
        waiting = [
            row for row in np.flatnonzero(decision.shares == 0).tolist() if not view.jobs.executed_s[row]
        ]  # never started
        if not waiting:
            return
        row = self.rng.choice(waiting)
        began_s = time.process_time()
        told = starts(outlook(view, decision, self.workload, self.policy), view.jobs.name(row)).interval_s
        self.cpu_s.append(time.process_time() - began_s)
        self.found.append((int(view.jobs.rows[row]), view.now, *told))


def outlook(view: ClusterView, decision: Decision, workload: Workload, policy: str) -> Outlook:
    """Return what a controller with this view would answer after this decision."""
    jobs, now = view.jobs, view.now
    lately = [
        (int(workload.min_gpus[row]), int(workload.requested_gpus[row]))
        for row in np.flatnonzero((workload.submit_s > now - LATELY_S) & (workload.submit_s <= now)).tolist()
    ]
    found = [
        facts(jobs.name(row), jobs, row, int(jobs.curve[row]), int(decision.shares[row])) for row in range(len(jobs))
    ]
    return Outlook(
        time_s=now,
        policy={"policy": policy},
        servers=tuple((server.server, len(server.gpus)) for server in view.servers),
        jobs=tuple(found),
        speedups=tuple(tuple(row[: view.total_gpus + 1]) for row in jobs.curves.speedup.tolist()),
        lengths=tuple(map(tuple, jobs.ended.lengths.tolist())),
        arrivals=tuple(lately[-500:]),
        arrivals_s=min(LATELY_S, now),
    )


def run(workload: Workload, policy: str, gpus: int, told: float, samples: int) -> dict[str, float]:
    """Return the coverage of forecasts under one policy. told: part of the jobs that tell their length, truly."""
    load = Workload(**{**vars(workload), "told_s": Telling(told).told_s(workload.work_s, 0)})
    watch = Watch(policy, load, every=max(1, 2 * len(load) // samples))
    made = load_policy({"policy": policy}, policy)
    cluster = servers(gpus // PER_SERVER, PER_SERVER)
    outcome = Simulation(load, cluster, made, BACKGROUND, watch=watch).run()
    inside = below = 0
    widths = []
    for job, now, low_s, high_s in watch.found:
        really_s = float(outcome.start_s[job]) - now
        inside += low_s - 1.0 <= really_s <= high_s + 1.0
        below += really_s < low_s - 1.0
        widths.append((high_s - low_s) / max(really_s, 60.0) if math.isfinite(high_s) else math.inf)
    count = len(watch.found)
    return {
        "samples": count,
        "inside": inside / count if count else math.nan,
        "earlier": below / count if count else math.nan,
        "width": median(widths) if widths else math.nan,
        "cpu_s": median(watch.cpu_s) if watch.cpu_s else math.nan,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecasts", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cluster", action="append")
    parser.add_argument("--policy", action="append")
    parser.add_argument("--told", action="append", type=float)
    parser.add_argument("--gpus", type=int, default=48)
    parser.add_argument("--samples", type=int, default=100, help="forecasts for each row, at most about so many")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rows = []
    print("| cluster | policy | told | forecasts | inside | earlier | width | processor |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for cluster in chosen.cluster or CLUSTERS:
        workload = read(chosen.data / TRACE, chosen.data / MODELS, cluster, Load(gpus=chosen.gpus)).workload
        for policy in chosen.policy or POLICIES:
            for told in chosen.told or (0.0, 0.5):
                row = run(workload, policy, chosen.gpus, told, chosen.samples)
                rows.append({"cluster": cluster, "policy": policy, "told": told, **row})
                part = f"{row['inside']:.0%} | {row['earlier']:.0%} | {row['width']:.1f} | {row['cpu_s']:.1f} s"
                print(f"| {cluster} | {policy} | {told:.0%} | {row['samples']} | {part} |", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
