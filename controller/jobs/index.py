"""Index of jobs by GPU, server, user, name and phase, so that a query costs time in proportion to the changes.

Theory of operation
-------------------
The whole index follows from the jobs' records, and is updated lazily, at a query. A job reports each change of its
record (`Job.update`), and a query first re-examines the jobs that have changed since the last one. So no caller can
forget an update, and entries that are never queried cost nothing.
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
    """Entries of one job in the index."""

    record: JobRecord
    version: int = 0  # version of the job's worker table
    phase: JobPhase | None = None
    live: bool = False
    over: bool = False
    without_target: bool = False
    waits: bool = False
    off_target: bool = False
    unstarted: bool = False
    waits_for: tuple[JobId, ...] = ()
    array: str = ""  # name of a live job's array, if the array limits how many of its jobs run at a time
    kept_back: bool = False  # the job of such an array is withheld, or waits for other jobs
    servers: frozenset[ServerId] = frozenset()
    # Facts that take longer to derive, and the versions of the data that they were derived from.
    of: _Wants | None = None
    membership: int = 0  # version of the worker table's membership
    holdings: int = 0  # version of the worker table's held GPUs


@dataclass(frozen=True)
class _Wants:
    """Present and intended GPUs of a job, valid while `own`, `newest` and `committed` are the same objects."""

    own: tuple[GpuAddress, ...]
    newest: OrderRecord | None
    committed: OrderRecord | None
    placed: bool  # the newest order has exactly the GPUs of the target
    trains: bool  # the committed order has exactly the GPUs of the target
    servers: frozenset[ServerId]  # servers of `own`


NOTHING = _Facts(JobRecord())


class Index:
    """Index of the jobs in memory."""

    def __init__(self) -> None:
        self._changed: dict[JobId, Job] = {}
        self._facts: dict[JobId, _Facts] = {}
        self._live: dict[JobId, Job] = {}  # in the order of submission
        self._numbers: list[int] = []  # numbers of the live jobs, ascending
        self._by_number: dict[int, Job] = {}  # live jobs only
        self._over: dict[JobId, Job] = {}
        self._waiting: dict[JobId, Job] = {}
        self._off_target: dict[JobId, Job] = {}
        self._unstarted: dict[JobId, Job] = {}
        self._on_gpu: dict[GpuAddress, dict[JobId, None]] = {}
        self._on_server: dict[ServerId, dict[JobId, Job]] = {}
        self._named: dict[str, dict[JobId, Job]] = {}
        self._of_user: dict[str, int] = {}
        self._of_owner: dict[str, int] = {}
        self._awaiting: dict[JobId, dict[JobId, Job]] = {}  # per job: the unfinished jobs that wait for its end
        self._arrays: dict[str, dict[JobId, Job]] = {}  # live jobs of arrays that limit how many run at a time
        self._changed_arrays: dict[str, None] = {}
        self._judged: dict[JobId, Job] = {}  # jobs that wait for the end of others, of which one may have ended
        self._without_target = 0
        self._phases: dict[JobPhase, dict[JobId, Job]] = {phase: {} for phase in JobPhase}
        # A heap of pending jobs, with some that are not pending any more.
        self._submitted: list[tuple[float, JobId]] = []

    # -- notifications of changed jobs

    def changed(self, job: Job) -> None:
        """Note that the record of `job` has changed, or that the job is new."""
        self._changed[job.id] = job

    def forget(self, job: Job) -> None:
        """Remove `job`, which is over and leaves the memory."""
        self._look(job)
        self._changed.pop(job.id, None)
        self._say(job, self._facts.pop(job.id, NOTHING), NOTHING)
        for gpu in job.workers.held:
            self._free(gpu, job.id)
        named = self._named.get(job.spec.name, {})
        named.pop(job.id, None)
        if not named:
            self._named.pop(job.spec.name, None)

    # -- queries

    @property
    def live(self) -> dict[JobId, Job]:
        """Unfinished jobs in the order of submission. Callers must not change or keep the mapping."""
        self._catch_up()
        return self._live

    @property
    def live_numbers(self) -> Sequence[int]:
        """Numbers of the unfinished jobs, ascending. Callers must not change or keep the sequence."""
        self._catch_up()
        return self._numbers

    def live_from(self, first: int, most: int) -> tuple[Job, ...]:
        """Return up to `most` unfinished jobs in the order of submission, from position `first` on."""
        self._catch_up()
        return tuple(self._by_number[number] for number in self._numbers[first : first + most])

    def numbered(self, number: int) -> Job | None:
        """Return the job with this number, unfinished or over."""
        self._catch_up()
        return self._by_number.get(number) or next((job for job in self._over.values() if job.number == number), None)

    @property
    def over(self) -> dict[JobId, Job]:
        """Ended jobs in memory. Callers must not change or keep the mapping."""
        self._catch_up()
        return self._over

    @property
    def phases(self) -> Mapping[JobPhase, Mapping[JobId, Job]]:
        """Jobs in memory by phase. Callers must not change or keep the mapping."""
        self._catch_up()
        return self._phases

    def oldest_pending_s(self) -> float | None:
        """Return the earliest submission time of the pending jobs (Unix time); None if no job is pending."""
        pending = self.phases[JobPhase.PENDING]
        while self._submitted and self._submitted[0][1] not in pending:
            heapq.heappop(self._submitted)
        return self._submitted[0][0] if self._submitted else None

    @property
    def without_target(self) -> int:
        """Number of unfinished jobs that have no target GPUs."""
        self._catch_up()
        return self._without_target

    @property
    def any_off_target(self) -> bool:
        """Return whether any job trains on other GPUs than its target."""
        self._catch_up()
        return bool(self._off_target)

    def of_user(self, user: str) -> int:
        """Return the number of unfinished jobs of this user (`Job.user`)."""
        self._catch_up()
        return self._of_user.get(user, 0)

    def others_than(self, owners: Collection[str]) -> bool:
        """Return whether a principal that is not among `owners` has unfinished jobs."""
        self._catch_up()
        return any(owner not in owners for owner in self._of_owner)

    def of_owner(self, owner: str) -> int:
        """Return the number of unfinished jobs that the principal of this name has submitted."""
        self._catch_up()
        return self._of_owner.get(owner, 0)

    def waiting(self) -> Iterator[Job]:
        """Return the unfinished jobs that may progress when a GPU becomes free."""
        self._catch_up()
        return _in_order(self._waiting)

    def unstarted(self) -> Iterator[Job]:
        """Return the unfinished jobs with a worker that waits for its GPU."""
        self._catch_up()
        return _in_order(self._unstarted)

    def on_server(self, server: ServerId) -> Iterator[Job]:
        """Return the jobs that have, or will have, a worker on `server`, including ended jobs with workers there."""
        self._catch_up()
        return _in_order(self._on_server.get(server, {}))

    def on_gpu(self, gpu: GpuAddress) -> JobId | None:
        """Return the job that has a process on `gpu`, or is about to start one."""
        self._catch_up()
        return next(iter(self._on_gpu.get(gpu, ())), None)

    def awaiting(self, name: JobId) -> tuple[Job, ...]:
        """Return the unfinished jobs that wait for the end of this one, in the order of submission."""
        self._catch_up()
        return tuple(_in_order(self._awaiting.get(name, {})))

    def take_judged(self) -> tuple[Job, ...]:
        """Return the new jobs that wait for others, and those with an awaited job that ended since the last call."""
        self._catch_up()
        judged, self._judged = self._judged, {}
        return tuple(_in_order(judged))

    def take_changed_arrays(self) -> tuple[tuple[Job, ...], ...]:
        """Return the live jobs of each limited array in which a job has changed since the last call.

        A job changes if it gets or loses GPUs, is withheld or released, or ends. Jobs are in the order of submission.
        """
        self._catch_up()
        changed, self._changed_arrays = self._changed_arrays, {}
        return tuple(tuple(_in_order(self._arrays[array])) for array in changed if array in self._arrays)

    def named(self, name: str) -> tuple[Job, ...]:
        """Return all jobs in memory with this name, in the order of submission."""
        self._catch_up()
        return tuple(_in_order(self._named.get(name, {})))

    # -- updates of the index

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
            moved = table.take_moved()
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
        if len(self._submitted) > 2 * len(pending) + FEW:  # most entries are outdated or duplicates
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
        for array in {before.array, now.array} - {""}:
            self._note_array(array, job, before, now)
        if before.waits_for != now.waits_for:
            self._await(job, before.waits_for, now.waits_for)
        if now.over and not before.over:
            self._judged |= self._awaiting.get(name, {})
        self._without_target += now.without_target - before.without_target
        for table, was, is_ in (
            (self._over, before.over, now.over),
            (self._waiting, before.waits, now.waits),
            (self._off_target, before.off_target, now.off_target),
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

    def _note_array(self, array: str, job: Job, before: _Facts, now: _Facts) -> None:
        if (before.array, before.kept_back, before.without_target) != (now.array, now.kept_back, now.without_target):
            self._changed_arrays[array] = None
        if before.array != now.array:
            elements = self._arrays.setdefault(array, {})
            _mark(elements, job, bool(now.array))
            if not elements:
                del self._arrays[array]

    def _await(self, job: Job, before: tuple[JobId, ...], now: tuple[JobId, ...]) -> None:
        for name in before:
            waiting = self._awaiting[name]
            del waiting[job.id]
            if not waiting:
                del self._awaiting[name]
        for name in now:
            self._awaiting.setdefault(name, {})[job.id] = job
        if now:
            self._judged[job.id] = job


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
    element = job.spec.array
    array = element.array if live and element is not None and element.most is not None else ""
    kept_back = bool(array) and (kept.withheld is not None or bool(kept.waits_for))
    if not table and not kept.target and newest is None:
        return _Facts(
            kept,
            table.version,
            phase=kept.phase,
            live=live,
            over=not live,
            without_target=live,
            waits_for=kept.waits_for if live else (),
            array=array,
            kept_back=kept_back,
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
        off_target=live and not wants.trains and not job.gang,
        unstarted=live and bool(table.ordered),
        waits_for=kept.waits_for if live else (),
        array=array,
        kept_back=kept_back,
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
