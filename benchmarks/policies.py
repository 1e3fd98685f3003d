"""How much sooner jobs are over under `elastic` than under AFS, and what that costs the last of them (docs/design/elastic.md).

    python -m benchmarks.policies [--data ../shared/data] [--cluster e13805]... [--costs none] [--packing] [--others]
        [--trace FILE] [--profiles FILE] [--random-models] [--gpus 64] [--load 1.0] [--within 1.0] [--json FILE]

Each cluster has 16 servers of 4 GPUs, as in AFS 5.1, or as many as `--gpus` wants; jobs, models and throughputs are those of
the data. A cluster's rows appear when it is done, the smallest first; the largest one takes most of the time. `--trace` takes
any file that `elasticctl simulate` reads; where it has several virtual clusters (column `vc`), `--cluster` picks some.
`--load 0.5` takes half of the jobs; with `--within 0.5` they come in half of the time.

The worst delay is the most that any job's JCT is longer than under the AFS policy that knows as much.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from elasticd.protocol.errors import ElasticError
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.profiles import curves as profiles
from elasticd.scheduler.profiles import tables
from elasticd.scheduler.view import Floats
from elasticd.simulator import traces
from elasticd.simulator.assign import Assigned, assign
from elasticd.simulator.costs import PRESETS, Costs
from elasticd.simulator.engine import Simulation
from elasticd.simulator.fairness import slowdowns
from elasticd.simulator.workload import Workload, servers

GPUS = 64
CLUSTERS = ("e13805", "ed69ec", "0e4a51", "103959", "6c71a0", "6214e9")
COLUMN = "vc"
TRACE, MODELS = "philly_jobs.csv.gz", "afs_models_gtx1080.csv"
COMPARED: dict[str, dict[str, Any]] = {
    "afs-l": {"policy": "afs-l"},
    "elastic, given": {"policy": "elastic", "parameters": {"lengths": "given"}},
    "afs-p": {"policy": "afs-p"},
    "elastic, unknown": {"policy": "elastic", "parameters": {"lengths": "unknown"}},
}
BESIDE = {"elastic, given": "afs-l", "elastic, unknown": "afs-p"}  # whom each is compared with
OTHERS = ("srtf-e", "srsf-e", "optimus", "max-min", "themis", "elastic-tiresias")
COLUMNS = ("average", "p95", "p99", "longest", "mean slowdown", "p99 slowdown", "worst delay", "changes")


@dataclass(frozen=True)
class Run:
    """What one policy made of a cluster's jobs."""

    jct_s: Floats
    slowdown: Floats
    resizes: int
    preemptions: int
    p99_decision_s: float
    wall_s: float

    def document(self) -> dict[str, float]:
        """As plain numbers."""
        p95, p99 = np.percentile(self.jct_s, [95, 99]).tolist()
        return {
            "avg_jct_s": float(self.jct_s.mean()),
            "p95_jct_s": p95,
            "p99_jct_s": p99,
            "max_jct_s": float(self.jct_s.max()),
            "avg_slowdown": float(self.slowdown.mean()),
            "p99_slowdown": float(np.percentile(self.slowdown, 99)),
            "resizes": self.resizes,
            "preemptions": self.preemptions,
            "p99_decision_s": self.p99_decision_s,
            "wall_s": self.wall_s,
        }


Found = dict[str, Run]


@dataclass(frozen=True)
class Load:
    """What is made of a trace. `part` of its jobs, drawn with a fixed seed, come `within` so much of the time."""

    part: float = 1.0
    within: float = 1.0
    gpus: int = GPUS
    random_models: bool = False


def load(data: Path, cluster: str, part: float) -> Assigned:
    """The jobs of one virtual cluster of Philly; `part` of them, drawn with a fixed seed."""
    return read(data / TRACE, data / MODELS, cluster, Load(part))


def read(trace: Path, models: Path, cluster: str, wanted: Load) -> Assigned:
    """The jobs of one virtual cluster in a file, or all of its jobs where `cluster` is empty. Raises UserError."""
    found = traces.load(trace, {COLUMN: [cluster]} if cluster else {})
    whole = assign(found, wanted.gpus, profiles.load(models), 0, random_models=wanted.random_models)
    if wanted.part == wanted.within == 1.0:
        return whole
    load, rows = whole.workload, np.flatnonzero(np.random.default_rng(0).random(len(found)) < wanted.part)
    some = Workload(
        names=tuple(load.names[row] for row in rows.tolist()),
        submit_s=load.submit_s[rows] * wanted.within,
        min_gpus=load.min_gpus[rows],
        max_gpus=load.max_gpus[rows],
        requested_gpus=load.requested_gpus[rows],
        work_s=load.work_s[rows],
        curve=load.curve[rows],
        curves=load.curves,
        models=load.models,
    )
    return Assigned(some, whole.deadline_s[rows])


