"""The controller's state machine: events in, actions out (cluster 1). Pure: no clock, no socket, no file.

Theory of operation
-------------------
An event first changes the state (`inbound`, `requests`), and marks the jobs that it concerns as dirty. As long as any job is
dirty, `next_deadline` returns the present time. So the turn sends `ControllerTick` once, after all its other events: each turn
makes one scheduling decision and reconciles each dirty job once, however many events there were (`reconcile`). The actions of
each event begin with a `Record` of all its changes: record, then act.

The state of a job is in `jobs`; `jobs.generations` decides which roster a job needs next.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from ..protocol.messages import EventKind, LogPiece, Refused
from ..scheduler.scheduler import Scheduler
from .cluster import Cluster
from .events import (
    Action,
    AgentMessage,
    ClientRequest,
    ClockSet,
    ControllerTick,
    Event,
    Fetched,
    NoticeDone,
    Reconfigured,
    RecordsRefused,
    StoreReturned,
)
from .inbound import snapshots
from .inbound.downtime import Absences
from .inbound.messages import on_agent_message, server_lost
from .inbound.worker_ends import resend_orders, stop_again, stop_cut_off, stop_late
from .jobs.job import Job
from .reconcile import health, slow_findings
from .reconcile.gangs import note_running, watch_silent
from .reconcile.idle import reclaim_idle, rules_changed
from .reconcile.processes import stop_worker
from .reconcile.settle import settle
from .reconcile.snapshot import falls_behind, keep_up
from .reconcile.time_limits import keep_time
from .recovery import recover
from .requests.acts import answer_newcomers, answer_undecided
from .requests.answers import on_request
from .requests.lending import end_loans, loans_end
from .requests.policy import reconfigured
from .requests.reserving import begins_s, keep_reservations
from .sessions import Session
from .settings import Settings

QUIET_S = 0.005  # after so long without an event, a controller that waits for its servers prepares its first decision


class ControllerMachine:
    """State machine of a controller during one reign."""

    def __init__(
        self,
        settings: Settings,
        configured: Scheduler,
        rng: random.Random,
        now: float,
        records: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Recover from `records`, all keys and values of the store. Raises OperatorError if a record cannot be read.

        The scheduler `configured` decides, unless a policy has been set at run time.
        """
        self._now = now
        self._absences = Absences(settings.server_lease_s)
        self._cluster = Cluster(settings, configured, rng, now)
        recover(self._cluster, now, records)

    @property
    def cluster(self) -> Cluster:
        """The state of the cluster; callers read it, and must not change it."""
        return self._cluster

    @property
    def term(self) -> int:
        """The term of this reign; all messages to agents are stamped with it (`protocol.terms`)."""
        return self._cluster.leader.term

    def handle(self, now: float, event: Event) -> list[Action]:
        """Handle one event at the time `now` (Unix time, s).

        Returns the actions, which the caller carries out in this order, with all records of a turn before the other actions.
        """
        self._absences.leave_out(self._cluster, self._now, now)
        self._now = now
        match event:
            case AgentMessage(server, message, agent):
                on_agent_message(self._cluster, now, server, message, agent)
            case ClientRequest():
                on_request(self._cluster, now, event)
            case Fetched(AgentMessage() as asked, records):
                snapshots.on_fetched(self._cluster, asked, records)
            case Fetched(ClientRequest() as asked, records):
                on_request(self._cluster, now, asked, records)
            case ControllerTick():
                self._pass_time(now)
            case ClockSet(by_s):
                self._cluster.jobs.clock_was_set(now, by_s)
            case StoreReturned(since_s, reason):
                text = f"nothing could be recorded for {max(0.0, now - since_s):.0f} s: {reason}"
                self._cluster.history.add(now, EventKind.STORE_BACK, None, text)
            case RecordsRefused(text, jobs):
                self._cluster.refuse_records(jobs)
                if text:
                    self._cluster.history.add(now, EventKind.RECORDS_REFUSED, None, text)
            case NoticeDone(number):
                self._cluster.notices.done(number)
            case Reconfigured(settings, configured):
                changed = settings.idle != self._cluster.settings.idle
                self._cluster.reconfigure(settings)
                if changed:
                    rules_changed(self._cluster)
                reconfigured(self._cluster, now, configured)
        if not self._cluster.servers.awaited or isinstance(
            event, ControllerTick
        ):  # the hellos of awaited servers come first
            keep_up(self._cluster, now)
        return self._cluster.take_effects(now)

    def look(self, event: Event) -> list[Action]:
        """Answer a read-only request, or pass on a piece of a log, as of the last event's time.

        For a machine that is about to be replaced, because the store cannot be written (`read_only`): no time passes
        for it.
        """
        match event:
            case AgentMessage(server, LogPiece() as message, agent):
                on_agent_message(self._cluster, self._now, server, message, agent)
            case ClientRequest():
                on_request(self._cluster, self._now, event)
            case Fetched(ClientRequest() as asked, records):
                on_request(self._cluster, self._now, asked, records)
        return self._cluster.take_effects(self._now)

    def next_deadline(self) -> float | None:
        """Return when the machine needs `ControllerTick` (Unix time, s); None: no deadline."""
        cluster = self._cluster
        decide = cluster.planning.due and cluster.may_decide(self._now)
        if not cluster.servers.awaited and (
            cluster.jobs.dirty or cluster.jobs.gpu_freed or cluster.clients.newcomers or decide
        ):
            return self._now
        soonest = min(self._deadlines())
        if cluster.servers.awaited and falls_behind(cluster):
            soonest = min(soonest, self._now + QUIET_S)
        return min(soonest, self._now + self._absences.watch_s) if soonest < math.inf else None

    def decides_among_many(self, now: float) -> bool:
        """Return whether replies should be sent before the next `ControllerTick`, which decides about many jobs."""
        cluster = self._cluster
        return cluster.jobs.many and cluster.planning.due and not cluster.servers.awaited and cluster.may_decide(now)

    def _deadlines(self) -> list[float]:
        cluster, awaited = self._cluster, self._cluster.servers.awaited
        due = [cluster.planning.review_s, *health.deadlines(cluster), *loans_end(cluster)]
        if (
            silent := next(iter(cluster.servers.leases), None)
        ) is not None:  # leases are sorted: the first server has been silent for longest
            due.append(cluster.servers.sessions[silent].last_heard_s + cluster.settings.server_lease_s)
        if (pending := next(iter(cluster.clients.pending_logs.values()), None)) is not None:  # sorted by deadline
            due.append(pending.deadline_s)
        if not awaited:  # jobs' timers count only when each server has sent its hello, or is given up
            due += [cluster.jobs.timers.soonest(), begins_s(cluster)]
            if cluster.planning.due:
                due.append(cluster.planning.due_s(cluster.jobs.decision_pause_s))
        return due

    def _pass_time(self, now: float) -> None:
        cluster = self._cluster
        awaited = bool(cluster.servers.awaited)
        for session in self._silent(now):
            server_lost(cluster, now, session)
        if awaited and not cluster.servers.awaited:
            cluster.jobs.mark_all_dirty()
        for pending in cluster.clients.take_late(now):
            reason = f"server {pending.server} has not sent {pending.due} in time"
            cluster.clients.answer(pending.asked, Refused(reason=reason))
        health.pass_time(cluster, now)
        end_loans(cluster, now)
        keep_reservations(cluster, now)
        for due_job in cluster.jobs.timers.due(now) if not cluster.servers.awaited else ():
            self._pass_time_of(now, cluster.jobs[due_job])
        cluster.planning.pass_time(now)
        answer_newcomers(cluster, now)
        settle(cluster, now)
        answer_undecided(cluster)

    def _silent(self, now: float) -> list[Session]:
        """Return the sessions with expired leases, sorted by server name."""
        found = []
        for name in self._cluster.servers.leases:
            session = self._cluster.servers.sessions[name]
            if now < session.last_heard_s + self._cluster.settings.server_lease_s:
                break
            found.append(session)
        return sorted(found, key=lambda session: session.server.server)

    def _pass_time_of(self, now: float, job: Job) -> None:
        self._cluster.jobs.mark_dirty(job)
        job.end_hold(now)
        if job.profiling is not None and job.profiling.is_late(now):
            self._cluster.planning.request()
        stop_late(self._cluster, now, job)
        stop_cut_off(self._cluster, now, job)
        note_running(self._cluster, now, job)
        if job.silent:
            watch_silent(self._cluster, now, job)
        stop_again(self._cluster, now, job)
        resend_orders(self._cluster, now, job)
        job.end_avoidances(now)
        slow_findings.pass_time(self._cluster, now, job)
        keep_time(self._cluster, now, job)
        reclaim_idle(self._cluster, now, job)
        if job.rest_is_late(now):
            for entry in job.workers:
                stop_worker(self._cluster, now, job, entry.worker)
