"""Results of a simulation by user or account.

Each group has the jobs of one user or account. Its finish-time fairness is Themis' rho (NSDI'20, 3.1; the policy is among
the baselines of AFS 5.2 and ElasticFlow 6.1) between groups (`fairness`); Jain's index is that of the groups' means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ..protocol.errors import UserError
from . import fairness
from .metrics import mean, percentile
from .owners import By
from .results import Rows
from .runs import Result, Setup

HOUR_S = 3600.0


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the jobs of one user or account, as those of all jobs (`metrics.Metrics`). None: there were no values."""

    jobs: int
    finished: int
    dropped: int
    gpu_hours: float  # of GPUs that the jobs had
    avg_jct_s: float | None
    p99_jct_s: float | None
    avg_queueing_s: float | None  # from submission to the first GPU
    avg_finish_time_fairness: float | None
    max_finish_time_fairness: float | None


Groups = Mapping[str, GroupMetrics]  # by user or account; the one with most GPU-hours first


def measure(setup: Setup, result: Result, by: By) -> dict[str, GroupMetrics]:
    """Return the metrics of each user or account, that with most GPU-hours first; "": jobs without one.

    Raises UserError if the trace does not name any.
    """
    load = setup.assigned.workload
    if by not in load.owners:
        raise UserError(f"by: the trace names no {by.value}s")
    rho = fairness.finish_time_fairness(load, result.end_s, setup.gpus, load.owners[by])
    jct_s, queueing_s = result.end_s - load.submit_s, result.start_s - load.submit_s
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(load.owners[by]):
        rows.setdefault(name, []).append(row)
    found = {}
    for name, own in rows.items():
        over = ~np.isnan(result.end_s[own])
        waited_s = queueing_s[own]
        found[name] = GroupMetrics(
            jobs=len(own),
            finished=int(over.sum()),
            dropped=int((~over).sum()),
            gpu_hours=float(result.gpu_s[own].sum()) / HOUR_S,
            avg_jct_s=mean(jct_s[own][over]),
            p99_jct_s=percentile(jct_s[own][over], 99),
            avg_queueing_s=mean(waited_s[~np.isnan(waited_s)]),
            avg_finish_time_fairness=mean(rho[own][over]),
            max_finish_time_fairness=percentile(rho[own][over], 100),
        )
    return dict(sorted(found.items(), key=lambda one: -one[1].gpu_hours))


def jain_index(groups: Groups) -> float | None:
    """Return Jain's index of the mean finish-time fairness of the groups; None if no group finished a job."""
    values = [one.avg_finish_time_fairness for one in groups.values()]
    return fairness.jain(np.array([np.nan if value is None else value for value in values]))


def rows(by: By, groups: Groups) -> Rows:
    """Return lists by column, an entry for each user or account: `user` or `account`, and the fields of `GroupMetrics`."""
    figures: dict[str, list[Any]] = {
        name: [getattr(one, name) for one in groups.values()] for name in GroupMetrics.__struct_fields__
    }
    return {by.value: list(groups), **figures}
