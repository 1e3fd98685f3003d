"""GPUs that take no new work (`bars`): what changes when one becomes such, and how decisions keep off them.

Theory of operation
-------------------
* A GPU that takes *no new work* stays in the scheduler's view as long as a job computes there, so that the job keeps it.
  Nobody else may have it (`keep_off`): a decision that says so is mended.
* From a GPU that is to be *left* (`Severity.moves`) jobs are moved as by any other decision: it is in nobody's view, and its
  job, which seems to have lost a GPU, is given another one, or shrinks. Its worker computes until the newcomers have taken
  over (`generations`), so that no step is lost.
* A job that would be left with nothing stays where it is (`cornered`): better slow than stopped. That is not so where the
  GPU is gone, or where what it computes may be wrong (`Severity.STOP`): there the job gives its GPUs back, and waits.
  Nor is it so where an operator drains by preempting (`draining`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, JobId, ServerId, Severity
from ...protocol.sparing import Sparing
from ...scheduler.pipeline import Decision
from ...scheduler.sets import some, union
from ..bars import Bar, sentences
from ..cluster import Cluster
from ..jobs.job import Job
from .avoiding import instead, seats
from .snapshot import Snapshot

TOLD_AT_ONCE, TELL_INTERVAL_S = 20, 30.0  # events of one server: so many at once, then one in so long


def weigh(cluster: Cluster, now: float, server: ServerId, told: bool = False) -> None:
    """Something that bars GPUs of `server` has changed, or may have: look anew, and act on it.

    `told`: there is an event of it already.
    """
    before, after = cluster.weigh(server)
    changed = {gpu for gpu in {*before, *after} if _causes(before.get(gpu)) != _causes(after.get(gpu))}
    if not changed:
        return
    cluster.schedule_due = True
    cluster.mark_waiting_dirty()
    gpus = len(cluster.sessions[server].server.gpus) if server in cluster.sessions else 0
    worse = {gpu: after[gpu] for gpu in sorted(changed) if gpu in after}
    better = sorted(gpu for gpu in changed if gpu not in after)
    if told:
        return
    sparing = cluster.told_troubles.setdefault(server, Sparing(TOLD_AT_ONCE, TELL_INTERVAL_S))
    if worse and sparing.lets(now):
        cluster.tell(now, EventKind.TROUBLE, None, f"{server}: {'; '.join(sentences(gpus, worse))}"[:1000])
    if better and sparing.lets(now):
        which = "it" if len(better) == gpus else f"GPU{'s' if len(better) > 1 else ''} {', '.join(map(str, better))}"
        cluster.tell(now, EventKind.RECOVERED, None, f"{server}: {which} may be used again")


def give_back(cluster: Cluster, now: float, loan: str, gpus: Sequence[GpuAddress]) -> None:
    """Use these GPUs of a loan again."""
    for server in dict.fromkeys(gpu.server for gpu in gpus):
        before, here = cluster.overruled[server], {gpu.index for gpu in gpus if gpu.server == server}
        kept = tuple(one for one in before.cordons if one.loan != loan or one.gpu not in here)
        cluster.record_overruled(server, structs.replace(before, cordons=kept))
        weigh(cluster, now, server, told=True)


def _causes(bar: Bar | None) -> tuple[Severity, tuple[str, ...]] | None:
    return (bar.severity, bar.causes) if bar is not None else None


def keep_off(cluster: Cluster, seen: Snapshot, decision: Decision) -> Decision:
    """The decision without GPUs that take no new work for jobs that are not there already.

    Such a GPU is exchanged for one that the job there was to get instead, or for a free one; else its new holder does without.
    """
    barred = _barred(cluster, seen)
    if not barred:
        return decision
    placed, shares = dict(decision.placements), decision.shares.copy()
    free = ((1 << seen.view.total_gpus) - 1) & ~union(placed.values()) & ~barred
    for row in sorted(placed):
        wrong, has = placed[row] & barred & ~seen.running.get(row, 0), placed[row]
        if wrong and seen.view.per_server(row):
            wrong, give = 0, seats(seen, has, wrong)
            better = instead(seen, row, has, give, free)
            placed[row], free = has & ~give | better, free & ~better
        able = seen.view.usable(row, has) if wrong else 0
        while wrong:
            gpu = wrong & -wrong
            wrong ^= gpu
            other = _owner(seen, placed, gpu)
            new = _exchanged(seen, placed, other, gpu, able & ~barred) if other is not None else 0
            if other is not None and new:
                placed[other] = placed[other] & ~new | gpu
            else:
                new = some(1, free & able)
                free &= ~new
            placed[row] = placed[row] & ~gpu | new
        if placed[row].bit_count() < min(int(shares[row]), int(seen.view.jobs.min_gpus[row])):
            free |= placed[row] & ~barred
            placed[row] = 0
        shares[row] = placed[row].bit_count()
    placements = {row: gpus for row, gpus in placed.items() if gpus}
    return replace(decision, placements=placements, shares=shares) if placements != decision.placements else decision


def _exchanged(seen: Snapshot, placed: Mapping[int, int], other: int, gpu: int, able: int) -> int:
    """A GPU of `able` for `gpu`, on which `other` runs, who can have that instead: rather one that it was to get; 0: none."""
    view = seen.view
    if view.per_server(other) or not view.usable(other, placed[other]) & gpu:
        return 0
    theirs = placed[other] & able
    return some(1, theirs & ~view.placements.get(other, 0), theirs)


def _barred(cluster: Cluster, seen: Snapshot) -> int:
    """The GPUs in view that take no new work."""
    servers = {*cluster.barred, *(name for name in cluster.health if not cluster.fit(name))}
    if not servers:
        return 0
    return sum(1 << bit for bit, gpu in enumerate(seen.gpus) if gpu.server in servers and not cluster.usable(gpu))


def _owner(seen: Snapshot, placed: Mapping[int, int], gpu: int) -> int | None:
    """The job that runs on `gpu`, and is to have GPUs elsewhere."""
    return next((row for row, gpus in seen.running.items() if gpus & gpu and placed.get(row)), None)


def cornered(cluster: Cluster, seen: Snapshot, decision: Decision, staying: Mapping[JobId, str]) -> list[Job]:
    """The jobs that would be left with nothing for having to leave a GPU that still computes rightly."""
    found = []
    for server, barred in cluster.barred.items():
        if not any(bar.may_stay for bar in barred.values()):
            continue
        for job in cluster.index.on_server(server):
            row = seen.rows.get(job.id)
            if row is None or job.id in staying or int(decision.shares[row]) or not job.record.target:
                continue
            if any(_stays(cluster, gpu) for gpu in job.running_gpus):
                found.append(job)
    return found


def _stays(cluster: Cluster, gpu: GpuAddress) -> bool:
    bar = cluster.bar(gpu)
    return bar is not None and bar.may_stay


def sentence(cluster: Cluster, job: Job) -> str:
    """Why `job` is still on GPUs that it is to leave; "": it is on none."""
    if not cluster.barred:
        return ""
    found = [
        f"{gpu} ({bar.text})"
        for gpu in job.running_gpus
        if gpu.server in cluster.barred and (bar := cluster.bar(gpu)) is not None and bar.severity.moves
    ]
    if not found:
        return ""
    if set(job.record.target).intersection(gpu for gpu in job.running_gpus if _stays(cluster, gpu)):
        return f"goes on at {', '.join(found)}: no other GPU can be had"
    return f"is being moved away from {', '.join(found)}"
