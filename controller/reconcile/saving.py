"""A preempted job ends when its state is saved: somebody else is named if whoever was to save it cannot.

Theory of operation
-------------------
All workers of a preempted job have been told to end, and who is to save the state (`suspend`). One on each server
stands by until that is done (`worker.suspension`). `see_to_saving` looks at what they report:

* a worker whose step, or a later one, has been saved in its own or a later generation is told so, and ends;
* while a worker has a step that is not saved, the one to save is whoever has failed least often, the present one first. It is
  named to all as soon as it is another one. Who has not saved after half of the time that is left is passed over for others, and
  may go on: storage that does not answer does not fail.

It is level-triggered: called in each turn in which a worker of the job has reported or ended, or a turn of a saver is over, it
looks at what is, once all that has come is taken in. Which one is named is not recorded: a controller that has just started may
name another one, and then two save the same. The time that the agents give the workers to end is not made longer by any of this.
"""

from __future__ import annotations

from ...protocol.messages import EventKind
from ...protocol.model import JobPhase, WorkerId, WorkerStatus
from ..cluster import Cluster
from ..jobs.generations import choose_leader, holders
from ..jobs.job import Job, Saving
from ..jobs.records import WorkerRecord
from .processes import save_grace_s, send_stop, stop_worker


def suspend(cluster: Cluster, now: float, job: Job, saver: WorkerId | None = None) -> None:
    """Stop all workers of a job that has no GPU any more, and have one save its state; it waits for the scheduler.

    `saver`: who does; None: whoever leads those that have the state.
    """
    able = tuple(entry.worker for entry in holders(job))
    if saver is None:
        saver = choose_leader(job, able) if able else None
    job.saving = Saving(saver)
    for entry in job.workers:
        if not entry.stopping:
            stop_worker(cluster, now, job, entry.worker)
    job.saving.until_s = turn_of(job, saver, now)
    committed = job.committed_order
    leads = committed is not None and committed.roster.leader == saver
    job.update(
        orders=(),
        broken=(),
        cycle=job.record.generation + 1,
        last_leader=saver if leads else None,
        does_not_grow="",  # it begins again from its checkpoint
    )
    job.release()  # all its workers are newcomers then
    job.restart_at = None
    job.enter(JobPhase.PENDING, now)
    cluster.mark_dirty(job)


def see_to_saving(cluster: Cluster, now: float, job: Job) -> None:
    """If `job` is preempted: name another saver where that is called for, and tell those whose state is saved."""
    saving = job.saving
    if job.final or job.newest is not None or not job.workers:
        return
    if saving.until_s is not None and saving.saver is not None and now >= saving.until_s:
        saving.until_s = None
        saving.slow.add(saving.saver)
    waiting = [
        (entry, status)
        for entry in job.workers
        if entry.stopping
        and _is_there(cluster, entry)
        and (status := job.statuses.get(entry.worker)) is not None
        and status.phase.may_have_state
        and status.applied is not None
        and status.applied >= 0
    ]
    unsaved = [(entry, status) for entry, status in waiting if not _is_saved(job, status)]
    if unsaved:
        saver = _choose(job, [status for _, status in unsaved])
        if saver != saving.saver:
            _tell_change(cluster, now, job, saver)
            saving.saver, saving.until_s = saver, turn_of(job, saver, now)
            for entry, _ in unsaved:
                _ask(cluster, now, job, entry, None)
    for entry, status in waiting:
        if _is_saved(job, status) and saving.dismissed.get(entry.worker, -1) < (status.applied or 0):
            saving.dismissed[entry.worker] = status.applied or 0
            _ask(cluster, now, job, entry, status.applied)


def turn_of(job: Job, saver: WorkerId | None, now: float) -> float | None:
    """Until when `saver` should have saved (Unix time): the other half of its time is another one's, should its storage not
    answer. If that time is over, and it still lives, its agent has heard late that it is to end, and gives it all of it."""
    entry = job.worker(saver) if saver is not None else None
    if entry is None or entry.stop_by_s is None:
        return None
    grace_s = save_grace_s(job)
    left_s = min(entry.stop_by_s - now, grace_s)
    return now + (left_s if left_s > 0 else grace_s) / 2


def _is_there(cluster: Cluster, entry: WorkerRecord) -> bool:
    session = cluster.sessions.get(entry.gpu.server)
    return session is not None and session.alive


def _is_saved(job: Job, status: WorkerStatus) -> bool:
    step, generation = job.record.saved_step, job.record.saved_generation
    return (
        step is not None and status.applied is not None and step >= status.applied and generation >= status.generation
    )


def _choose(job: Job, able: list[WorkerStatus]) -> WorkerId:
    def order(status: WorkerStatus) -> tuple[bool, int, bool, int]:
        worker, saving = status.worker, job.saving
        return worker in saving.slow, status.save_failures, worker != saving.saver, -(status.applied or 0)

    return min(able, key=order).worker  # min() takes the first of equals: the oldest


def _tell_change(cluster: Cluster, now: float, job: Job, saver: WorkerId) -> None:
    named = job.saving.saver
    if named is None:
        return  # this controller has just started
    before = job.statuses.get(named)
    why = f"has not saved it ({before.note})" if before is not None else "has ended"
    cluster.tell(now, EventKind.SAVER, job.id, f"{saver} is to save the job's state, since {named} {why}")


def _ask(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, saved: int | None) -> None:
    """Tell a worker anew who saves, or that `saved` is. If its agent has heard before that it is to end, it has no more time.

    It has no less either, although the one that is gone may have been the one that took long to save.
    """
    left_s = entry.stop_by_s - now if entry.stop_by_s is not None else 0.0
    send_stop(cluster, job, entry, max(left_s, save_grace_s(job)), True, saved)
