"""Profiling of jobs: throughput is measured with smaller and smaller shares (AFS 4.5; rules in `scheduler.measuring`).

For the scheduler, a job that is profiled still has all its GPUs, so that profiling does not change decisions; its workers run
on some of them only. A decision that gives the job another share, by the figures measured so far, ends the profiling at once.
"""

from __future__ import annotations

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, JobPhase
from ...protocol.texts import gpu_count
from ...scheduler.measuring import smaller_shares, unknown, worth_measuring
from ...scheduler.packing import server_size
from ...scheduler.pipeline import Decision
from ...scheduler.placement.fewest_servers import in_order
from ...scheduler.policies import RIGID
from ...scheduler.speedup_curve import points
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.rows import left_s
from ..jobs.volatile import ProfilingRun
from ..state.planning import Snapshot


def profile_jobs(cluster: Cluster, now: float, seen: Snapshot, decision: Decision) -> None:
    """Begin, continue and end the profiling of jobs after a decision.

    The profiling of jobs that the decision has changed is over already.
    """
    begin = cluster.settings.measuring.way_down and cluster.planning.policy.name not in RIGID
    packed = _packed(cluster)
    for row in seen.view.placements:  # only jobs with GPUs can be measured
        job = seen.jobs[row]
        if job.profiling is not None:
            _go_on(cluster, now, job, in_order(decision.placements.get(row, 0), seen.gpus, job.record.target))
            continue
        if job.profiled.is_all(job.estimated, job.record.target, packed):
            continue
        if begin and (shares := _worthwhile(cluster, job, int(decision.shares[row]), packed)):
            _measure_with(cluster, now, job, shares)


def profile_now(
    cluster: Cluster, now: float, job: Job, least: int | None = None, most: int | None = None
) -> tuple[int, ...]:
    """Profile a job on request with smaller shares, measured before or not, and return these shares (GPUs).

    `least`, `most`: with all shares in this range; None: with half of the present share, half of that, and so on.
    Raises RequestRefused with the reason if the job cannot be profiled now, UserError for a wrong range.
    """
    if job.profiling is not None:
        return job.profiling.shares
    if job.record.manual_share is not None:
        raise RequestRefused(
            f"{job.id} has a share set by hand: `elasticctl scale {job.id} auto` gives it back to the policy"
        )
    if not _undisturbed(job):
        raise RequestRefused(f"{job.id} cannot be measured now: it does not train with the GPUs that it is to have")
    ranged = least is not None or most is not None
    shares = _in_range(job, least, most) if ranged else _on_the_way(job, _packed(cluster))
    if not shares:
        has, least = len(job.record.target), job.spec.gpus.min
        raise RequestRefused(
            f"{job.id} has {gpu_count(has)} and needs {least} at least: there is no half of them to measure"
        )
    _measure_with(cluster, now, job, shares)
    return shares


def _go_on(cluster: Cluster, now: float, job: Job, target: tuple[GpuAddress, ...]) -> None:
    """Go on to the next share if the present one is measured or its time is over; after the last, to `target`."""
    profiling = job.profiling
    assert profiling is not None
    measured = any(entry.share == profiling.share and entry.at_s >= profiling.began_s for entry in job.record.measured)
    if not measured and now < profiling.until_s:
        return
    job.profiled.add(profiling.share)
    if profiling.shares[1:]:
        _measure_with(cluster, now, job, profiling.shares[1:])
        return
    job.set_target(now, target, "has been measured, and has its GPUs back")
    cluster.jobs.mark_dirty(job)


def _worthwhile(cluster: Cluster, job: Job, share: int, packed: int | None) -> tuple[int, ...]:
    """Return the shares with which to measure the job, the largest first; none if it is not worth the disturbance.

    `packed`: see `_packed`.
    """
    estimated, target = job.estimated, job.record.target
    assert estimated is not None, "the decision was made with it"
    if share != len(target) or not _undisturbed(job):
        return ()
    servers = len({gpu.server for gpu in target})
    if not any((entry.share, entry.servers) == (share, servers) for entry in job.record.measured):
        return ()
    known = points(estimated.known, estimated.fewest)
    shares = [
        below
        for below in unknown(_on_the_way(job, packed), known)
        if below not in job.profiled.shares
        and len({gpu.server for gpu in _some(target, below)}) <= estimated.fewest[below]
    ]
    if not shares:
        job.profiled.note_all(estimated, target, packed)
    return worth_measuring(cluster.settings.measuring, shares, estimated.curve, left_s(job, estimated, share))


def _packed(cluster: Cluster) -> int | None:
    """Return the number of GPUs of each server if shares are packed, otherwise None."""
    if not cluster.planning.decider.scheduler.stages.packing:
        return None
    return server_size([len(session.server.gpus) for session in cluster.servers.sessions.values() if session.alive])


def _on_the_way(job: Job, packed: int | None) -> tuple[int, ...]:
    """Return the smaller shares that the job could get; with a fixed number of GPUs per server, only whole servers."""
    each = job.spec.gpus_per_server or 1
    return tuple(s for s in smaller_shares(len(job.record.target), job.spec.gpus.min, packed) if not s % each)


def _in_range(job: Job, least: int | None, most: int | None) -> tuple[int, ...]:
    """Return the shares from `most` down to `least`, without the present one, which is measured as the job trains.

    Raises UserError if the job cannot have one of them.
    """
    has, each = len(job.record.target), job.spec.gpus_per_server or 1
    low, high = job.spec.gpus.min if least is None else least, has if most is None else most
    if not job.spec.gpus.min <= low <= high <= has:
        raise UserError(
            f"{job.id} cannot be measured with {low} to {high} GPUs: it has {has} and needs {job.spec.gpus.min} at least"
        )
    found = tuple(share for share in range(min(high, has - 1), low - 1, -1) if not share % each)
    if not found:
        raise UserError(f"{job.id} cannot have another share from {low} to {high} than its present {gpu_count(has)}")
    return found


def _undisturbed(job: Job) -> bool:
    """Return whether the job trains on exactly its target, with no change under way and no share set by hand."""
    newest = job.newest
    return (
        job.record.phase is JobPhase.RUNNING
        and job.record.manual_share is None
        and job.hold_until is None
        and not job.record.does_not_grow  # profiling shrinks the job, and grows it again
        and job.restart_at is None
        and newest is not None
        and newest.generation == job.record.committed
        and {member.gpu for member in newest.roster.members} == set(job.record.target)
    )


def _measure_with(cluster: Cluster, now: float, job: Job, shares: tuple[int, ...]) -> None:
    own = job.own_gpus
    target = _some(job.record.target, shares[0])
    reserved = tuple(gpu for gpu in own if gpu not in set(target))
    run = ProfilingRun(shares, reserved, began_s=now, until_s=now + cluster.settings.measuring.longest_s)
    text = f"measures its throughput with {shares[0]} of its {len(own)} GPUs"
    job.set_target(now, target, text, run)
    cluster.jobs.mark_dirty(job)
    cluster.history.add(now, EventKind.MEASURING, job.id, text)


def _some(gpus: tuple[GpuAddress, ...], share: int) -> tuple[GpuAddress, ...]:
    """Return `share` of a job's GPUs, in their order, on few servers: servers with most of its GPUs come first."""
    count: dict[str, int] = {}
    for gpu in gpus:
        count[gpu.server] = count.get(gpu.server, 0) + 1
    first = list(count)
    chosen = set(sorted(gpus, key=lambda gpu: (-count[gpu.server], first.index(gpu.server)))[:share])
    return tuple(gpu for gpu in gpus if gpu in chosen)
