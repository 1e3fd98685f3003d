"""Tables of jobs for trials of a policy: from none to many, with and without lengths, with dents in their throughput."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np

from ..protocol.model import JobId
from .curves import Curves
from .view import UNKNOWN_S, Columns, JobTable

SIZES = ((0, 4), (1, 1), (1, 8), (5, 8), (12, 4), (40, 16))  # jobs, and GPUs
MOST = 8
NOW_S = 1000.0


def samples() -> Iterator[tuple[JobTable, int]]:
    """Yield tables of jobs submitted before 1000 s, and GPUs to divide; the same in each call."""
    rng = random.Random(0)
    for count, gpus in SIZES:
        yield _table(count, gpus, rng), gpus


def _table(count: int, gpus: int, rng: random.Random) -> JobTable:
    powers = np.array([0.6, 0.8, 1.0])
    speedup = np.arange(MOST + 1) ** powers[:, None]
    speedup[1, [3, 5, 6, 7]] *= 0.9
    least = [min(rng.choice([1, 1, 1, 2]), gpus) for _ in range(count)]
    most = [rng.randint(low, MOST) for low in least]
    runs = [rng.random() < 0.5 for _ in range(count)]
    executed_s = np.array([rng.uniform(0, 500) if run or rng.random() < 0.3 else 0.0 for run in runs])
    share = np.array([low if run else 0 for low, run in zip(least, runs, strict=True)], dtype=np.int64)
    left_s = np.array([rng.choice([1.0, 600.0, 1e5, UNKNOWN_S]) for _ in range(count)])
    done_s = executed_s * speedup[0, np.maximum(share, 1)]
    due_s = [math.nan, NOW_S - 1.0, NOW_S + 1e3, NOW_S + 1e6]
    columns = Columns(
        names=[JobId(f"sample-{number}") for number in range(count)],
        submitted_s=np.sort(np.array([rng.uniform(0, NOW_S) for _ in range(count)])),
        min_gpus=np.array(least, dtype=np.int64),
        max_gpus=np.array(most, dtype=np.int64),
        requested_gpus=np.array([rng.randint(low, MOST) for low in least], dtype=np.int64),
        priority=np.array([rng.choice([0, 0, 1]) for _ in range(count)], dtype=np.int64),
        share=share,
        left_s=left_s,
        told_s=np.where(left_s < UNKNOWN_S, done_s + left_s, np.nan),
        done_s=done_s,
        attained_gpu_s=executed_s * np.maximum(share, 1),
        executed_s=executed_s,
        waiting_since_s=np.where(share > 0, np.nan, NOW_S - 1.0),
        curve=np.array([rng.randrange(len(powers)) for _ in range(count)], dtype=np.int64),
        deadline_s=np.array([due_s[number % 4] for number in range(count)]),
        soft=np.array([number % 3 == 2 for number in range(count)], dtype=np.int64),
        still_until_s=np.array([NOW_S + number % 5 - 2.0 for number in range(count)]),
        changes=np.arange(count) % 3,
    )
    return JobTable(columns, np.arange(count), Curves(speedup))
