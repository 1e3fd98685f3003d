"""Pollux beside its own simulator's published results, and as ElasticFlow's baseline (ElasticFlow Fig. 6a and 8a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .cases import Case
from .elasticflow import FIG_8A, OURS, TESTBED, Input, case, ratio
from .findings import Finding, exactly, number
from .inputs import Peers, VirtualCluster
from .page import Section, table
from .results import Results

WORKLOADS = "pollux_workloads.csv.gz"
PLACEMENTS = "sia_pollux_placements.csv.gz"
PEER_INPUT = "workload-6 (160 jobs), 16x4 T4"  # label of its runs
PUBLISHED_S = {  # average JCTs of its artifact (simulator/results-jobload/pollux-1.0 in petuum/adaptdl, osdi21-artifact)
    "1": 2088.76875,
    "2": 3322.94375,
    "3": 2188.49375,
    "4": 2720.98125,
    "5": 2673.7,
    "6": 2446.13125,
    "7": 3616.14375,
    "8": 2951.90625,
}
PEER_POLICIES = {"optimus": "optimus", "tiresias-l": "tiresias"}

TEXT = """\
**Published.** Average JCTs of Pollux' simulator on eight workloads of 160 jobs, on 16 servers of 4 T4 (its artifact). The
batch follows the share, by measured times and the gradient noise scale; a change of GPUs costs 30 s.

**Here.** The same workloads with `--overhead stop-resume`, `start_at_once: false` and Pollux' measurements
(`simulator/goodput.py`). Our noise scale is constant; in Pollux' simulator it grows while a job trains, throughput comes from
a model fitted to a job's own measurements, and NCF trains on one GPU only. Optimus and Tiresias keep the workload's batches.

As a baseline of ElasticFlow: with ElasticFlow's curves jobs keep their batch, so goodput is throughput. With Pollux'
measurements `pollux` chooses the batch for each share, as in Fig. 8a, and the other policies do not. Changes cost nothing.
One run of these:

    elasticctl simulate elasticflow_fig8a_195jobs.csv --profiles sia_pollux_placements.csv.gz --gpu-type t4 --policy p.yaml"""

_YOLO = """\
In Pollux' simulator YOLOv3 has at most 8 samples on a GPU; here up to 16, as measured. Of this workload 14 of 160 jobs are
YOLOv3. With Pollux' limit the average is 2,067 s, 5.5 % below."""
_OPTIMUS = """\
Pollux' Optimus decides every 60 s, by a model fitted to a job's own measurements and an estimate of the work left. Ours
knows both, and decides when a job arrives or ends."""
EXPLANATIONS: dict[str, str] = {"pollux-3": _YOLO, "pollux-optimus": _OPTIMUS}


def _as_there(policy: str) -> tuple[tuple[str, bool], ...]:
    """Return the parameters of Pollux' simulator, in which an arriving job waits for the next division."""
    return (("start_at_once", False),) if policy == "pollux" else ()


def workload(label: str, policy: str) -> Case:
    where = (("set", "workloads"), ("workload", label))
    return Case(WORKLOADS, where, PLACEMENTS, policy, parameters=_as_there(policy), gpu_type="t4", costs="stop-resume")


def with_own_curves(source: Input, policy: str) -> Case:
    """Return a case of ElasticFlow, with its curves."""
    found = case(source, policy)
    return replace(found, parameters=(*found.parameters, *_as_there(policy)))


def measured(policy: str) -> Case:
    """Return Fig. 8a with Pollux' measurements."""
    free = with_own_curves(FIG_8A, policy).parameters
    return Case(FIG_8A.trace, (), PLACEMENTS, policy, parameters=free, gpu_type="t4")


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    """Yield the cases, which do not depend on AFS's clusters."""
    for label in PUBLISHED_S:
        yield workload(label, "pollux")
    for policy in PEER_POLICIES:
        yield workload("6", policy)
    for policy in ("pollux", OURS):
        yield from (with_own_curves(source, policy) for source in (FIG_8A, TESTBED))
        yield measured(policy)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="Pollux: goodput, and as a baseline of ElasticFlow",
        text=TEXT,
        findings=list(_findings(results, peers)),
        explanations=EXPLANATIONS,
        tables=[_deadlines(results)],
    )


def _findings(results: Results, peers: Peers) -> Iterator[Finding]:
    for label, published_s in PUBLISHED_S.items():
        ours_s = results[workload(label, "pollux")].avg_jct_s
        what = f"workload {label}: average JCT"
        yield Finding(f"pollux-{label}", what, exactly(published_s, "Pollux' artifact"), ours_s, " s")
    count = len(PUBLISHED_S)
    mean_s = sum(results[workload(label, "pollux")].avg_jct_s for label in PUBLISHED_S) / count
    published_s = sum(PUBLISHED_S.values()) / count
    yield Finding("pollux-all", "mean of the eight", exactly(published_s, "Pollux' artifact"), mean_s, " s")
    for policy, peer in PEER_POLICIES.items():
        theirs_s = peers.avg_jct_s[("Pollux", PEER_INPUT, peer)]
        ours_s = results[workload("6", policy)].avg_jct_s
        what = f"workload 6: average JCT of {policy}"
        yield Finding(f"pollux-{policy}", what, exactly(theirs_s, "Pollux' simulator"), ours_s, " s")


def _deadlines(results: Results) -> str:
    made = [
        (FIG_8A.name, "ElasticFlow's T4 curves", 64, lambda policy: with_own_curves(FIG_8A, policy)),
        (FIG_8A.name, "Pollux' measurements", 64, measured),
        (TESTBED.name, "ElasticFlow's A100 curves", 128, lambda policy: with_own_curves(TESTBED, policy)),
    ]
    rows = []
    for name, curves, gpus, of in made:
        met = {policy: ratio(results[of(policy)]) for policy in ("pollux", OURS)}
        over = met[OURS] / met["pollux"]
        rows.append((name, curves, str(gpus), f"{met['pollux']:.3f}", f"{met[OURS]:.3f}", f"{number(over)}x"))
    header = ("trace", "throughputs", "GPUs", "pollux", OURS, "over")
    return "Part of the jobs that met their deadlines:\n\n" + table(header, rows)
