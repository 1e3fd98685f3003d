"""State of one job in the controller: its durable record (`records`), and state that workers and timers can rebuild.

`JobRecord` and the records of the job's workers (`table`) are all that a controller needs after a crash. `Job` adds
statuses and progress, which workers report again, and timers, which may restart. So the type of a field shows whether
the field is durable.

The life of a job::

    PENDING --target given--> STARTING --first commit--> RUNNING --a worker finished and exited with 0--> FINISHED
       ^                         |  ^                       |
       +----- no GPU left -------+  +--- all workers lost --+        any of them: FAILED, CANCELLED

The *target* is the set of GPUs that the scheduler has assigned; the *orders* are the steps by which the job gets there
(`generations`).

A job is *elastic* once one of its workers has called `elastic.join()`. Before that the job is a *gang*
(`reconcile.gangs`): any command, in as many processes as the job has GPUs or servers. A gang is RUNNING as soon as all
its processes run.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from ...protocol.errors import InvalidTransition
from ...protocol.messages import PromiseState
from ...protocol.model import (
    Fault,
    GpuAddress,
    JobId,
    JobPhase,
    Resize,
    ServerId,
    Straggler,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)
from ...protocol.texts import LONGEST_REASON
from ...protocol.times import (
    CUT_OFF_TIMEOUT_S,
    FIRST_BACK_OFF_S,
    JOIN_NOTICE_S,
    LEAVING_PATIENCE_S,
    LONGEST_BACK_OFF_S,
    RESEND_AFTER_S,
    REST_S,
    STOP_AGAIN_S,
)
from ...scheduler.kinds import Demand
from . import shares
from .account import Account
from .avoided import Avoidance, Avoided, AvoidedPlaces
from .facts import Facts
from .lateness import Lateness, lateness
from .records import SCHEDULED, TRANSITIONS, JobRecord, SlowGpuState, Submission, WorkerRecord, WorkerState
from .reported import STEPS_OF_A_RATE, Reported, counts_for_progress, measured_with
from .table import WorkerTable
from .throughput import Estimated
from .usage import Uses
from .volatile import Meeting, Planned, Profiled, ProfilingRun, Saving, Unproven
from .worker_sets import SharedFacts, Statuses, WorkerSets, is_unstarted

KEPT_PAST_WORKERS = 64
KEPT_RESIZES = 64
MAX_PATH = 4096


def _nothing_due() -> None:
    """Ignore a request for a scheduling decision, of a job that belongs to no cluster."""


def _nobody(job: Job) -> None:
    """Ignore a change of a job that belongs to no cluster."""


def _nothing(job: JobId) -> str:
    return ""


@dataclass
class Job(Facts):
    """A job: its durable record, and the state beside the record."""

    submission: Submission
    record: JobRecord = field(default_factory=JobRecord)
    workers: WorkerTable = field(default_factory=WorkerTable)  # workers with processes that may be alive
    statuses: Statuses = field(default_factory=Statuses)  # newest status of each of `workers`
    reported: Reported = field(default_factory=Reported)
    uses: Uses = field(default_factory=Uses)
    idle_due_s: float | None = None  # when the controller acts on idle GPUs (Unix time, `reconcile.idle`)
    profiling: ProfilingRun | None = None
    profiled: Profiled = field(default_factory=Profiled)
    estimated: Estimated | None = None
    planned: Planned = field(default_factory=Planned)
    sent_address: str = ""  # the leader's address in the newest order as last sent
    # Returns the scheduler's reason, from its last decision, for giving a job no more GPUs.
    why_waiting: Callable[[JobId], str] = _nothing
    restart_at: float | None = None
    start_failures: int = 0  # consecutive failures
    hold_until: float | None = None
    # For a finished job: time at which workers that have not ended by themselves are stopped.
    stop_rest_at: float | None = None
    avoided: AvoidedPlaces = field(default_factory=AvoidedPlaces)  # servers and GPUs; cleared when the job trains again
    # Most GPUs that the job can have outside the servers that refused it; None: no such bound is known.
    room: int | None = None
    unproven: Unproven = field(default_factory=Unproven)
    leaving_since: dict[WorkerId, float] = field(default_factory=dict)
    saving: Saving = field(default_factory=Saving)  # meaningful while the job is preempted
    # Per worker: time of the last repeated stop request (Unix time).
    stop_sent_s: dict[WorkerId, float] = field(default_factory=dict)
    orders_sent_s: float = 0.0  # when the newest order and its starts were last sent (Unix time)
    # Servers of a gang that have lost their leases, and when the processes there are given up (Unix time).
    silent: dict[ServerId, float] = field(default_factory=dict)
    # Since when this controller has watched the job (Unix time); time limits that began earlier run from then.
    watched_s: float = 0.0
    on_change: Callable[[Job], None] = _nobody  # called after each change of the record
    on_reschedule: Callable[[], None] = _nothing_due  # called after each change that can alter a scheduling decision
    beyond_array: bool = False  # the limit of the job's array is used up by earlier jobs (`reconcile.arrays`)
    # Since when members of the newest order and its leader have not reached each other (`generations.cut_off`).
    cut_since: float | None = None
    _counted: tuple[JobRecord, int] | None = None  # the record and the version of the worker table, when last counted
    _meeting: Meeting | None = None
    _borrows: bool = False  # `workers`, `statuses` and `_worker_sets` belong to another `Job` (`what_if`)
    _worker_sets: WorkerSets = field(default_factory=WorkerSets)
    _stood: tuple[JobRecord, float] | None = None  # the record and `watched_s` from which `_worker_sets` was derived

    @property
    def worker_sets(self) -> WorkerSets:
        """Up-to-date sets and counts of the job's workers by condition."""
        stood, news = self._stood, self.workers.news or self.statuses.news
        if stood is not None and stood[0] is self.record and stood[1] == self.watched_s and not news:
            return self._worker_sets
        self._stood = self.record, self.watched_s
        terms = SharedFacts(self.newest, self.committed_order, self.elastic, self.final, self.watched_s)
        if self._borrows and not terms.same(self._worker_sets.terms):
            self._own()
        self._worker_sets.catch_up(self.workers, self.statuses, terms, self._due_s)
        return self._worker_sets

    @property
    def meeting(self) -> Meeting | None:
        """Return the meeting under the newest order; None without an order."""
        newest = self.newest
        if newest is not None and (self._meeting is None or self._meeting.order is not newest):
            self._meeting = Meeting.of(newest)
        return self._meeting if newest is not None else None

    @property
    def waiting_reason(self) -> str:
        """Return why the job has no more GPUs: the scheduler's reason, or the user who withholds the job."""
        return self.why_withheld if self.is_withheld else self.why_waiting(self.id)

    @property
    def gang(self) -> bool:
        """Return whether the job has processes of which the controller knows only that they run.

        The processes live and die together. The job cannot grow, shrink, move or be preempted.
        """
        return self.newest is not None and not (self.elastic or self.final or self.restart_counted) and self._begun

    @property
    def _begun(self) -> bool:
        return self.workers.begun

    @property
    def all_run(self) -> bool:
        """Return whether each process of the job has been reported as running, including those that have ended."""
        return self.workers.all_run

    @property
    def join_notice_s(self) -> float | None:
        """Return when a gang that should call `elastic.join()` is assumed not to (Unix time); None for never."""
        if not self.gang or not self.spec.expected_to_join or self.spec.must_join:
            return None
        began = [entry.started_s for entry in self.workers if entry.started_s is not None]
        return max(max(began), self.watched_s) + JOIN_NOTICE_S if began else None

    @property
    def own_gpus(self) -> tuple[GpuAddress, ...]:
        """Return the target, and the GPUs that the job leaves idle while it is measured with fewer."""
        return (*self.record.target, *self.profiling.reserved) if self.profiling is not None else self.record.target

    @property
    def most_gpus(self) -> int:
        """Return the most GPUs that the job may have now, unless a user sets more by hand."""
        return min(self.spec.gpus.max, self.bound)

    @property
    def bound(self) -> int:
        """Return the most GPUs that the job may have now, also when a user sets its share by hand."""
        if self.keeps_its_size:
            return len(self.record.target)
        if self.record.idle_shrunk:
            return self.spec.gpus.min
        return self.room if self.room is not None else max(self.spec.gpus.max, self.spec.virtual_workers)

    @property
    def keeps_its_size(self) -> bool:
        """Return whether the job may get no more GPUs than it has.

        True while its new workers fail at their start, or compute results that differ from those of the others.
        """
        return bool(self.record.target) and (self.hold_until is not None or bool(self.record.does_not_grow))

    @property
    def running_gpus(self) -> tuple[GpuAddress, ...]:
        """Return the GPUs of started processes that are not being stopped."""
        there = [e for e in self.workers if e.state is not WorkerState.ORDERED and not e.stopping]
        return tuple(gpu for entry in there for gpu in entry.all_gpus)

    @property
    def stragglers(self) -> dict[GpuAddress, Straggler]:
        """Return the slow workers of the committed generation by GPU, the slowest first, as its leader has reported them."""
        order = self.committed_order
        status = self.statuses.get(order.roster.leader) if order is not None else None
        if order is None or status is None or status.generation != order.generation:
            return {}
        places = {member.worker: member.gpu for member in order.roster.members}
        return {places[each.worker]: each for each in status.stragglers if each.worker in places}

    @property
    def share_gpus(self) -> int:
        """Return how many GPUs train, or run a command that has not called `elastic.join()`."""
        if self.final or self.restart_at is not None:
            return 0
        order = self.committed_order
        if order is None and self.record.committed == 0 and self.record.phase is JobPhase.RUNNING:
            order = self.newest
        return sum(len(member.gpus) or 1 for member in order.roster.members) if order is not None else 0

    def avoid(self, now: float, server: ServerId, reason: str, extent: Avoidance, at_least_s: float = 0.0) -> None:
        """Avoid `server`, where the job cannot work, for a while, at least `at_least_s` seconds."""
        self.avoided.add_server(now, server, reason, extent, at_least_s)
        self.on_reschedule()

    def avoid_gpu(self, now: float, gpu: GpuAddress, reason: str) -> None:
        """Avoid a GPU on which this job alone has failed, for a while."""
        self.avoided.add_gpu(now, gpu, reason)
        self.on_reschedule()

    def end_avoidances(self, now: float) -> None:
        """End the avoidances of servers and GPUs that have expired by `now`."""
        if self.avoided.end(now, bool(self.record.target)):
            self.on_reschedule()

    @property
    def refusals(self) -> tuple[Avoided, ...]:
        """Return the servers where the job's workers were refused while the job trains elsewhere."""
        return self.avoided.refusals if self.record.target else ()

    def worker(self, worker: WorkerId) -> WorkerRecord | None:
        return self.workers.get(worker)

    def known_worker(self, worker: WorkerId) -> WorkerRecord | None:
        """Return the record of a living or past worker; None if unknown."""
        return self.worker(worker) or next((entry for entry in self.record.past if entry.worker == worker), None)

    def belong_to(self, on_change: Callable[[Job], None], on_reschedule: Callable[[], None]) -> None:
        """Notify a cluster of each change, until `leave`.

        `on_change` is called after each change of the record, `on_reschedule` after each change that can alter a
        scheduling decision.
        """
        self.on_change, self.on_reschedule = on_change, on_reschedule

    def leave(self) -> None:
        """Stop notifying the cluster of changes, because the job no longer belongs to one."""
        self.on_change, self.on_reschedule = _nobody, _nothing_due

    def update(self, **changes: Any) -> None:
        """Replace fields of the record. A new value of one of SCHEDULED requests a scheduling decision."""
        before, self.record = self.record, msgspec.structs.replace(self.record, **changes)
        self.on_change(self)
        if any(getattr(before, name) != changes[name] for name in SCHEDULED & changes.keys()):
            self.on_reschedule()

    def set_target(
        self, now: float, target: tuple[GpuAddress, ...], why: str, profiling: ProfilingRun | None = None
    ) -> None:
        """Set the target, which is that of a run of measurements, or ends such a run.

        `why`, in words, is the reason shown with the change of share that results.
        """
        self.profiling = profiling
        self.update(target=target, target_reason=why[:LONGEST_REASON], target_since_s=now)

    def set_share_by_hand(self, share: int | None) -> None:
        """Set the share that no policy changes, which ends a run of measurements; None: the policy decides again."""
        self.profiling = None
        self.update(manual_share=share)

    def put_account(self, account: Account) -> None:
        """Replace the account alone, without notifying the cluster.

        No decision depends on the account. The caller is responsible for recording it.
        """
        self.record = msgspec.structs.replace(self.record, gpu_account=account)

    @property
    def is_counted(self) -> bool:
        """Return whether the GPUs of the present record and workers have been counted (`accounting`)."""
        counted = self._counted
        return counted is not None and counted[0] is self.record and counted[1] == self.workers.version

    def note_counted(self) -> None:
        """Note that the GPUs of the present record and workers have been counted."""
        self._counted = self.record, self.workers.version

    # -- scheduling

    def put_estimate(self, estimate: Estimated | None) -> None:
        """Replace the estimate of the throughput; None: the last one does not apply any more."""
        self.estimated = estimate

    def explain_waiting(self, why: Callable[[JobId], str]) -> None:
        """Take over the last decision's reason for giving the job no more GPUs. `why` returns the reason in words."""
        self.why_waiting = why

    def bound_by_refusals(self, most: int | None) -> None:
        """Bound the job to the GPUs outside the servers that refused it; None: a decision will find the bound again."""
        self.room = most

    def limit_by_array(self, beyond: bool) -> bool:
        """Note whether earlier jobs use up the limit of the job's array; return whether that is a change."""
        news, self.beyond_array = beyond is not self.beyond_array, beyond
        return news

    def set_promise(self, state: PromiseState | None, planned: Planned) -> bool:
        """Set the state of the promise for the deadline, with its plan; return whether the state has changed."""
        self.planned = planned
        if state is self.record.promise:
            return False
        self.update(promise=state)
        return True

    # -- workers

    def put_status(self, status: WorkerStatus) -> None:
        """Replace the last status of a worker."""
        self._own()
        self.statuses[status.worker] = status

    def update_worker(self, worker: WorkerId, **changes: Any) -> None:
        """Replace fields of one worker's record."""
        if (entry := self.workers.get(worker)) is not None:
            self.put_worker(msgspec.structs.replace(entry, **changes))

    def begin_training(self, now: float, entry: WorkerRecord, step: int) -> None:
        """Note that a worker has applied its first step."""
        start_s = max(0.0, now - entry.held_s) if entry.held_s is not None else None
        self.update_worker(entry.worker, trained=True, began_at=step, start_s=start_s)
        self.start_failures = 0
        self.avoided.trains_on(entry.gpu.server)

    def count_start_failure(self) -> int:
        """Count a worker that failed at its start while no worker has the state; return how many did so in a row."""
        self.start_failures += 1
        return self.start_failures

    def forget_lost(self) -> None:
        """Forget the progress and the failed starts of lost workers: the job begins again at its last checkpoint."""
        self.reported.forget_progress()
        self.start_failures = 0

    def put_worker(self, entry: WorkerRecord) -> None:
        """Add a worker, or replace the record of a known one."""
        self._own()
        self.workers.put(entry)
        self.on_change(self)

    def restore(self, record: JobRecord, workers: Iterable[WorkerRecord]) -> None:
        """Restore the job to a record from the store."""
        self._own()
        for entry in self.workers:
            self.workers.remove(entry.worker)
        for entry in workers:
            self.workers.put(entry)
        self.record = record
        self.on_change(self)

    def what_if(self) -> Job:
        """Return a copy for a hypothetical decision (`reconcile.what_if`), which belongs to no cluster yet.

        The copy borrows the workers until it changes them, so it is valid only while this job stays unchanged.
        """
        if len(self.workers):
            _ = self.worker_sets  # updated here once, so that not every copy has to
        found = copy.copy(self)
        found.on_change, found.on_reschedule, found._borrows = _nobody, _nothing_due, True
        return found

    def _own(self) -> None:
        """Replace borrowed workers by a copy of them, before a change."""
        if self._borrows:
            self.workers, self.statuses, self._worker_sets = self.workers.copy(), Statuses(self.statuses), WorkerSets()
            self._stood, self._borrows = None, False

    def enter(self, phase: JobPhase, now: float, reason: str = "", exit_code: int | None = None) -> None:
        """Go to `phase`. Raises InvalidTransition if the present phase does not lead there."""
        before = self.record.phase
        if phase is before:
            return
        if phase not in TRANSITIONS[before]:
            raise InvalidTransition(f"job {self.id}: {before.value} does not lead to {phase.value}")
        self.update(phase=phase, reason=reason, phase_since_s=now)
        if phase is JobPhase.RUNNING and self.record.started_s is None:
            self.update(started_s=now)
        if phase in (JobPhase.PENDING, JobPhase.STARTING):
            self.change_share(now, 0)
        if phase.final:
            self.change_share(now, 0)
            self._note_short_life()
            self.update(finished_s=now, exit_code=exit_code, target=(), progress=self.progress())
            self.restart_at = self.profiling = self.cut_since = self.idle_due_s = None
            self.why_waiting = _nothing
            self.release()
            self.on_reschedule()

    def _note_short_life(self) -> None:
        """Record the start of a job that ended before it was known to run, such as a very short command.

        The job began when it was given GPUs.
        """
        kept = self.record
        held = [
            (entry.held_s, entry)
            for entry in (*kept.past, *self.workers)
            if entry.held_s is not None and entry.attempt == kept.restarts + 1 and entry.fault is not Fault.SERVER
        ]
        if kept.started_s is None and held:
            gpus = {gpu for _, entry in held for gpu in entry.all_gpus}
            self.update(started_s=min(held_s for held_s, _ in held), peak_gpus=max(kept.peak_gpus, len(gpus)))

    def end_worker(
        self, worker: WorkerId, now: float, exit_code: int | None, reason: str, fault: Fault, log: str = ""
    ) -> WorkerRecord | None:
        """Move a worker to the past workers; return its record before the end, or None if it was moved already."""
        self._own()
        entry = self.worker(worker)
        if entry is None:
            return None
        status = self.statuses.pop(worker, None)
        self.leaving_since.pop(worker, None)
        self.stop_sent_s.pop(worker, None)
        ended = msgspec.structs.replace(
            entry,
            state=WorkerState.ENDED,
            exit_code=exit_code,
            reason=reason,
            fault=fault,
            ended_s=now,
            pid=status.pid if status else entry.pid,
            log=log if exit_code else "",
            end=self.record.past[-1].end + 1 if self.record.past else 1,
        )
        self.workers.remove(worker)
        use = self.record.use.plus(self.uses.end(worker))
        self.update(past=(*self.record.past, ended)[-KEPT_PAST_WORKERS:], use=use)
        return entry

    def drop_unstarted(self, worker: WorkerId) -> None:
        """Forget a worker for which no process was ever requested."""
        self._own()
        self.workers.remove(worker)
        self.on_change(self)

    def change_share(self, now: float, share: int) -> None:
        """Record that `share` GPUs train from now on."""
        if fields := shares.changed(self.record, now, share):
            self.update(**fields)

    def attained_gpu_s(self, now: float) -> float:
        """Return the GPU-seconds of training so far."""
        return shares.attained_gpu_s(self.record, now)

    def executed_s(self, now: float) -> float:
        """Return the seconds of training so far, on any number of GPUs."""
        return shares.executed_s(self.record, now)

    # -- time limits and timers

    def let_leave(self, now: float, workers: Collection[WorkerId]) -> None:
        """Set the workers that are expected to exit by themselves, as no roster names them.

        A worker's time to do so counts from the first call that names it.
        """
        self.leaving_since = {worker: self.leaving_since.get(worker, now) for worker in workers}

    def end_leave(self, worker: WorkerId) -> None:
        """Expect no exit of `worker` by itself any more, as it is stopped."""
        self.leaving_since.pop(worker, None)

    def await_server(self, server: ServerId, until_s: float) -> None:
        """Wait for a server with processes of this gang that has lost its lease, until `until_s` (Unix time) at most."""
        self.silent = self.silent | {server: self.silent.get(server, until_s)}

    def end_wait_for_server(self, server: ServerId) -> None:
        """End the wait: the server has a lease again, or is given up."""
        self.silent = {other: due_s for other, due_s in self.silent.items() if other != server}

    def set_idle_timer(self, due_s: float | None) -> bool:
        """Set when to act on idle GPUs (Unix time; None: never); return whether the time has changed."""
        news, self.idle_due_s = due_s != self.idle_due_s, due_s
        return news

    def begin_saving(self, saver: WorkerId | None) -> None:
        """Begin to save the state of the preempted job, by the worker `saver`; its turn has no limit yet."""
        self.saving = Saving(saver)

    def latenesses(self) -> tuple[Lateness, ...]:
        """Return the workers that have not reached their training loop yet, with their time limits."""
        late = (self._lateness(entry, self.statuses.get(entry.worker)) for entry in self.workers)
        return tuple(each for each in late if each is not None)

    def _lateness(self, entry: WorkerRecord, status: WorkerStatus | None) -> Lateness | None:
        if self.final:
            return None
        return lateness(self.spec, entry, status, self.elastic or self.spec.must_join, self.watched_s)

    def overdue(self) -> dict[WorkerId, float]:
        """Return when the stop requests for workers that do not end are sent again (Unix time).

        An earlier request may have been lost on the way to the agent.
        """
        dues = ((entry.worker, self._stop_again_s(entry)) for entry in self.workers)
        return {worker: due_s for worker, due_s in dues if due_s is not None}

    def _stop_again_s(self, entry: WorkerRecord) -> float | None:
        if not entry.stopping or entry.stop_by_s is None:
            return None
        return max(entry.stop_by_s, self.watched_s, self.stop_sent_s.get(entry.worker, 0.0)) + STOP_AGAIN_S

    def _due_s(self, entry: WorkerRecord, status: WorkerStatus | None) -> float | None:
        """Return when the controller acts on a worker that does not reach its loop or does not end (Unix time)."""
        late = self._lateness(entry, status)
        return late.until_s if late is not None else self._stop_again_s(entry)

    def stop_sent(self, worker: WorkerId, now: float) -> None:
        """Note that the agent of a worker that has not ended is asked again to stop it."""
        self.stop_sent_s[worker] = now
        self.workers.examine_again(worker)

    def unstarted(self) -> list[WorkerRecord]:
        """Return the workers that agents were asked to start, without a confirmation so far."""
        return [entry for entry in self.workers if is_unstarted(entry) and entry.worker not in self.statuses]

    def follow_newest(self, workers: Iterable[WorkerRecord]) -> bool:
        """Return whether all of these workers have reported that they train by the newest order."""
        newest = self.newest
        return newest is not None and all(
            (status := self.statuses.get(entry.worker)) is not None
            and status.phase is WorkerPhase.TRAINING
            and status.generation == newest.generation
            for entry in workers
        )

    def uninformed(self) -> list[WorkerRecord]:
        """Return the workers that report, but may not know the newest order or the address of its leader."""
        newest = self.newest
        if newest is None or newest.generation <= self.record.committed:
            return []
        leader = newest.roster.leader
        leads = self.statuses.get(leader)
        unheard = leads.unheard if leads is not None and leads.order == newest.generation else ()
        if not (unheard or self.worker_sets.behind):
            return []
        return [
            entry
            for entry in self.workers
            if not entry.stopping
            and (status := self.statuses.get(entry.worker)) is not None
            and status.phase not in (WorkerPhase.LEFT, WorkerPhase.FINISHED)
            and (status.order < newest.generation or (entry.worker in unheard and leader in status.unheard))
        ]

    def address_sent(self, address: str) -> None:
        """Note the leader's address with which the newest order is sent."""
        self.sent_address = address

    def orders_sent(self, now: float) -> None:
        """Note that the newest order, or starts, are sent."""
        self.orders_sent_s = now

    def resend_at_s(self) -> float | None:
        """Return when the newest order and the starts are sent again (Unix time); None if all have arrived."""
        waits = not self.final and (self.worker_sets.unstarted or self.uninformed())
        return max(self.orders_sent_s, self.watched_s) + RESEND_AFTER_S if waits else None

    def note_cut(self, now: float, cut: bool) -> None:
        """Note whether members of the newest order cannot reach each other."""
        self.cut_since = None if not cut else self.cut_since if self.cut_since is not None else now

    def allow_more(self, worker: WorkerId, by_s: float) -> None:
        """Extend the time limits of a starting worker by `by_s` seconds."""
        entry = self.worker(worker)
        if entry is not None:
            later = {"started_s": _later(entry.started_s, by_s), "joined_s": _later(entry.joined_s, by_s)}
            self.update_worker(worker, **later)

    def timers(self) -> dict[str, float]:
        """Return the timers of this job: a description of each event, and when it is due (Unix time)."""
        found = {f"{worker} leaves": since + LEAVING_PATIENCE_S for worker, since in self.leaving_since.items()}
        if (late_s := self.worker_sets.due.soonest()) < math.inf:
            found["a worker is late, or is told to stop again"] = late_s
        found |= self.avoided.timers(bool(self.record.target))
        if (again_s := self.resend_at_s()) is not None:
            found["agents are told again"] = again_s
        if self.restart_at is not None:
            found["restart"] = self.restart_at
        if self.saving.until_s is not None and self.newest is None and self.workers and not self.final:
            found["saving"] = self.saving.until_s
        if self.cut_since is not None:
            found["cut off"] = self.cut_since + CUT_OFF_TIMEOUT_S
        if self.idle_due_s is not None and not self.final:
            found["its GPUs are idle"] = self.idle_due_s
        if self.hold_until is not None:
            found["hold"] = self.hold_until
        slow = [entry.until_s for entry in self.record.slow if entry.state is not SlowGpuState.TRIED]
        if slow and not self.final:
            found["a slow GPU is tried again"] = min(slow)
        if self.stop_rest_at is not None and self._has_rest:
            found["rest"] = self.stop_rest_at
        if self.record.phase is JobPhase.STARTING and self.all_run and (notice_s := self.join_notice_s) is not None:
            found["runs without elastic.join()"] = notice_s
        found |= {f"{server} is given up": due_s for server, due_s in self.silent.items()}
        if self.profiling is not None and not self.profiling.overdue:
            found["profiling"] = self.profiling.until_s
        return found

    def hold(self, now: float, seconds: float) -> None:
        """Keep the job from growing for `seconds`, also to be measured."""
        self.hold_until, self.profiling = now + seconds, None
        self.update(hold_s=seconds, held=True)
        self.on_reschedule()

    def end_hold(self, now: float) -> None:
        """Let the job grow again once the time of `hold` has passed."""
        if self.hold_until is not None and now >= self.hold_until:
            self.release()
            self.on_reschedule()

    def release(self) -> None:
        """Let the job grow again. No decision is requested: one may have just preempted the job (`saving.suspend`)."""
        self.hold_until = None
        if self.record.held:
            self.update(held=False)

    @property
    def restart_counted(self) -> bool:
        """Return whether the job has lost all its workers and waits to restart from its last checkpoint."""
        return self.newest is not None and self.record.cycle > self.record.generation and not self.final

    def wait_for_restart(self, now: float) -> float:
        """Schedule a restart, later after each start without progress, and return its time (Unix time)."""
        vain = min(max(0, self.record.restarts_in_vain - 1), 10)
        self.restart_at = now + min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0**vain)
        return self.restart_at

    def let_rest_end(self, now: float) -> None:
        """Give the workers of a finished job time to end by themselves."""
        if self.workers:
            self.stop_rest_at = now + REST_S

    def rest_is_late(self, now: float) -> bool:
        """Return, once, whether workers of a finished job have not ended in time."""
        late = self.stop_rest_at is not None and now >= self.stop_rest_at
        if late:
            self.stop_rest_at = None
        return late

    def end_wait_for_restart(self) -> None:
        """End the wait: the job restarts now, or waits for GPUs."""
        self.restart_at = None

    @property
    def _has_rest(self) -> bool:
        """Return whether there are workers that have not been asked to stop."""
        return len(self.workers.stopping) < len(self.workers)

    def begin_timers(self, now: float) -> None:
        """Start the timers after a recovery: activities in the record get their full time from `now` on."""
        self.watched_s = now
        if self.restart_counted:
            self.wait_for_restart(now)
        if self.record.held:
            self.hold_until = now + self.record.hold_s
        if self.record.phase is JobPhase.FINISHED and self._has_rest:
            self.let_rest_end(now)

    def leave_out(self, before: float, now: float) -> None:
        """Move all timers by the time from `before` to `now`, during which no controller watched the job."""
        gap_s = now - before
        self.watched_s += gap_s
        if self.share_gpus:
            self.update(**shares.counted(self.record, before, now))
        self.restart_at = _later(self.restart_at, gap_s)
        self.hold_until = _later(self.hold_until, gap_s)
        self.cut_since = _later(self.cut_since, gap_s)
        self.idle_due_s = _later(self.idle_due_s, gap_s)
        self._leave_out_saving(now, gap_s)
        self.stop_rest_at = _later(self.stop_rest_at, gap_s)
        self.silent = {server: due_s + gap_s for server, due_s in self.silent.items()}
        self.avoided.leave_out(gap_s)
        for late in self.latenesses():
            self.allow_more(late.worker, gap_s)
        self.orders_sent_s += gap_s
        self.stop_sent_s = {worker: sent_s + gap_s for worker, sent_s in self.stop_sent_s.items()}
        self.leaving_since = {worker: since + gap_s for worker, since in self.leaving_since.items()}
        if self.profiling is not None:
            self.profiling.leave_out(gap_s)

    def _leave_out_saving(self, now: float, gap_s: float) -> None:
        """Move the end of the saver's turn. If the clock was set back, the agents' limits in the record move as well."""
        if gap_s < 0:
            for entry in self.workers:
                if entry.stop_by_s is not None:
                    self.update_worker(entry.worker, stop_by_s=entry.stop_by_s + gap_s)
        saver = self.worker(self.saving.saver) if self.saving.saver is not None else None
        self.saving.leave_out(now, gap_s, saver.stop_by_s if saver is not None else None)

    def note_saved(self, status: WorkerStatus) -> bool:
        """Remember the newest checkpoint; return whether it is a new one.

        No worker may begin with an older checkpoint. A server that is cut off may go on writing, but in a generation that
        the job has left.
        """
        if status.saved is None:
            return False
        known = self.record.saved_generation, self.record.saved_step if self.record.saved_step is not None else -2
        if (status.saved_generation, status.saved) <= known:
            return False
        self.update(
            saved_step=status.saved, saved_generation=status.saved_generation, saved_file=status.saved_file[:MAX_PATH]
        )
        return True

    def note_progress(self, status: WorkerStatus) -> int:
        """Take over progress from the worker that is furthest ahead, and return the number of new steps."""
        if status.applied is None or not counts_for_progress(status):
            return 0
        new = self.reported.take_progress(status)
        if status.applied >= 0 and not self.record.progressed:
            self.update(progressed=True)
        return new

    def note_reports(self, status: WorkerStatus) -> None:
        """Take over reports of the metric that ends the training, which may change the expected length."""
        if (until := self.spec.until) is not None:
            expected = self.reported.take_reports(until, status, self.record.expected_steps)
            if expected != self.record.expected_steps:
                self.update(expected_steps=expected)

    def note_rate(self, now: float, status: WorkerStatus, steps: int) -> bool:
        """Take over the throughput with the present share; return whether it differs from the known one.

        Rates that cover fewer than `steps` steps are ignored.
        """
        steady, order, reported = status.steady, self.committed_order, self.reported
        if order is None or status.phase is not WorkerPhase.TRAINING or status.applied is None:
            return False
        if steady.generation != self.record.committed or steady.steps < steps or steady.step_s <= 0:
            return False
        if status.applied < reported.rate_counts_from or not self.share_gpus:
            return False
        first = reported.rate_is_new(status.applied, self._own_delay)
        where = (self.share_gpus, len({member.gpu.server for member in order.roster.members}))
        if reported.take_recovered() and any((entry.share, entry.servers) == where for entry in self.record.measured):
            return False
        gpu = "" if Demand.of(self.spec, agnostic=self.record.hardware_agnostic).mixes else self.record.gpu_name
        found = measured_with(self.record.measured, where, 1.0 / steady.step_s, gpu, now, first)
        if found is None:
            return False
        measured, news = found
        self.update(measured=measured)
        return news

    @cached_property
    def _own_delay(self) -> int:
        """Steps that the job waits longer for its second measurement.

        The number differs between jobs, so that jobs which began together are not all measured together.
        """
        return zlib.crc32(self.id.encode()) % STEPS_OF_A_RATE

    def note_resizes(self, status: WorkerStatus) -> tuple[Resize, ...]:
        """Take over the measured resizes that are not known yet, and return them."""
        known = {resize.generation for resize in self.record.resizes}
        fresh = tuple(resize for resize in status.resizes if resize.generation not in known)
        if fresh:
            merged = sorted((*self.record.resizes, *fresh), key=lambda resize: resize.generation)
            self.update(resizes=tuple(merged)[-KEPT_RESIZES:])
        return fresh


def _later(time_s: float | None, by_s: float) -> float | None:
    return None if time_s is None else time_s + by_s
