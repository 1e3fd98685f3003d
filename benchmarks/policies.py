"""Average JCT under `elastic` against AFS, and the delay of the worst-off jobs (docs/reports/elastic.md).

    python -m benchmarks.policies [--data ../shared/data] [--cluster e13805]... [--costs none] [--packing] [--others]
        [--trace FILE] [--profiles FILE] [--random-models] [--gpus 64] [--load 1.0] [--within 1.0] [--json FILE]
    python -m benchmarks.policies --generated 12 [--from 100] [--jobs 400] [--up-to 256]
    ... [--told 0.5]... [--errors 0.5,2] [--early 0.3] [--draws 3] [--mixtures]

Each cluster of the trace has 16 servers of 4 GPUs, as in AFS 5.1, or as many as `--gpus` requires; jobs, models and throughputs
are those of the data. Rows appear when a cluster is done, the smallest first. `--trace` takes any file that `elasticctl
simulate` reads; where it has several virtual clusters (column `vc`), `--cluster` selects some. `--load 0.5` takes half of the
jobs; with `--within 0.5` they arrive in half of the time. `--generated 12` generates twelve workloads from the seeds 0 to 11
(`generated`).

Without `--told`, two rows of `elastic` are compared with AFS: all jobs state their lengths, against AFS-L; none does, against
AFS-P. `--told 0.5` adds a row in which half of the jobs state their lengths, as in `elasticctl simulate`, against AFS-P;
`--draws 3` draws three times which jobs do.

The worst delay is the greatest increase of any job's JCT over AFS. Pooled figures use the JCTs of all workloads and draws, each
divided by AFS's 99th percentile in its workload, so that a workload counts by its number of jobs and not by their lengths.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np

from elasticd.protocol.errors import ElasticError
from elasticd.scheduler.arrays import Floats
from elasticd.scheduler.placement.registry import FEWEST_SERVERS
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.policies.base import Policy
from elasticd.scheduler.profiles import curves as profiles
from elasticd.scheduler.profiles import tables
from elasticd.simulator import traces
from elasticd.simulator.assign import Assigned, assign
from elasticd.simulator.costs import NONE, PRESETS, Costs
from elasticd.simulator.engine import Simulation
from elasticd.simulator.fairness import slowdowns
from elasticd.simulator.telling import Telling, telling
from elasticd.simulator.workload import Workload, servers

from .generated import generate
from .unplaced import Unplaced

GPUS = 64
CLUSTERS = ("e13805", "ed69ec", "0e4a51", "103959", "6c71a0", "6214e9")
COLUMN = "vc"
TRACE, MODELS = "philly_jobs.csv.gz", "afs_models_gtx1080.csv"
OTHERS = ("srtf-e", "srsf-e", "optimus", "max-min", "themis", "elastic-tiresias")
COLUMNS = ("average", "p95", "p99", "longest", "mean slowdown", "p99 slowdown", "worst delay", "changes")
KNOWING, UNKNOWING = "afs-l", "afs-p"
TRUTH = Telling()


@dataclass(frozen=True)
class Contender:
    """A policy, and what jobs state; `beside`: the policy to compare with. `draws`: number of draws of the jobs that state."""

    policy: str
    tells: Telling = TRUTH
    beside: str = ""
    draws: int = 1


@dataclass(frozen=True)
class Run:
    """Result of one policy with a cluster's jobs."""

    jct_s: Floats
    slowdown: Floats
    resizes: int
    preemptions: int
    p99_decision_s: float
    wall_s: float

    def document(self) -> dict[str, float]:
        """Return the figures for JSON."""
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


Found = dict[str, list[Run]]  # by label, one per draw


@dataclass(frozen=True)
class Load:
    """Changes to a trace. A fraction `part` of its jobs, drawn with a fixed seed, arrives in a fraction `within` of the time."""

    part: float = 1.0
    within: float = 1.0
    gpus: int = GPUS
    random_models: bool = False


def load(data: Path, cluster: str, part: float) -> Assigned:
    """Return the jobs of one virtual cluster of Philly, or a fraction `part` of them, drawn with a fixed seed."""
    return read(data / TRACE, data / MODELS, cluster, Load(part))


def read(trace: Path, models: Path, cluster: str, wanted: Load) -> Assigned:
    """Return the jobs of one virtual cluster in a file; all of its jobs if `cluster` is empty. Raises UserError."""
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
    """Return the virtual clusters in a file, smallest first; [""] if it names none. Raises UserError."""
    table = tables.read(trace)
    return [name for name, _ in Counter(table.columns[COLUMN]).most_common()[::-1]] if COLUMN in table else [""]


