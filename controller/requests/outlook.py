"""Data from which a client simulates the cluster's future (`simulator.forecast`).

The controller does not simulate: its loop must stay free. Every principal that may see jobs may see these data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from ...protocol.messages import Away, Outlook, OutlookJob
from ...protocol.model import GpuAddress, JobId
from ...scheduler.kinds import Demand
from ...scheduler.length_statistics import Ended
from ...scheduler.plugin import LoadedPlugin
from ...scheduler.scheduler import document
from ...scheduler.view import UNKNOWN_S, ClusterView, Columns, JobTable, ServerInView
from ..cluster import Cluster
from ..jobs.job import Job
from ..loans import RESERVATION, back_at
from ..reconcile.snapshot import snapshot

MOST_JOBS = 5_000  # in an answer, which takes as long as a decision about them
MOST_RATES = 500_000  # points of curves in an answer, which has to fit into a message
MOST_GANGS = 500
LATELY_S = 24 * 3600.0
MOST_ARRIVALS = 500  # latest submissions, from which simulations draw future ones


def outlook(cluster: Cluster, now: float, user: str) -> Outlook | None:
    """Return the data for this user; None if the controller has just started and its servers have not reconnected yet."""
    if cluster.servers.awaited:
        return None
    if obstacle := _obstacle(cluster):
        return Outlook(time_s=now, obstacle=obstacle)
    view, away = snapshot(cluster, now).view, back_at(cluster)
    jobs, rows = cluster.jobs.rows.jobs(frozenset(), with_fixed=True)
    if len(jobs) > MOST_JOBS:
        return Outlook(time_s=now, obstacle=f"there are more than {MOST_JOBS} jobs")
    usable = _usable(cluster, view).union(away)
    there = tuple(session.whole for _, session in sorted(cluster.servers.sessions.items()) if session.alive)
    columns, curves = cluster.jobs.rows.columns(rows, now, len(usable), there, None)
    most = _most(columns, len(usable))
    if sum(most.values()) > MOST_RATES:
        return Outlook(time_s=now, obstacle=f"{len(jobs)} jobs scale in too many ways")
    curve_of = {curve: number for number, curve in enumerate(most)}
    never_join = cluster.jobs.rows.unjoined(rows, expected=False).tolist()
    lately = [job for job in cluster.jobs.values() if job.submission.submitted_s > now - LATELY_S][-MOST_ARRIVALS:]
    servers = tuple(one for each in there if (one := _usable_of(each, usable)).gpus)
    distinct, demand_of = cluster.jobs.rows.demands(rows)
    demands = _Demands(distinct)
    place = {address: at for at, address in enumerate(gpu for server in servers for gpu in server.addresses)}
    first_s = min((job.submission.submitted_s for job in cluster.jobs.values()), default=now)
    return Outlook(
        time_s=now,
        policy=document(cluster.planning.decider.scheduler),
        servers=tuple((each.server, len(each.gpus)) for each in servers),
        jobs=tuple(
            replace(
                _view(job, columns, row, curve_of, never_join[row]), demand=int(demand_of[row]), held=_held(job, place)
            )
            for row, job in enumerate(jobs)
        ),
        speedups=tuple(tuple(curves.speedup[curve, : largest + 1].tolist()) for curve, largest in most.items()),
        lengths=tuple(map(tuple, _lengths(cluster).lengths.tolist())),
        arrivals=tuple((job.spec.gpus.min, job.spec.gpus.max) for job in lately),
        arrival_users=tuple(job.user for job in lately),
        arrivals_s=min(LATELY_S, now - first_s),
        user=user,
        arrival_demands=tuple(demands.number(Demand.of(job.spec)) for job in lately),
        demands=demands.documents(),
        kinds=tuple(msgspec.to_builtins(each.kinds) for each in servers),
        away=_away(away, place),
    )


class _Demands:
    """The distinct demands of jobs for GPUs, by number."""

    def __init__(self, demands: Iterable[Demand]) -> None:
        self._numbers = {demand: number for number, demand in enumerate(demands)}

    def number(self, demand: Demand) -> int:
        return self._numbers.setdefault(demand, len(self._numbers))

    def documents(self) -> tuple[dict[str, Any], ...]:
        return tuple(map(msgspec.to_builtins, self._numbers))


def _most(columns: Columns, total: int) -> dict[int, int]:
    """Return the largest share of any job by curve, at most `total`."""
    found: dict[int, int] = {}
    for curve, *shares in zip(
        *(getattr(columns, name).tolist() for name in ("curve", "max_gpus", "requested_gpus", "share")), strict=True
    ):
        found[curve] = max(found.get(curve, 1), min(max(shares), total))
    return found


@dataclass(frozen=True)
class Terms:
    """Facts about a job that policies do not see.

    `fixed`: it cannot be resized. `by_hand`: the share that was set by hand. `limit_s`: limit of its time with GPUs (s).
    `promised`: its deadline is promised.
    """

    fixed: bool = False
    by_hand: int | None = None
    limit_s: float | None = None
    user: str = ""
    promised: bool = False


def facts(
    job: JobId, columns: Columns | JobTable, row: int, curve: int, share: int, terms: Terms = Terms()
) -> OutlookJob:
    """Return the data of the job of this row. curve: index of its curve in the outlook. share: the GPUs that it has."""
    waiting_s, executed_s = float(columns.waiting_since_s[row]), float(columns.executed_s[row])
    return OutlookJob(
        job=job,
        min_gpus=int(columns.min_gpus[row]),
        max_gpus=int(columns.max_gpus[row]),
        requested_gpus=int(columns.requested_gpus[row]),
        priority=int(columns.priority[row]),
        curve=curve,
        submitted_s=float(columns.submitted_s[row]),
        waiting_since_s=None if share or math.isnan(waiting_s) else waiting_s,
        executed_s=executed_s,
        attained_gpu_s=float(columns.attained_gpu_s[row]),
        changes=int(columns.changes[row]),
        done_s=float(columns.done_s[row]),
        left_s=None if columns.left_s[row] >= UNKNOWN_S else float(columns.left_s[row]),
        share=share,
        fixed=terms.fixed,
        by_hand=terms.by_hand,
        time_left_s=None if terms.limit_s is None else max(0.0, terms.limit_s - executed_s),
        user=terms.user,
        deadline_s=None if math.isnan(columns.deadline_s[row]) else float(columns.deadline_s[row]),
        promised=terms.promised,
    )


def _view(job: Job, columns: Columns, row: int, curve_of: Mapping[int, int], never_joins: bool) -> OutlookJob:
    """Return the data of the job of this row. curve_of: indices of the curves in the outlook."""
    terms = Terms(
        fixed=never_joins or job.gang,
        by_hand=job.record.manual_share,
        limit_s=job.spec.time_limit_s,
        user=job.user,
        promised=job.promised,
    )
    return facts(job.id, columns, row, curve_of[int(columns.curve[row])], len(job.own_gpus), terms)


def _lengths(cluster: Cluster) -> Ended:
    """Return the lengths of ended jobs. The work of the latest gangs counts as their GPU-seconds."""
    found = cluster.experience.lengths
    gangs = [job for job in cluster.jobs.values() if job.final and not job.elastic and job.record.attained_gpu_s > 0]
    for job in gangs[-MOST_GANGS:]:
        found = found.and_one(job.spec.gpus.max, job.record.attained_gpu_s, math.nan)
    return found


def _obstacle(cluster: Cluster) -> str:
    """Return why a simulation would not decide as this controller does; "" if it would."""
    scheduler = cluster.planning.decider.scheduler
    if isinstance(scheduler.policy, LoadedPlugin):
        return "the policy is a Python file on the controller's host"
    return ""


def _away(away: Mapping[GpuAddress, tuple[str, float]], place: Mapping[GpuAddress, int]) -> tuple[Away, ...]:
    """Return the loans and reservations with their GPUs."""
    found: dict[tuple[str, float], list[int]] = {}
    for gpu, (loan, until_s) in away.items():
        name = loan.removeprefix(RESERVATION) if loan.startswith(RESERVATION) else ""
        found.setdefault((name, until_s), []).append(place[gpu])
    return tuple(Away(reservation=name, until_s=until_s, gpus=tuple(gpus)) for (name, until_s), gpus in found.items())


def _held(job: Job, place: Mapping[GpuAddress, int]) -> tuple[int, ...]:
    return tuple(sorted(place[gpu] for gpu in job.own_gpus if gpu in place))


def _usable_of(server: ServerInView, usable: Set[GpuAddress]) -> ServerInView:
    return server.only([at for at, gpu in enumerate(server.addresses) if gpu in usable])


def _usable(cluster: Cluster, view: ClusterView) -> set[GpuAddress]:
    """Return the GPUs that the policy divides, and those that fixed jobs hold."""
    divided = {gpu for server in view.servers for gpu in server.addresses}
    return divided.union(gpu for job in cluster.jobs.rows.fixed.values() for gpu in job.own_gpus)
