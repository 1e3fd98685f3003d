"""Decision about the whole cluster, real or hypothetical (`what_if`), without carrying it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...protocol.model import JobId
from ..cluster import Cluster
from ..jobs.job import Job
from ..state.planning import Snapshot
from .deadline_admission import deadlines
from .deciding import Decided, decided
from .draining import pushing
from .snapshot import snapshot
from .tainted import cornered, keep_off


@dataclass(frozen=True)
class Outcome:
    """Snapshot and its decision, with the jobs that stay on GPUs they should leave; the reason is "" if it is obvious."""

    seen: Snapshot
    found: Decided
    staying: dict[JobId, str]


def decide_until_stable(cluster: Cluster, now: float, seen: Snapshot, waits: Callable[[Job], None]) -> Outcome:
    """Repeat the scheduler's decision until no job loses all its GPUs because it has to leave GPUs that still compute.

    `waits` is called for each job that has to wait for another server, before the next decision. Raises PolicyFailed if the
    policy fails.
    """
    without: dict[JobId, None] = {}
    staying: dict[JobId, str] = {}
    found = _decided(cluster, seen)
    # The loop ends after at most one round for each job that waits for another server, that should leave a GPU and gets
    # no other, and for each GPU that a job cannot use.
    while (stays := _staying(cluster, seen, found, staying)) or found.stuck or found.cramped:
        staying.update(stays)
        for job, most in found.cramped:
            job.bound_by_refusals(most)
            cluster.planning.note_cramped(job)
            cluster.jobs.rows.changed(job)
        for job in found.stuck:
            without[job.id] = None
            waits(job)
        seen = snapshot(cluster, now, without, staying)
        found = _decided(cluster, seen)
    return Outcome(seen, found, staying)


def _decided(cluster: Cluster, seen: Snapshot) -> Decided:
    return decided(
        cluster.planning.decider.scheduler,
        seen,
        cluster.rng,
        lambda decision: keep_off(cluster, seen, decision),
        deadlines(cluster, seen),
    )


def _staying(cluster: Cluster, seen: Snapshot, found: Decided, before: Mapping[JobId, str]) -> dict[JobId, str]:
    """Return further jobs that keep GPUs which they should leave, besides `before`; the reason is "" if it is obvious.

    Jobs that cannot be moved, and restart on other GPUs, do not count as jobs without GPUs.
    """
    away = dict.fromkeys([seen.jobs[row].id for row in found.again], "")
    left = cornered(cluster, seen, found.decision, {**before, **away})
    if left:
        return dict.fromkeys([job.id for job in left], "")
    return pushing(cluster, seen, found.decision, {**before, **away})
