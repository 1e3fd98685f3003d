"""Saving of a preempted job's state by one of its workers, the saver; another worker replaces a saver that cannot save.

Theory of operation
-------------------
All workers of a preempted job have been sent a stop that names the saver (`suspend`). One worker on each server stands by until
the state is saved (`worker.suspension`). `see_to_saving` acts on the reports of the workers:

* If a worker's step, or a later one, has been saved in its own or a later generation, the worker is notified, and ends.
* While a worker has an unsaved step, the saver is the worker with the fewest failed saves; among equals the present saver stays.
  A new saver is named to all workers. A saver that has not saved after half of the time left is passed over for others, but may
  go on, as storage that does not respond causes no failure.

`see_to_saving` is level-triggered: it runs in each turn in which a worker of the job has reported or ended, or a saver's time is
over, and looks at the state after all events of the turn. The saver is not recorded: a controller that has just started may name
another one, and then two workers save the same state. None of this extends the time that agents give the workers to end.
"""

from __future__ import annotations

from ...protocol.messages import EventKind
from ...protocol.model import JobPhase, WorkerId, WorkerStatus
from ..cluster import Cluster
from ..jobs.generations import choose_leader, holders
from ..jobs.job import Job
from ..jobs.records import WorkerRecord
from .processes import save_grace_s, send_stop, stop_worker


def suspend(cluster: Cluster, now: float, job: Job, saver: WorkerId | None = None) -> None:
    """Stop all workers of a job that has no GPU any more, and let one save its state; the job is then pending.

    `saver`: the worker that saves; None: the leader of the workers that have the state.
    """
    able = tuple(entry.worker for entry in holders(job))
    if saver is None:
        saver = choose_leader(job, able) if able else None
    job.begin_saving(saver)
    for entry in job.workers:
        if not entry.stopping:
            stop_worker(cluster, now, job, entry.worker)
    job.saving.name(saver, turn_of(job, saver, now))
    committed = job.committed_order
    leads = committed is not None and committed.roster.leader == saver
    job.update(
        orders=(),
        broken=(),
        cycle=job.record.generation + 1,
        last_leader=saver if leads else None,
        does_not_grow="",  # the job restarts from its checkpoint
    )
    job.release()  # the restart replaces all its workers
    job.end_wait_for_restart()
    job.enter(JobPhase.PENDING, now)
    cluster.jobs.mark_dirty(job)


def see_to_saving(cluster: Cluster, now: float, job: Job) -> None:
    """Replace the saver of a preempted job if necessary, and notify the workers of which the state is saved."""
    saving = job.saving
    if job.final or job.newest is not None or not job.workers:
        return
    saving.end_turn(now)
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
            saving.name(saver, turn_of(job, saver, now))
            for entry, _ in unsaved:
                _ask(cluster, now, job, entry, None)
    for entry, status in waiting:
        if _is_saved(job, status) and saving.dismiss(entry.worker, status.applied or 0):
            _ask(cluster, now, job, entry, status.applied)


def turn_of(job: Job, saver: WorkerId | None, now: float) -> float | None:
    """Return the time by which `saver` should have saved (Unix time, s): half of its time left; None without a deadline.

    The other half is for another saver, in case the storage does not respond. If the deadline is over, and the saver still runs,
    its agent received the stop late, and gives the saver the full time.
    """
    entry = job.worker(saver) if saver is not None else None
    if entry is None or entry.stop_by_s is None:
        return None
    grace_s = save_grace_s(job)
    left_s = min(entry.stop_by_s - now, grace_s)
    return now + (left_s if left_s > 0 else grace_s) / 2


def _is_there(cluster: Cluster, entry: WorkerRecord) -> bool:
    session = cluster.servers.sessions.get(entry.gpu.server)
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

    return min(able, key=order).worker  # min() returns the first of equals: the oldest worker


def _tell_change(cluster: Cluster, now: float, job: Job, saver: WorkerId) -> None:
    named = job.saving.saver
    if named is None:
        return  # this controller has just started, and has not named a saver yet
    before = job.statuses.get(named)
    why = f"has not saved it ({before.note})" if before is not None else "has ended"
    cluster.history.add(now, EventKind.SAVER, job.id, f"{saver} is to save the job's state, since {named} {why}")


def _ask(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, saved: int | None) -> None:
    """Send a worker's stop again, with the present saver or with the step `saved`.

    An agent that has received a stop before does not extend its deadline. Nor is the deadline shortened, although the estimate of
    the save time may have become smaller with the end of a slow worker.
    """
    left_s = entry.stop_by_s - now if entry.stop_by_s is not None else 0.0
    send_stop(cluster, job, entry, max(left_s, save_grace_s(job)), True, saved)
