"""Tainted GPUs, which take no new work (`taints`): effects of a new or lifted taint, and their removal from decisions.

Theory of operation
-------------------
* A GPU that takes *no new work* stays in the scheduler's view while a job runs there, so that the job keeps the GPU. If a
  decision gives the GPU to another job, the decision is corrected (`keep_off`).
* A GPU that is to be *left* (`Severity.moves`) is not in the view. So its job seems to have lost a GPU, and the scheduler gives
  the job another one or shrinks the job. The worker on the GPU trains until the joining workers have taken over
  (`generations`), so that no step is lost.
* A job that would lose all its GPUs stays on them (`cornered`): slow training is better than none. Exceptions: the GPU is
  gone, or its results may be wrong (`Severity.STOP`), or an operator drains by preemption (`draining`). In these cases the
  job gives its GPUs back and waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, JobId, ServerId
from ...scheduler.pipeline import Decision
from ...scheduler.sets import some, union
from ..cluster import Cluster
from ..jobs.job import Job
from ..state.planning import Snapshot
from ..taints import sentences
from .avoidance import instead, seats


def refresh_taints(cluster: Cluster, now: float, server: ServerId, reported: bool = False) -> None:
    """Recompute the taints on the GPUs of `server` after a possible change, and report and schedule accordingly.

    `reported`: the change has been reported as an event already.
    """
    before, after = cluster.servers.update_taints(server)
    if not before and not after:
        return
    cluster.jobs.mark_waiting_dirty()
    gpus = len(cluster.servers.sessions[server].server.gpus) if server in cluster.servers.sessions else 0
    better = sorted(before.keys() - after.keys())
    if reported:
        return
    if after and cluster.servers.may_tell(now, server):
        cluster.history.add(now, EventKind.TROUBLE, None, f"{server}: {'; '.join(sentences(gpus, after))}"[:1000])
    if better and cluster.servers.may_tell(now, server):
        which = "it" if len(better) == gpus else f"GPU{'s' if len(better) > 1 else ''} {', '.join(map(str, better))}"
        cluster.history.add(now, EventKind.RECOVERED, None, f"{server}: {which} may be used again")


def give_back(cluster: Cluster, now: float, loan: str, gpus: Sequence[GpuAddress]) -> None:
    """Lift the cordons of `loan` on these GPUs, so that they take work again."""
    for server in dict.fromkeys(gpu.server for gpu in gpus):
        before, here = cluster.servers.overruled[server], {gpu.index for gpu in gpus if gpu.server == server}
        kept = tuple(one for one in before.cordons if one.loan != loan or one.gpu not in here)
        cluster.servers.record_overruled(server, structs.replace(before, cordons=kept))
        refresh_taints(cluster, now, server, reported=True)


def keep_off(cluster: Cluster, seen: Snapshot, decision: Decision) -> Decision:
    """Return the decision without tainted GPUs for jobs that do not run there yet.

    A tainted GPU stays with the job that runs there, in exchange for the GPU which that job was to get instead. Otherwise the
    tainted GPU is replaced by a free one. If there is none, the job does without; below its minimum it gets no GPU.
    """
    tainted = _tainted(cluster, seen)
    if not tainted:
        return decision
    placed, shares = dict(decision.placements), decision.shares.copy()
    free = ((1 << seen.view.total_gpus) - 1) & ~union(placed.values()) & ~tainted
    for row in sorted(placed):
        wrong, has = placed[row] & tainted & ~seen.running.get(row, 0), placed[row]
        if wrong and seen.view.per_server(row):
            wrong, give = 0, seats(seen, has, wrong)
            better = instead(seen, row, has, give, free)
            placed[row], free = has & ~give | better, free & ~better
        able = seen.view.usable(row, has) if wrong else 0
        while wrong:
            gpu = wrong & -wrong
            wrong ^= gpu
            other = _owner(seen, placed, gpu)
            new = _exchanged(seen, placed, other, gpu, able & ~tainted) if other is not None else 0
            if other is not None and new:
                placed[other] = placed[other] & ~new | gpu
            else:
                new = some(1, free & able)
                free &= ~new
            placed[row] = placed[row] & ~gpu | new
        if placed[row].bit_count() < min(int(shares[row]), int(seen.view.jobs.min_gpus[row])):
            free |= placed[row] & ~tainted
            placed[row] = 0
        shares[row] = placed[row].bit_count()
    placements = {row: gpus for row, gpus in placed.items() if gpus}
    return replace(decision, placements=placements, shares=shares) if placements != decision.placements else decision


def _exchanged(seen: Snapshot, placed: Mapping[int, int], other: int, gpu: int, able: int) -> int:
    """Return a GPU of `able` that job `other` can give in exchange for `gpu`, on which it runs; 0: there is none.

    GPUs that `other` was to get are preferred to those that it holds.
    """
    view = seen.view
    if view.per_server(other) or not view.usable(other, placed[other]) & gpu:
        return 0
    theirs = placed[other] & able
    return some(1, theirs & ~view.placements.get(other, 0), theirs)


def _tainted(cluster: Cluster, seen: Snapshot) -> int:
    """Return the GPUs in view that take no new work."""
    servers = {*cluster.servers.tainted, *(name for name in cluster.servers.health if not cluster.servers.fit(name))}
    if not servers:
        return 0
    return sum(
        1 << bit for bit, gpu in enumerate(seen.gpus) if gpu.server in servers and not cluster.servers.usable(gpu)
    )


def _owner(seen: Snapshot, placed: Mapping[int, int], gpu: int) -> int | None:
    """Return the row of the job that runs on `gpu` and is placed by the decision; None: no such job."""
    return next((row for row, gpus in seen.running.items() if gpus & gpu and placed.get(row)), None)


def cornered(cluster: Cluster, seen: Snapshot, decision: Decision, staying: Mapping[JobId, str]) -> list[Job]:
    """Return the jobs that would lose all their GPUs because they have to leave a GPU that still computes correctly."""
    found = []
    for server, tainted in cluster.servers.tainted.items():
        if not any(taint.may_stay for taint in tainted.values()):
            continue
        for job in cluster.jobs.index.on_server(server):
            row = seen.rows.get(job.id)
            if row is None or job.id in staying or int(decision.shares[row]) or not job.record.target:
                continue
            if any(_stays(cluster, gpu) for gpu in job.running_gpus):
                found.append(job)
    return found


def _stays(cluster: Cluster, gpu: GpuAddress) -> bool:
    taint = cluster.servers.taint(gpu)
    return taint is not None and taint.may_stay


def sentence(cluster: Cluster, job: Job) -> str:
    """Return why `job` still runs on GPUs that it has to leave; "" if it runs on none."""
    if not cluster.servers.tainted:
        return ""
    found = [
        f"{gpu} ({taint.text})"
        for gpu in job.running_gpus
        if gpu.server in cluster.servers.tainted
        and (taint := cluster.servers.taint(gpu)) is not None
        and taint.severity.moves
    ]
    if not found:
        return ""
    if set(job.record.target).intersection(gpu for gpu in job.running_gpus if _stays(cluster, gpu)):
        return f"goes on at {', '.join(found)}: no other GPU can be had"
    return f"is being moved away from {', '.join(found)}"
