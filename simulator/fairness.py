"""Fairness: the jobs' results compared with their expectations.

*Slowdown* is a job's JCT over the time that it takes with its requested GPUs; jobs of less than `LEAST_S` count as if
they took that, as in the bounded slowdown of Feitelson ("Metrics for parallel job scheduling", 2001). Below 1: elastic
GPUs made the job faster than it asked for.

*Finish-time fairness* is Themis' rho (NSDI'20, 3.1): a job's JCT over its time on a fair share of the cluster, the GPUs
over the mean number of jobs that were present with it. Above 1: it fared worse than with equal shares for all jobs.
Between owners (users or accounts) the GPUs are first divided equally among those that have jobs, then among the jobs of
each, so that an owner's fair share does not grow with its number of jobs.

*Jain's index* ("A quantitative measure of fairness", 1984) is 1 where all values are equal, 1/n where one job has
everything.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..scheduler.arrays import Floats, Ints
from .workload import Workload

LEAST_S = 10.0


def slowdowns(workload: Workload, end_s: Floats) -> Floats:
    """Return the slowdown by job; nan: it never ended. `end_s`: seconds from the first submission."""
    asked = np.minimum(workload.requested_gpus, workload.curves.most)
    alone_s = workload.work_s / workload.curves.speedup[workload.curve, asked]
    return np.asarray(np.maximum(end_s - workload.submit_s, LEAST_S) / np.maximum(alone_s, LEAST_S))


def finish_time_fairness(workload: Workload, end_s: Floats, gpus: int, owners: Sequence[str] | None = None) -> Floats:
    """Return rho by job on a cluster of so many GPUs; nan: it never ended. `owners`: of the jobs, for rho between owners.

    Jobs that never ended do not count for the others.
    """
    rho = np.full(len(workload), np.nan)
    over = np.flatnonzero(~np.isnan(end_s))
    if not len(over):
        return rho
    submit_s, ends_s = workload.submit_s[over], end_s[over]
    jct_s = ends_s - submit_s
    parts = _mean_present(submit_s, ends_s)
    if owners is not None:
        parts = _mean_parts(submit_s, ends_s, np.unique(np.array(owners)[over], return_inverse=True)[1])
    share = np.minimum(gpus / parts, workload.max_gpus[over])
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
    return _passed(submit_s, end_s, submit_s, end_s) / (end_s - submit_s)


def _mean_parts(submit_s: Floats, end_s: Floats, owner: Ints) -> Floats:
    """Return, for each job, the mean number of owners with jobs times that of its owner's jobs, during its time."""
    own = [np.flatnonzero(owner == one) for one in range(int(owner.max()) + 1)]
    busy = [_busy(submit_s[rows], end_s[rows]) for rows in own]
    began_s, over_s = (np.concatenate([spans[at] for spans in busy]) for at in (0, 1))
    parts = np.empty(len(owner))
    for rows in own:  # integrate over a time that passes faster the more owners have jobs
        zero = np.full(len(rows), submit_s.min())
        begin, end = (_passed(began_s, over_s, zero, times[rows]) for times in (submit_s, end_s))
        parts[rows] = _passed(begin, end, begin, end) / (end_s[rows] - submit_s[rows])
    return parts


def _busy(submit_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """Return the beginnings and ends of the times in which some of these jobs were present."""
    times_s, there = _present(submit_s, end_s)
    before = np.concatenate([[0], there[:-1]])
    return times_s[(before == 0) & (there == 1)], times_s[there == 0]


def _passed(submit_s: Floats, end_s: Floats, begin_s: Floats, until_s: Floats) -> Floats:
    """Return the integrals of the number of these jobs that were present, from each `begin_s` to each `until_s`."""
    times_s, there = _present(submit_s, end_s)
    passed = np.concatenate([[0.0], np.cumsum(there[:-1] * np.diff(times_s))])
    return np.asarray(np.interp(until_s, times_s, passed) - np.interp(begin_s, times_s, passed))


def _present(submit_s: Floats, end_s: Floats) -> tuple[Floats, Ints]:
    """Return the times of arrivals and ends, and the number of jobs that were present from each to the next."""
    times_s = np.concatenate([submit_s, end_s])
    order = np.argsort(times_s, kind="stable")
    return times_s[order], np.cumsum(np.repeat([1, -1], len(submit_s))[order])
