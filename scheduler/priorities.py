"""Priorities of jobs, within the rules of each policy: jobs of a greater priority come first (`by_priority`). Pure.

Policies know nothing of priorities. Where their jobs have different ones, a policy is asked in one of these ways:

* A policy that serves jobs in the order of submission (`IN_ORDER`: rigid ones without preemption, and those that give
  each job its minimum in that order) sees the jobs of greater priorities before the others. So its rule is the same.
  Under `fifo` a job of high priority starts before all others that wait, and stops none. Under `max-min` it has its
  minimum before others have theirs, and all jobs with a minimum share the rest.
* Other policies are asked about the jobs of the greatest priority and all GPUs, then about those of the next one and
  the remaining GPUs, and so on. They may preempt jobs anyway, and now also for a job of a greater priority.

Some policies have an order of their own that a priority would break: by deadlines (`IGNORING`). The submission of a job
with a priority returns a notice of that. A user's own policy sees the priorities, and treats them as it likes.
"""

from __future__ import annotations

import math
import random

import numpy as np

from .arrays import Ints
from .policies import NAMES, Policy, Shares
from .policies.base import no_shares, waits_for
from .view import JobTable, Reason

# Policies that serve jobs in the order of the table; `edf` does so among equal deadlines, and where there are none.
IN_ORDER = frozenset(
    {"fifo", "backfill", "yarn-cs", "elastic-fifo", "elastic-backfill", "max-min", "optimus", "edf", "edf-admission"}
)

# Policies that use deadlines, and never priorities.
IGNORING = frozenset({"elasticflow", "edf-elastic", "chronus"})


def by_priority(policy: Policy, jobs: JobTable) -> Policy:
    """Return the policy itself, or a wrapper by which jobs of greater priorities come first, where jobs have different
    ones."""
    priority = jobs.priority
    if not len(priority) or priority.min() == priority.max():
        return policy
    if policy.name in IGNORING or policy.name not in NAMES:
        return policy
    return _InOrder(policy) if policy.name in IN_ORDER else _InBands(policy)


def ignored(policy: Policy, priority: int) -> str:
    """Return the notice for a job with this priority if the policy ignores priorities; "" otherwise."""
    if not priority or policy.name not in IGNORING:
        return ""
    return f"policy {policy.name} takes no notice of priorities: it serves jobs by their deadlines"


class _InOrder:
    """Wrapper that passes the jobs to the policy in the order of priorities, the greatest first."""

    def __init__(self, policy: Policy) -> None:
        self.name, self.needs_lengths, self._policy = policy.name, policy.needs_lengths, policy

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        order: Ints = np.argsort(-jobs.priority, kind="stable")
        found = self._policy.shares(jobs.cut(order), gpus, now, rng)
        given, place = no_shares(jobs), np.empty(len(order), dtype=np.int64)
        given[order], place[order] = found.gpus, np.arange(len(order))
        rows = None if found.rows is None else np.sort(order[found.rows])
        stay = order[list(found.stay)].tolist()
        return Shares(given, lambda row: found.why(int(place[row])), found.review_s, rows, stay)


class _InBands:
    """Wrapper that lets the policy divide, for each priority, the GPUs that greater priorities leave."""

    def __init__(self, policy: Policy) -> None:
        self.name, self.needs_lengths, self._policy = policy.name, policy.needs_lengths, policy

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, review_s = no_shares(jobs), math.inf
        answers: dict[int, tuple[Shares, int]] = {}  # by row: the policy's answer about it, and its row in that answer
        stay: list[int] = []
        left = gpus
        for priority in np.unique(jobs.priority)[::-1].tolist():
            rows = np.flatnonzero((jobs.priority == priority) & (jobs.min_gpus <= left))
            if not len(rows) or not left:
                continue
            found = self._policy.shares(jobs.cut(rows), left, now, rng)
            given[rows] = found.gpus
            answers |= {row: (found, at) for at, row in enumerate(rows.tolist())}
            stay += rows[list(found.stay)].tolist()
            review_s = min(review_s, found.review_s)
            left -= int(found.gpus.sum())

        def why(row: int) -> Reason | None:
            if row in answers:
                found, at = answers[row]
                return found.why(at)
            return waits_for(int(jobs.min_gpus[row]), left, gpus, "left by jobs of higher priorities")

        return Shares(given, why, review_s, stay=stay)
