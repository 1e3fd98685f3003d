"""How much sooner jobs are over under `elastic` than under AFS, on Philly's virtual clusters (docs/design/elastic.md).

    python -m benchmarks.policies [--data ../shared/data] [--cluster e13805]... [--costs none] [--packing] [--others]
        [--load 1.0] [--json FILE]

Each cluster has 16 servers of 4 GPUs, as in AFS 5.1; jobs, models and throughputs are those of the data. A row appears when its
cluster is done, the smallest first; the largest one takes most of the time. `--load 0.5` takes every second job, by chance.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from elasticd.protocol.errors import ElasticError
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.profiles import curves as profiles
from elasticd.simulator import traces
from elasticd.simulator.assign import Assigned, assign
from elasticd.simulator.costs import PRESETS, Costs
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

GPUS = 64
CLUSTERS = ("e13805", "ed69ec", "0e4a51", "103959", "6c71a0", "6214e9")
COMPARED: dict[str, dict[str, Any]] = {
    "afs-l": {"policy": "afs-l"},
    "elastic, given": {"policy": "elastic", "parameters": {"lengths": "given"}},
    "afs-p": {"policy": "afs-p"},
    "elastic, unknown": {"policy": "elastic", "parameters": {"lengths": "unknown"}},
}
OTHERS = ("srtf-e", "srsf-e", "optimus", "max-min", "themis", "elastic-tiresias")


def load(data: Path, cluster: str, part: float) -> Assigned:
    """The jobs of one virtual cluster; `part` of them, drawn with a fixed seed."""
    trace = traces.load(data / "philly_jobs.csv.gz", {"vc": [cluster]})
    whole = assign(trace, GPUS, profiles.load(data / "afs_models_gtx1080.csv"), 0)
    if part == 1.0:
        return whole
    load, rows = whole.workload, np.flatnonzero(np.random.default_rng(0).random(len(trace)) < part)
    some = Workload(
        names=tuple(load.names[row] for row in rows.tolist()),
        submit_s=load.submit_s[rows],
        min_gpus=load.min_gpus[rows],
        max_gpus=load.max_gpus[rows],
        requested_gpus=load.requested_gpus[rows],
        work_s=load.work_s[rows],
        curve=load.curve[rows],
        curves=load.curves,
        models=load.models,
    )
    return Assigned(some, whole.deadline_s[rows])


def simulate(jobs: Assigned, policy: dict[str, Any], costs: Costs, packing: bool) -> dict[str, float]:
    """Average and 99th percentile of JCT (s), and what changing shares took."""
    simulation = Simulation(
        jobs.workload, servers(16, 4), load_policy(policy, policy["policy"]), costs, packing=packing
    )
    done = simulation.run()
    jct_s = done.end_s - jobs.workload.submit_s
    return {
        "avg_jct_s": float(jct_s.mean()),
        "p99_jct_s": float(np.percentile(jct_s, 99)),
        "resizes": done.resizes,
        "preemptions": done.preemptions,
        "p99_decision_s": float(np.percentile(done.decision_s, 99)),
        "wall_s": done.wall_s,
    }


def less(found: dict[str, float], than: dict[str, float]) -> float:
    return 1.0 - found["avg_jct_s"] / than["avg_jct_s"]


def row(cluster: str, jobs: int, found: dict[str, dict[str, float]]) -> str:
    """A line of the table: average / 99th percentile in 1000 s."""
    cells = [f"{found[label]['avg_jct_s'] / 1e3:.1f} / {found[label]['p99_jct_s'] / 1e3:.0f}" for label in COMPARED]
    gains = [less(found["elastic, given"], found["afs-l"]), less(found["elastic, unknown"], found["afs-p"])]
    others = [label for label in found if label not in COMPARED]
    best = min(others, key=lambda label: found[label]["avg_jct_s"], default="")
    last = f" {found[best]['avg_jct_s'] / 1e3:.1f} ({best}) |" if best else ""
    return f"| {cluster} | {jobs} | {cells[0]} | {cells[1]} | {gains[0]:.1%} | {cells[2]} | {cells[3]} | {gains[1]:.1%} |{last}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--cluster", action="append", choices=CLUSTERS, help="may be repeated; default: all")
    parser.add_argument("--costs", choices=PRESETS, default="none")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--others", action="store_true", help=f"also {', '.join(OTHERS)}")
    parser.add_argument("--load", type=float, default=1.0, help="part of the jobs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    policies = COMPARED | ({name: {"policy": name} for name in OTHERS} if options.others else {})
    found: dict[str, dict[str, dict[str, float]]] = {}
    last = " best other |" if options.others else ""
    print("Average / 99th percentile of JCT, 1000 s.\n")
    print(f"| cluster | jobs | AFS-L | elastic, given | less | AFS-P | elastic, unknown | less |{last}")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |" + (" --- |" if last else ""))
    for cluster in options.cluster or CLUSTERS:
        try:
            jobs = load(options.data, cluster, options.load)
        except ElasticError as error:
            sys.exit(str(error))
        found[cluster] = {
            label: simulate(jobs, policy, PRESETS[options.costs], options.packing) for label, policy in policies.items()
        }
        print(row(cluster, len(jobs.workload), found[cluster]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n")
    given = mean(less(each["elastic, given"], each["afs-l"]) for each in found.values())
    unknown = mean(less(each["elastic, unknown"], each["afs-p"]) for each in found.values())
    print(f"\nOn the mean {given:.1%} less than AFS-L with lengths, {unknown:.1%} less than AFS-P without.")


if __name__ == "__main__":
    main()
