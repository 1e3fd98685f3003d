"""Experience with ended and running jobs, from which the scheduler estimates throughput and lengths of others."""

from __future__ import annotations

from collections.abc import Callable

from ...scheduler.arrays import Ints
from ...scheduler.ended import NOTHING_ENDED
from ..jobs import lengths
from ..jobs.job import Job
from ..jobs.throughput import Estimated, History, Profiles, estimated
from .effects import Effects


class Experience:
    """Throughput measured by kind of job, and statistics of the lengths of ended jobs.

    `request`: called after each change that can alter a scheduling decision.
    """

    def __init__(self, effects: Effects, request: Callable[[], None]) -> None:
        self.throughput = History()
        self.lengths = NOTHING_ENDED
        self._effects = effects
        self._request = request

    def estimate(self, now: float, job: Job, fewest: Ints, profiles: Profiles, on: str | None = None) -> Estimated:
        """Return the best estimate of the throughput of `job`. `fewest`: by share, the fewest servers that hold it.

        `on`: on GPUs of this name; None: on those that the job began on, or else on those of the last measurements.
        """
        earlier = self.throughput.find(job.kind, now)
        profile = profiles.get(job.spec.model.casefold(), {})
        name, before = (job.record.gpu_name, job.estimated) if on is None else (on, None)
        found = estimated(before, job.spec, job.record.measured, earlier, profile, fewest, name)
        if on is None:
            job.estimated = found
        return found

    def record_throughput(self, now: float, job: Job) -> None:
        """Record the measured throughput of `job`, from which the estimates of later jobs of its kind start."""
        puts, deletes = self.throughput.note(job.kind, job.record.measured, now)
        self._effects.put_encoded(puts)
        self._effects.delete(*deletes)
        self._request()

    def record_length(self, job: Job) -> None:
        """Add the length of `job`, which has ended, to the statistics that later jobs are compared with."""
        ended = lengths.with_job(self.lengths, job)
        if ended is not self.lengths:
            self.lengths = ended
            self._effects.put(lengths.KEY, lengths.record(ended))
