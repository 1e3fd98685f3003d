"""Jobs that are measured on the way down through smaller shares (AFS 4.5; the rules are in `scheduler.measuring`).

A job on its way down keeps its GPUs: to the scheduler it has them all, so that its decisions stay what they are, and any of them
ends the way down at once if the figures so far say that it should have another share. Carried out it has only some.
"""

from __future__ import annotations

from ...protocol.errors import RequestRefused
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
from ..jobs.job import AllMeasured, Job, ProfilingRun
from .rows import left_s
from .snapshot import Snapshot


def profile_jobs(cluster: Cluster, now: float, seen: Snapshot, decision: Decision) -> None:
    """After a decision, whose changes have ended the way down of those that they concern: send jobs down, on, and back up."""
    begin = cluster.settings.measuring.way_down and cluster.policy.name not in RIGID
    packed = _packed(cluster)
    for row in seen.view.placements:  # nobody else has anything to measure with
        job = seen.jobs[row]
        if job.profiling is not None:
            _go_on(cluster, now, job, in_order(decision.placements.get(row, 0), seen.gpus, job.record.target))
            continue
        before = job.all_measured  # most jobs are asked about again and again, for the same estimate and the same GPUs
        same = before is not None and before.target is job.record.target and before.estimated is job.estimated
        if same and before is not None and before.packed == packed:
            continue
        if begin and (shares := _worthwhile(cluster, job, int(decision.shares[row]), packed)):
            _measure_with(cluster, now, job, shares)


def profile_now(cluster: Cluster, now: float, job: Job) -> tuple[int, ...]:
    """Because somebody asks: through all smaller shares, known or not. Raises RequestRefused, saying what is in the way."""
    if job.profiling is not None:
        return job.profiling.shares
    if job.record.manual_share is not None:
        raise RequestRefused(
            f"{job.id} has a share set by hand: `elasticctl scale {job.id} auto` gives it back to the policy"
        )
    if not _undisturbed(job):
        raise RequestRefused(f"{job.id} cannot be measured now: it does not train with the GPUs that it is to have")
    shares = _on_the_way(job, _packed(cluster))
    if not shares:
        has, least = len(job.record.target), job.spec.gpus.min
        raise RequestRefused(
            f"{job.id} has {gpu_count(has)} and needs {least} at least: there is no half of them to measure"
        )
    _measure_with(cluster, now, job, shares)
    return shares


def _go_on(cluster: Cluster, now: float, job: Job, target: tuple[GpuAddress, ...]) -> None:
    """To the next share, if this one has been measured or cannot be in time; after the last one back to `target`."""
    profiling = job.profiling
    assert profiling is not None
    measured = any(entry.share == profiling.share and entry.at_s >= profiling.began_s for entry in job.record.measured)
    if not measured and now < profiling.until_s:
        return
    job.profiled_shares.add(profiling.share)
    if profiling.shares[1:]:
        _measure_with(cluster, now, job, profiling.shares[1:])
        return
    job.profiling = None
    job.aim(now, target, "has been measured, and has its GPUs back")
    cluster.mark_dirty(job)


def _worthwhile(cluster: Cluster, job: Job, share: int, packed: int | None) -> tuple[int, ...]:
    """The shares to measure it with, the largest first; none if that would only disturb. `packed`: see `_packed`."""
    told, target = job.estimated, job.record.target
    assert told is not None, "the decision was made with it"
    if share != len(target) or not _undisturbed(job):
        return ()
    servers = len({gpu.server for gpu in target})
    if not any((entry.share, entry.servers) == (share, servers) for entry in job.record.measured):
        return ()
    known = points(told.known, told.fewest)
    shares = [
        below
        for below in unknown(_on_the_way(job, packed), known)
        if below not in job.profiled_shares and len({gpu.server for gpu in _some(target, below)}) <= told.fewest[below]
    ]
    if not shares:
        job.all_measured = AllMeasured(told, target, packed)
    return worth_measuring(cluster.settings.measuring, shares, told.curve, left_s(job, told, share))


def _packed(cluster: Cluster) -> int | None:
    """GPUs of each server, if shares are packed."""
    if not cluster.decider.scheduler.stages.packing:
        return None
    return server_size([len(session.server.gpus) for session in cluster.sessions.values() if session.alive])


def _on_the_way(job: Job, packed: int | None) -> tuple[int, ...]:
    """Smaller shares that it could be given; `_some` takes whole servers where it has as many GPUs on each."""
    each = job.spec.gpus_per_server or 1
    return tuple(s for s in smaller_shares(len(job.record.target), job.spec.gpus.min, packed) if not s % each)


def _undisturbed(job: Job) -> bool:
    """Does it train with its target, with nothing under way and nothing set by hand?"""
    newest = job.newest
    return (
        job.record.phase is JobPhase.RUNNING
        and job.record.manual_share is None
        and job.hold_until is None
        and not job.record.does_not_grow  # to be measured is to shrink, and to grow again
        and job.restart_at is None
        and newest is not None
        and newest.generation == job.record.committed
        and {member.gpu for member in newest.roster.members} == set(job.record.target)
    )


def _measure_with(cluster: Cluster, now: float, job: Job, shares: tuple[int, ...]) -> None:
    own = job.own_gpus
    target = _some(job.record.target, shares[0])
    reserved = tuple(gpu for gpu in own if gpu not in set(target))
    job.profiling = ProfilingRun(shares, reserved, began_s=now, until_s=now + cluster.settings.measuring.longest_s)
    text = f"measures its throughput with {shares[0]} of its {len(own)} GPUs"
    job.aim(now, target, text)
    cluster.mark_dirty(job)
    cluster.tell(now, EventKind.MEASURING, job.id, text)


def _some(gpus: tuple[GpuAddress, ...], share: int) -> tuple[GpuAddress, ...]:
    """So many of a job's GPUs, in their order, on few servers: first those of which it has most."""
    count: dict[str, int] = {}
    for gpu in gpus:
        count[gpu.server] = count.get(gpu.server, 0) + 1
    first = list(count)
    chosen = set(sorted(gpus, key=lambda gpu: (-count[gpu.server], first.index(gpu.server)))[:share])
    return tuple(gpu for gpu in gpus if gpu in chosen)
