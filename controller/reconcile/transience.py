"""Input of `scheduler.transient`: the GPUs that borrowers have, and the cost of a resize for each job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from ...protocol.model import ServerId
from ...scheduler.deadlines.table import DeadlineTerms
from ...scheduler.transient import Cost, confine
from ...scheduler.view import ClusterView
from ..cluster import Cluster
from ..jobs.job import Job
from ..loans import lent
from .reserving import stays_a_gang


def note_borrowed(cluster: Cluster, now: float) -> None:
    """Record the GPUs that borrowers have, and the idle times that have ended."""
    borrowed: dict[ServerId, set[int]] = {}
    for server, cordon in lent(cluster):
        if cordon.gpu is not None:
            borrowed.setdefault(server, set()).add(cordon.gpu)
    for job in cluster.jobs.rows.gangs.values():
        for gpu in job.own_gpus if stays_a_gang(job) else ():
            borrowed.setdefault(gpu.server, set()).add(gpu.index)
    sessions, known = cluster.servers.sessions, cluster.experience.idle.servers
    if borrowed or known:
        there = {
            name: frozenset(gpu.index for gpu in sessions[name].server.gpus) for name in borrowed if name in sessions
        }
        gone = [name for name in known if name not in sessions]
        cluster.experience.note_borrowed(now, {name: there[name] & borrowed[name] for name in there}, gone)


def confined(cluster: Cluster, view: ClusterView, jobs: tuple[Job, ...]) -> tuple[ClusterView, float]:
    """Return the view in which no job grows onto GPUs that do not last, and the time of the next review (Unix time, s)."""
    if not any(idle.since_s for idle in cluster.experience.idle.servers.values()):
        return view, math.inf
    return confine(view, cluster.experience.idle, _costs(cluster, view.placements, jobs))


def _costs(cluster: Cluster, placements: Mapping[int, int], jobs: tuple[Job, ...]) -> dict[int, Cost]:
    terms = cluster.planning.decider.scheduler.terms or DeadlineTerms()
    return {row: _cost(jobs[row], terms) for row in placements}


def _cost(job: Job, terms: DeadlineTerms) -> Cost:
    """Return the cost of a resize for a job: as measured by its workers, or else as the terms of deadlines assume."""
    starts_s = [entry.start_s for entry in job.workers if entry.start_s is not None]
    pauses_s = [resize.paused_s for resize in job.record.resizes if not resize.recovery]
    return Cost(
        start_s=median(starts_s) if starts_s else terms.start_s,
        pause_s=median(pauses_s) if pauses_s else terms.resize_s,
    )
