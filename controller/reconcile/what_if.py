"""Hypothetical decisions: for example without a job, with more GPUs, or with other shares.

A copy of the cluster is changed, and the scheduler decides about the copy as about the real cluster (`stable_decision`). So a
change that is predicted to alter a share does so, by the same rules, unless something else changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace as replace_in

from ...protocol.model import Allocatable, GpuPlace, JobId, JobPhase, Server, ServerId
from ...scheduler.placement.fewest_servers import in_order
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import Submission
from ..jobs.rows import demand_of
from .deciding import PolicyFailed
from .snapshot import snapshot
from .stable_decision import Outcome, decide_until_stable

MORE = ServerId("~more")  # sorts after all server names

Change = Callable[[Cluster], None]  # makes a change in the copy


def nothing(cluster: Cluster) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Hypothesis:
    """Hypothetical changes of the cluster.

    `over`: jobs that end, one by one; `by_hand`: shares set by hand (None: given back to the policy); `instead`: a job that is
    submitted now; `change`: any other change of the copy.
    """

    over: Sequence[JobId] = ()
    by_hand: Mapping[JobId, int | None] = field(default_factory=dict)
    instead: Submission | None = None
    change: Change = nothing


AS_IT_IS = Hypothesis()


def outcome(cluster: Cluster, now: float, hypothesis: Hypothesis = AS_IT_IS) -> Outcome | None:
    """Return the decision for the cluster with the hypothetical changes, without changing the cluster.

    None if the policy fails, or if the controller still waits for servers to connect after its start.
    """
    if cluster.servers.awaited:
        return None
    first, later = set(hypothesis.over[:1]), hypothesis.over[1:]
    copied = cluster.what_if(job for name, job in cluster.jobs.index.live.items() if name not in first)
    for name, share in hypothesis.by_hand.items():
        if (job := copied.jobs.get(name)) is not None:
            job.set_share_by_hand(share)
    if hypothesis.instead is not None:
        copied.jobs.suppose(Job(hypothesis.instead))
    hypothesis.change(copied)
    try:
        found = decide_until_stable(copied, now, snapshot(copied, now), lambda job: None)
        for name in later:
            _carry_out(found)
            job = copied.jobs[name]
            job.restore(replace_in(job.record, phase=JobPhase.CANCELLED, target=(), orders=()), ())
            found = decide_until_stable(copied, now, snapshot(copied, now), lambda job: None)
        return found
    except PolicyFailed:
        return None


def _carry_out(found: Outcome) -> None:
    """Give the copy's jobs the decided GPUs, since under some policies a job keeps them when further jobs end."""
    placed = found.found.decision.placements
    for row, job in enumerate(found.seen.jobs):
        job.update(target=in_order(placed.get(row, 0), found.seen.gpus, job.record.target))


def share_of(found: Outcome | None, job: JobId) -> int:
    """Return how many GPUs the job would have; 0 for unknown jobs and for jobs outside the policy's view."""
    row = found.seen.rows.get(job) if found is not None else None
    return int(found.found.decision.shares[row]) if found is not None and row is not None else 0


# -- changes of servers


def without_cordons(cluster: Cluster, server: ServerId, away: Callable[[int | None, str], bool]) -> None:
    """Remove from a copy the cordons of a server for which `away(gpu, loan)` holds."""
    cordons = cluster.servers.overruled[server].cordons
    kept = tuple(cordon for cordon in cordons if not away(cordon.gpu, cordon.loan))
    cluster.servers.suppose_cordons(server, kept)


def with_more(cluster: Cluster, now: float, job: Job, count: int) -> bool:
    """Add to a copy `count` GPUs that `job` can use, on new servers. Return False if no known GPU model suits the job."""
    models = {
        sort: session.server.gpus[at]
        for _, session in sorted(cluster.servers.sessions.items())
        for at, sort in enumerate(session.whole.sorts)
    }
    demand = demand_of(job, cluster.servers.gpu_name)
    option = next(iter(demand.options(models)), None)
    if option is None:
        return False
    template, each = models[option[0]], demand.per_server or count
    for number, begin in enumerate(range(0, count, each)):
        gpus = tuple(
            msgspec.structs.replace(template, index=index, uuid="", place=GpuPlace(), port=0)
            for index in range(min(each, count - begin))
        )
        enough = Allocatable(cpus=job.spec.cpus * len(gpus), memory_bytes=job.spec.memory_bytes * len(gpus))
        more = Server(
            server=ServerId(f"{MORE}{number:06}"), address="", gpus=gpus, allocatable=enough, no_containers=""
        )
        cluster.servers.suppose_server(now, more)
    return True
