"""How long jobs are: who tells it, what becomes of that, and what is recorded of jobs that are over (`scheduler.ended`).

A job tells its length by `max_steps` in its specification, or by its loop: `run.epochs(n)` over data with an index has a known
number of steps. Whichever is less holds, and the job's workers report it. One that trains `until` a figure is reached has the
length that its reports suggest (`reaching`), as long as that is less. A job that is cancelled or fails has ended, too: its
GPUs are free, and others of its kind may end like it.
"""

from __future__ import annotations

import math

import numpy as np

from ...protocol.messages import JobLength, LengthSource
from ...protocol.model import Value
from ...scheduler.ended import NOTHING_ENDED, Ended
from ...scheduler.policies.expected import likely_s
from .job import Job

KEY = "/lengths"


class LengthsRecord(Value, frozen=True, kw_only=True):
    """`Ended`, as it is recorded: one small record, written anew at each end."""

    lengths: tuple[tuple[int, ...], ...]
    errors: tuple[int, ...]


def record(ended: Ended) -> LengthsRecord:
    return LengthsRecord(lengths=tuple(map(tuple, ended.lengths.tolist())), errors=tuple(ended.errors.tolist()))


def recovered(kept: LengthsRecord) -> Ended:
    """What was recorded. Another version's bins say nothing here: then learning begins anew."""
    shape = NOTHING_ENDED.lengths.shape
    alike = len(kept.lengths) == shape[0] and all(len(row) == shape[1] for row in kept.lengths)
    if not alike or len(kept.errors) != len(NOTHING_ENDED.errors):
        return NOTHING_ENDED
    counts = [*kept.errors, *(count for row in kept.lengths for count in row)]
    if not all(0 <= count < 1 << 53 for count in counts):
        return NOTHING_ENDED
    return Ended(np.array(kept.lengths, dtype=np.int64), np.array(kept.errors, dtype=np.int64))


def with_job(ended: Ended, job: Job) -> Ended:
    """`job` is over, too; the same where it has done nothing, or nobody knows how much on one GPU that would be."""
    alone_s = _step_alone_s(job)
    if not job.steps_done or alone_s is None:
        return ended
    told = job.bound_steps if job.spec.until is None else None  # else it is expected to end before
    told_s = told * alone_s if told is not None else math.nan
    return ended.and_one(job.spec.gpus.max, job.steps_done * alone_s, told_s)


def length_of(ended: Ended, job: Job) -> JobLength:
    """What is known of the length of `job`, for people."""
    told = job.told_steps
    if told is not None and told == job.expected_steps:
        return JobLength(source=LengthSource.UNKNOWN, steps=float(told), by_reports=str(job.spec.until))
    if told is not None:
        by_loop = told != job.spec.max_steps
        return JobLength(source=LengthSource.EPOCHS if by_loop else LengthSource.MAX_STEPS, steps=float(told))
    alone_s = _step_alone_s(job)
    if job.final or alone_s is None or not ended.lengths.any():
        return JobLength(source=LengthSource.UNKNOWN)
    done_s = job.steps_done * alone_s
    few, middle, many = ((done_s + left_s) / alone_s for left_s in likely_s(ended, job.spec.gpus.max, done_s))
    return JobLength(source=LengthSource.ENDED_JOBS, steps=middle, least_steps=few, most_steps=many)


def _step_alone_s(job: Job) -> float | None:
    """How long a step takes on one GPU; None: not known."""
    told = job.estimated
    if told is None or not told.known or not float(told.curve[1]) > 0:
        return None
    return 1.0 / float(told.curve[1])
