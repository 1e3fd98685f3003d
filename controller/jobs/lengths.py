"""Lengths of jobs: their sources, their use, and the records of ended jobs (`scheduler.length_statistics`).

A job's length is given by `max_steps` in its specification, or by its loop: `run.epochs(n)` over data with an index has
a known number of steps. The smaller number holds, and the job's workers report it. A job that trains `until` a metric
reaches a bound has the length that its reports predict (`metric_forecast`), if that is smaller. Cancelled and failed
jobs count as ended, too: their GPUs are free, and other jobs of the kind may end in the same way.
"""

from __future__ import annotations

import math

import numpy as np

from ...protocol.messages import JobLength, LengthSource
from ...protocol.model import Value
from ...scheduler.length_statistics import NOTHING_ENDED, Ended
from ...scheduler.policies.expected_lengths import likely_s
from .job import Job

KEY = "/lengths"


class LengthsRecord(Value, frozen=True, kw_only=True):
    """Recorded form of `Ended`: one small record, rewritten at each end."""

    lengths: tuple[tuple[int, ...], ...]
    errors: tuple[int, ...]


def record(ended: Ended) -> LengthsRecord:
    return LengthsRecord(lengths=tuple(map(tuple, ended.lengths.tolist())), errors=tuple(ended.errors.tolist()))


def recovered(kept: LengthsRecord) -> Ended:
    """Return the recorded lengths. Bins of another version are not comparable, so learning starts again then."""
    shape = NOTHING_ENDED.lengths.shape
    alike = len(kept.lengths) == shape[0] and all(len(row) == shape[1] for row in kept.lengths)
    if not alike or len(kept.errors) != len(NOTHING_ENDED.errors):
        return NOTHING_ENDED
    counts = [*kept.errors, *(count for row in kept.lengths for count in row)]
    if not all(0 <= count < 1 << 53 for count in counts):
        return NOTHING_ENDED
    return Ended(np.array(kept.lengths, dtype=np.int64), np.array(kept.errors, dtype=np.int64))


def with_job(ended: Ended, job: Job) -> Ended:
    """Return `ended` with `job` added; unchanged if the job did no steps, or their duration on one GPU is unknown."""
    alone_s = _step_alone_s(job)
    if not job.steps_done or alone_s is None:
        return ended
    # With `until`, the job is expected to end before that bound.
    steps = job.bound_steps if job.spec.until is None else None
    told_s = steps * alone_s if steps is not None else math.nan
    return ended.and_one(job.spec.gpus.max, job.steps_done * alone_s, told_s)


def length_of(ended: Ended, job: Job) -> JobLength:
    """Return the known facts about the length of `job`, for users."""
    steps = job.told_steps
    if steps is not None and steps == job.expected_steps:
        return JobLength(source=LengthSource.UNKNOWN, steps=float(steps), by_reports=str(job.spec.until))
    if steps is not None:
        by_loop = steps != job.spec.max_steps
        return JobLength(source=LengthSource.EPOCHS if by_loop else LengthSource.MAX_STEPS, steps=float(steps))
    alone_s = _step_alone_s(job)
    if job.final or alone_s is None or not ended.lengths.any():
        return JobLength(source=LengthSource.UNKNOWN)
    done_s = job.steps_done * alone_s
    few, middle, many = ((done_s + left_s) / alone_s for left_s in likely_s(ended, job.spec.gpus.max, done_s))
    return JobLength(source=LengthSource.ENDED_JOBS, steps=middle, least_steps=few, most_steps=many)


def _step_alone_s(job: Job) -> float | None:
    """Return the seconds that a step takes on one GPU; None if unknown."""
    estimated = job.estimated
    if estimated is None or not estimated.known or not float(estimated.curve[1]) > 0:
        return None
    return 1.0 / float(estimated.curve[1])
