"""A decision about a whole cluster, which is not carried out here: about what is, or what is only supposed (`supposing`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...protocol.model import JobId
from ..cluster import Cluster
from ..jobs.job import Job
from .barring import cornered, keep_off
from .deciding import Decided, decided
from .draining import pushing
from .promising import deadlines
from .snapshot import Snapshot, snapshot


@dataclass(frozen=True)
class Outcome:
    """What was decided, about what; and which jobs stay on GPUs that they are to leave, and why, where that is not plain."""

    seen: Snapshot
    found: Decided
    staying: dict[JobId, str]


def weighed(cluster: Cluster, now: float, seen: Snapshot, waits: Callable[[Job], None]) -> Outcome:
    """Ask the scheduler, as often as it takes until nobody is left with nothing for having to leave a GPU that still computes.

    `waits` is called for each job that has to wait for another server, before the next question. Raises PolicyFailed.
    """
    without: dict[JobId, None] = {}
    staying: dict[JobId, str] = {}
    found = _decided(cluster, seen)
    # At most once for each job that waits for another server, or that has a GPU which it should leave, and gets no other; and for
    # each GPU that a job cannot use.
    while (stays := _staying(cluster, seen, found, staying)) or found.stuck or found.cramped:
        staying.update(stays)
        for job, most in found.cramped:
            job.room, cluster.cramped = most, (*cluster.cramped, job)
            cluster.rows.changed(job)
        for job in found.stuck:
            without[job.id] = None
            waits(job)
        seen = snapshot(cluster, now, without, staying)
        found = _decided(cluster, seen)
    return Outcome(seen, found, staying)


def _decided(cluster: Cluster, seen: Snapshot) -> Decided:
    return decided(
        cluster.decider.scheduler,
        seen,
        cluster.rng,
        lambda decision: keep_off(cluster, seen, decision),
        deadlines(cluster, seen),
    )


def _staying(cluster: Cluster, seen: Snapshot, found: Decided, before: Mapping[JobId, str]) -> dict[JobId, str]:
    """Jobs that are to keep GPUs which they should leave, besides those before; why, where that is not plain.

    Those that start again elsewhere, since they cannot be moved, are not left with nothing.
    """
    away = dict.fromkeys([seen.jobs[row].id for row in found.again], "")
    left = cornered(cluster, seen, found.decision, {**before, **away})
    if left:
        return dict.fromkeys([job.id for job in left], "")
    return pushing(cluster, seen, found.decision, {**before, **away})
