"""Average JCT against the 99th percentile: `elastic` with several values of `tail` beside AFS, SRPT and Gittins.

    python -m benchmarks.tails [--data ../shared/data] [--from 100] [--generated 24] [--cluster NAME]... [--json FILE]

Each workload is simulated under each policy, on servers of 4 GPUs and without costs of changes. The workloads are generated
(`generated`), and virtual clusters of Philly that `--cluster` names. Figures are ratios to AFS-P, which knows no lengths, as
geometric means over the workloads. A table and a picture are written into docs/reports/elastic.md.

* SRPT: `srtf-e`, all lengths known.
* Gittins: `srtf-e`, ordered by Gittins' index of the lengths that `elastic` expects, in place of the remaining time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from matplotlib.figure import Figure

from elasticd.protocol.errors import ElasticError
from elasticd.scheduler.policies import expected_lengths, load_policy
from elasticd.scheduler.policies.base import Policy, Shares
from elasticd.scheduler.policies.elastic import gittins_index, review_after_s
from elasticd.scheduler.policies.srtf import RemainingParameters, SrtfE
from elasticd.scheduler.profiles import curves as profiles
from elasticd.scheduler.view import JobTable
from elasticd.simulator.telling import Telling
from elasticd.simulator.workload import Workload

from .generated import generate
from .pages import fill
from .policies import GPUS, MODELS, load, simulate

TAILS = (0.0, 0.1, 0.25, 0.5, 1.0)
TOLD = {"all told": 1.0, "half told": 0.5, "none told": 0.0}
BASE = "AFS-P"
LARGEST = 256  # GPUs of a generated cluster
REPORTS = Path(__file__).resolve().parents[1] / "docs" / "reports"
BEGIN, END = "<!-- bench-tails: written by `make bench-tails`, from here -->", "<!-- bench-tails: to here -->"
COLOURS = {"all told": "#0072B2", "half told": "#D55E00", "none told": "#009E73"}  # Okabe and Ito's

Point = tuple[float, float]  # average JCT, and its 99th percentile, relative to AFS-P


class Gittins(SrtfE):
    """`srtf-e` by Gittins' index in place of the remaining time."""

    name = "gittins"

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        left_s, more_s = expected_lengths.left_s(jobs)
        found = super().shares(jobs.assuming(gittins_index(left_s)), gpus, now, rng)
        return Shares(found.gpus, found.why, now + review_after_s(jobs, found.gpus, more_s, now), found.rows)


@dataclass(frozen=True)
class Way:
    """A policy, and the part of the jobs that state their lengths."""

    policy: str
    told: float
    tail: float | None = None

    def made(self) -> Policy:
        if self.policy == Gittins.name:
            return Gittins(RemainingParameters())
        parameters = {} if self.tail is None else {"parameters": {"tail": self.tail}}
        return load_policy({"policy": self.policy, **parameters}, self.policy)


def ways() -> dict[str, Way]:
    """Return the compared ways by label."""
    found = {
        BASE: Way("afs-p", 0.0),
        "AFS-L": Way("afs-l", 1.0),
        "SRPT": Way("srtf-e", 1.0),
        "Gittins, half told": Way(Gittins.name, 0.5),
        "Gittins, none told": Way(Gittins.name, 0.0),
    }
    for what, told in TOLD.items():
        found |= {f"elastic, {what}, tail {tail:g}": Way("elastic", told, tail) for tail in TAILS}
    return found


def workloads(options: argparse.Namespace) -> Iterator[tuple[str, Workload, int]]:
    """Yield name, jobs and GPUs of each workload. Raises UserError."""
    models = profiles.load(options.data / MODELS)
    for seed in range(options.first, options.first + options.generated):
        made = generate(seed, options.jobs, models)
        if made.gpus <= LARGEST:
            yield f"#{seed}", made.workload, made.gpus
    for cluster in options.cluster or ():
        yield cluster, load(options.data, cluster, 1.0).workload, GPUS


def measure(jobs: Workload, gpus: int) -> dict[str, Point]:
    """Return average JCT and 99th percentile under each way, relative to AFS-P."""
    found: dict[str, dict[str, float]] = {}
    for label, way in ways().items():
        told_s = Telling(way.told).told_s(jobs.work_s, 0)
        found[label] = simulate(replace(jobs, told_s=told_s), way.made(), gpus=gpus).document()
    base = found[BASE]
    return {
        label: (one["avg_jct_s"] / base["avg_jct_s"], one["p99_jct_s"] / base["p99_jct_s"])
        for label, one in found.items()
    }


def pooled(found: Mapping[str, Mapping[str, Point]]) -> dict[str, Point]:
    """Return the geometric means over the workloads."""
    each = list(found.values())
    return {
        label: (geometric_mean(one[label][0] for one in each), geometric_mean(one[label][1] for one in each))
        for label in each[0]
    }


def table(means: Mapping[str, Point]) -> str:
    """Return the rows of the page."""
    lines = ["| policy | average JCT | 99th percentile |", "| --- | --- | --- |"]
    lines += [f"| {label} | {x - 1:+.1%} | {y - 1:+.1%} |" for label, (x, y) in means.items()]
    return "\n".join(lines)


def draw(path: Path, means: Mapping[str, Point]) -> None:
    """Draw a curve over `tail` for each part of told lengths, and a point for each other policy."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes: Any = figure.subplots()
    for what, colour in COLOURS.items():
        curve = [means[f"elastic, {what}, tail {tail:g}"] for tail in TAILS]
        axes.plot(*zip(*curve, strict=True), "o-", color=colour, label=f"elastic, {what}")
        for tail, point in zip(TAILS, curve, strict=True):
            axes.annotate(f"{tail:g}", point, textcoords="offset points", xytext=(5, 4), fontsize=8, color=colour)
    for label, point in means.items():
        if not label.startswith("elastic"):
            axes.plot(*point, "s", color="0.3", markersize=5)
            axes.annotate(label, point, textcoords="offset points", xytext=(6, -4), fontsize=8)
    axes.set(xlabel="average JCT, relative to AFS-P", ylabel="99th percentile of JCT, relative to AFS-P")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="numbers: tail")
    figure.savefig(path, dpi=120)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    found.add_argument("--generated", type=int, default=24, metavar="N", help="so many generated workloads")
    found.add_argument("--from", dest="first", type=int, default=100, metavar="SEED", help="of the first of them")
    found.add_argument("--jobs", type=int, default=400, help="of each generated workload")
    found.add_argument("--cluster", action="append", help="also this virtual cluster of Philly; may be repeated")
    found.add_argument("--json", type=Path, help="figures of each workload; nothing is written into the page")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    found: dict[str, dict[str, Point]] = {}
    try:
        for name, jobs, gpus in workloads(options):
            found[name] = measure(jobs, gpus)
            print(f"{name} is done", flush=True)
    except ElasticError as error:
        sys.exit(str(error))
    means = pooled(found)
    print(table(means))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
        return
    draw(REPORTS / "tails.png", means)
    picture = "![99th percentile against average JCT, a curve over `tail` beside AFS, SRPT and Gittins](tails.png)"
    fill(REPORTS / "elastic.md", BEGIN, END, [f"Workloads: {', '.join(found)}.", table(means), picture])


if __name__ == "__main__":
    main()
