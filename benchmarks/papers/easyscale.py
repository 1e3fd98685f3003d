"""EasyScale Fig. 14 to 16: 67 jobs on 64 GPUs of three types, beside YARN's capacity scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .cases import Case
from .findings import Finding, exactly, number
from .inputs import Peers, VirtualCluster
from .page import Section, table
from .results import Results

TRACE, SPEEDS = "easyscale_workload_67jobs.csv", "easyscale_overhead.csv"
YARN, POLICIES = "yarn-cs", ("elastic", "max-min", "optimus")
OURS = POLICIES[0]
PUBLISHED = {"homo": (8.3, 2.5), "heter": (13.2, 2.8)}  # YARN-CS over EasyScale: average JCT, makespan

TEXT = """\
**Published.** 67 jobs on 32 V100, 16 P100 and 16 T4 (5.2). Under YARN-CS a job waits in order of submission for as many GPUs
of its preferred type as it has virtual workers. EasyScale trains with any number, of one type (homo) or of several where the
model needs no kernels of one vendor's library (heter: D2). Average JCT improves by 8.3x and 13.2x, makespan by 2.5x and 2.8x.

**Here.** The published trace, with the data sets of Table 1 for the length of an epoch and the times per mini-batch of
Fig. 12. Jobs on several types host virtual workers by speed (equation 1). EasyScale's own cluster scheduler is not among the
policies; `optimus` is the nearest, since it gives each GPU to the job that gains the most by it."""

_FULL = """\
All jobs of the trace arrive within 1.3 hours and together need 3,870 hours of a V100, which the 64 GPUs, worth 53 V100s, cannot
do in less than 73: 2.6 times less than YARN-CS takes. The GPUs are busy under `homo`, too, until the few longest jobs are left,
so that mixing types finds little to use. `elastic` puts short jobs first; one job of four virtual workers takes 67 hours alone
and ends last. The published run must have been shorter or less loaded; its makespan in hours is not stated."""
EXPLANATIONS = {f"easyscale-{uses}-{what}": _FULL for uses in PUBLISHED for what in ("jct", "makespan")}


def _case(policy: str, uses: str) -> Case:
    return Case(TRACE, (), SPEEDS, policy, uses=uses)


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    """Yield the cases, which do not depend on AFS's clusters."""
    yield _case(YARN, "asked")
    yield from (_case(policy, uses) for policy in POLICIES for uses in PUBLISHED)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="EasyScale Fig. 14 to 16: 67 jobs on three types of GPUs",
        text=TEXT,
        findings=list(_findings(results)),
        explanations=EXPLANATIONS,
        tables=[_table(results)],
    )


def _improvement(results: Results, policy: str, uses: str) -> tuple[float, float]:
    """Return how many times shorter the average JCT and the makespan are than under YARN-CS."""
    yarn, ours = results[_case(YARN, "asked")], results[_case(policy, uses)]
    assert yarn.metrics.makespan_s is not None
    assert ours.metrics.makespan_s is not None
    return yarn.avg_jct_s / ours.avg_jct_s, yarn.metrics.makespan_s / ours.metrics.makespan_s


def _findings(results: Results) -> Iterator[Finding]:
    for uses, (jct, makespan) in PUBLISHED.items():
        found = _improvement(results, OURS, uses)
        yield Finding(f"easyscale-{uses}-jct", f"{uses}: average JCT", exactly(jct, "5.2"), found[0], in_table=True)
        yield Finding(
            f"easyscale-{uses}-makespan", f"{uses}: makespan", exactly(makespan, "5.2"), found[1], in_table=True
        )


def _table(results: Results) -> str:
    yarn = results[_case(YARN, "asked")]
    rows = [(YARN, "its type", f"{yarn.avg_jct_s / 3600:.1f} h", "1x", "1x", f"{np.mean(yarn.used_gpus):.1f}")]
    for policy in POLICIES:
        for uses in PUBLISHED:
            record, (jct, makespan) = results[_case(policy, uses)], _improvement(results, policy, uses)
            used = f"{np.mean(record.used_gpus):.1f}"
            rows.append(
                (policy, uses, f"{record.avg_jct_s / 3600:.1f} h", f"{number(jct)}x", f"{number(makespan)}x", used)
            )
    published = [("EasyScale", uses, "", f"{jct}x", f"{makespan}x", "") for uses, (jct, makespan) in PUBLISHED.items()]
    header = ("policy", "GPUs of a job", "average JCT", "better than YARN-CS", "makespan", "GPUs in use")
    return table(header, [*rows, *published])
