"""Results of a simulation as numbers (AFS 2.2).

Averages over time are weighted by time, from the first submission to the last end: each value of the timeline holds
until the next event. The blocking index grows between events, and counts with its value at the beginning of each
interval.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from ..scheduler.arrays import Floats
from . import fairness
from .outcome import Outcome, Timeline
from .workload import Workload

TOLERANCE_S = 1e-6  # a deadline that is missed only by a rounding error counts as kept


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one policy. None: there were no values to compute the metric from."""

    finished: int
    dropped: int  # never finished: not admitted, or never given GPUs
    avg_jct_s: float | None  # JCTs are those of the finished jobs
    p50_jct_s: float | None
    p95_jct_s: float | None
    p99_jct_s: float | None
    max_jct_s: float | None
    avg_slowdown: float | None  # JCT over the time with the requested GPUs (`fairness`)
    p99_slowdown: float | None
    avg_finish_time_fairness: float | None  # JCT over that on a fair share; more than 1: worse than that
    max_finish_time_fairness: float | None
    jain_index: float | None  # of finish-time fairness
    avg_queueing_s: float | None  # from submission to the first GPU, of the jobs that got one
    makespan_s: float | None
    deadline_ratio: float | None  # of the jobs with a deadline, those that ended by then
    refused: int = 0  # by the admission
    admitted_deadline_ratio: float | None = None  # of the jobs with a deadline, those that were admitted
    missed_admitted: int | None = None  # admitted jobs that did not end by their deadlines
    avg_queue_length: float | None
    avg_cluster_efficiency: float | None
    avg_blocking_index: float | None
    gpu_utilization: float | None  # part of the GPUs that jobs had
    reconfigurations: int  # changes of the GPUs of running jobs, including the loss of all
    preemptions: int
    migrations: int
    failures: int = 0  # of servers and of GPUs (`failures`)
    interrupted: int = 0  # jobs that lost a GPU by one, counted each time
    decisions: int
    avg_decision_s: float | None
    p99_decision_s: float | None
    wall_s: float
    events: int


def measure(outcome: Outcome, workload: Workload, deadline_s: Floats, gpus: int) -> Metrics:
    """Return the metrics of a simulation on `gpus` GPUs; `deadline_s`: by job, nan: none."""
    submit_s = workload.submit_s
    over = ~np.isnan(outcome.end_s)
    jct_s = (outcome.end_s - submit_s)[over]
    started = ~np.isnan(outcome.start_s)
    last_end_s = float(outcome.end_s[over].max()) if over.any() else math.nan
    line = outcome.timeline
    weights = _weights(line, last_end_s)
    used = _average(line.used_gpus, weights)
    slowdown = fairness.slowdowns(workload, outcome.end_s)[over]
    rho = fairness.finish_time_fairness(workload, outcome.end_s, gpus)[over]
    return Metrics(
        finished=int(over.sum()),
        dropped=int((~over).sum()),
        avg_jct_s=mean(jct_s),
        p50_jct_s=percentile(jct_s, 50),
        p95_jct_s=percentile(jct_s, 95),
        p99_jct_s=percentile(jct_s, 99),
        max_jct_s=percentile(jct_s, 100),
        avg_slowdown=mean(slowdown),
        p99_slowdown=percentile(slowdown, 99),
        avg_finish_time_fairness=mean(rho),
        max_finish_time_fairness=percentile(rho, 100),
        jain_index=fairness.jain(rho),
        avg_queueing_s=mean((outcome.start_s - submit_s)[started]),
        makespan_s=last_end_s - float(submit_s.min()) if over.any() else None,
        deadline_ratio=_deadline_ratio(outcome.end_s, deadline_s),
        refused=int(outcome.refused.sum()),
        admitted_deadline_ratio=_admitted_ratio(outcome, deadline_s),
        missed_admitted=_missed_admitted(outcome, deadline_s),
        avg_queue_length=_average(line.queue, weights),
        avg_cluster_efficiency=_average(line.efficiency, weights),
        avg_blocking_index=_average(line.blocking, weights),
        gpu_utilization=None if used is None else used / gpus,
        reconfigurations=outcome.resizes + outcome.preemptions + outcome.migrations,
        preemptions=outcome.preemptions,
        migrations=outcome.migrations,
        failures=outcome.failures,
        interrupted=outcome.interrupted,
        decisions=outcome.decisions,
        avg_decision_s=mean(np.array(outcome.decision_s)),
        p99_decision_s=percentile(np.array(outcome.decision_s), 99),
        wall_s=outcome.wall_s,
        events=outcome.events,
    )


def _deadline_ratio(end_s: Floats, deadline_s: Floats) -> float | None:
    bound = ~np.isnan(deadline_s)
    if not bound.any():
        return None
    return float((end_s[bound] <= deadline_s[bound] + TOLERANCE_S).mean())  # a job that never ended (nan) has missed it


def _admitted_ratio(outcome: Outcome, deadline_s: Floats) -> float | None:
    bound = ~np.isnan(deadline_s)
    return float((~outcome.refused[bound]).mean()) if bound.any() else None


def _missed_admitted(outcome: Outcome, deadline_s: Floats) -> int | None:
    bound = ~np.isnan(deadline_s)
    if not bound.any():
        return None
    kept = outcome.end_s <= deadline_s + TOLERANCE_S
    return int((bound & ~outcome.refused & ~kept).sum())


def _weights(line: Timeline, last_end_s: float) -> Floats:
    """Return how long each value of the timeline holds (s)."""
    if not line.time_s or math.isnan(last_end_s):
        return np.zeros(len(line.time_s))
    times = np.minimum(np.append(line.time_s, last_end_s), last_end_s)
    return np.diff(times)


def _average(values: list[float] | list[int], weights: Floats) -> float | None:
    total = float(weights.sum())
    return float((np.array(values) * weights).sum()) / total if total > 0 else None


def mean(values: Floats) -> float | None:
    """Return the mean; None of no values."""
    return float(values.mean()) if len(values) else None


def percentile(values: Floats, percent: float) -> float | None:
    """Return the value below which `percent` % of the values are; None of no values."""
    return float(np.percentile(values, percent)) if len(values) else None
