"""Jobs generated at a given load: real throughput curves, and mostly small jobs, as in clusters (AFS Table 3).

Arrivals are a Poisson process. Durations with the requested GPUs are log-normal, with a median of ten minutes and a mean
of half an hour. A job's length follows from its duration as in `simulator.assign`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.profiles.curves import Curve
from elasticd.simulator.workload import Workload

REQUESTS = {1: 0.7, 2: 0.1, 4: 0.12, 8: 0.08}  # GPUs, and the fraction of jobs that request them
MEDIAN_S, SIGMA = 600.0, 1.5
MEAN_S = MEDIAN_S * math.exp(SIGMA**2 / 2)


def generate(jobs: int, cluster_gpus: int, load: float, seed: int, curves: Sequence[Curve]) -> Workload:
    """Generate jobs. load: requested GPU-seconds per second, over the cluster's GPUs. 0: all jobs arrive at once."""
    rng = random.Random(seed)
    requests = rng.choices(list(REQUESTS), list(REQUESTS.values()), k=jobs)
    width = max(max(len(curve.speedup) for curve in curves), max(REQUESTS) + 1)
    speedup = np.stack([np.pad(curve.speedup, (0, width - len(curve.speedup)), mode="edge") for curve in curves])
    chosen = np.array([rng.randrange(len(curves)) for _ in range(jobs)], dtype=np.int64)
    requested = np.array(requests, dtype=np.int64)
    duration_s = np.array([rng.lognormvariate(math.log(MEDIAN_S), SIGMA) for _ in range(jobs)])
    mean_gpus = sum(gpus * part for gpus, part in REQUESTS.items())
    rate = load * cluster_gpus / (mean_gpus * MEAN_S)  # arrivals per second
    gaps_s = [rng.expovariate(rate) if load else 0.0 for _ in range(jobs)]
    best = np.array([curve.best(cluster_gpus) for curve in curves], dtype=np.int64)
    return Workload(
        names=tuple(JobId(f"job-{row}") for row in range(jobs)),
        submit_s=np.cumsum(gaps_s) - gaps_s[0],
        min_gpus=np.ones(jobs, dtype=np.int64),
        max_gpus=np.maximum(best[chosen], 1),
        requested_gpus=requested,
        work_s=duration_s * speedup[chosen, requested],
        curve=chosen,
        curves=Curves(speedup),
        models=tuple(curve.model for curve in curves),
    )
