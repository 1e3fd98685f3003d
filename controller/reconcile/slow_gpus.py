"""GPUs on which a job's worker is slow, and that the job leaves: for an idle GPU, or altogether (EDL 5.4).

Theory of operation
-------------------
Virtual workers have moved away from the slow worker by then, and the job's leader has tested what the worker still costs
(`worker.training.stragglers`; at most STRAGGLER_FALSE_ALARMS false alarms per sample for each test):

* Steps are less than 0.95 times as fast as with a sound GPU (`Straggler.kept`): the job *migrates* the worker to an idle
  GPU that it may use, after the policy has divided all GPUs. No other job gives a GPU for this.
* No GPU is idle, and steps are more than 1.05 times as fast without the worker (`Straggler.without`): the GPU is *left
  out*. The job keeps its minimum, a share set by hand, the GPUs of a promised deadline, whole servers and packed shares.
* Otherwise the worker stays, and the next decision that leaves a GPU idle moves it.

If a job does without a GPU, the decision is repeated with the job bound to the smaller share (`Job.room`) and without
that GPU in its view, so that the job keeps its other GPUs, and other jobs may have this one. If the policy then gives the
job nothing, as a rigid policy does that gives each job what it has asked for or nothing, the job keeps the slow worker.
Later decisions begin so, as long as no other GPU is idle (`goes_on_without`).

*No flapping.* A change of the roster or of the hosting begins the tests anew. A job leaves one GPU at a time, and half of
its GPUs at the most. When it may use a GPU again, and what it then finds, is in `slow_findings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from ...protocol.model import GpuAddress, Straggler, WorkerPhase
from ...scheduler.pipeline import Decision
from ...scheduler.sets import some, union
from ...scheduler.view import Gpus
from ..jobs.job import Job
from ..jobs.records import SlowGpuState
from ..state.planning import Snapshot
from .avoidance import Elsewhere, instead, seats


def costly(job: Job) -> tuple[GpuAddress, Straggler] | None:
    """Return the GPU of the job's slowest worker, if the job should leave it, with the evidence; None: it need not."""
    order = job.committed_order
    if order is None or order is not job.newest or job.keeps_its_size:
        return None
    status = job.statuses.get(order.roster.leader)
    if status is None or not status.stragglers or status.phase is not WorkerPhase.TRAINING:
        return None
    left = sum(entry.state is SlowGpuState.LEFT for entry in job.record.slow)
    if left >= max(1, len(order.roster.members) // 2):
        return None
    return next(((gpu, each) for gpu, each in job.stragglers.items() if each.kept < 1.0), None)


def slow_sets(seen: Snapshot, job: Job) -> tuple[Gpus, Gpus]:
    """Return the GPUs that the job should not use, and those of them without which it should go on if no other is idle."""
    places = {entry.gpu: True for entry in job.record.slow if entry.state is SlowGpuState.LEFT}
    if (now := costly(job)) is not None:
        gpu, evidence = now
        kept = any(entry.gpu == gpu and entry.state is SlowGpuState.KEPT for entry in job.record.slow)
        places[gpu] = evidence.without > 1.0 and not kept
    bits = [(1 << bit, places[gpu]) for bit, gpu in enumerate(seen.gpus) if gpu in places] if places else []
    return union(bit for bit, _ in bits), union(bit for bit, without in bits if without)


def without_slow(seen: Snapshot, decision: Decision, packed: bool) -> Elsewhere:
    """Return the decision in which jobs have idle GPUs in place of those that are too slow for them, or do without these.

    packed: shares are regulated, so no job gives a single GPU up.
    """
    placed, shares = dict(decision.placements), decision.shares.copy()
    free = ((1 << seen.view.total_gpus) - 1) & ~union(placed.values())
    cramped = []
    for row, gpus in decision.placements.items():
        job = seen.jobs[row]
        slow, needless = slow_sets(seen, job)
        give = gpus & slow
        if not give or job.keeps_its_size:
            continue
        whole = seen.view.per_server(row)
        give = seats(seen, gpus, give) if whole else give
        better = instead(seen, row, gpus, give, free & ~slow)
        spared = give.bit_count() - better.bit_count()
        if packed or whole or job.record.manual_share is not None or job.promised or not seen.away.get(row, -1):
            needless = 0
        least = min(job.spec.gpus.min, gpus.bit_count())
        dropped = min(spared, (give & needless).bit_count(), gpus.bit_count() - least)
        kept = some(spared - dropped, give & ~needless, give)
        if whole and kept:
            continue
        placed[row] = gpus & ~give | better | kept
        shares[row] = placed[row].bit_count()
        free = free & ~better | give & ~kept
        if dropped and row not in seen.away:  # otherwise the decision is that of a job without these GPUs
            cramped.append((job, int(shares[row])))
    if placed == decision.placements:
        return Elsewhere(decision)
    return Elsewhere(replace(decision, placements=placed, shares=shares), cramped=tuple(cramped))


def leaves_out(job: Job) -> bool:
    """Return whether the job has left a GPU for no other one."""
    return any(entry.state is SlowGpuState.LEFT and not entry.replaced for entry in job.record.slow)


def goes_on_without(seen: Snapshot, job: Job) -> bool:
    """Return whether a job that does without a GPU still has to, since no other GPU that it may use is idle.

    By its policy it might get another GPU all the same, and the slow one would pass to the job that has that now.
    """
    row = seen.rows.get(job.id)
    if row is None or not leaves_out(job) or job.record.manual_share is not None or job.promised:
        return False
    taken = union((*seen.view.placements.values(), *seen.held.values()))
    usable = seen.view.usable(row, seen.view.placements.get(row, 0))
    return not usable & ~taken & ~slow_sets(seen, job)[0]


def narrowed(seen: Snapshot) -> Snapshot:
    """Return the snapshot in which jobs that do without some GPUs (`Snapshot.away`) neither have these nor may use them."""
    away = {row: gpus for row, gpus in seen.away.items() if gpus}
    if not away:
        return seen
    view = structs.replace(seen.view.confined(away), placements=_less(seen.view.placements, away))
    return replace(seen, view=view, first=_less(seen.first, away), running=_less(seen.running, away))


def unless_given_nothing(seen: Snapshot, decision: Decision) -> Snapshot:
    """Return the snapshot in which jobs that get no GPU by the decision about `narrowed` go on with all of their GPUs."""
    lost = {
        row: 0 for row, gpus in seen.away.items() if gpus and row in seen.view.placements and not decision.shares[row]
    }
    return replace(seen, away={**seen.away, **lost}) if lost else seen


def _less(placed: Mapping[int, Gpus], away: Mapping[int, Gpus]) -> dict[int, Gpus]:
    return {row: left for row, gpus in placed.items() if (left := gpus & ~away.get(row, 0))}
