"""Other simulators on the same input: which differences are due to the policy, and which to the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .average import name
from .cases import Case, afs, philly
from .findings import Finding, exactly, number
from .inputs import Peers, VirtualCluster, published
from .page import Section, table
from .results import Results

OF_PCS = {  # its policy: the nearest one of this project, and its rule as a policy of this project
    "FIFO": ("fifo", "pcs-fifo"),
    "SRTF": ("srtf", "pcs-srtf"),
    "SRSF": ("srsf", "pcs-srsf"),
    "LAS": ("tiresias-l", "pcs-las"),
    "THEMIS": ("themis", "pcs-themis"),
}
OF_TIRESIAS = {  # its policy: this project's, and its rule as a policy of this project where the two differ
    "fifo": ("fifo", "fifo"),
    "shortest-gpu": ("srsf", "srsf"),
    "dlas-gpu": ("tiresias-l", "tiresias-dlas-gpu"),
}
AFS_RULES = ("afs-l", "pcs-afs")  # this project's, and PCS's
MOST_JOBS = 3000  # of the traces that the other simulators were run on

TEXT = """\
PCS (OSDI'24 artifact) and Tiresias' simulator on the same jobs, 64 GPUs. `benchmarks/papers/peer_rules.py` has the rules of
both, run in our simulator ("its rule here"). They differ from ours in the following.

* PCS's `AFS` gives no job more than it requested; it stands beside ours with `--cap-at-request`.

* PCS's FIFO, SRTF, SRSF and LAS give the first job that does not fit the GPUs that are left, however few. Ours, like Slurm,
YARN and Tiresias, are all or nothing, and a job that does not fit blocks those behind it.

* PCS's LAS orders by work done, without queues, when jobs come and go. PCS's Themis knows lengths and gives each job its whole
demand in turn."""

_TAIL = """\
Ours sends an interrupted job to the tail of its queue; in Tiresias' simulator it stands before all that already wait, and a
job of several GPUs stays longer in its queue. With that rule (`TiresiasDlas` in `peer_rules.py`) the same number comes out."""
EXPLANATIONS = {"tiresias-dlas-gpu-4": _TAIL}


def _compared(clusters: Sequence[VirtualCluster]) -> list[VirtualCluster]:
    return [cluster for cluster in published(clusters) if cluster.jobs <= MOST_JOBS]


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    for cluster in _compared(clusters):
        for nearest, rule in OF_PCS.values():
            yield afs(cluster, nearest)
            yield afs(cluster, rule)
        yield philly(cluster, "afs-l", cap_at_request=True)
        yield from (philly(cluster, rule) for rule in AFS_RULES)
        for nearest, rule in OF_TIRESIAS.values():
            yield afs(cluster, nearest)
            yield afs(cluster, rule)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    compared = _compared(clusters)
    return Section(
        title="The peers' simulators",
        text=TEXT,
        findings=[*_of_pcs(results, compared, peers), *_of_tiresias(results, compared, peers)],
        explanations=EXPLANATIONS,
        tables=[_table(results, compared, peers)],
    )


def _of_pcs(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Iterator[Finding]:
    for cluster in clusters:
        for policy, (_, rule) in OF_PCS.items():
            if (theirs := peers.pcs(cluster, policy)) is not None:
                what = f"trace {name(cluster)}: PCS's rule {policy}"
                ours = results[afs(cluster, rule)].avg_jct_s
                key = f"pcs-{policy}-{cluster.number}"
                yield Finding(key, what, exactly(theirs, "PCS"), ours, " s", in_table=True)
        if (theirs := peers.pcs(cluster, "AFS")) is not None:
            ours = results[philly(cluster, "afs-l", cap_at_request=True)].avg_jct_s
            what = f"trace {name(cluster)}: AFS-L, at most the request"
            yield Finding(f"pcs-AFS-{cluster.number}", what, exactly(theirs, "PCS"), ours, " s")
        ours, theirs = (results[philly(cluster, rule)].avg_jct_s for rule in AFS_RULES)
        what = f"trace {name(cluster)}: AFS-L"
        yield Finding(f"pcs-rule-AFS-{cluster.number}", what, exactly(theirs, "PCS's rule"), ours, " s")


def _of_tiresias(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Iterator[Finding]:
    for cluster in clusters:
        for policy, (nearest, rule) in OF_TIRESIAS.items():
            if (theirs := peers.tiresias(cluster, policy)) is None:
                continue
            key, published = f"tiresias-{policy}-{cluster.number}", exactly(theirs, "Tiresias")
            ours = results[afs(cluster, nearest)].avg_jct_s
            yield Finding(key, f"trace {name(cluster)}: {policy}, ours {nearest}", published, ours, " s")
            if rule != nearest:
                what = f"trace {name(cluster)}: Tiresias' rule {policy}"
                yield Finding(f"{key}-rule", what, published, results[afs(cluster, rule)].avg_jct_s, " s")


def _table(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> str:
    rows = []
    for cluster in clusters:
        for policy, (nearest, rule) in OF_PCS.items():
            theirs = peers.pcs(cluster, policy)
            rows.append(
                (
                    name(cluster),
                    policy,
                    "-" if theirs is None else number(theirs),
                    number(results[afs(cluster, rule)].avg_jct_s),
                    nearest,
                    number(results[afs(cluster, nearest)].avg_jct_s),
                )
            )
    header = ("trace", "PCS's policy", "PCS", "its rule here", "our policy", "ours")
    return "Average JCT (s):\n\n" + table(header, rows)
