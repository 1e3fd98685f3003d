"""Jobs that cannot grow: their joining workers compute other samples or gradients than the workers that have the state.

Theory of operation
-------------------
A joining worker receives the training state, and then computes a micro-batch that a worker with the state computes as well. If
the results differ, the script keeps state that the runtime does not know of. The joining worker then ends with the exit code
`protocol.exits.UNLIKE`. There is no majority vote: the worker that has just received the state is wrong. So the job

* trains on with the workers that have the state, and holds no other GPUs;
* does not grow (`JobRecord.does_not_grow`, which is recorded): while one worker has the state, the scheduler offers the job no
  more GPUs than it has. A start from a checkpoint, a new submission and a share set by hand allow joining workers again;
* is not moved while it trains, since a move consists of a joining and a leaving worker (`unmoved`). If the job must leave
  GPUs, and the others are too few, it is preempted: it saves its state, and restarts on other GPUs;
* fails with the joining worker's reason if it needs more GPUs than there are workers with the state.

No server and no GPU is to blame. Other workers that joined together with the one that differed have not been compared yet when
it ends (`Job.unproven`). If the workers that had the state before are lost at that moment, the unproven workers are stopped, and
the job restarts from its last checkpoint.
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
from ..state.planning import Snapshot
from .avoidance import seats
from .processes import stop_worker
from .restarts import end_job
from .saving import suspend


def joining_worker_differs(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> None:
    """Stop the growth of an elastic job, a joining worker of which has ended with `UNLIKE` and is a past worker by now.

    The job fails if the workers with the state are fewer than its minimum.
    """
    with_state = _having(job)
    if not with_state:
        return  # no worker can go on: the restart counts the failure
    leader = _leader(job)
    beside = [other.worker for other in with_state if other.generation >= entry.generation]
    job.unproven.add([worker for worker in beside if worker != leader], job.reported.best_applied + 1)
    why = f"{entry.worker} on {entry.gpu} does not compute what the other workers do: {_own_message(reason)}"
    if _none_proven(job):
        _stop_all(cluster, now, job)
        return
    kept = _whole_servers(job, {other.gpu for other in with_state})
    least = least_gpus(job)
    if len(kept) < least and not cluster.servers.awaited:
        text = f"{why}; {gpu_count(least)} are needed, and {gpu_count(len(kept))} can go on"
        end_job(cluster, now, job, JobPhase.FAILED, text, UNLIKE)
        return
    known = bool(job.record.does_not_grow)
    job.update(does_not_grow=why)
    if not known:
        cluster.history.add(now, EventKind.HELD, job.id, f"does not grow any more: {why}")
    if not cluster.servers.awaited:  # a controller that has just started calls `keep_together` when it knows enough
        _keep(cluster, now, job, kept)


def _leader(job: Job) -> WorkerId | None:
    """Return the leader of the current generation: a worker that had the state before, or the job's first worker."""
    order = job.committed_order or job.newest
    return order.roster.leader if order is not None else None


def _having(job: Job) -> tuple[WorkerRecord, ...]:
    """Return the workers with the state, and the current generation's leader, which may not have reported yet."""
    found, leader = holders(job), _leader(job)
    if leader is None or not usable(job, leader) or any(entry.worker == leader for entry in found):
        return found
    return (*found, *(entry for entry in job.workers if entry.worker == leader))


def _own_message(reason: str) -> str:
    """Return the worker's own message, without the exit code."""
    return reason.removeprefix(f"exit code {UNLIKE}: ")


def least_gpus(job: Job) -> int:
    """Return the fewest GPUs that `job` needs; after a loss it goes on with fewer for a while."""
    return min(job.spec.gpus.min, job.record.manual_share or job.spec.gpus.min)


def _whole_servers(job: Job, gpus: set[GpuAddress]) -> set[GpuAddress]:
    """Return those of `gpus` on complete servers if the job needs a fixed number of GPUs per server, otherwise all."""
    each = job.spec.gpus_per_server
    if not each:
        return gpus
    count = Counter(gpu.server for gpu in gpus)
    return {gpu for gpu in gpus if count[gpu.server] == each}


def _keep(cluster: Cluster, now: float, job: Job, kept: set[GpuAddress]) -> None:
    """Reduce the job's target to the GPUs in `kept`.

    If these are too few, or no proven worker runs on them, the job was being moved, and restarts.
    """
    target = tuple(gpu for gpu in job.record.target if gpu in kept)
    proven = [entry for entry in _having(job) if entry.worker not in job.unproven]
    stays = any(entry.gpu in target for entry in proven) or not proven
    if target == job.record.target and stays:
        return
    why = f"does not grow: {job.record.does_not_grow}"
    cluster.planning.request()
    if len(target) < least_gpus(job) or not stays:
        start_elsewhere(cluster, now, job, why, proven[0].worker if proven else None)
    else:
        job.set_target(now, target, why)
        cluster.jobs.mark_dirty(job)


def start_elsewhere(cluster: Cluster, now: float, job: Job, why: str, saver: WorkerId | None = None) -> None:
    """Preempt a job that cannot be moved: the job saves its state, and restarts from that on the GPUs that it gets next.

    `saver`: the worker that saves; None: the leader.
    """
    job.set_target(now, (), why)
    cluster.history.add(
        now, EventKind.PREEMPTED, job.id, "cannot be moved while it trains: it saves its state and starts again"
    )
    suspend(cluster, now, job, saver)


def keep_together(cluster: Cluster, now: float, job: Job) -> None:
    """Limit a job that does not grow to the GPUs of the workers with its state, also after a loss.

    If only unproven workers have the state, all workers are stopped, and the job restarts.
    """
    if not job.elastic or job.newest is None:
        job.unproven.forget_all()
        return
    keeps = job.record.does_not_grow and job.record.target
    if not (job.unproven or keeps) or not (with_state := _having(job)):
        return
    if job.unproven:
        job.unproven.forget_proven(job.workers, job.statuses)
        if _none_proven(job):
            _stop_all(cluster, now, job)
            return
    if keeps:
        _keep(cluster, now, job, _whole_servers(job, {entry.gpu for entry in with_state}))


def _none_proven(job: Job) -> bool:
    """Return whether all workers with the state are unproven: their results were never compared with other workers'."""
    return all(entry.worker in job.unproven for entry in _having(job))


def _stop_all(cluster: Cluster, now: float, job: Job) -> None:
    """Stop all workers without saving, as their state may be wrong; the job restarts from its last checkpoint."""
    why = "workers that had the state were lost before it could be compared"
    for entry in job.workers:
        if not entry.stopping:
            job.update_worker(entry.worker, reason=why)
            stop_worker(cluster, now, job, entry.worker)


# ------------------------------------------------------------------------------------------------------------ in a decision


def unmoved(seen: Snapshot, decision: Decision) -> tuple[Decision, frozenset[int]]:
    """Return the decision with immovable jobs left on their GPUs, and the rows of jobs that must restart on other GPUs.

    Jobs that do not grow are immovable. So are jobs of which the joining workers fail at their start, while the growth of the
    job is held back. If an immovable job was to get a GPU in place of one of its own, the two are exchanged back, provided that
    the own GPU is free or its new holder can use the other one. If the job then has too few GPUs, it gets none; a job that does
    not grow gets others in the next decision.
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
    """Take `gpu` from `row`, and give back one of the job's own GPUs: a free one, or one exchanged with its new holder."""
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
