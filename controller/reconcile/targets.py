"""Target GPUs of each job: one scheduling decision, written into the jobs' records (scheduling.md)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...protocol.messages import EventKind, ShareForecast
from ...protocol.model import GpuAddress, JobId
from ...scheduler.placement.fewest_servers import in_order
from ...scheduler.plan import standstill
from ...scheduler.sets import union
from ..cluster import Cluster
from ..jobs.generations import holders
from ..jobs.job import Job
from ..state.planning import Snapshot
from .causes import Causes
from .deadline_admission import note_promises
from .deciding import Decided, PolicyFailed
from .growth import start_elsewhere
from .profiling import profile_jobs
from .restarts import has_lost_workers
from .saving import suspend
from .slow_findings import note_left
from .slow_gpus import goes_on_without
from .snapshot import snapshot
from .stable_decision import decide_until_stable
from .transience import note_borrowed

MOST_TOLD = 3  # jobs, in the text of an event


def set_targets(cluster: Cluster, now: float) -> None:
    """Make a scheduling decision and record the new targets; the changed jobs become dirty.

    If the policy fails, the last plan is kept.
    """
    cluster.planning.begin_decision(now)
    note_borrowed(cluster, now)
    seen = _unbound(cluster, now)
    if tangled := standstill(seen.held, seen.view.placements):
        _stay(cluster, now, seen, tangled)
        seen = snapshot(cluster, now)
    try:
        outcome = decide_until_stable(cluster, now, seen, partial(_wait_elsewhere, cluster, now))
    except PolicyFailed as failure:
        _keep_plan(cluster, now, seen, failure)
        return
    seen, found = outcome.seen, outcome.found
    cluster.planning.policy_decided(now, min(found.decision.review_s, seen.review_s), outcome.staying)
    reservation = seen.view.reservation
    cluster.jobs.reserve(seen.jobs[reservation.row] if reservation is not None else None)
    if seen.view.manual_shares:
        cluster.planning.note_push(partial(_pushed, found, seen))
    reasons = partial(_reason, found, seen)
    for job in seen.jobs:
        job.explain_waiting(reasons)
    for_whom = _for_whom(found, seen)
    causes = Causes(cluster, cluster.planning.note_plan(seen, found.unfinished), seen, found)
    for change in found.changes:
        job = seen.jobs[change.row]
        if change.row in found.again:
            start_elsewhere(cluster, now, job, causes.of(change.row, 0))
            continue
        target = in_order(change.gpus, seen.gpus, job.record.target)
        why = note_left(cluster, now, job, target) or causes.of(change.row, len(target))
        retarget(cluster, now, job, target, why, for_whom)
    profile_jobs(cluster, now, seen, found.decision)
    note_promises(cluster, now, seen, found.decision.kept)


def _unbound(cluster: Cluster, now: float) -> Snapshot:
    """Return the snapshot in which the bounds that the last decision has found hold no more: this one finds them again.

    They still hold for jobs that do without a slow GPU, where no other one is idle.
    """
    bounds = [(job, job.room) for job in cluster.planning.take_cramped()]
    for job, _ in bounds:
        job.bound_by_refusals(None)
        cluster.jobs.rows.changed(job)
    seen = snapshot(cluster, now)
    without = [(job, room) for job, room in bounds if goes_on_without(seen, job)]
    for job, room in without:
        job.bound_by_refusals(room)
        cluster.planning.note_cramped(job)
        cluster.jobs.rows.changed(job)
    return snapshot(cluster, now) if without else seen


def _keep_plan(cluster: Cluster, now: float, seen: Snapshot, failure: PolicyFailed) -> None:
    """Keep all jobs on their GPUs; the policy decides again after a change, or after POLICY_RETRY_S seconds."""
    trouble = f"{failure}; the last plan is kept"
    is_new = cluster.planning.policy_failed(now, trouble, failure.where)
    for job in seen.jobs:
        job.explain_waiting(partial(_trouble, trouble if not job.record.target else ""))
    if is_new:
        cluster.history.add(now, EventKind.POLICY_FAILED, None, trouble)
        cluster.warn(trouble)


def _reason(found: Decided, seen: Snapshot, job: JobId) -> str:
    return found.why(seen.rows[job])


def _trouble(text: str, job: JobId) -> str:
    return text


def _wait_elsewhere(cluster: Cluster, now: float, job: Job) -> None:
    """Take the GPUs from a job that can start on no server with a GPU for it."""
    if job.record.target:
        job.set_target(now, (), "no server on which it may begin has a GPU for it")
        suspend(cluster, now, job)


def _stay(cluster: Cluster, now: float, seen: Snapshot, tangled: frozenset[int]) -> None:
    """Keep jobs that wait for each other's GPUs where they are, and take those GPUs from the targets of other jobs."""
    theirs = {row: seen.running[row] for row in tangled}
    taken = union(theirs.values())
    for row, before in seen.view.placements.items():
        wanted = theirs.get(row, before & ~taken)
        if wanted != before:
            job = seen.jobs[row]
            target = in_order(wanted, seen.gpus, job.record.target)
            retarget(cluster, now, job, target, "stays where it is: jobs wait for each other's GPUs")


def _pushed(found: Decided, seen: Snapshot) -> Iterator[ShareForecast]:
    """Yield the jobs that lose GPUs by this decision, with reasons, in the order of submission."""
    for row, before in sorted(seen.view.placements.items()):
        after = int(found.decision.shares[row])
        if after < before.bit_count():
            yield ShareForecast(
                job=seen.jobs[row].id, before_gpus=before.bit_count(), after_gpus=after, reason=found.why(row)
            )


def _for_whom(found: Decided, seen: Snapshot) -> str:
    """Return the jobs that grow in this decision by a share set by hand, as the end of a sentence on preempted jobs."""
    names = [
        seen.jobs[row].id
        for row in seen.view.manual_shares
        if found.decision.shares[row] > seen.view.placements.get(row, 0).bit_count()
    ]
    listed = ", ".join(names[:MOST_TOLD]) + (" and others" if len(names) > MOST_TOLD else "")
    return f" for {listed}, which got more by hand" if names else ""


def retarget(
    cluster: Cluster, now: float, job: Job, target: tuple[GpuAddress, ...], why: str, for_whom: str = ""
) -> None:
    """Set the job's target GPUs, for the reason `why`; without GPUs the job is preempted.

    `for_whom`: the jobs that get its GPUs, as the end of a sentence.
    """
    job.set_target(now, target, why)
    cluster.jobs.mark_dirty(job)
    if target:
        return
    if not holders(job) and has_lost_workers(job):
        cluster.history.add(now, EventKind.WAITING, job.id, f"waits, since no GPUs can be had for new workers: {why}")
    else:
        how = "; its state is saved first" if holders(job) else " before it has begun"
        cluster.history.add(now, EventKind.PREEMPTED, job.id, f"gives all its GPUs back{for_whom}{how}")
    suspend(cluster, now, job)
