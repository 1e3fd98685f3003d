"""AFS Fig. 6: rigid policies that may use the GPUs of each job's greatest throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from .average import name
from .bars import grouped
from .cases import Case, afs
from .findings import Finding, between, exactly, number
from .inputs import VIRTUAL_CLUSTERS, Peers, VirtualCluster, published
from .page import Picture, Section, table
from .results import Results

PUBLISHED = {"srtf": (1 / 1.21, 4.85), "srsf": (1 / 1.17, 5.84), "tiresias-l": (1.0, 16.14)}

TEXT = """\
**Published.** The average JCT grows up to 4.85x (SRTF), 5.84x (SRSF) and 16.14x (Tiresias-L) where a rigid policy gives
each job the GPUs of its peak throughput instead of those requested. On one trace it shrinks by 21 % (SRTF) and 17 % (SRSF)
(5.2).

**Here.** The same policies with `parameters: {peak: true}`, on six traces instead of eleven."""

_THRESHOLDS = """\
With the GPUs of its peak a job passes both thresholds of Tiresias-L within minutes, and nearly all work is FIFO in the last
queue. The growth therefore depends on the thresholds, which AFS does not state. With EDL's (10,000 and 200,000 GPU*s) the
same trace gives 8.77x."""
EXPLANATIONS = dict.fromkeys(("tiresias-l-5", "tiresias-l-most"), _THRESHOLDS)


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    for cluster in clusters:
        for policy in PUBLISHED:
            yield afs(cluster, policy)
            yield afs(cluster, policy, peak=True)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="AFS Fig. 6: rigid policies with the GPUs of peak throughput",
        text=TEXT,
        findings=list(_findings(results, published(clusters))),
        explanations=EXPLANATIONS,
        tables=[_table(results, clusters)],
        pictures=[
            Picture(
                "afs-peak.png",
                "Average JCT with the GPUs of peak throughput over that with the requested ones.",
                (9, 3.4),
                lambda figure: _draw(figure, results, clusters),
            )
        ],
    )


def growth(results: Results, cluster: VirtualCluster, policy: str) -> float:
    peak, requested = afs(cluster, policy, peak=True), afs(cluster, policy)
    return results[peak].avg_jct_s / results[requested].avg_jct_s


def _findings(results: Results, clusters: Sequence[VirtualCluster]) -> Iterator[Finding]:
    for policy, (low, high) in PUBLISHED.items():
        for cluster in clusters:
            ours = growth(results, cluster, policy)
            yield Finding(
                f"{policy}-{cluster.number}",
                f"trace {name(cluster)}: {policy}",
                between(low, high, "5.2, Fig. 6"),
                ours,
            )
        if len(clusters) == len(VIRTUAL_CLUSTERS):
            most = max(growth(results, cluster, policy) for cluster in clusters)
            yield Finding(f"{policy}-most", f"the most: {policy}", exactly(high, "5.2, of eleven traces"), most)


def _table(results: Results, clusters: Sequence[VirtualCluster]) -> str:
    rows = []
    for cluster in clusters:
        values: list[str] = []
        for policy in PUBLISHED:
            values.append(number(results[afs(cluster, policy)].avg_jct_s))
            values.append(number(results[afs(cluster, policy, peak=True)].avg_jct_s))
        rows.append((name(cluster), *values))
    header = [f"{policy}{at}" for policy in PUBLISHED for at in ("", ", peak")]
    return "Average JCT (s):\n\n" + table(("trace", *header), rows)


def _draw(figure: Figure, results: Results, clusters: Sequence[VirtualCluster]) -> None:
    axes = figure.subplots()
    bars = {policy: [growth(results, cluster, policy) for cluster in clusters] for policy in PUBLISHED}
    grouped(axes, [name(cluster) for cluster in clusters], bars, "growth of the average JCT", logarithmic=True)