def clusters_in(trace: Path) -> list[str]:
    """The virtual clusters in a file, the smallest first; [""]: it tells of none. Raises UserError."""
    table = tables.read(trace)
    return [name for name, _ in Counter(table.columns[COLUMN]).most_common()[::-1]] if COLUMN in table else [""]


def simulate(jobs: Assigned, policy: dict[str, Any], costs: Costs, packing: bool, gpus: int) -> Run:
    """One policy on servers of 4 GPUs."""
    load = jobs.workload
    simulation = Simulation(load, servers(gpus // 4, 4), load_policy(policy, policy["policy"]), costs, packing=packing)
    done = simulation.run()
    return Run(
        jct_s=done.end_s - load.submit_s,
        slowdown=slowdowns(load, done.end_s),
        resizes=done.resizes,
        preemptions=done.preemptions,
        p99_decision_s=float(np.percentile(done.decision_s, 99)),
        wall_s=done.wall_s,
    )


def less(found: Found, label: str) -> float:
    """By what part a policy's average JCT is below that of the AFS policy that knows as much."""
    return 1.0 - float(found[label].jct_s.mean() / found[BESIDE[label]].jct_s.mean())


def worst_delay_s(found: Found, label: str) -> float:
    """The most that a job's JCT is longer than under the AFS policy that knows as much."""
    return float((found[label].jct_s - found[BESIDE[label]].jct_s).max())


def rows(cluster: str, found: Found) -> list[str]:
    """The lines of a cluster: times in 1000 s."""
    lines = []
    for label, run in found.items():
        told = run.document()
        times = [f"{told[name] / 1e3:.1f}" for name in ("avg_jct_s", "p95_jct_s", "p99_jct_s", "max_jct_s")]
        beside = label in BESIDE
        cells = [
            cluster or "all",
            f"{len(run.jct_s):,}",
            label,
            f"{times[0]} ({-less(found, label):+.1%})" if beside else times[0],
            *times[1:],
            *(f"{told[name]:.2f}" for name in ("avg_slowdown", "p99_slowdown")),
            f"{worst_delay_s(found, label) / 1e3:.1f}" if beside else "",
            f"{run.resizes + run.preemptions:,}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--trace", type=Path, help=f"any trace with models; default: {TRACE} of the data")
    parser.add_argument("--profiles", type=Path, help=f"its throughputs; default: {MODELS} of the data")
    parser.add_argument("--cluster", action="append", help="may be repeated; default: all in the trace")
    parser.add_argument("--costs", choices=PRESETS, default="none")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--others", action="store_true", help=f"also {', '.join(OTHERS)}")
    parser.add_argument("--load", type=float, default=1.0, help="part of the jobs")
    parser.add_argument("--within", type=float, default=1.0, help="part of the time in which they come")
    parser.add_argument("--gpus", type=int, default=GPUS, help="of the cluster, in servers of 4")
    parser.add_argument(
        "--random-models", action="store_true", help="drawn from the profiles, whatever the trace names"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    policies = COMPARED | ({name: {"policy": name} for name in OTHERS} if options.others else {})
    trace, models = options.trace or options.data / TRACE, options.profiles or options.data / MODELS
    wanted = Load(options.load, options.within, options.gpus, options.random_models)
    found: dict[str, Found] = {}
    print("JCT in 1000 s; worst delay of a job beside AFS in 1000 s.\n")
    header = ("cluster", "jobs", "policy", *COLUMNS)
    print("| " + " | ".join(header) + " |")
    print("| --- " * len(header) + "|")
    try:
        for cluster in options.cluster or clusters_in(trace):
            jobs = read(trace, models, cluster, wanted)
            costs = PRESETS[options.costs]
            found[cluster] = {
                label: simulate(jobs, policy, costs, options.packing, wanted.gpus) for label, policy in policies.items()
            }
            print("\n".join(rows(cluster, found[cluster])), flush=True)
            if options.json:
                document = {name: {label: run.document() for label, run in of.items()} for name, of in found.items()}
                options.json.write_text(json.dumps(document, indent=2) + "\n")
    except ElasticError as error:
        sys.exit(str(error))
    given, unknown = (mean(less(each, label) for each in found.values()) for label in BESIDE)
    print(f"\nOn the mean {given:.1%} less than AFS-L with lengths, {unknown:.1%} less than AFS-P without.")


if __name__ == "__main__":
    main()
