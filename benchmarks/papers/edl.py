"""EDL Table 2: Elastic-Tiresias beside Tiresias, by the size of the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from elasticd.scheduler.view import Floats

from .average import name
from .cases import Case, philly
from .findings import Finding, exactly, number
from .inputs import VIRTUAL_CLUSTERS, Peers, VirtualCluster, published
from .page import Section, table
from .results import Record, Results

THRESHOLDS_GPU_S = (10_000.0, 200_000.0)
BASE, ELASTIC = "tiresias-l", "elastic-tiresias"
CROWDED = "0e4a51"
PENDING = (10, 0)  # N: ours by default, and the least
SIZES = ("all", "small", "medium", "large")
PUBLISHED = {"all": (52_055, 36_544), "small": (1_646, 878), "medium": (33_669, 36_426), "large": (726_367, 550_543)}

TEXT = """\
**Published.** More than 100,000 jobs of Microsoft's cluster (550 servers of 8 GPUs, two months), TensorFlow's benchmark
models; three queues, 10,000 and 200,000 GPU*s; the jobs by their GPU*s: small below 10^4, medium to 2 x 10^5, large above
(6.2). Average JCT -29.8 %, of small jobs -47 %, of medium ones +8 %, of large ones -25 %. Neither the jobs, nor the
models' curves, nor N, the number of pending jobs from which on jobs shrink, are told.

**Here.** The virtual clusters as in AFS: 64 GPUs, its models, the same queues, N = 10. Reductions are told for each of
them, since each is a load of its own; EDL's trace as a whole is not at hand."""

_QUIET = """\
Traces 4, 7 and 11 are the quiet ones: under Tiresias more than ten jobs wait for 14 % of the time on trace 4 and never on
the other two, where a job hardly ever waits, and some GPUs are idle for 86 to 100 % of the time. So it is R2 that does
most, and it hands GPUs to jobs of all sizes, medium ones among them; the quieter the trace, the more. How much R1 adds
depends on N: with N = 0 all gain more than was published. On the crowded trace 1, where more than ten jobs wait for 69 %
of the time, R1 does most: medium jobs gain nothing, and large ones what EDL's do. EDL's cluster has hours of both kinds
(its Fig. 3a)."""
_CROWDED = """\
On the crowded traces 1, 2 and 5 small jobs go before all others under either policy, so that they wait only for each
other, and there seldom are idle GPUs with which R2 could make them faster. On the quieter trace 4 it does, by nearly as
much as in EDL. Traces 2 and 5 are the most crowded ones: more than ten jobs wait for 88 and 89 % of the time, and Tiresias
by itself keeps 59 of the 64 GPUs busy, so that there is little that elasticity could add for anybody, nor take from medium
jobs."""
EXPLANATIONS = {
    **dict.fromkeys(("all-4", "small-4", "medium-4"), _QUIET),
    **dict.fromkeys(("all-7", "small-7", "medium-7", "large-7"), _QUIET),
    **dict.fromkeys(("all-11", "medium-11", "large-11"), _QUIET),
    **dict.fromkeys(("small-1", "all-2", "small-2", "large-2"), _CROWDED),
    **dict.fromkeys(("all-5", "small-5", "medium-5", "large-5"), _CROWDED),
}


def _shown(clusters: Sequence[VirtualCluster]) -> list[VirtualCluster]:
    """A crowded one is always among them, since EDL's cluster was crowded for many hours."""
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
    """Ratios of JCTs; a reduction of 29.8 % is 0.70."""
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
