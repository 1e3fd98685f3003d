"""The facts from which a client's simulation runs forward from now (`simulator.forecast`).

The controller does not simulate: its loop must stay free. Every principal that may see jobs may see the facts.
"""

from __future__ import annotations

import math
from collections import Counter

from ...protocol.messages import Outlook, OutlookJob
from ...protocol.model import GpuAddress
from ...scheduler.ended import Ended
from ...scheduler.own import FromFile
from ...scheduler.scheduler import document
from ...scheduler.view import UNKNOWN_S, ClusterView
from ..cluster import Cluster
from ..reconcile.snapshot import snapshot

MOST_GANGS = 500
LATELY_S = 24 * 3600.0
MOST_ARRIVALS = 500  # from which arrivals are drawn


def outlook(cluster: Cluster, now: float) -> Outlook | None:
    """Return the facts; None if the controller has just started and its servers are not back yet."""
    if cluster.servers.awaited:
        return None
    if obstacle := _obstacle(cluster):
        return Outlook(time_s=now, obstacle=obstacle)
    view = snapshot(cluster, now).view
    jobs, rows = cluster.jobs.rows.jobs(frozenset(), with_fixed=True)
    if cluster.jobs.rows.limits(rows, view.servers)[1] is not None:
        return Outlook(time_s=now, obstacle="some jobs may not use all GPUs")
    usable = Counter(gpu.server for gpu in _usable(cluster, view))
    total = usable.total()
    columns, curves = cluster.jobs.rows.columns(rows, now, total, (), None)
    used = sorted(set(columns.curve.tolist()))
    curve_of = {curve: number for number, curve in enumerate(used)}
    never_join = cluster.jobs.rows.unjoined(rows, expected=False).tolist()
    found = [
        OutlookJob(
            job=job.id,
            min_gpus=int(columns.min_gpus[row]),
            max_gpus=int(columns.max_gpus[row]),
            requested_gpus=min(max(int(columns.requested_gpus[row]), job.spec.gpus.min), job.spec.gpus.max),
            priority=job.spec.priority,
            curve=curve_of[int(columns.curve[row])],
            submitted_s=float(columns.submitted_s[row]),
            waiting_since_s=None if job.own_gpus else float(columns.waiting_since_s[row]),
            executed_s=(executed_s := float(columns.executed_s[row])),
            attained_gpu_s=float(columns.attained_gpu_s[row]),
            changes=int(columns.changes[row]),
            done_s=float(columns.done_s[row]),
            left_s=None if columns.left_s[row] >= UNKNOWN_S else float(columns.left_s[row]),
            share=len(job.own_gpus),
            fixed=never_join[row] or job.gang,
            by_hand=job.record.manual_share,
            time_left_s=None if (limit_s := job.spec.time_limit_s) is None else max(0.0, limit_s - executed_s),
        )
        for row, job in enumerate(jobs)
    ]
    lately = [job for job in cluster.jobs.values() if job.submission.submitted_s > now - LATELY_S][-MOST_ARRIVALS:]
    first_s = min((job.submission.submitted_s for job in cluster.jobs.values()), default=now)
    return Outlook(
        time_s=now,
        policy=document(cluster.planning.decider.scheduler),
        servers=tuple(sorted(usable.items())),
        jobs=tuple(found),
        speedups=tuple(tuple(curves.speedup[curve, : total + 1].tolist()) for curve in used),
        lengths=tuple(map(tuple, _lengths(cluster).lengths.tolist())),
        arrivals=tuple((job.spec.gpus.min, job.spec.gpus.max) for job in lately),
        arrivals_s=min(LATELY_S, now - first_s),
    )


def _lengths(cluster: Cluster) -> Ended:
    """Return the lengths of ended jobs, with those of the latest gangs, whose GPU-seconds stand for work on one GPU."""
    found = cluster.experience.lengths
    gangs = [job for job in cluster.jobs.values() if job.final and not job.elastic and job.record.attained_gpu_s > 0]
    for job in gangs[-MOST_GANGS:]:
        found = found.and_one(job.spec.gpus.max, job.record.attained_gpu_s, math.nan)
    return found


def _obstacle(cluster: Cluster) -> str:
    """Return why a simulation would not decide as this controller does; "" if it would."""
    scheduler = cluster.planning.decider.scheduler
    if isinstance(scheduler.policy, FromFile):
        return "the policy is a Python file on the controller's host"
    if scheduler.stages.quotas.any:
        return "quotas divide the GPUs"
    if scheduler.stages.reservations:
        return "some GPUs are reserved for a period"
    if cluster.jobs.rows.any_promise:
        return "GPUs are kept for promised deadlines"
    return ""


def _usable(cluster: Cluster, view: ClusterView) -> set[GpuAddress]:
    """Return the GPUs that the policy divides, and those that fixed jobs hold."""
    divided = {gpu for server in view.servers for gpu in server.addresses}
    return divided.union(gpu for job in cluster.jobs.rows.fixed.values() for gpu in job.own_gpus)
