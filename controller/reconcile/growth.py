"""Jobs that cannot grow: their newcomers compute other samples or gradients than the workers that have the state.

Theory of operation
-------------------
A newcomer receives the training state, and then computes a micro-batch that a worker which had the state before computes as well.
If the two differ, the script keeps state that the runtime does not know of, and the newcomer ends with an exit code of its own
(`protocol.exits.UNLIKE`). It is no vote: whoever has just received the state is wrong. So the job

* trains on with the workers that have the state, and holds no other GPUs;
* does not grow (`JobRecord.does_not_grow`, which is recorded): the scheduler offers it no more GPUs than it has, as long as one
  worker has the state. A start from a checkpoint, a new submission and a share that is set by hand try newcomers anew;
* is not moved while it trains, since a move is a newcomer that joins, and a worker that leaves (`unmoved`). Where it must leave
  GPUs and cannot do with the rest, it is preempted: it saves its state, and starts again elsewhere;
* fails with the newcomer's reason if it needs more GPUs than there are workers with the state.

No server and no GPU is to blame. Newcomers that began together with the one that differed have not been compared yet when it
ends (`Job.unproven`). If the workers that had the state before are lost at that moment, those newcomers are stopped, and the job
starts again from its last checkpoint.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ...protocol.exits import UNLIKE
from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, JobPhase, WorkerId
from ...protocol.texts import gpu_count
from ...scheduler.pipeline import Decision
from ...scheduler.sets import some, union
from ...scheduler.view import Gpus
from ..cluster import Cluster
from ..jobs.generations import holders, usable
from ..jobs.job import Job
from ..jobs.records import WorkerRecord
from .avoiding import seats
from .processes import stop_worker
from .restarts import end_job
from .saving import suspend
from .snapshot import Snapshot


def newcomer_differs(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> None:
    """A newcomer of an elastic job has ended with `UNLIKE`, and is among the past workers by now."""
    with_state = _having(job)
    if not with_state:
        return  # nobody can go on: that is a restart, and counted as such
    for other in with_state:
        if other.generation >= entry.generation and other.worker != _leader(job):
            job.unproven[other.worker] = job.best_applied + 1
    why = f"{entry.worker} on {entry.gpu} does not compute what the other workers do: {_told(reason)}"
    if _none_proven(job):
        _stop_all(cluster, now, job)
        return
    kept = _whole_servers(job, {other.gpu for other in with_state})
    least = least_gpus(job)
    if len(kept) < least and not cluster.awaited:
        text = f"{why}; {gpu_count(least)} are needed, and {gpu_count(len(kept))} can go on"
        end_job(cluster, now, job, JobPhase.FAILED, text, UNLIKE)
        return
    known = bool(job.record.does_not_grow)
    job.update(does_not_grow=why)
    if not known:
        cluster.tell(now, EventKind.HELD, job.id, f"does not grow any more: {why}")
    if not cluster.awaited:  # else a controller that has just started knows too little; `keep_together` follows
        _keep(cluster, now, job, kept)


def _leader(job: Job) -> WorkerId | None:
    """Who leads the generation in use: a worker that had the state before, or the one that the job has begun with."""
    order = job.committed_order or job.newest
    return order.roster.leader if order is not None else None


def _having(job: Job) -> tuple[WorkerRecord, ...]:
    """The workers with the state, and the leader of the generation in use, which may not have been heard since it has it."""
    found, leader = holders(job), _leader(job)
    if leader is None or not usable(job, leader) or any(entry.worker == leader for entry in found):
        return found
    return (*found, *(entry for entry in job.workers if entry.worker == leader))


def _told(reason: str) -> str:
    """What the worker itself has said."""
    return reason.removeprefix(f"exit code {UNLIKE}: ")


def least_gpus(job: Job) -> int:
    """With fewer GPUs `job` does not go on, but for a while after a loss."""
    return min(job.spec.gpus.min, job.record.manual_share or job.spec.gpus.min)


def _whole_servers(job: Job, gpus: set[GpuAddress]) -> set[GpuAddress]:
    """Of a job with a fixed number of GPUs on each of its servers: those of `gpus` on servers where all are among them."""
    each = job.spec.gpus_per_server
    if not each:
        return gpus
    count = Counter(gpu.server for gpu in gpus)
    return {gpu for gpu in gpus if count[gpu.server] == each}


def _keep(cluster: Cluster, now: float, job: Job, kept: set[GpuAddress]) -> None:
    """The job has those of its GPUs that are among `kept`. If these are too few, or none is a proven worker's, it was being
    moved, and starts again."""
    target = tuple(gpu for gpu in job.record.target if gpu in kept)
    proven = [entry for entry in _having(job) if entry.worker not in job.unproven]
    stays = any(entry.gpu in target for entry in proven) or not proven
    if target == job.record.target and stays:
        return
    why = f"does not grow: {job.record.does_not_grow}"
    cluster.schedule_due = True
    job.profiling = None
    if len(target) < least_gpus(job) or not stays:
        start_elsewhere(cluster, now, job, why, proven[0].worker if proven else None)
    else:
        job.aim(now, target, why)
        cluster.mark_dirty(job)


def start_elsewhere(cluster: Cluster, now: float, job: Job, why: str, saver: WorkerId | None = None) -> None:
    """Preempt a job that cannot be moved: it saves its state, and starts again from there with what it is given next.

    `saver`: who saves; None: whoever leads."""
    job.aim(now, (), why)
    job.profiling = None
    cluster.tell(
        now, EventKind.PREEMPTED, job.id, "cannot be moved while it trains: it saves its state and starts again"
    )
    cluster.schedule_due = True
    suspend(cluster, now, job, saver)


def keep_together(cluster: Cluster, now: float, job: Job) -> None:
    """A job that does not grow holds the GPUs of the workers that have its state, and no others, also after a loss."""
    if not job.elastic or job.newest is None:
        job.unproven.clear()
        return
    keeps = job.record.does_not_grow and job.record.target
    if not (job.unproven or keeps) or not (with_state := _having(job)):
        return
    if job.unproven:
        _forget_proven(job)
        if _none_proven(job):
            _stop_all(cluster, now, job)
            return
    if keeps:
        _keep(cluster, now, job, _whole_servers(job, {entry.gpu for entry in with_state}))


def _forget_proven(job: Job) -> None:
    for worker, step in list(job.unproven.items()):
        status = job.statuses.get(worker)
        if job.worker(worker) is None or (status is not None and status.applied is not None and status.applied > step):
            del job.unproven[worker]


def _none_proven(job: Job) -> bool:
    """Has nobody the state but newcomers that have not been compared with anybody?"""
    return all(entry.worker in job.unproven for entry in _having(job))


def _stop_all(cluster: Cluster, now: float, job: Job) -> None:
    """What the job's workers have is not known to be its state: they end without saving it, and it starts again."""
    why = "workers that had the state were lost before it could be compared"
    for entry in job.workers:
        if not entry.stopping:
            job.update_worker(entry.worker, reason=why)
            stop_worker(cluster, now, job, entry.worker)


