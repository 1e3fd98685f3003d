"""Which GPUs each job is to have: one scheduling decision, written into the jobs' records (scheduling.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, JobId
from ...protocol.times import POLICY_RETRY_S
from ...scheduler.placement.fewest_servers import in_order
from ...scheduler.plan import standstill
from ...scheduler.sets import union
from ..cluster import Cluster
from ..jobs.generations import holders
from ..jobs.job import Job
from .deciding import Decided, PolicyFailed, decided
from .profiling import profile_jobs
from .saving import suspend
from .snapshot import Snapshot, snapshot

KEPT_POLICY_FAILURES = 64


def set_targets(cluster: Cluster, now: float) -> None:
    """Ask the scheduler, and note what it has decided: the jobs concerned are dirty."""
    cluster.schedule_due, cluster.decided_s = False, now
    cluster.decisions += 1
    seen = snapshot(cluster, now)
    if tangled := standstill(seen.held, seen.view.placements):
        _stay(cluster, now, seen, tangled)
        seen = snapshot(cluster, now)
    without: dict[JobId, None] = {}
    try:
        found = decided(cluster.decider.scheduler, seen, cluster.rng)
        while found.stuck:  # at most once for each job that waits for another server
            for job in found.stuck:
                without[job.id] = None
                _wait_elsewhere(cluster, now, job)
            seen = snapshot(cluster, now, without)
            found = decided(cluster.decider.scheduler, seen, cluster.rng)
    except PolicyFailed as failure:
        _keep_plan(cluster, now, seen, failure)
        return
    cluster.policy_trouble = ""
    cluster.review_s = found.decision.review_s if found.decision.review_s > now else math.inf
    reasons = partial(_reason, found, seen.rows)
    for job in seen.jobs:
        job.why_waiting = reasons
    cluster.plan_unfinished = found.unfinished
    for change in found.changes:
        job = seen.jobs[change.row]
        _retarget(cluster, now, job, in_order(change.gpus, seen.gpus, job.record.target))
    profile_jobs(cluster, now, seen, found.decision)


def _keep_plan(cluster: Cluster, now: float, seen: Snapshot, failure: PolicyFailed) -> None:
    """Jobs train on where they are; the policy is asked again when something happens, or after a while."""
    cluster.policy_trouble = f"{failure}; the last plan is kept"
    cluster.review_s = now + POLICY_RETRY_S
    cluster.plan_unfinished = False
    for job in seen.jobs:
        job.why_waiting = partial(_trouble, cluster.policy_trouble if not job.record.target else "")
    if failure.where not in cluster.policy_failures and len(cluster.policy_failures) < KEPT_POLICY_FAILURES:
        cluster.policy_failures.add(failure.where)
        cluster.tell(now, EventKind.POLICY_FAILED, None, cluster.policy_trouble)
        cluster.warn(cluster.policy_trouble)


def _reason(found: Decided, rows: Mapping[JobId, int], job: JobId) -> str:
    return found.why(rows[job])


def _trouble(text: str, job: JobId) -> str:
    return text


def _wait_elsewhere(cluster: Cluster, now: float, job: Job) -> None:
    """No server on which `job` may begin has a GPU for it: it holds none meanwhile."""
    if job.record.target:
        job.update(target=())
        job.profiling = None
        suspend(cluster, now, job)


def _stay(cluster: Cluster, now: float, seen: Snapshot, tangled: frozenset[int]) -> None:
    """Jobs that wait for each other's GPUs are to be where they are; who was to have one of those is not to have it."""
    theirs = {row: seen.running[row] for row in tangled}
    taken = union(theirs.values())
    for row, before in seen.view.placements.items():
        wanted = theirs.get(row, before & ~taken)
        if wanted != before:
            job = seen.jobs[row]
            _retarget(cluster, now, job, in_order(wanted, seen.gpus, job.record.target))


def _retarget(cluster: Cluster, now: float, job: Job, target: tuple[GpuAddress, ...]) -> None:
    job.update(target=target)
    job.profiling = None
    cluster.mark_dirty(job)
    if not target:
        how = "; its state is saved first" if holders(job) else " before it has begun"
        cluster.tell(now, EventKind.PREEMPTED, job.id, f"gives all its GPUs back{how}")
        suspend(cluster, now, job)
