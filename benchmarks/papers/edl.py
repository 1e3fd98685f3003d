"""EDL Table 2: Elastic-Tiresias beside Tiresias, by the size of the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from elasticd.scheduler.arrays import Floats

from .average import name
from .cases import Case, philly
from .findings import Finding, exactly, number
from .inputs import VIRTUAL_CLUSTERS, Peers, VirtualCluster, published
from .page import Section, table
from .results import Record, Results

THRESHOLDS_GPU_S = (10_000.0, 200_000.0)
BASE, ELASTIC = "tiresias-l", "elastic-tiresias"
CROWDED = "0e4a51"
PENDING = (10, 0)  # N: this project's default, and the least
SIZES = ("all", "small", "medium", "large")
PUBLISHED = {"all": (52_055, 36_544), "small": (1_646, 878), "medium": (33_669, 36_426), "large": (726_367, 550_543)}

TEXT = """\
**Published.** Over 100,000 jobs of Microsoft's cluster (550 servers of 8 GPUs, two months), three queues split at 10,000
and 200,000 GPU*s. By GPU time, jobs are small below 10^4, medium to 2 x 10^5, large above (6.2). Average JCT -29.8 %; small
jobs -47 %, medium +8 %, large -25 %. Jobs, curves, and N (pending jobs from which on jobs shrink) are not published.

**Here.** The virtual clusters, models and 64 GPUs as for AFS, the same queues, N = 10."""

_QUIET = """\
Traces 4, 7 and 11 have little contention. Under Tiresias more than ten jobs wait for 14 % of the time on trace 4 and never
on the other two, and some GPUs are idle for 86 to 100 % of the time. Rule R2 then gives GPUs to jobs of all sizes, medium
ones too. With N = 0 all gain more than was published. On trace 1, where more than ten jobs wait for 69 % of the time, rule
R1 dominates: medium jobs gain nothing, and large jobs what EDL's do."""
_CROWDED = """\
On traces 1, 2 and 5 small jobs go before all others under either policy, and there are seldom idle GPUs with which rule R2
could make them faster. On traces 2 and 5 more than ten jobs wait for 88 and 89 % of the time, and Tiresias by itself keeps
59 of the 64 GPUs busy, so that elasticity can add little."""
EXPLANATIONS = {
    **dict.fromkeys(("all-4", "small-4", "medium-4"), _QUIET),
    **dict.fromkeys(("all-7", "small-7", "medium-7", "large-7"), _QUIET),
    **dict.fromkeys(("all-11", "medium-11", "large-11"), _QUIET),
    **dict.fromkeys(("small-1", "all-2", "small-2", "large-2"), _CROWDED),
    **dict.fromkeys(("all-5", "small-5", "medium-5", "large-5"), _CROWDED),
}


def _shown(clusters: Sequence[VirtualCluster]) -> list[VirtualCluster]:
    """Return the clusters shown. A crowded one is always included, because EDL's cluster was crowded for many hours."""
    known = [cluster for cluster in VIRTUAL_CLUSTERS if cluster in clusters or cluster.name == CROWDED]
    return [*known, *(cluster for cluster in clusters if cluster.number is None)]


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    for cluster in _shown(clusters):
        yield philly(cluster, BASE)
        yield from (_elastic(cluster, pending) for pending in PENDING)


def _elastic(cluster: VirtualCluster, pending: int) -> Case:
    return philly(cluster, ELASTIC, parameters=(("pending", pending),))


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="EDL Table 2: Elastic-Tiresias",
        text=TEXT,
        findings=list(_findings(results, published(_shown(clusters)))),
        explanations=EXPLANATIONS,
        tables=[_table(results, _shown(clusters))],
    )


def of_size(record: Record, size: str) -> npt.NDArray[np.bool_]:
    gpu_s: Floats = record.requested_gpus * record.duration_s
    low, high = THRESHOLDS_GPU_S
    return {
        "all": np.ones(len(gpu_s), dtype=np.bool_),
        "small": gpu_s < low,
        "medium": (gpu_s >= low) & (gpu_s <= high),
        "large": gpu_s > high,
    }[size]


def _mean(record: Record, size: str) -> float:
    return float(record.jct_s[of_size(record, size)].mean())


def _pair(results: Results, cluster: VirtualCluster, size: str, pending: int) -> tuple[float, float]:
    return _mean(results[philly(cluster, BASE)], size), _mean(results[_elastic(cluster, pending)], size)


def _findings(results: Results, clusters: Sequence[VirtualCluster]) -> Iterator[Finding]:
    """Yield ratios of JCTs; a reduction of 29.8 % is 0.70."""
    for cluster in clusters:
        for size in SIZES:
            before, after = _pair(results, cluster, size, PENDING[0])
            published = PUBLISHED[size][1] / PUBLISHED[size][0]
            what = f"trace {name(cluster)}: {size} jobs' JCT, elastic to rigid"
            yield Finding(f"{size}-{cluster.number}", what, exactly(published, "Table 2"), after / before)


def _table(results: Results, clusters: Sequence[VirtualCluster]) -> str:
    def row(label: str, pairs: Sequence[tuple[float, float]]) -> tuple[str, ...]:
        cells = [f"{number(before)} -> {number(after)} ({after / before - 1:+.0%})" for before, after in pairs]
        return (label, *cells)

    rows = [row("EDL", [PUBLISHED[size] for size in SIZES])]
    rows += [
        row(f"{name(cluster)}, N = {pending}", [_pair(results, cluster, size, pending) for size in SIZES])
        for cluster in clusters
        for pending in PENDING
    ]
    return "Average JCT (s), Tiresias -> Elastic-Tiresias:\n\n" + table(("trace", *SIZES), rows)
