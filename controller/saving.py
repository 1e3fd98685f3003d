"""A preempted job ends when its state is saved: somebody else is named if whoever was to save it cannot.

Theory of operation
-------------------
All workers of a preempted job have been told to end, and who is to save the state (`reconcile.suspend`). One on each server
stands by until that is done (`worker.suspension`). `see_to_saving` looks at what they report:

* a worker whose step, or a later one, has been saved in its own or a later generation is told so, and ends;
* while a worker has a step that is not saved, the one to save is whoever has failed least often, the present one first. It is
  named to all as soon as it is another one.

It is level-triggered: called after each report and each end, it looks at what is. Which one is named is not recorded: a
controller that has just started may name another one, and then two save the same. The time that the agents give the workers to
end is not made longer by any of this.
"""

from __future__ import annotations

from ..protocol.messages import StopWorker
from ..protocol.model import WorkerId, WorkerStatus
from .cluster import Cluster
from .jobs import Job
from .reconcile import save_grace_s
from .records import WorkerRecord


def see_to_saving(cluster: Cluster, now: float, job: Job) -> None:
    """A worker of `job` has reported, or has ended."""
    if job.final or job.newest is not None:
        return
    waiting = [
        (entry, status)
        for entry in job.kept.workers
        if entry.stopping
        and (status := job.statuses.get(entry.worker)) is not None
        and status.phase.may_have_state
        and status.applied is not None
        and status.applied >= 0
    ]
    unsaved = [(entry, status) for entry, status in waiting if not _is_saved(job, status)]
    if unsaved:
        saver = _choose(job, [status for _, status in unsaved])
        if saver != job.saver:
            _tell_change(cluster, now, job, saver)
            job.saver = saver
            for entry, _ in unsaved:
                _ask(cluster, job, entry, None)
    for entry, status in waiting:
        if entry.worker not in job.dismissed and _is_saved(job, status):
            job.dismissed.add(entry.worker)
            _ask(cluster, job, entry, status.applied)


def _is_saved(job: Job, status: WorkerStatus) -> bool:
    step, generation = job.kept.saved_step, job.kept.saved_generation
    return (
        step is not None and status.applied is not None and step >= status.applied and generation >= status.generation
    )


def _choose(job: Job, able: list[WorkerStatus]) -> WorkerId:
    def order(status: WorkerStatus) -> tuple[int, bool, int]:
        return status.save_failures, status.worker != job.saver, -(status.applied or 0)

    return min(able, key=order).worker  # min() takes the first of equals: the oldest


def _tell_change(cluster: Cluster, now: float, job: Job, saver: WorkerId) -> None:
    if job.saver is None:
        return  # this controller has just started
    before = job.statuses.get(job.saver)
    why = f"which could not: {before.note}" if before is not None else "which has ended"
    cluster.tell(now, "saver", job.id, f"{saver} is to save its state in place of {job.saver}, {why}")


def _ask(cluster: Cluster, job: Job, entry: WorkerRecord, saved: int | None) -> None:
    """Tell a worker anew who saves, or that `saved` is. If its agent has heard before that it is to end, it has no more time."""
    stop = StopWorker(
        job=job.id,
        worker=entry.worker,
        grace_s=save_grace_s(job),
        save=True,
        saver=job.saver,
        stand_by=True,
        saved=saved,
        uid=job.kept.uid,
    )
    cluster.send(entry.gpu.server, stop)
