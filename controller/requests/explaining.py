"""Explanation of a job's share: all known facts about it, for `elasticctl explain`.

The scheduler decides once more about the present cluster, and reports the effect of each of its stages on the job's
share. Then it decides about clusters with one difference each (`remedies`), so every remedy shown does help. No state
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from ...protocol.messages import Explanation, GpusTaken, ShareForecast, ShareStep
from ...protocol.model import GpuAddress, JobPhase
from ...protocol.principals import Principal
from ...protocol.texts import gpu_count
from ...scheduler.describe import rule_of
from ..cluster import Cluster
from ..jobs.job import Job
from ..reconcile.causes import why_gone
from ..reconcile.stable_decision import Outcome
from ..reconcile.what_if import outcome
from .remedies import Remedies
from .views import reasons

MOST_HOLDERS = 50


def explanation(cluster: Cluster, now: float, who: Principal, job: Job) -> Explanation:
    """Return the explanation for `who`, without changing any state."""
    found = Explanation(phase_since_s=_since_s(job), reasons=_reasons(cluster, now, job))
    if job.final or (decided := outcome(cluster, now)) is None:
        return found
    found = _with_gpus(cluster, found, job, decided)
    row = decided.seen.rows.get(job.id)
    if row is not None:
        found = _with_decision(found, job, decided, row)
    remedies = Remedies(cluster, now, who, job, decided)
    helpful = tuple(remedies.found())
    return replace(found, remedies=helpful, before=remedies.before, tried=remedies.tried, untried=remedies.untried)


def _since_s(job: Job) -> float:
    """Return the start of the job's phase (Unix time), estimated where an earlier version has not recorded it."""
    kept = job.record
    if kept.phase_since_s is not None:
        return kept.phase_since_s
    if job.final and kept.finished_s is not None:
        return kept.finished_s
    if kept.phase is JobPhase.RUNNING and kept.started_s is not None:
        return kept.started_s
    return job.submission.submitted_s


def _reasons(cluster: Cluster, now: float, job: Job) -> tuple[str, ...]:
    """Return each reason once, without faults of servers, which the list of unavailable GPUs shows."""
    found = dict.fromkeys(filter(None, reasons(cluster, now, job, lambda: "")))
    return tuple(found)


def _with_gpus(cluster: Cluster, found: Explanation, job: Job, decided: Outcome) -> Explanation:
    """Add the numbers of known and free GPUs, and the jobs that hold the others."""
    seen, shares = decided.seen, decided.found.decision.shares
    given = [(other, int(shares[row])) for row, other in enumerate(seen.jobs)]
    fixed = [(other, len(other.own_gpus)) for other in cluster.jobs.rows.fixed.values()]
    holders = [
        ShareForecast(job=other.id, before_gpus=len(other.record.target), after_gpus=after, reason="")
        for other, after in (*given, *fixed)
        if other.id != job.id and (after or other.record.target)
    ]
    holders.sort(key=lambda one: -max(one.before_gpus, one.after_gpus))
    scheduler = cluster.planning.decider.scheduler
    return replace(
        found,
        policy=scheduler.policy.name,
        rule=rule_of(scheduler.policy),
        least_gpus=job.spec.gpus.min,
        known_gpus=cluster.servers.known_gpus,
        divided_gpus=seen.view.total_gpus,
        among_jobs=len(seen.jobs),
        free_gpus=_free(decided, job),
        taken=tuple(_taken(cluster, decided)),
        holders=tuple(holders[:MOST_HOLDERS]),
    )


def _free(decided: Outcome, job: Job) -> int:
    """Return the number of GPUs that the decision leaves idle and the job may use."""
    view = decided.seen.view
    used = 0
    for gpus in decided.found.decision.placements.values():
        used |= gpus
    idle = ((1 << view.total_gpus) - 1) & ~used
    row = decided.seen.rows.get(job.id)
    limit = view.limit(row) if row is not None else None
    return idle.bit_count() if limit is None else max([(one & idle).bit_count() for one in limit.options], default=0)


def _taken(cluster: Cluster, decided: Outcome) -> Iterator[GpusTaken]:
    """Yield the GPUs that the policy does not divide, grouped by reason."""
    divided = set(decided.seen.gpus)
    by_reason: dict[str, list[GpuAddress]] = {}
    why = partial(why_gone, cluster)
    for name, session in sorted(cluster.servers.sessions.items()):
        for index in session.whole.gpus:
            gpu = GpuAddress(server=name, index=index)
            if gpu not in divided:
                by_reason.setdefault(why(gpu), []).append(gpu)
    for reason, gpus in by_reason.items():
        yield GpusTaken(gpus=tuple(gpus), why=reason)
    view = decided.seen.view
    for row, share in sorted(view.manual_shares.items()):
        if placed := decided.found.decision.placements.get(row):
            own = tuple(gpu for bit, gpu in enumerate(decided.seen.gpus) if placed >> bit & 1)
            yield GpusTaken(gpus=own, why=f"{view.jobs.name(row)} has {gpu_count(share)} by hand")


def _with_decision(found: Explanation, job: Job, decided: Outcome, row: int) -> Explanation:
    """Add the present decision about the job, stage by stage."""
    view, outcome = decided.seen.view, decided.found
    own = [text for text in outcome.every(row) if text not in found.reasons]
    useful = int(view.jobs.max_gpus[row])
    if useful < min(job.spec.gpus.max, view.total_gpus) and row not in view.manual_shares:
        faster = "as far as its throughput is known it is not faster with more"
        why = faster if _is_measured(job) else "it gets no more before its throughput has been measured"
        own.append(f"the most that is of use to it now is {gpu_count(useful)}: {why}")
    steps = tuple(ShareStep(stage=step.stage.value, gpus=step.gpus) for step in outcome.steps(row))
    decided_gpus = int(outcome.decision.shares[row])
    return replace(found, reasons=(*found.reasons, *own), decided_gpus=decided_gpus, steps=steps, useful_gpus=useful)


def _is_measured(job: Job) -> bool:
    return job.estimated is not None and bool(job.estimated.known)
