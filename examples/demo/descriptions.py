"""Descriptions of jobs and their changes, for the log and for the last lines of the demo. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticd.protocol.messages import JobView
from elasticd.protocol.model import JobPhase, Resize

TENTHS = 10


def quality(job: JobView, short: bool = False) -> str:
    """Return the model's quality in the job's own metric; empty before the first report."""
    metrics = job.metrics
    if "test_accuracy" in metrics:
        return f"{metrics['test_accuracy']:.1%} {'right' if short else 'test accuracy'}"
    if "bits_per_character" in metrics:
        return f"{metrics['bits_per_character']:.2f} {'bits/char' if short else 'bits per character'}"
    return ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()))


def pause_s(resize: Resize) -> float:
    """Return how much longer than usual (s) the workers that trained on had to wait between two steps."""
    return max(0.0, resize.longest_gap_s - resize.median_step_s)


def resize_text(resize: Resize) -> str:
    """Return "2 -> 3 GPUs, paused for 14 ms"."""
    change = f"{resize.workers_before} -> {resize.workers_after} GPU{'s' * (resize.workers_after != 1)}"
    return f"{change}, paused for {1000 * pause_s(resize):.0f} ms"


def gpus(job: JobView) -> str:
    """Return the GPUs of a job's processes."""
    return " ".join(f"{worker.server}:{worker.gpu}" for worker in job.workers)


def ending(job: JobView) -> str:
    """Return the last line about a job."""
    if job.phase is JobPhase.FINISHED:
        return f"{job.job} finished: {quality(job) or 'no quality reported'}"
    return f"{job.job} {job.phase.value}: {job.reason or 'no reason given'}"


def changes(before: Sequence[JobView], after: Sequence[JobView]) -> list[str]:
    """Return one line for each notable change between two views of the jobs."""
    known = {job.job: job for job in before}
    return [line for job in after for line in _changes_of(known.get(job.job), job)]


def _changes_of(before: JobView | None, job: JobView) -> list[str]:
    lines = []
    if (before is None or before.phase is not job.phase) and job.phase in (JobPhase.PENDING, JobPhase.STARTING):
        lines.append(f"{job.job} is {job.phase.value}" + (f": {job.reason}" if job.reason else ""))
    if job.wanted_gpus != (before.wanted_gpus if before else 0) and job.wanted_gpus != job.share_gpus:
        lines.append(f"{job.job} is to have {job.wanted_gpus} instead of {job.share_gpus}: {gpus(job)}")
    if job.share_gpus != (before.share_gpus if before else 0) and job.share_gpus:
        lines.append(f"{job.job} trains on {job.share_gpus}")
    known = {resize.generation for resize in before.resizes} if before else set()
    lines += [f"{job.job}: {resize_text(resize)}" for resize in job.resizes if resize.generation not in known]
    if before is not None and _tenth(job) > _tenth(before) and not job.phase.final:
        lines.append(
            f"{job.job}: step {_steps(job)} of {job.total_steps}" + (f", {quality(job)}" if job.metrics else "")
        )
    if job.phase.final and not (before is not None and before.phase.final):
        lines.append(ending(job))
    return lines


def _steps(job: JobView) -> int:
    """Return the number of steps applied; `job.step` counts from 0."""
    return 0 if job.step is None else job.step + 1


def _tenth(job: JobView) -> int:
    return _steps(job) * TENTHS // job.total_steps if job.total_steps else 0
