"""Shares over time, for the chart on the screen and the picture. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticd.protocol.messages import JobView

# Okabe and Ito's palette, which colour-blind people can distinguish, each with a readable text colour.
COLOURS = (("#0072B2", "#FFFFFF"), ("#E69F00", "#000000"), ("#009E73", "#000000"), ("#CC79A7", "#000000"))


def colours(number: int) -> tuple[str, str]:
    """Return the colour of the `number`-th job, and of text on it."""
    return COLOURS[number % len(COLOURS)]


def share_at(job: JobView, time_s: float) -> int:
    """Return how many GPUs trained `job` at `time_s` (Unix time)."""
    if job.finished_s is not None and time_s >= job.finished_s:
        return 0
    return next((change.share for change in reversed(job.shares) if change.time_s <= time_s), 0)


def times_of_change(jobs: Sequence[JobView], begin_s: float, end_s: float) -> list[float]:
    """Return the times at which any share changed, in order, with both ends."""
    times = {change.time_s for job in jobs for change in job.shares}
    times |= {job.finished_s for job in jobs if job.finished_s is not None}
    return [begin_s, *sorted(time_s for time_s in times if begin_s < time_s < end_s), end_s]


def stack_at(jobs: Sequence[JobView], time_s: float) -> list[int]:
    """Return, for each GPU that trained at `time_s`, the number of its job: the lowest job first."""
    return [number for number, job in enumerate(jobs) for _ in range(share_at(job, time_s))]
