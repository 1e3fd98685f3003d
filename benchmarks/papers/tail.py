"""AFS Fig. 9 and 10: the 99th percentile of JCT, and the reduction by length of the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from elasticd.simulator.plots import style

from .average import LENGTHS_KNOWN, LENGTHS_UNKNOWN, POLICIES, name
from .bars import grouped, legend
from .cases import Case, afs, each
from .findings import Finding, above, number
from .inputs import Peers, VirtualCluster, published
from .page import Picture, Section, table
from .results import Results

BINS = 100  # AFS Fig. 10
BY_LENGTH = ("tiresias-l", "max-min", "themis", "afs-p")
SHOWN = ("e13805", "0e4a51")

TEXT = """\
**Published.** AFS has shorter tails than other policies "in most cases"; on some traces Max-Min or Optimus has shorter
tails still, at the price of the average (5.4). Fig. 10: under Max-Min long jobs gain much more than others, under AFS-P all
gain nearly alike.

**Here.** As Fig. 5. For Fig. 10 jobs are sorted by their JCT under Tiresias-L, in 100 bins."""

EXPLANATIONS: dict[str, str] = {}


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    return each(clusters, POLICIES)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    shown = [cluster for cluster in clusters if cluster.name in SHOWN]
    return Section(
        title="AFS Fig. 9 and 10: the tail, and who gains",
        text=TEXT,
        findings=list(_findings(results, published(clusters))),
        explanations=EXPLANATIONS,
        tables=[_table(results, clusters)],
        pictures=[
            Picture(
                "afs-tail.png",
                "How many times shorter the 99th percentile of JCT is than the base's.",
                (11, 7),
                lambda figure: _draw(figure, results, clusters),
            ),
            Picture(
                "afs-by-length.png",
                "How many times shorter jobs are than under Tiresias-L, by their length there.",
                (11, 3.8),
                lambda figure: _draw_by_length(figure, results, shown),
            ),
        ],
    )


def tail(results: Results, cluster: VirtualCluster, base: str, policy: str) -> float:
    return results[afs(cluster, base)].p99_jct_s / results[afs(cluster, policy)].p99_jct_s


def _findings(results: Results, clusters: Sequence[VirtualCluster]) -> Iterator[Finding]:
    for cluster in clusters:
        for policy, base in (("afs-l", "srtf"), ("afs-p", "tiresias-l")):
            ours = tail(results, cluster, base, policy)
            key = f"{policy}-{cluster.number}"
            what = f"trace {name(cluster)}: tail of {base} to that of {policy}"
            yield Finding(key, what, above(1.0, "5.4, in most cases"), ours)


def _table(results: Results, clusters: Sequence[VirtualCluster]) -> str:
    rows = [
        (name(cluster), *(number(results[afs(cluster, policy)].p99_jct_s) for policy in POLICIES))
        for cluster in clusters
    ]
    return "99th percentile of JCT (s):\n\n" + table(("trace", *POLICIES), rows)


def _draw(figure: Figure, results: Results, clusters: Sequence[VirtualCluster]) -> None:
    above_, below_ = figure.subplots(2, 1)
    names = [name(cluster) for cluster in clusters]
    for axes, base, group in ((above_, "srtf", LENGTHS_KNOWN), (below_, "tiresias-l", LENGTHS_UNKNOWN)):
        bars = {policy: [tail(results, cluster, base, policy) for cluster in clusters] for policy in group}
        grouped(axes, names, bars, f"99th percentile of JCT of {base} / that of the policy")


def _draw_by_length(figure: Figure, results: Results, clusters: Sequence[VirtualCluster]) -> None:
    panels: Sequence[Axes] = figure.subplots(1, max(len(clusters), 1), squeeze=False)[0]
    for axes, cluster in zip(panels, clusters, strict=False):
        base = results[afs(cluster, BY_LENGTH[0])].jct_s
        bins = np.array_split(np.argsort(base, kind="stable"), BINS)
        percent = (np.arange(BINS) + 0.5) * 100.0 / BINS
        for place, policy in enumerate(BY_LENGTH):
            factors = base / results[afs(cluster, policy)].jct_s
            axes.plot(percent, [factors[rows].mean() for rows in bins], label=policy, **style(place))
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(xlim=(0, 100), xlabel=f"percentile of JCT under {BY_LENGTH[0]}")
        axes.set_title(f"{name(cluster)}: shorter by", loc="left", fontsize=11)
        axes.grid(axis="y", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    legend(figure, panels[0])
