"""Time of an admission decision by deadline: 1,000 running jobs with promises on 2,048 GPUs. `python -m benchmarks.admission`

Each decision concerns one new job, and is requested as in a simulation: with the whole view. Times are processor times. Jobs are
generated such that the cluster is nearly full and some newcomers are refused.
"""

from __future__ import annotations

import json
import math
import random
import time

import numpy as np

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.deadlines.admitting import ElasticflowAdmission
from elasticd.scheduler.deadlines.promises import settle
from elasticd.scheduler.deadlines.table import DeadlineTerms, situations
from elasticd.scheduler.view import ClusterView, Columns, JobTable
from elasticd.simulator.workload import servers

JOBS, SERVERS, GPUS = 1000, 256, 8
NEWCOMERS = 200
POWERS = (0.6, 0.75, 0.9, 1.0)  # exponents of throughput in the number of GPUs


def main() -> None:
    rng = random.Random(0)
    columns = _columns(rng, 8 * JOBS)
    curves = Curves(np.arange(65.0) ** np.array(POWERS)[:, None])
    cluster = servers(SERVERS, GPUS)
    terms = DeadlineTerms()
    admission = ElasticflowAdmission(terms)
    present = np.arange(0)
    newcomer = 0
    times: list[float] = []
    refused = 0
    while len(times) < NEWCOMERS and newcomer < 8 * JOBS:
        rows = np.append(present, newcomer)
        newcomer += 1
        view = ClusterView(0.0, JobTable(columns, rows, curves), cluster, {})
        began_s = time.process_time()
        no = bool(admission.refusals(view, [len(rows) - 1]))
        took_s = time.process_time() - began_s
        if len(present) >= JOBS:
            times.append(took_s)
            refused += no
            present = present if no else present[1:]
        if not no:
            present = np.append(present, rows[-1])
            _run(columns, present, curves, cluster, terms)
    found = np.array(times) * 1e3
    print(
        json.dumps(
            {
                "jobs": JOBS,
                "gpus": SERVERS * GPUS,
                "decisions": len(found),
                "refused": refused,
                "p50_ms": round(float(np.percentile(found, 50)), 2),
                "p99_ms": round(float(np.percentile(found, 99)), 2),
                "max_ms": round(float(found.max()), 2),
            }
        )
    )


def _columns(rng: random.Random, count: int) -> Columns:
    left_s = np.array([rng.lognormvariate(9.0, 1.5) for _ in range(count)])
    faster = np.array([rng.choice([1.0, 2.0, 4.0, 8.0]) / rng.uniform(1.0, 2.0) for _ in range(count)])
    ones = np.ones(count, dtype=np.int64)
    return Columns(
        names=[JobId(f"job-{number}") for number in range(count)],
        submitted_s=np.zeros(count),
        min_gpus=ones,
        max_gpus=64 * ones,
        requested_gpus=ones,
        priority=0 * ones,
        share=0 * ones,
        left_s=left_s,
        told_s=left_s,
        done_s=np.zeros(count),
        attained_gpu_s=np.zeros(count),
        executed_s=np.zeros(count),
        waiting_since_s=np.zeros(count),
        curve=np.array([rng.randrange(len(POWERS)) for _ in range(count)], dtype=np.int64),
        deadline_s=left_s / faster + 60.0,
        soft=0 * ones,
        still_until_s=np.zeros(count),
        changes=np.zeros(count, dtype=np.int64),
    )


def _run(columns: Columns, present: object, curves: Curves, cluster: tuple, terms: DeadlineTerms) -> None:  # type: ignore[type-arg]
    """Give the jobs the GPUs of their plan at intervals, so that they run."""
    rows = np.asarray(present)
    if len(rows) % 100 and len(rows) != JOBS:
        return
    view = ClusterView(0.0, JobTable(columns, rows, curves), cluster, {})
    (found,) = situations(view, [], terms)[0].each
    plan = settle(found.promised, found.timeline())
    assert not math.isinf(plan.timeline.now)
    for key, filled in plan.found.items():
        columns.share[rows[key]] = filled.gpus


if __name__ == "__main__":
    main()
