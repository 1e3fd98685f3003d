"""Facts that follow from a job's submission, its record, its workers' newest reports, and its place in its array.

Nothing here changes a job (`job`).
"""

from __future__ import annotations

import math
from functools import cached_property

from ...protocol.messages import PromiseState, Withholding
from ...protocol.model import JobId, JobSpec, job_number
from .archive import key_of
from .records import JobRecord, OrderRecord, Progress, Submission
from .reported import Reported
from .throughput import fingerprint


class Facts:
    """Properties of a job that follow from these four."""

    submission: Submission
    record: JobRecord
    reported: Reported
    beyond_array: bool

    @cached_property
    def id(self) -> JobId:
        return self.submission.job

    @cached_property
    def number(self) -> int:
        """Number of the submission; greater than the numbers of all jobs submitted before."""
        return job_number(self.id)

    @cached_property
    def ended_key(self) -> str:
        """Key of the ended job in the archive, where the job is stored or will be."""
        assert self.final
        return key_of(self.submission, self.record.finished_s or 0.0)

    @property
    def spec(self) -> JobSpec:
        return self.submission.spec

    @property
    def uid(self) -> str:
        return self.submission.uid

    def has_uid(self, uid: str) -> bool:
        """Return whether a worker with this id and `uid` may belong to this job. Earlier versions sent no `uid`."""
        return not uid or not self.uid or uid == self.uid

    @property
    def final(self) -> bool:
        return self.record.phase.final

    @cached_property
    def kind(self) -> str:
        """Fingerprint of the job's kind. Jobs of one kind take the same time for a step."""
        return fingerprint(self.spec)

    @property
    def elastic(self) -> bool:
        """Return whether a worker of the job has called `elastic.join()`.

        Such a job may be resized, and continues with the surviving workers after a loss.
        """
        return self.record.joined or self.record.committed > 0

    @property
    def newest(self) -> OrderRecord | None:
        return self.record.orders[-1] if self.record.orders else None

    @property
    def committed_order(self) -> OrderRecord | None:
        """Return the newest order known to be committed; None while the job holds no state."""
        if self.record.committed < self.record.cycle:
            return None
        return self.order(self.record.committed)

    def order(self, generation: int) -> OrderRecord | None:
        return next((order for order in self.record.orders if order.generation == generation), None)

    def progress(self) -> Progress:
        return self.reported.newest or self.record.progress or Progress()

    @property
    def user(self) -> str:
        """User of the job, for quotas and reports: the user of the specification, else the authenticated owner."""
        return self.spec.user or self.submission.owner

    @property
    def told_steps(self) -> int | None:
        """Return the total number of steps, by the loop, the specification or the reported metric; None if unknown."""
        told, expected = self.bound_steps, self.expected_steps
        return told if expected is None else min(expected, told or expected)

    @property
    def bound_steps(self) -> int | None:
        """Return the number of steps after which the loop or the specification ends the job; None if neither does."""
        return self.progress().total_steps or self.spec.max_steps

    @property
    def expected_steps(self) -> int | None:
        """Return the number of steps at which the reported metric reaches its bound; None if unknown or passed."""
        expected = self.record.expected_steps
        return expected if expected is not None and self.steps_done <= expected else None

    @property
    def steps_done(self) -> int:
        step = self.progress().step
        return step + 1 if step is not None else 0

    @property
    def deadline_s(self) -> float:
        """Unix time of the deadline; nan without one."""
        deadline = self.spec.deadline
        return deadline.of(self.submission.submitted_s) if deadline is not None else math.nan

    @property
    def planned_by_s(self) -> float:
        """Unix time of the deadline used for planning; nan without one.

        It may be before the job's own deadline (`Verdict.by_s`).
        """
        return self.deadline_s if self.record.by_s is None else min(self.deadline_s, self.record.by_s)

    @property
    def promised(self) -> bool:
        """Return whether the job has a hard deadline with a final promise, or was just submitted with one."""
        deadline = self.spec.deadline
        unpromised = (PromiseState.NONE, PromiseState.PROVISIONAL)
        return deadline is not None and not deadline.soft and self.record.promise not in unpromised

    @property
    def steps_left(self) -> float:
        """Steps until the end of the job; nan if unknown."""
        total = self.told_steps
        return float(max(0, total - self.steps_done)) if total is not None else math.nan

    @property
    def is_withheld(self) -> bool:
        """Return whether a user, or other jobs that come or end first, keep the job from having GPUs.

        Policies do not see such a job. A hold does not affect a job that has GPUs.
        """
        withheld = self.record.withheld
        if self.record.waits_for or self.beyond_array:
            return True
        return withheld is not None and not (withheld.how is Withholding.HOLD and self.record.target)

    @property
    def why_withheld(self) -> str:
        """Return the reason why the job is withheld, and the command that ends this; "" if the job is not withheld."""
        withheld = self.record.withheld
        if withheld is None:
            if self.record.waits_for:
                return f"waits for the end of {', '.join(self.record.waits_for)}"
            array = self.spec.array if self.beyond_array else None
            return f"waits for its turn: {array.most} of {array.name}[{array.text}] may run at a time" if array else ""
        if withheld.how is Withholding.CANCEL:
            return f"is being {'ended' if self.record.timed_out else 'cancelled'}{withheld.by}"
        back = f"`elasticctl {withheld.how.back} {self.id}`"
        if not self.is_withheld:
            return f"held{withheld.by}: it runs on, and does not start again before {back}"
        return f"{withheld.how.past}{withheld.by}: {back} lets it run again"
