"""Batches that grow: which factor a job with hybrid scaling gets (Elan III), and the history of its batch.

The job's workers decide at which step a factor holds, and report all changes; the controller records what they report.
After a restart from a checkpoint, the history is that of the checkpoint, without changes made after it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.model import BatchChange, WorkerPhase, WorkerStatus
from ...scheduler.arrays import Floats
from ...scheduler.hybrid import Curves, at_factor, grown_factor
from .job import Job


def note_changes(job: Job, status: WorkerStatus) -> str:
    """Take over the history of the batch from the worker that is furthest ahead.

    Returns the changes in words, or "".
    """
    progress = job.progress()
    if status.applied is None or (progress.step is not None and status.applied < progress.step):
        return ""
    if status.phase not in (WorkerPhase.TRAINING, WorkerPhase.FINISHED, WorkerPhase.LEFT):
        return ""
    before, changes = job.record.batch_changes, status.batch_changes
    if changes == before:
        return ""
    was = factor_of(job)
    job.update(batch_changes=changes)
    if (factor := factor_of(job)) != was:
        job.update(measured=at_factor(job.record.measured, job.spec.virtual_workers, was, factor))
    if changes[: len(before)] == before:
        return "; ".join(map(_words, changes[len(before) :]))
    return f"the batch's history is that of the state with which the job goes on: {_listed(changes)}"


def _words(change: BatchChange) -> str:
    return (
        f"step {change.step}: factor {change.factor} of the batch, learning rate times {change.rate:g} "
        f"after {change.ramp} steps"
    )


def _listed(changes: tuple[BatchChange, ...]) -> str:
    return "; ".join(map(_words, changes)) or "it has not grown"


def factor_of(job: Job) -> int:
    """Return the present factor of the job's batch."""
    changes = job.record.batch_changes
    return changes[-1].factor if changes else 1


def grow(job: Job, status: WorkerStatus, curve: Callable[[], Floats]) -> bool:
    """Decide on the factor for the job's present workers, once, when their throughput has been measured.

    Returns whether the workers have to be asked for another factor. curve: returns the estimate of steps per second by
    number of GPUs.
    """
    share, settled = job.share_gpus, job.record.batch_share
    if not status.batch_ceiling or not share or share <= settled:
        return False
    factor = factor_of(job)
    job.update(batch_share=share)
    if not settled:  # the author has chosen the batch for the first workers
        return False
    wanted = grown_factor(
        Curves(curve().tolist(), job.spec.virtual_workers, factor), factor, settled, share, status.batch_ceiling
    )
    if wanted <= factor:
        return False
    job.update(batch_factor=wanted)
    return True
