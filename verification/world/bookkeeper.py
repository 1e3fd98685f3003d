"""Checks the GPU time that the controller accounts to jobs against an independent integral.

The bookkeeper sees each commit, and integrates the committed number of GPUs of each job over virtual time, while the controller
integrates over its own clock, which jumps. Both must agree, whatever happens to the controller, its clock and its store; and the
sum over users of all months must equal the sum over jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from elasticd.controller import usage
from elasticd.controller.jobs import archive
from elasticd.controller.jobs.account import Column, columns, total
from elasticd.controller.jobs.records import ArchivedJob, JobRecord, WorkerState
from elasticd.controller.jobs.stored import States, whole_of, workers_of
from elasticd.controller.store import Delete, Put
from elasticd.protocol.model import GpuSeconds, JobId

from .timeline import Timeline
from .violation import Violation

RIGHT = "GPU-seconds are what was held"
WHOLE = "what users have had is what their jobs have had"
MOST_ODD = 0.05  # GPU-seconds, tolerance for the rounding of floating-point sums


@dataclass
class _Book:
    """Account of one job."""

    held_gpu_s: float = 0.0  # up to `at`
    holds: int = 0  # GPUs held since `at`
    at: float = 0.0
    sure: bool = False  # False: the next recorded value is taken as the truth


@dataclass
class Bookkeeper:
    """The accounts of all jobs."""

    timeline: Timeline
    _books: dict[JobId, _Book] = field(default_factory=dict)
    _spent: dict[JobId, GpuSeconds] = field(default_factory=dict)
    _states: States = field(default_factory=States)
    _months: dict[str, dict[int, GpuSeconds]] = field(default_factory=dict)

    def committed(self, writes: Iterable[Put | Delete], clock_ahead_s: float) -> None:
        """Update the accounts after a commit. `clock_ahead_s`: offset of the controller's clock."""
        booked = False
        changed: dict[JobId, None] = {}
        for write in writes:
            job = self._states.put(write.key, write.value if isinstance(write, Put) else None)
            if job is not None:
                changed[job] = None
            elif isinstance(write, Delete):
                self._months.pop(write.key, None)
            elif write.key.startswith(usage.PREFIX):
                self._months[write.key] = usage.DECODER.decode(write.value).days
                booked = True
            elif write.key.startswith(archive.PREFIX):
                kept = msgspec.msgpack.decode(write.value, type=ArchivedJob)
                self._compare(kept.submission.job, kept.record, clock_ahead_s)
        for job in changed:
            if (state := self._states.get(job)) is not None:
                self._compare(job, whole_of(state), clock_ahead_s)
        if booked:
            self._sum_up()

    def unsure(self, by_s: float | None = None) -> None:
        """Note that the controller cannot know how long it was away. `by_s`: jump of its clock in that time; None: unknown."""
        for book in self._books.values():
            if by_s is None:
                book.sure = False
            else:
                book.held_gpu_s += book.holds * by_s

    def store_changed(self, contents: Sequence[tuple[str, bytes]]) -> None:
        """Start the accounts from the contents of a store that was replaced."""
        self.unsure()
        self._spent, self._months, self._states = {}, {}, States(contents)
        for key, value in contents:
            if key.startswith(usage.PREFIX):
                self._months[key] = usage.DECODER.decode(value).days
            elif key.startswith(archive.PREFIX):
                kept = msgspec.msgpack.decode(value, type=ArchivedJob)
                self._spent[kept.submission.job] = kept.record.gpu_account.spent
        for job in self._states:
            if (state := self._states.get(job)) is not None:
                self._spent[job] = state.record.gpu_account.spent

    @property
    def held_gpu_s(self) -> float:
        """GPU-seconds of all jobs, as far as recorded."""
        return sum(spent.held_gpu_s for spent in self._spent.values())

    def _compare(self, job: JobId, record: JobRecord, clock_ahead_s: float) -> None:
        now, account = self.timeline.now, record.gpu_account
        book = self._books.setdefault(job, _Book(at=now, sure=True))
        self._spent[job] = account.spent
        book.held_gpu_s, book.at = book.held_gpu_s + book.holds * (now - book.at), now
        book.holds = sum(len(entry.all_gpus) for entry in workers_of(record) if entry.state is not WorkerState.ORDERED)
        if account.holds != book.holds:
            raise Violation(RIGHT, f"{job} holds {book.holds} GPUs, and its account says {account.holds}")
        recorded = account.spent.held_gpu_s + account.holds * (now + clock_ahead_s - account.since_s)
        if not book.sure:
            book.held_gpu_s, book.sure = recorded, True
        if abs(recorded - book.held_gpu_s) > MOST_ODD:
            text = f"{job} has held {book.held_gpu_s:.2f} GPU-seconds, and its account says {recorded:.2f}"
            raise Violation(RIGHT, text)

    def _sum_up(self) -> None:
        months = columns(total(spent for days in self._months.values() for spent in days.values()))
        jobs = columns(total(self._spent.values()))
        for column in Column:
            if abs(months[column] - jobs[column]) > MOST_ODD:
                text = f"{column.value}: {months[column]:.2f} of all users, {jobs[column]:.2f} of all jobs"
                raise Violation(WHOLE, text)
