"""Fairness: the jobs' results compared with their expectations.

*Slowdown* is a job's JCT over the time that it takes with its requested GPUs; jobs of less than `LEAST_S` count as if
they took that, as in the bounded slowdown of Feitelson ("Metrics for parallel job scheduling", 2001). Below 1: elastic
GPUs made the job faster than it asked for.

*Finish-time fairness* is Themis' rho (NSDI'20, 3.1): a job's JCT over its time on a fair share of the cluster, the GPUs
over the mean number of jobs that were present with it. Above 1: it fared worse than with equal shares for all jobs.

*Jain's index* ("A quantitative measure of fairness", 1984) is 1 where all values are equal, 1/n where one job has
everything.
"""

from __future__ import annotations

import numpy as np

from ..scheduler.arrays import Floats
from .workload import Workload

LEAST_S = 10.0


def slowdowns(workload: Workload, end_s: Floats) -> Floats:
    """Return the slowdown by job; nan: it never ended. `end_s`: seconds from the first submission."""
    asked = np.minimum(workload.requested_gpus, workload.curves.most)
    alone_s = workload.work_s / workload.curves.speedup[workload.curve, asked]
    return np.asarray(np.maximum(end_s - workload.submit_s, LEAST_S) / np.maximum(alone_s, LEAST_S))


def finish_time_fairness(workload: Workload, end_s: Floats, gpus: int) -> Floats:
    """Return rho by job on a cluster of so many GPUs; nan: it never ended.

    Jobs that never ended do not count for the others.
    """
    rho = np.full(len(workload), np.nan)
    over = np.flatnonzero(~np.isnan(end_s))
    if not len(over):
        return rho
    submit_s, ends_s = workload.submit_s[over], end_s[over]
    jct_s = ends_s - submit_s
    share = np.minimum(gpus / _mean_present(submit_s, ends_s), workload.max_gpus[over])
    share = np.minimum(share, workload.curves.most)
    below = np.floor(share).astype(np.int64)
    above = np.minimum(below + 1, workload.curves.most)
    low, high = (workload.curves.speedup[workload.curve[over], gpus] for gpus in (below, above))
    fair_s = workload.work_s[over] / (low + (share - below) * (high - low))
    rho[over] = jct_s / fair_s
    return rho


def jain(values: Floats) -> float | None:
    """Return Jain's index of the values that are not nan; None if there are none."""
    known = values[~np.isnan(values)]
    return float(known.sum() ** 2 / (len(known) * (known**2).sum())) if len(known) else None


def _mean_present(submit_s: Floats, end_s: Floats) -> Floats:
    """Return, for each job, the mean number of these jobs that were present during its time."""
    times_s = np.concatenate([submit_s, end_s])
    order = np.argsort(times_s, kind="stable")
    there = np.cumsum(np.repeat([1, -1], len(submit_s))[order])
    times_s = times_s[order]
    passed = np.concatenate([[0.0], np.cumsum(there[:-1] * np.diff(times_s))])
    return np.asarray((np.interp(end_s, times_s, passed) - np.interp(submit_s, times_s, passed)) / (end_s - submit_s))