# ------------------------------------------------------------------------------------------------------------ in a decision


def unmoved(seen: Snapshot, decision: Decision) -> tuple[Decision, frozenset[int]]:
    """The decision with jobs that cannot be moved where they are; and the rows that have to start again elsewhere instead.

    Neither is a job moved whose newcomers end at their start, for as long as its growth is held back. A GPU that such a job was
    to have instead of one of its own is exchanged back, where the own one is free or its new holder can do with the other. Where
    its own ones do not suffice then, the job gets none; one that does not grow gets others in the next decision.
    """
    rows = [row for row in decision.placements if seen.jobs[row].keeps_its_size and row in seen.view.placements]
    moved = [row for row in rows if decision.placements[row] & ~seen.view.placements[row]]
    if not moved:
        return decision, frozenset()
    placed, shares = dict(decision.placements), decision.shares.copy()
    again = set()
    for row in moved:
        new = placed[row] & ~seen.view.placements[row]
        if new and seen.view.per_server(row):
            others = union(gpus for other, gpus in placed.items() if other != row)
            own = seen.view.placements[row]
            new, placed[row] = 0, own & ~seats(seen, own, own & others)
        while new:
            gpu = new & -new
            new ^= gpu
            _give_back(seen, placed, row, gpu)
        if placed[row].bit_count() < least_gpus(seen.jobs[row]):
            placed[row] = 0
            if seen.jobs[row].record.does_not_grow:
                again.add(row)
        shares[row] = placed[row].bit_count()
    placements = {row: gpus for row, gpus in placed.items() if gpus}
    return replace(decision, placements=placements, shares=shares), frozenset(again)


def _give_back(seen: Snapshot, placed: dict[int, Gpus], row: int, gpu: Gpus) -> None:
    """`row` does without `gpu`, and has one of its own GPUs instead, if that can be had."""
    own = seen.view.placements[row] & ~placed[row]
    placed[row] ^= gpu
    free = own & ~union(placed.values())
    if free:
        placed[row] |= some(1, free)
        return
    for other, theirs in placed.items():
        able = other != row and not seen.view.per_server(other) and seen.view.usable(other, theirs) & gpu
        if able and theirs & own:
            back = some(1, theirs & own)
            placed[row], placed[other] = placed[row] | back, theirs ^ back | gpu
            return
