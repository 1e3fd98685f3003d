"""Elan Fig. 20 and 22: elastic beside static policies, and what slow resizes cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from matplotlib.figure import Figure

from .bars import grouped
from .cases import Case
from .findings import Finding, below, exactly, number
from .inputs import ELASTICFLOW_JOBS, ELASTICFLOW_MODELS, Peers, VirtualCluster
from .page import Picture, Section, table
from .results import Record, Results

SERVERS, GPUS = 16, 8
SEEDS = (1, 2, 3)  # Elan: "We run the simulation 3 times"
PAIRS = (("fifo", "elastic-fifo"), ("backfill", "elastic-backfill"))
POLICIES = tuple(policy for pair in PAIRS for policy in pair)
CHANGING = "elastic-backfill"  # the policy of Fig. 22
OURS = "background"  # stands for Elan's costs
COSTS = {"none": "ideal", "background": "Elan", "stop-resume": "S&R"}

TEXT = """\
**Published.** Two days of a cluster of SenseTime, down-sampled, on 128 GPUs, three runs. With elasticity the pending time
(JPT) is at least 43 % shorter, the JCT 25 %, the makespan 21 % (Fig. 20, VI-C). Stop-and-resume (S&R) instead of Elan makes
JCTs under E-BF 6 % longer, and Elan equals an ideal system without costs (Fig. 22).

**Here.** Elan's trace is not public. ElasticFlow's `195job` stands in: two days (1.99) of a production cluster, made for 128
GPUs. Throughputs are those of ElasticFlow's six models on A100 servers; a model is drawn for each job, with three seeds.
`min_res` is 1 GPU, `max_res` the share of greatest throughput. Costs are the presets `none`, `background` (our runtime) and
`stop-resume` (30 s)."""

EXPLANATIONS: dict[str, str] = {}


def case(policy: str, seed: int, costs: str = "none") -> Case:
    return Case(
        ELASTICFLOW_JOBS,
        (("cluster", "195job"),),
        ELASTICFLOW_MODELS,
        policy,
        servers=SERVERS,
        gpus_per_server=GPUS,
        gpu_type="A100",
        costs=costs,
        random_models=True,
        seed=seed,
    )


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    """Yield the cases, which do not depend on AFS's clusters."""
    for seed in SEEDS:
        for policy in POLICIES:
            yield case(policy, seed, OURS)
        for costs in COSTS:
            yield case(CHANGING, seed, costs)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    return Section(
        title="Elan Fig. 20 and 22: elastic against static scheduling",
        text=TEXT,
        findings=list(_findings(results)),
        explanations=EXPLANATIONS,
        tables=[_table(results)],
        pictures=[
            Picture(
                "elan.png",
                "Pending time, JCT and makespan under static and elastic policies; E-BF with three costs of a change.",
                (11, 3.6),
                lambda figure: _draw(figure, results),
            )
        ],
    )


def _pending_s(record: Record) -> float:
    assert record.metrics.avg_queueing_s is not None
    return record.metrics.avg_queueing_s


def _makespan_s(record: Record) -> float:
    assert record.metrics.makespan_s is not None
    return record.metrics.makespan_s


MEASURES = {"JPT": _pending_s, "JCT": lambda record: record.avg_jct_s, "makespan": _makespan_s}


def _average(results: Results, policy: str, measure: str, costs: str = "none") -> float:
    """Return the mean over the three runs (s)."""
    return mean(MEASURES[measure](results[case(policy, seed, costs)]) for seed in SEEDS)


def _findings(results: Results) -> Iterator[Finding]:
    """Yield ratios to the static policy; a reduction of 43 % is 0.57."""
    least = {"JPT": 0.43, "JCT": 0.25, "makespan": 0.21}
    for rigid, elastic in PAIRS:
        for measure, reduction in least.items():
            ratio = _average(results, elastic, measure, OURS) / _average(results, rigid, measure, OURS)
            yield Finding(
                f"{measure}-{elastic}",
                f"{measure}, {elastic} to {rigid}",
                below(1 - reduction, "VI-C, Fig. 20"),
                ratio,
            )
    ideal = _average(results, CHANGING, "JCT")
    for costs, published in (("background", 1.0), ("stop-resume", 1.06)):
        longer = _average(results, CHANGING, "JCT", costs) / ideal
        what = f"JCT of {CHANGING}, {COSTS[costs]} to ideal"
        yield Finding(f"costs-{costs}", what, exactly(published, "VI-C, Fig. 22"), longer)


def _table(results: Results) -> str:
    shown = [(policy, OURS) for policy in POLICIES] + [(CHANGING, costs) for costs in COSTS if costs != OURS]
    rows = [
        (policy, COSTS[costs], *(number(_average(results, policy, measure, costs)) for measure in MEASURES))
        for policy, costs in shown
    ]
    return "Means of three runs (s):\n\n" + table(("policy", "costs", *MEASURES), rows)


def _draw(figure: Figure, results: Results) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    bars = {
        policy: [
            _average(results, policy, measure, OURS) / _average(results, "fifo", measure, OURS) for measure in MEASURES
        ]
        for policy in POLICIES
    }
    grouped(left, list(MEASURES), bars, "relative to fifo")
    measures = ("JCT", "makespan")
    systems = {
        label: [
            _average(results, CHANGING, measure, costs) / _average(results, CHANGING, measure) for measure in measures
        ]
        for costs, label in COSTS.items()
    }
    grouped(right, list(measures), systems, f"{CHANGING}, relative to ideal")
