"""Jobs in memory by id, with their indexes and their records in the store.

A job's record is compared with the record last written, and differences are stored (`write`), so that no caller can forget
to record a change.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping

from ...protocol.model import GpuAddress, JobId, job_number
from ...protocol.times import DECISION_INTERVAL_PER_JOB_S, JOBS_DECIDED_AT_ONCE
from .. import accounting
from ..deadlines import Deadlines
from ..jobs import stored
from ..jobs.archive import Archive, first_key_of, job_of
from ..jobs.index import Index
from ..jobs.job import Job
from ..jobs.records import ArchivedJob, Submission
from ..jobs.rows import Rows
from ..jobs.time_limit import due_s
from ..records import state_key, submission_key
from ..settings import Keeping
from ..usage import Usage, first_kept
from .effects import Effects
from .experience import Experience

ARCHIVED_AT_ONCE = 64  # at most this many jobs leave the memory in one event, and as many leave the archive
LOOK_AT_AGES_S = 600.0  # interval between searches for archived jobs beyond their retention
TRUSTED_AFTER_S = 3600.0  # nothing expires until the clock has run this long since it was set or the controller started


class Jobs(Mapping[JobId, Job]):
    """Unfinished jobs and the most recently ended ones, in the order of submission.

    `gpu_name`: returns the product name of a GPU. `request`: called after each change that can alter a scheduling decision.
    """

    def __init__(
        self,
        now: float,
        uid_key: bytes,
        effects: Effects,
        gpu_name: Callable[[GpuAddress], str],
        request: Callable[[], None],
    ) -> None:
        self.index = Index()
        self.rows = Rows(gpu_name)
        self.archive = Archive()
        self.usage = Usage()
        self.timers: Deadlines[JobId] = Deadlines()  # the earliest timer of each job that has one
        self.reserved: JobId | None = None  # the job for which GPUs are held
        self.first_number = 1  # lower numbers may have been used by jobs that the store has lost
        self.next_number = 1
        self.dirty: dict[JobId, None] = {}  # jobs to reconcile, in the order in which they were marked
        self.gpu_freed = False  # a GPU may have become free since jobs that wait for one were last examined
        self._jobs: dict[JobId, Job] = {}
        self._uid_key = uid_key  # 32 random bytes
        # Ended jobs without workers, in the order in which they became so.
        self._over: OrderedDict[JobId, None] = OrderedDict()
        self._look_at_ages_s = now
        self._clock_set_s = now
        self._touched: dict[JobId, None] = {}  # jobs whose record may have changed
        self._written: dict[JobId, stored.Written] = {}
        self._effects = effects
        self._request = request

    def __getitem__(self, job: JobId) -> Job:
        return self._jobs[job]

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    # -- membership

    def recover(self, first_number: int, archived: Iterable[str]) -> None:
        """Take in the least number for a new job, and the keys of all archived jobs, from the store."""
        self.first_number = first_number
        self.archive = Archive(archived)

    def begin_after(self, highest: int) -> None:
        """Give new jobs higher numbers than any known job; `highest`: of the jobs that are not in the archive."""
        self.next_number = max(self.first_number, highest + 1, self.archive.highest_number + 1)

    def submit(self, job: Job) -> None:
        """Add a new job, which has the next number."""
        self.next_number += 1
        self.add(job)

    def add(self, job: Job, written: tuple[Submission, stored.Written | None] | None = None) -> None:
        """Add a job. `written`: the job's submission and record as the store holds them already."""
        self._adopt(job)
        if written is None or written[0] != job.submission:
            self._effects.put(submission_key(job.id), job.submission)
        self.usage.holds(job)
        if job.record.reserved:
            self.reserved = job.id
        if written is not None:
            if written[1] is not None:
                self._written[job.id] = written[1]
            self.touch(job)
        else:
            self.mark_dirty(job)
        self._request()

    def _adopt(self, job: Job) -> None:
        self._jobs[job.id] = job
        job.belong_to(self._changed, self._request)
        self.index.changed(job)
        self.rows.changed(job)

    def what_if(
        self, jobs: Iterable[Job], effects: Effects, gpu_name: Callable[[GpuAddress], str], request: Callable[[], None]
    ) -> Jobs:
        """Return a store of copies of these unfinished jobs, for a trial decision. Usage and archive are shared."""
        found = Jobs(self._look_at_ages_s, self._uid_key, effects, gpu_name, request)
        found.usage, found.archive, found.reserved = self.usage, self.archive, self.reserved
        for job in jobs:
            found.suppose(job.what_if())
        return found

    def suppose(self, job: Job) -> None:
        """Add a job to a copy for a trial decision; no record is written."""
        self._adopt(job)

    def drop(self, name: JobId) -> None:
        """Remove a job, as the commit that submitted it has failed."""
        if (job := self._jobs.pop(name, None)) is not None:
            self.index.forget(job)

    def new_uid(self, job: JobId) -> str:
        """Return the uid of a new job: a secret known only to servers that run its workers, and not derivable from others."""
        return hashlib.blake2b(job.encode(), key=self._uid_key, digest_size=8).hexdigest()

    def skip_to(self, first: int) -> None:
        """Give no new job a number below `first`. The caller records the cluster."""
        self.first_number = self.next_number = max(first, self.next_number)

    def reserve(self, job: Job | None) -> None:
        """Hold GPUs for this job alone from now on. None: release the reservation."""
        name = job.id if job is not None else None
        if name == self.reserved:
            return
        if self.reserved in self._jobs:
            self._jobs[self.reserved].update(reserved=False)
        if job is not None:
            job.update(reserved=True)
        self.reserved = name

    @property
    def many(self) -> bool:
        """Whether there are so many unfinished jobs that a decision takes long."""
        return len(self.index.live) > JOBS_DECIDED_AT_ONCE

    @property
    def decision_pause_s(self) -> float:
        """Time between two scheduling decisions (s): with many jobs decisions take long, and are spaced out."""
        return len(self.index.live) * DECISION_INTERVAL_PER_JOB_S if self.many else 0.0

    # -- changes

    def _changed(self, job: Job) -> None:
        self._touched[job.id] = None
        self.index.changed(job)
        self.rows.changed(job)

    def mark_dirty(self, job: Job) -> None:
        """Note that `job` has changed: its record is stored, and the next reconciliation examines it."""
        self.dirty[job.id] = None
        self._touched[job.id] = None
        self.rows.changed(job)

    def touch(self, job: Job) -> None:
        """Note that the record of `job` may have changed in a way that needs no decision."""
        self._touched[job.id] = None

    def moved(self, job: Job) -> None:
        """Note that `job` has progressed; its record may have changed."""
        self._touched[job.id] = None
        self.rows.moved(job)

    def mark_all_dirty(self) -> None:
        """Have every unfinished job reconciled, because decisions are possible again.

        No record changes by this call.
        """
        self._request()
        self.dirty.update(dict.fromkeys(self.index.live))

    def mark_waiting_dirty(self) -> None:
        """Note that a GPU may have become free: waiting jobs are reconciled once in this turn."""
        self.gpu_freed = True

    def take_dirty(self) -> tuple[JobId, ...]:
        """Return the jobs to reconcile, and clear their marks."""
        if self.gpu_freed:
            self.gpu_freed = False
            for job in self.index.waiting():
                self.mark_dirty(job)
        dirty = tuple(self.dirty)
        self.dirty.clear()
        return dirty

    # -- the clock

    def clock_goes_since(self, since_s: float) -> None:
        """Count the clock as trusted since `since_s`: an earlier controller recorded no leap after that time."""
        self._clock_set_s = min(self._clock_set_s, since_s)

    def clock_was_set(self, now: float, by_s: float) -> None:
        """Take in that the controller's clock was set to `now`, forward by `by_s` seconds (negative: back)."""
        self._clock_set_s = now
        self._look_at_ages_s = min(self._look_at_ages_s, now)
        accounting.clock_was_set(self.usage.holding, by_s)

    # -- records

    def is_parted(self, job: JobId) -> bool:
        """Return whether the store holds the state of `job` in parts (`jobs.stored`)."""
        return job in self._written and self._written[job].parted

    def write(self, now: float, whole_workers: int, keeping: Keeping, experience: Experience) -> bool:
        """Record all changes of jobs and of usage since the last call. Returns whether `first_number` has changed.

        `whole_workers`: a job with more workers has a record for each. Jobs that have ended enter the statistics of
        `experience`; ended jobs beyond `keeping` go to the archive, and leave it.
        """
        for name in self._touched:
            job = self._jobs[name]
            timers = [*job.timers().values(), *filter(None, (due_s(job),))]
            self.timers.put(name, min(timers, default=None))
            accounting.look(self.usage, now, job)
            before = self._written.get(name)
            changes, self._written[name] = stored.changes(job, before, whole_workers)
            if changes is not None:
                for key, value in changes.puts.items():
                    self._effects.put(key, value)
                self._effects.delete(*changes.deletes)
            if job.final and not (before is not None and before.record.phase.final):
                experience.record_length(job)
            if job.final and not job.workers and not self.index.awaiting(name):
                self._over[name] = None
        self._touched.clear()
        self._archive_ended(keeping)
        return self._forget_archived(now, keeping)

    def write_usage(self) -> None:
        """Record the changed months of users' usage."""
        if self.usage.has_changed:
            changed, gone = self.usage.take_changed()
            for key, record in changed.items():
                self._effects.put(key, record)
            self._effects.delete(*gone)

    def _archive_ended(self, keeping: Keeping) -> None:
        """Move the jobs that ended first from memory to the archive while there are too many, a bounded number per event."""
        for _ in range(min(ARCHIVED_AT_ONCE, len(self._over) - keeping.recent)):
            name, _ = self._over.popitem(last=False)
            job = self._jobs.pop(name)
            self._written.pop(name, None)
            self.timers.put(name, None)
            self.dirty.pop(name, None)
            self.index.forget(job)
            job.leave()
            self._effects.delete(submission_key(name), state_key(name))
            archived = ArchivedJob(submission=job.submission, record=job.record)
            self._effects.put(job.ended_key, archived)
            self.archive.add(job.ended_key)

    def _forget_archived(self, now: float, keeping: Keeping) -> bool:
        """Delete archived jobs that are too many or too old, a bounded number per event. Their numbers are never reused.

        Returns whether `first_number` has changed.
        """
        trusted = now - self._clock_set_s >= TRUSTED_AFTER_S
        if len(self.archive) <= keeping.ended and not (trusted and self._look_at_ages_s - now < 0):
            return False
        if trusted:
            self.usage.forget_before(first_kept(now, keeping.usage_days))
        first_key = first_key_of(now, keeping.days) if trusted else ""
        gone = self.archive.forget(keeping.ended, first_key, ARCHIVED_AT_ONCE)
        if len(gone) < ARCHIVED_AT_ONCE:
            self._look_at_ages_s = now + LOOK_AT_AGES_S
        if not gone:
            return False
        self._effects.delete(*gone)
        highest = max(job_number(job_of(key).job) for key in gone)
        self.first_number = max(self.first_number, highest + 1)
        return True
