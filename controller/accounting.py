"""Accounting of GPU-seconds: in the accounts of jobs (`jobs.account`) and in the usage of their users (`usage`).

At the end of each event `look` is called for every job with a changed record. It compares the numbers of GPUs that the job holds
and uses with the job's account, and books the time before if a number has changed. So no other module has to book this. The other
functions are called when a fact becomes known that moves GPU-seconds from one column to another.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ..protocol.model import Fault, GpuSeconds, Resize
from .jobs import account
from .jobs.account import Booked
from .jobs.job import Job
from .jobs.records import WorkerRecord
from .usage import Usage

IN_VAIN = (Fault.SCRIPT, Fault.SERVER, Fault.LOST, Fault.SILENT, Fault.KILLED)


def look(usage: Usage, now: float, job: Job) -> None:
    """Book the time up to `now` if the number of GPUs that `job` holds or uses has changed."""
    if job.is_counted:
        return
    joined = job.record.gpu_account.joined or has_joined(job)
    using, idling = held(job)
    before = job.record.gpu_account
    set_back = before.holds > 0 and before.since_s > now  # the clock was set back while no controller ran
    if set_back or (using, idling, joined) != (before.using, before.idling, before.joined):
        _close(usage, now, job)
        if joined and not before.joined:
            _book(usage, job, account.joined(job.record.gpu_account))
        job.put_account(replace(job.record.gpu_account, using=using, idling=idling))
        usage.holds(job)
    job.note_counted()


def held(job: Job) -> tuple[int, int]:
    """Return the number of GPUs that `job` uses, and the number of further GPUs that it holds idle."""
    record = job.record
    order = job.committed_order
    trains = order is not None and record.begun_cycle >= record.cycle and not record.phase.final
    plain = not (record.gpu_account.joined or has_joined(job) or job.spec.must_join or record.phase.final)
    worker_sets = job.worker_sets
    if plain:
        using = worker_sets.unjoined_training_gpus if trains else worker_sets.running_gpus
    else:
        using = worker_sets.training_gpus if trains else 0
    idling = worker_sets.held_gpus - using
    if job.profiling is not None:
        idling += sum(gpu not in job.workers.held for gpu in job.profiling.reserved)
    return using, idling


def has_joined(job: Job) -> bool:
    """Return whether a worker of the job has called `elastic.join()`. If not, the job may be a plain command, which uses its
    GPUs as long as it runs."""
    return job.elastic or job.worker_sets.joined > 0 or any(entry.joined_s is not None for entry in job.record.past)


def spent(now: float, job: Job) -> GpuSeconds:
    """Return the GPU-seconds of `job` up to `now`."""
    return account.spent_by(job.record.gpu_account, now)


def saved(usage: Usage, now: float, job: Job) -> None:
    """Note that a newer durable checkpoint of `job` is known."""
    _settle(usage, now, job)
    job.put_account(account.saved(job.record.gpu_account))
    job.on_change(job)


def restarted(usage: Usage, now: float, job: Job) -> None:
    """Note that `job` restarts from its last durable checkpoint, or fails because it may not restart again."""
    _settle(usage, now, job)
    _book(usage, job, account.restarted(job.record.gpu_account))
    job.on_change(job)


def stood_still(usage: Usage, now: float, job: Job, resize: Resize) -> None:
    """Book the pause of a resize, measured by the leader of `job`, for the GPUs that it had both before and after."""
    _settle(usage, now, job)
    gpus = max(0, min(resize.workers_before, resize.workers_after))
    _book(usage, job, account.stood_still(job.record.gpu_account, resize.paused_s * gpus))
    job.on_change(job)


def ends(usage: Usage, now: float, job: Job, entry: WorkerRecord, fault: Fault) -> None:
    """Book the time of a worker of `job` that has ended by `fault` without training; call before its record changes."""
    if entry.trained or entry.held_s is None or fault not in IN_VAIN:
        return
    _settle(usage, now, job)
    if job.record.gpu_account.joined or job.spec.must_join:
        _book(usage, job, account.died_in_vain(job.record.gpu_account, entry.held_s, now, len(entry.all_gpus)))
    job.on_change(job)


def clock_was_set(jobs: Iterable[Job], by_s: float) -> None:
    """Shift the times of `jobs` after the clock was set forward by `by_s` seconds (back: less than 0).

    So the leap does not count as usage.
    """
    for job in jobs:
        for entry in job.workers:
            if entry.held_s is not None:
                job.update_worker(entry.worker, held_s=entry.held_s + by_s)
        job.update(gpu_account=account.shifted(job.record.gpu_account, by_s))


def _settle(usage: Usage, now: float, job: Job) -> None:
    """Book all time up to now, with the present numbers of GPUs."""
    look(usage, now, job)
    _close(usage, now, job)


def _close(usage: Usage, now: float, job: Job) -> None:
    _book(usage, job, account.advanced(job.record.gpu_account, now))


def _book(usage: Usage, job: Job, booked: Booked) -> None:
    after, bookings = booked
    if after != job.record.gpu_account:
        job.put_account(after)
    usage.book(job, bookings)
