"""AFS Fig. 13: the loss of AFS-P and AFS-S against AFS-L, which knows more; and AFS 4.3: frequency of AFS-P's changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from .average import draw_reductions, name, reduction
from .cases import Case, afs, each
from .findings import Finding, below, between, exactly, number
from .inputs import VIRTUAL_CLUSTERS, Peers, VirtualCluster, published
from .page import Picture, Section, table
from .results import Results

POLICIES = ("afs-l", "afs-p", "afs-s")
BASE = "tiresias-l"

TEXT = """\
**Published.** AFS-P, which does not know lengths, has at most twice AFS-L's average JCT. AFS-S, which knows only where
throughput stops growing, "performs similarly to AFS-P in many cases" (App. D). AFS-P changes shares 6.3 times as often as
Tiresias-L on average, up to 22 times (4.3).

**Here.** As above. Each resize, preemption or migration of a running job counts as one change."""

_QUIET = """\
On traces 7 and 11 jobs hardly ever wait. Tiresias-L, which is rigid, then changes almost nothing, while AFS-P changes shares
at arrivals and ends: four to six times per job (three to thirteen on the other traces)."""
EXPLANATIONS = dict.fromkeys(("C7", "C11", "C"), _QUIET)


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    return each(clusters, (*POLICIES, BASE))


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="AFS Fig. 13: what the variants of AFS need to know",
        text=TEXT,
        findings=list(_findings(results, published(clusters))),
        explanations=EXPLANATIONS,
        tables=[_table(results, clusters)],
        pictures=[
            Picture(
                "afs-variants.png",
                "Average JCT of AFS-L over that of the variant: what is lost by knowing less.",
                (9, 3.4),
                lambda figure: _draw(figure, results, clusters),
            )
        ],
    )


def _findings(results: Results, clusters: Sequence[VirtualCluster]) -> Iterator[Finding]:
    for cluster in clusters:
        longer = reduction(results, cluster, "afs-p", "afs-l")
        yield Finding(
            f"V{cluster.number}", f"trace {name(cluster)}: AFS-P's JCT to AFS-L's", below(2.0, "App. D"), longer
        )
        yield Finding(
            f"C{cluster.number}",
            f"trace {name(cluster)}: AFS-P's changes to Tiresias-L's",
            between(1.0, 22.0, "4.3"),
            _changes(results, cluster),
        )
    if len(clusters) == len(VIRTUAL_CLUSTERS):
        ratios = [_changes(results, cluster) for cluster in clusters]
        mean = sum(ratios) / len(ratios)
        yield Finding("C", "mean of AFS-P's changes to Tiresias-L's", exactly(6.3, "4.3, eleven traces"), mean)


def _changes(results: Results, cluster: VirtualCluster) -> float:
    many, few = (results[afs(cluster, policy)].metrics.reconfigurations for policy in ("afs-p", BASE))
    return many / max(few, 1)


def _table(results: Results, clusters: Sequence[VirtualCluster]) -> str:
    rows = [
        (
            name(cluster),
            *(number(results[afs(cluster, policy)].avg_jct_s) for policy in POLICIES),
            f"{reduction(results, cluster, 'afs-s', 'afs-p'):.2f}",
            *(f"{results[afs(cluster, policy)].metrics.reconfigurations:,}" for policy in ("afs-p", BASE)),
        )
        for cluster in clusters
    ]
    header = ("trace", *(f"{policy}: average JCT (s)" for policy in POLICIES))
    return table((*header, "afs-s to afs-p", "afs-p: changes", f"{BASE}: changes"), rows)


def _draw(figure: Figure, results: Results, clusters: Sequence[VirtualCluster]) -> None:
    draw_reductions(figure.subplots(), results, clusters, "afs-l", POLICIES)
