"""AFS Fig. 11: SRTF and SRSF that give leftover GPUs to other jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from .average import draw_reductions, name, reduction
from .cases import Case, afs, each
from .findings import Finding, above, number
from .inputs import Peers, VirtualCluster, published
from .page import Picture, Section, table
from .results import Results

POLICIES = ("srtf", "srtf-e", "srsf", "srsf-e", "afs-l")

TEXT = """\
**Published.** SRTF-E and SRSF-E give jobs what they requested and the rest to the jobs that gain most. Their average JCTs
are shorter than those of SRTF and SRSF, and "AFS-L still shows a substantial benefit over these" (5.5).

**Here.** As Fig. 5."""

EXPLANATIONS: dict[str, str] = {}


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    return each(clusters, POLICIES)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="AFS Fig. 11: giving leftovers away is not enough",
        text=TEXT,
        findings=list(_findings(results, published(clusters))),
        explanations=EXPLANATIONS,
        tables=[_table(results, clusters)],
        pictures=[
            Picture(
                "afs-altruistic.png",
                "How many times shorter the average JCT is than SRTF's.",
                (9, 3.4),
                lambda figure: _draw(figure, results, clusters),
            )
        ],
    )


def _findings(results: Results, clusters: Sequence[VirtualCluster]) -> Iterator[Finding]:
    for cluster in clusters:
        for rigid in ("srtf", "srsf"):
            generous = f"{rigid}-e"
            yield Finding(
                f"{generous}-{cluster.number}",
                f"trace {name(cluster)}: {generous} over {rigid}",
                above(1.0, "5.5, Fig. 11"),
                reduction(results, cluster, rigid, generous),
            )
            yield Finding(
                f"afs-l-{generous}-{cluster.number}",
                f"trace {name(cluster)}: afs-l over {generous}",
                above(1.0, "5.5, Fig. 11"),
                reduction(results, cluster, generous, "afs-l"),
            )


def _table(results: Results, clusters: Sequence[VirtualCluster]) -> str:
    rows = [
        (name(cluster), *(number(results[afs(cluster, policy)].avg_jct_s) for policy in POLICIES))
        for cluster in clusters
    ]
    return "Average JCT (s):\n\n" + table(("trace", *POLICIES), rows)


def _draw(figure: Figure, results: Results, clusters: Sequence[VirtualCluster]) -> None:
    draw_reductions(figure.subplots(), results, clusters, "srtf", POLICIES)
