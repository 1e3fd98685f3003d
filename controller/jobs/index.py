"""Which jobs concern a GPU, a server, a user: found without looking at all jobs (cost follows what changed).

Theory of operation
-------------------
Everything here follows from the jobs' records, and is brought up to date when somebody asks: a job tells of each change of its
record (`Job.update`), and only the jobs that have changed since the last question are looked at. So no caller can forget to, and
what nobody asks for costs nothing.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...protocol.model import GpuAddress, JobId, JobPhase, ServerId
from .job import Job
from .records import JobRecord, OrderRecord

FEW = 64


@dataclass(frozen=True)
class _Facts:
    """What is said of one job elsewhere in the index."""

    record: JobRecord
    version: int = 0  # of the table of its workers
    phase: JobPhase | None = None
    live: bool = False
    over: bool = False
    without_target: bool = False
    waits: bool = False
    astray: bool = False
    unstarted: bool = False
    servers: frozenset[ServerId] = frozenset()
    # What the rest follows from that takes longer to look at, and what does.
    of: _Wants | None = None
    membership: int = 0  # of the table of its workers
    holdings: int = 0  # likewise


@dataclass(frozen=True)
class _Wants:
    """Where a job is, and is to be. It holds as long as these are the same."""

    own: tuple[GpuAddress, ...]
    newest: OrderRecord | None
    committed: OrderRecord | None
    placed: bool  # the newest order has the GPUs of the target
    trains: bool  # likewise the committed one
    servers: frozenset[ServerId]  # of all GPUs that are its own


NOTHING = _Facts(JobRecord())


class Index:
    """Jobs by what they have to do with."""

    def __init__(self) -> None:
        self._changed: dict[JobId, Job] = {}
        self._facts: dict[JobId, _Facts] = {}
        self._live: dict[JobId, Job] = {}  # in the order of submission
        self._numbers: list[int] = []  # of the live jobs, ascending
        self._by_number: dict[int, Job] = {}  # likewise
        self._over: dict[JobId, Job] = {}
        self._waiting: dict[JobId, Job] = {}
        self._astray: dict[JobId, Job] = {}
        self._unstarted: dict[JobId, Job] = {}
        self._on_gpu: dict[GpuAddress, dict[JobId, None]] = {}
        self._on_server: dict[ServerId, dict[JobId, Job]] = {}
        self._named: dict[str, dict[JobId, Job]] = {}
        self._of_user: dict[str, int] = {}
        self._of_owner: dict[str, int] = {}
        self._without_target = 0
        self._phases: dict[JobPhase, dict[JobId, Job]] = {phase: {} for phase in JobPhase}
        self._submitted: list[tuple[float, JobId]] = []  # a heap of pending jobs, and of some that were

    # -- notifications of changed jobs

    def changed(self, job: Job) -> None:
        """The record of `job` has changed, or it is new."""
        self._changed[job.id] = job

    def forget(self, job: Job) -> None:
        """`job` is over, and is not in memory any more."""
        self._look(job)
        self._changed.pop(job.id, None)
        self._say(job, self._facts.pop(job.id, NOTHING), NOTHING)
        for gpu in job.workers.held:
            self._free(gpu, job.id)
        named = self._named.get(job.spec.name, {})
        named.pop(job.id, None)
        if not named:
            self._named.pop(job.spec.name, None)

    # -- asked

    @property
    def live(self) -> dict[JobId, Job]:
        """The jobs that are not over, in the order of submission. Not to be changed, nor to be kept."""
        self._catch_up()
        return self._live

    @property
    def live_numbers(self) -> Sequence[int]:
        """The numbers of the jobs that are not over, ascending. Not to be changed, nor to be kept."""
        self._catch_up()
        return self._numbers

    def live_from(self, first: int, most: int) -> tuple[Job, ...]:
        """Up to so many of them, in the order of submission, from the `first`-th on."""
        self._catch_up()
        return tuple(self._by_number[number] for number in self._numbers[first : first + most])

    @property
    def over(self) -> dict[JobId, Job]:
        """The jobs in memory that are over. Not to be changed, nor to be kept."""
        self._catch_up()
        return self._over

    @property
    def phases(self) -> Mapping[JobPhase, Mapping[JobId, Job]]:
        """The jobs in memory by their phase. Not to be changed, nor to be kept."""
        self._catch_up()
        return self._phases

    def oldest_pending_s(self) -> float | None:
        """When the pending job was submitted that was so first (Unix time); None: no job is pending."""
        pending = self.phases[JobPhase.PENDING]
        while self._submitted and self._submitted[0][1] not in pending:
            heapq.heappop(self._submitted)
        return self._submitted[0][0] if self._submitted else None

    @property
    def without_target(self) -> int:
        """How many of them are to have no GPU."""
        self._catch_up()
        return self._without_target

    @property
    def anyone_astray(self) -> bool:
        """Is there a job where others train than the scheduler wants?"""
        self._catch_up()
        return bool(self._astray)

    def of_user(self, user: str) -> int:
        """How many live jobs are of this user (`Job.user`)."""
        self._catch_up()
        return self._of_user.get(user, 0)

    def others_than(self, owners: Collection[str]) -> bool:
        """Has anybody live jobs who is none of these?"""
        self._catch_up()
        return any(owner not in owners for owner in self._of_owner)

    def of_owner(self, owner: str) -> int:
        """How many live jobs the principal of this name has submitted."""
        self._catch_up()
        return self._of_owner.get(owner, 0)

    def waiting(self) -> Iterator[Job]:
        """Live jobs that may go on when a GPU becomes free."""
        self._catch_up()
        return _in_order(self._waiting)

    def unstarted(self) -> Iterator[Job]:
        """Live jobs with a worker whose GPU was not free when it was ordered."""
        self._catch_up()
        return _in_order(self._unstarted)

    def on_server(self, server: ServerId) -> Iterator[Job]:
        """Jobs that have a worker on `server`, or are to have one there; also those that are over and whose workers are not."""
        self._catch_up()
        return _in_order(self._on_server.get(server, {}))

    def on_gpu(self, gpu: GpuAddress) -> JobId | None:
        """The job that has a process on `gpu`, or is about to start one."""
        self._catch_up()
        return next(iter(self._on_gpu.get(gpu, ())), None)

    def named(self, name: str) -> tuple[Job, ...]:
        """All jobs in memory with this name, in the order of submission."""
        self._catch_up()
        return tuple(_in_order(self._named.get(name, {})))

    # -- how

    def _catch_up(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, {}
            for job in changed.values():
                self._look(job)

    def _look(self, job: Job) -> None:
        before = self._facts.get(job.id)
        if before is None:
            self._named.setdefault(job.spec.name, {})[job.id] = job
        elif before.record is job.record and before.version == job.workers.version:
            return
        facts = self._facts[job.id] = _facts(job, before or NOTHING)
        self._say(job, before or NOTHING, facts)
        table = job.workers
        if before is None:
            moved: Collection[GpuAddress] = table.held
        elif before.holdings != table.holdings:
            moved, table.moved = table.moved, {}
        else:
            return
        for gpu in moved:
            if gpu in table.held:
                self._on_gpu.setdefault(gpu, {})[job.id] = None
            else:
                self._free(gpu, job.id)

    def _free(self, gpu: GpuAddress, name: JobId) -> None:
        here = self._on_gpu.get(gpu, {})
        if name in here:
            del here[name]
            if not here:
                del self._on_gpu[gpu]

    def _enliven(self, job: Job, live: bool) -> None:
        _mark(self._live, job, live)
        at = bisect.bisect_left(self._numbers, job.number)
        if live:
            self._numbers.insert(at, job.number)
            self._by_number[job.number] = job
        else:
            del self._numbers[at]
            del self._by_number[job.number]

    def _note_pending(self, job: Job) -> None:
        heapq.heappush(self._submitted, (job.submission.submitted_s, job.id))
        pending = self._phases[JobPhase.PENDING]
        if len(self._submitted) > 2 * len(pending) + FEW:  # most are pending no more, or stand there twice
            self._submitted = [(each.submission.submitted_s, name) for name, each in pending.items()]
            heapq.heapify(self._submitted)

    def _say(self, job: Job, before: _Facts, now: _Facts) -> None:
        name = job.id
        if before.live is not now.live:
            self._enliven(job, now.live)
            _count(self._of_user, job.user, now.live)
            _count(self._of_owner, job.submission.owner, now.live)
        if before.phase is not now.phase:
            if before.phase is not None:
                del self._phases[before.phase][name]
            if now.phase is not None:
                self._phases[now.phase][name] = job
            if now.phase is JobPhase.PENDING:
                self._note_pending(job)
        self._without_target += now.without_target - before.without_target
        for table, was, is_ in (
            (self._over, before.over, now.over),
            (self._waiting, before.waits, now.waits),
            (self._astray, before.astray, now.astray),
            (self._unstarted, before.unstarted, now.unstarted),
        ):
            if was is not is_:
                _mark(table, job, is_)
        if before.servers is now.servers:
            return
        for server in before.servers - now.servers:
            del self._on_server[server][name]
            if not self._on_server[server]:
                del self._on_server[server]
        for server in now.servers - before.servers:
            self._on_server.setdefault(server, {})[name] = job


def _count(table: dict[str, int], name: str, one_more: bool) -> None:
    table[name] = table.get(name, 0) + (1 if one_more else -1)
    if not table[name]:
        del table[name]


def _mark(table: dict[JobId, Job], job: Job, there: bool) -> None:
    if there:
        table[job.id] = job
    else:
        del table[job.id]


def _in_order(jobs: dict[JobId, Job]) -> Iterator[Job]:
    return iter(sorted(jobs.values(), key=lambda job: job.number))


def _facts(job: Job, before: _Facts) -> _Facts:
    kept, newest, table = job.record, job.newest, job.workers
    live = not job.final
    if not table and not kept.target and newest is None:
        return _Facts(
            kept,
            table.version,
            phase=kept.phase,
            live=live,
            over=not live,
            without_target=live,
            holdings=table.holdings,
        )
    wants = _wants(job, newest, before.of)
    same = wants is before.of and table.membership == before.membership
    return _Facts(
        kept,
        table.version,
        phase=kept.phase,
        live=live,
        over=not live,
        without_target=live and not kept.target,
        waits=live and newest is not None and (bool(table.ordered) or not wants.placed),
        astray=live and not wants.trains and not job.gang,
        unstarted=live and bool(table.ordered),
        servers=before.servers if same else wants.servers.union(table.servers),
        of=wants,
        membership=table.membership,
        holdings=table.holdings,
    )


def _wants(job: Job, newest: OrderRecord | None, known: _Wants | None) -> _Wants:
    own, committed = job.own_gpus, job.committed_order
    if known is not None and known.own is own and known.newest is newest and known.committed is committed:
        return known
    target = set(job.record.target)
    train = {member.gpu for member in committed.roster.members} if committed is not None else set()
    placed = newest is None or {gpu for member in newest.roster.members for gpu in member.all_gpus} == target
    return _Wants(own, newest, committed, placed, train == target, frozenset(gpu.server for gpu in own))