def simulate(load: Workload, policy: Policy, costs: Costs = NONE, packing: bool = False, gpus: int = GPUS) -> Run:
    """Simulate one policy on servers of 4 GPUs."""
    unplaced = costs == NONE and not packing
    simulation = Simulation(
        load,
        servers(gpus // 4, 4),
        policy,
        costs,
        packing=packing,
        placement=Unplaced() if unplaced else FEWEST_SERVERS,
    )
    done = simulation.run()
    return Run(
        jct_s=done.end_s - load.submit_s,
        slowdown=slowdowns(load, done.end_s),
        resizes=done.resizes,
        preemptions=done.preemptions,
        p99_decision_s=float(np.percentile(done.decision_s, 99)),
        wall_s=done.wall_s,
    )


def contenders(options: argparse.Namespace) -> dict[str, Contender]:
    """Return the policies to simulate, by label. Raises UserError."""
    found = {
        KNOWING: Contender(KNOWING),
        "elastic, all told": Contender("elastic", beside=KNOWING),
        UNKNOWING: Contender(UNKNOWING),
        "elastic, none told": Contender("elastic", Telling(0.0), UNKNOWING),
    }
    if options.mixtures:
        for part in (0.25, 0.5):
            found[f"elastic, {part:.0%} told"] = Contender("elastic", Telling(part), UNKNOWING, options.draws)
        wrong_half = {"x0.5 to 2": Telling(0.5, 0.5, 2.0), "30% early": Telling(0.5, early=0.3)}
        for what, tells in wrong_half.items():
            found[f"elastic, 50% told, {what}"] = Contender("elastic", tells, UNKNOWING, options.draws)
    wrong = options.errors is not None or options.early is not None
    for part in options.told or ([1.0] if wrong else []):
        tells = telling(part, options.errors, options.early)
        assert tells is not None
        label = f"elastic, {part:.0%} told"
        label += f", x{tells.least:g} to {tells.most:g}" if options.errors else ""
        label += f", {tells.early:.0%} early" if tells.early else ""
        found[label] = Contender("elastic", tells, UNKNOWING, options.draws)
    if options.told and not options.mixtures:
        del found["elastic, all told"], found["elastic, none told"], found[KNOWING]
    return found | ({name: Contender(name) for name in OTHERS} if options.others else {})


def compare(
    load: Workload, who: dict[str, Contender], costs: Costs = NONE, packing: bool = False, gpus: int = GPUS
) -> Found:
    """Simulate all of them with the same jobs."""
    found: Found = {}
    for label, one in who.items():
        found[label] = []
        for draw in range(one.draws):
            told = replace(load, told_s=one.tells.told_s(load.work_s, draw))
            policy = load_policy({"policy": one.policy}, one.policy)
            found[label].append(simulate(told, policy, costs, packing, gpus))
    return found


def less(found: Found, label: str, beside: str) -> float:
    """Return the relative reduction of the average JCT against the AFS policy, as a mean over draws."""
    return 1.0 - mean(float(run.jct_s.mean()) for run in found[label]) / float(found[beside][0].jct_s.mean())


def worst_delay_s(found: Found, label: str, beside: str) -> float:
    """Return the greatest increase of a job's JCT over that AFS policy, in any draw (s)."""
    return max(float((run.jct_s - found[beside][0].jct_s).max()) for run in found[label])


def rows(cluster: str, found: Found, who: dict[str, Contender]) -> Iterator[str]:
    """Yield the lines of a cluster: times in 1000 s, means over draws."""
    for label, runs in found.items():
        told = [run.document() for run in runs]
        beside = who[label].beside

        def figure(name: str, told: list[dict[str, float]] = told) -> float:
            return mean(one[name] for one in told)

        times = [f"{figure(name) / 1e3:.1f}" for name in ("avg_jct_s", "p95_jct_s", "p99_jct_s", "max_jct_s")]
        cells = [
            cluster or "all",
            f"{len(runs[0].jct_s):,}",
            label,
            f"{times[0]} ({-less(found, label, beside):+.1%})" if beside else times[0],
            *times[1:],
            *(f"{figure(name):.2f}" for name in ("avg_slowdown", "p99_slowdown")),
            f"{worst_delay_s(found, label, beside) / 1e3:.1f}" if beside else "",
            f"{figure('resizes') + figure('preemptions'):,.0f}",
        ]
        yield "| " + " | ".join(cells) + " |"


def summary(found: dict[str, Found], who: dict[str, Contender]) -> Iterator[str]:
    """Yield a sentence per compared policy, over all workloads."""
    for label, one in who.items():
        if not one.beside:
            continue
        saved = [less(each, label, one.beside) for each in found.values()]
        delays, pooled, base = [], [], []
        for each in found.values():
            unit_s = float(np.percentile(each[one.beside][0].jct_s, 99))
            delays.append(worst_delay_s(each, label, one.beside) / unit_s)
            pooled += [run.jct_s / unit_s for run in each[label]]
            base += [each[one.beside][0].jct_s / unit_s] * len(each[label])
        tail = np.percentile(np.concatenate(pooled), 99) / np.percentile(np.concatenate(base), 99) - 1
        yield (
            f"{label} beside {one.beside}: average JCT {-mean(saved):+.1%} on the mean of {len(saved)} workloads, from "
            f"{-max(saved):+.1%} to {-min(saved):+.1%}; pooled 99th percentile {tail:+.1%}; no job later by more than "
            f"{max(delays):.2f} times the 99th percentile of {one.beside}"
        )


def workloads(options: argparse.Namespace) -> Iterator[tuple[str, Workload, int]]:
    """Yield name, jobs and GPUs of each workload. Raises UserError."""
    models = options.profiles or options.data / MODELS
    if options.generated:
        tables_of = profiles.load(models)
        for seed in range(options.first, options.first + options.generated):
            made = generate(seed, options.jobs, tables_of)
            if made.gpus <= options.up_to:
                yield made.what, made.workload, made.gpus
        return
    trace, wanted = (
        options.trace or options.data / TRACE,
        Load(options.load, options.within, options.gpus, options.random_models),
    )
    for cluster in options.cluster or clusters_in(trace):
        yield cluster, read(trace, models, cluster, wanted).workload, wanted.gpus


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    found.add_argument("--trace", type=Path, help=f"any trace with models; default: {TRACE} of the data")
    found.add_argument("--profiles", type=Path, help=f"its throughputs; default: {MODELS} of the data")
    found.add_argument("--cluster", action="append", help="may be repeated; default: all in the trace")
    found.add_argument("--costs", choices=PRESETS, default="none")
    found.add_argument("--packing", action="store_true")
    found.add_argument("--others", action="store_true", help=f"also {', '.join(OTHERS)}")
    found.add_argument("--load", type=float, default=1.0, help="part of the jobs")
    found.add_argument("--within", type=float, default=1.0, help="part of the time in which they come")
    found.add_argument("--gpus", type=int, default=GPUS, help="of the cluster, in servers of 4")
    found.add_argument("--random-models", action="store_true", help="drawn from the profiles, whatever the trace names")
    found.add_argument("--generated", type=int, metavar="N", help="so many made-up workloads in place of a trace")
    found.add_argument("--from", dest="first", type=int, default=0, metavar="SEED", help="of the first of them")
    found.add_argument("--jobs", type=int, default=400, help="of each; more on more than 256 GPUs")
    found.add_argument("--up-to", type=int, default=1 << 30, metavar="GPUS", help="leave out larger made-up clusters")
    found.add_argument("--told", type=float, action="append", metavar="PART", help="part of the jobs that tell; repeat")
    found.add_argument("--errors", metavar="LOW,HIGH", help="they tell so many times what they take: 0.5,2")
    found.add_argument("--early", type=float, help="part of those who tell that end early")
    found.add_argument("--draws", type=int, default=1, help="of who tells what")
    found.add_argument("--mixtures", action="store_true", help="the rows of docs/reports/elastic.md")
    found.add_argument("--json", type=Path)
    return found


def main() -> None:
    options = parser().parse_args()
    found: dict[str, Found] = {}
    print("JCT in 1000 s; worst delay of a job beside AFS in 1000 s.\n")
    header = ("cluster", "jobs", "policy", *COLUMNS)
    print("| " + " | ".join(header) + " |")
    print("| --- " * len(header) + "|", flush=True)
    try:
        who = contenders(options)
        for name, load, gpus in workloads(options):
            found[name] = compare(load, who, PRESETS[options.costs], options.packing, gpus)
            print("\n".join(rows(name, found[name], who)), flush=True)
            if options.json:
                document = {
                    each: {label: [run.document() for run in runs] for label, runs in of.items()}
                    for each, of in found.items()
                }
                options.json.write_text(json.dumps(document, indent=2) + "\n")
    except ElasticError as error:
        sys.exit(str(error))
    print("\n" + "\n".join(summary(found, who)))


if __name__ == "__main__":
    main()
