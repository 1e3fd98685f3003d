"""Statistics of ended and running jobs, and of idle GPUs, from which the scheduler makes its estimates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ...protocol.model import ServerId
from ...scheduler.arrays import Ints
from ...scheduler.length_statistics import NOTHING_ENDED
from ...scheduler.transient import Idle, Past
from ..jobs import lengths
from ..jobs.job import Job
from ..jobs.throughput import Estimated, History, KindRecord, Profiles, estimated
from . import idle
from .effects import Effects

NEVER_BORROWED = Idle()


class Experience:
    """Throughput measured by kind of job, statistics of the lengths of ended jobs, and idle times of GPUs.

    `request`: called after each change that can alter a scheduling decision.
    """

    def __init__(self, effects: Effects, request: Callable[[], None]) -> None:
        self.throughput = History()
        self.lengths = NOTHING_ENDED
        self.idle = Past()
        self._effects = effects
        self._request = request

    def recover(
        self, kinds: Iterable[KindRecord], ended: lengths.LengthsRecord | None, idle: Mapping[ServerId, Idle]
    ) -> None:
        """Take in the store's records: kinds of jobs, lengths of ended jobs (None: there are none), idle times of GPUs."""
        self.throughput.recover(kinds)
        if ended is not None:
            self.lengths = lengths.recovered(ended)
        self.idle = Past(idle)

    def estimate(self, now: float, job: Job, fewest: Ints, profiles: Profiles, on: str | None = None) -> Estimated:
        """Return the best estimate of the throughput of `job`. `fewest`: by share, the fewest servers that hold it.

        `on`: on GPUs of this name; None: on those that the job began on, or else on those of the last measurements.
        """
        earlier = self.throughput.find(job.kind, now)
        profile = profiles.get(job.spec.model.casefold(), {})
        name, before = (job.record.gpu_name, job.estimated) if on is None else (on, None)
        found = estimated(before, job.spec, job.record.measured, earlier, profile, fewest, name)
        if on is None:
            job.put_estimate(found)
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

    def note_borrowed(
        self, now: float, borrowed: Mapping[ServerId, frozenset[int]], gone: Collection[ServerId]
    ) -> None:
        """Note which GPUs borrowers have, by server; statistics of the servers `gone` are dropped."""
        before = self.idle.servers
        after = {server: times for server, times in before.items() if server not in gone}
        for server in sorted({*borrowed, *after}):
            times = after.get(server, NEVER_BORROWED)
            after[server] = times.seen(now, borrowed.get(server, frozenset()))
            if after[server] is not times:
                self._effects.put(idle.key(server), idle.record(after[server]))
        self._effects.delete(*map(idle.key, gone))
        self.idle = Past(after)
