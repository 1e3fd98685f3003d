"""`elastic` beside `elasticflow` on ElasticFlow's inputs: deadlines met, and JCTs of the other jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean

import numpy as np

from .cases import Case
from .elasticflow import INPUTS, OURS, Input, best_effort_jct_s, case, ratio
from .inputs import Peers, VirtualCluster
from .page import Section, table
from .results import Record, Results

PART = 0.3  # fraction of the jobs without a deadline
SHOWN = tuple(source for source in INPUTS if source.jobs < 10_000)  # the largest takes longer than all others together
POLICY = "elastic"

TEXT = f"""\
No paper has this comparison: jobs without deadlines under `elastic`, which keeps promises (`docs/design/deadlines.md`),
and under `elasticflow`.

**Here.** The inputs of the section before but the largest; {PART:.0%} of the jobs, drawn at random, have no deadline.
`elasticflow`'s admission promises the other deadlines under both policies; changes cost nothing. *Alone*: the part of
deadlines that jobs with the whole cluster to themselves would meet. *Bound*: the JCT if each job without a deadline began on
arrival with the GPUs that it is fastest with."""
EXPLANATIONS: dict[str, str] = {}


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    """Yield the cases, which do not depend on AFS's clusters."""
    for source in SHOWN:
        yield case(source, OURS, best_effort=PART)
        yield with_promises(source)


def with_promises(source: Input) -> Case:
    return replace(case(source, POLICY, best_effort=PART), promises=True)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="Jobs without deadlines beside promises: elastic and elasticflow",
        text=TEXT,
        findings=[],
        explanations=EXPLANATIONS,
        tables=[_table(results)],
    )


def _table(results: Results) -> str:
    rows, sooner, most = [], [], []
    for source in SHOWN:
        theirs, ours = results[case(source, OURS, best_effort=PART)], results[with_promises(source)]
        bound_s = float(theirs.shortest_s[np.isnan(theirs.deadline_s)].mean())
        jct_s = best_effort_jct_s(theirs), best_effort_jct_s(ours)
        sooner.append(1 - jct_s[1] / jct_s[0])
        most.append(1 - bound_s / jct_s[0])
        rows.append(
            (
                source.name,
                f"{alone(theirs):.3f}",
                f"{ratio(theirs):.3f}",
                f"{ratio(ours):.3f}",
                f"{theirs.metrics.missed_admitted}, {ours.metrics.missed_admitted}",
                f"{jct_s[0]:,.0f}",
                f"{jct_s[1]:,.0f}",
                f"{bound_s:,.0f}",
                f"{sooner[-1]:.1%}",
                f"{most[-1]:.1%}",
            )
        )
    met = mean(ratio(results[case(source, OURS, best_effort=PART)]) for source in SHOWN)
    header = (
        "trace",
        "alone",
        f"met, {OURS}",
        f"met, {POLICY}",
        "broken",
        f"JCT, {OURS} (s)",
        f"JCT, {POLICY} (s)",
        "bound (s)",
        "sooner",
        "at most",
    )
    return (
        "Deadlines that are met, and the average JCT of the jobs without deadlines:\n\n"
        + table(header, rows)
        + f"\n\nIn the mean {OURS} meets {met:.3f} of the deadlines: 5 % more would be {1.05 * met:.3f}. "
        f"Jobs without deadlines are over {mean(sooner):.1%} sooner in the mean; {mean(most):.1%} is what no rule can exceed."
    )


def alone(record: Record) -> float:
    """Return the fraction of deadlines that the job would meet alone in the cluster from its submission on."""
    due = ~np.isnan(record.deadline_s)
    return float((record.submit_s[due] + record.shortest_s[due] <= record.deadline_s[due] + 1e-6).mean())
