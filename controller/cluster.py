"""All that the controller knows, and the one place where its effects gather.

The rooms of the machine (`intake`, `reconcile`, `requests`) change this state and leave their effects here; the machine takes
them out at the end of each event, records first. What is recorded of a job is found by comparing its record with the one last
written, so that no caller can forget to record a change.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..protocol.errors import OperatorError
from ..protocol.limits import MAX_PRIORITY, PRIORITIES
from ..protocol.messages import (
    Acknowledged,
    Answer,
    EventKind,
    EventView,
    HelloRefused,
    Reply,
    ShareForecast,
    Submitted,
    ToAgentFromController,
)
from ..protocol.model import CordonKind, GpuAddress, JobId, JobSpec, ServerId, WorkerId, job_number
from ..protocol.principals import Principal
from ..protocol.sparing import Sparing
from ..protocol.times import (
    DEATHS_IN_VAIN,
    DECISION_INTERVAL_PER_JOB_S,
    JOBS_DECIDED_AT_ONCE,
    SERVER_LEASE_S,
)
from ..scheduler.ended import NOTHING_ENDED
from ..scheduler.kinds import Demand, Stock, most_gpus
from ..scheduler.measuring import OFF, Measuring
from ..scheduler.policies import Policy
from ..scheduler.scheduler import Scheduler
from ..scheduler.view import NO_SCHEDULES, Ints, Schedules
from . import accounting
from .bars import NOTHING_OVERRULED, Bar, bars, nothing_sentence, trusted_codes
from .deadlines import Deadlines
from .effects import Effects
from .events import Action, AgentMessage, Audit, ClientRequest, Fetch, ReplyClient, SendAgent, StandDown, Warn
from .jobs import lengths, stored
from .jobs.archive import Archive, first_key_of, job_of
from .jobs.index import Index
from .jobs.job import Job
from .jobs.records import ArchivedJob, Submission
from .jobs.throughput import Estimated, History, Profiles, estimated
from .reconcile.rows import Rows
from .records import (
    ADOPTED,
    CLUSTER_KEY,
    LEADER_KEY,
    OVERRULED,
    POLICY_KEY,
    REMOVED,
    AdoptionRecord,
    ClusterRecord,
    LeaderRecord,
    OverruleRecord,
    PolicyRecord,
    RemovalRecord,
    RequestRecord,
    ServerRecord,
    event_key,
    request_key,
    server_key,
    state_key,
    submission_key,
)
from .remembered import RememberedAnswers
from .sessions import Forgeries, Guest, Health, Session
from .snapshots import Snapshots, id_of
from .tallies import Tallies
from .usage import Usage, first_kept

if TYPE_CHECKING:
    from .reconcile.snapshot import Snapshot

MORE_THAN_ANY_SESSION = 1 << 62  # messages to an agent
KEPT_EVENTS = 10_000
KEPT_REMOVALS = 1000  # of servers whose agents ran when they were removed
KEPT_DEMANDS = 1000  # of which it is known how many GPUs could be had
ARCHIVED_AT_ONCE = 64  # jobs in one event: as many leave the memory, and as many the archive
LOOK_AT_AGES_S = 600.0  # between two looks for jobs that are too old to be kept
TRUSTED_AFTER_S = 3600.0  # a clock that was set, or that a controller begins with: nothing is too old by it before
KEPT_PRINCIPALS = 1000  # of those who have tried what they may not
_NO_BARS: dict[int, Bar] = {}
ATTEMPTS_AT_ONCE, ATTEMPT_INTERVAL_S = 20, 10.0  # of one principal: so many are told at once, then one in so long


@dataclass(frozen=True)
class Keeping:
    """How many jobs that are over are kept, and how long."""

    recent: int = 1000  # in memory; those before them are in the archive
    ended: int = 100_000  # in the archive
    days: float = 365.0  # likewise, since they ended
    usage_days: float = 1830.0  # of what users have had: months that are over for longer are not kept


@dataclass(frozen=True)
class Settings:
    """What does not change while the controller runs."""

    cluster: str
    incarnation: str  # new for each start
    version: str
    pid: int
    term: int = (
        0  # of its reign, won in an election and recorded there; 0: the number of its start, as its own store counts
    )
    server_lease_s: float = SERVER_LEASE_S
    max_restarts: int = DEATHS_IN_VAIN
    measuring: Measuring = OFF
    profiles: Profiles = field(default_factory=dict)
    keeping: Keeping = Keeping()
    open_jobs_per_user: int = 10_000
    user_priority: int = PRIORITIES["high"]  # the greatest that a user may give a job
    operator_priority: int = MAX_PRIORITY  # that an operator may
    reserve_after_s: float = 600.0  # for so long a job waits without a reservation
    whole_workers: int = stored.WHOLE  # of a job with more of them each worker has a record of its own


@dataclass
class PendingLog:
    """A client waits for a piece of a log."""

    asked: ClientRequest
    server: ServerId
    deadline_s: float


@dataclass(frozen=True)
class Undecided:
    """A client has set a share, and waits for the decision that names its generation."""

    asked: ClientRequest
    job: Job
    after: int  # how many decisions had been made


@dataclass(frozen=True)
class Decider:
    """What decides now, and since when. `record`: set at run time; None: the configuration's."""

    scheduler: Scheduler
    since_s: float
    record: PolicyRecord | None = None


@dataclass
class Attempts:
    """What a principal has tried that it may not."""

    told: Sparing = field(default_factory=lambda: Sparing(ATTEMPTS_AT_ONCE, ATTEMPT_INTERVAL_S))
    last: str = ""  # id of the last request


class Cluster:
    """Jobs in the order of submission, servers by name, and the effects of the event at hand."""

    def __init__(self, settings: Settings, configured: Scheduler, rng: random.Random, now: float) -> None:
        self.settings = settings
        self.id = ""  # recovered, or made anew: see `recovery`
        self.leader = LeaderRecord(term=0)  # this controller, with the term of its reign: begun in `recovery`
        self.configured = configured  # by the configuration
        self.decider = Decider(configured, now)
        self.rng = rng
        self._uid_key = rng.randbytes(32)
        self.started_s = now
        self.jobs: dict[JobId, Job] = {}  # that are not over, and those that are over since lately
        self.index = Index()
        self.rows = Rows(self.gpu_name)
        self.decided_s = -math.inf  # when the scheduler was last asked
        self.decisions = 0  # how often it has been
        self.last_seen: Snapshot | None = None  # what the last decision was about
        # Of the last decisions, where shares are set by hand: which this was, and who loses GPUs by it.
        self.pushes: deque[tuple[int, Callable[[], Iterator[ShareForecast]]]] = deque(maxlen=2)
        self.archive = Archive()
        self.snapshots = Snapshots()
        self.usage = Usage()
        self.tallies = Tallies()
        self.sessions: dict[ServerId, Session] = {}
        self.known_gpus = 0  # of all servers known, absent ones included
        self._most_gpus: dict[Demand, int] = {}  # as long as the servers that are known stay the same
        self.guests: dict[ServerId, Guest] = {}
        self.adopted: dict[ServerId, str] = {}  # to be taken over: the identity of the agent
        self.removed: dict[ServerId, RemovalRecord] = {}  # by operators, while their agents ran; the oldest first
        self.refused: OrderedDict[tuple[ServerId, str], None] = OrderedDict()  # agents that the operator was told of
        self.store_is_old = False  # the operator was told so
        # What each server kept when it first said hello to this controller: that alone may be ahead of the store (`forgery`).
        self.met: dict[ServerId, dict[WorkerId, str]] = {}  # with the uids of their jobs
        self.forged: dict[ServerId, Forgeries] = {}
        self.attempts: OrderedDict[str, Attempts] = OrderedDict()  # of principals, at what they may not
        self.health: dict[ServerId, Health] = {}  # of servers where a start has failed
        self.gpu_health: dict[GpuAddress, Health] = {}  # of GPUs where scripts fail at their start
        self.overruled: dict[ServerId, OverruleRecord] = {}  # by operators
        self.barred: dict[
            ServerId, dict[int, Bar]
        ] = {}  # GPUs that take no new work, of servers that have such (`bars`)
        self.cramped: tuple[Job, ...] = ()  # jobs whose `room` the last decision has found
        self.cornered: dict[JobId, str] = {}  # jobs that the last decision has left where they are to leave, and why
        self.offers_nothing: dict[ServerId, str] = {}  # servers without a GPU, whose agents say why
        self.told_troubles: dict[ServerId, Sparing] = {}
        self.awaited: set[ServerId] = set()  # known from the store, not heard of since the start
        # Servers that have a lease, or that are awaited; the one that has been silent for longest is first.
        self.leases: OrderedDict[ServerId, None] = OrderedDict()
        self.events: deque[EventView] = deque(maxlen=KEPT_EVENTS)
        # By name (`ClientRequest.name`): answers to requests that changed something, and who waits for one.
        self.answers = RememberedAnswers()
        self.pending_logs: dict[str, PendingLog] = {}
        self.newcomers: dict[str, tuple[ClientRequest, JobSpec]] = {}  # with deadlines: decided about together
        self.undecided: dict[str, Undecided] = {}  # empty unless there are very many jobs
        self.history = History()
        self.ended = NOTHING_ENDED  # what jobs that are over tell of lengths
        self.first_job = 1  # see ClusterRecord
        self.next_job = 1
        self.next_event = 1
        self.schedule_due = False
        self.quiet_until_s = -math.inf  # nobody gets GPUs before then, since the cluster is being stopped (Unix time)
        self.gpu_freed = False  # jobs may wait for it
        self.plan_unfinished = False  # part of the last plan waits for the rest to be carried out
        self.reserved: JobId | None = None  # for whom GPUs are held
        self.reservations_s = -math.inf  # when those by time were last looked at
        self.policy_trouble = ""  # what the policy raised when it was asked last
        self.policy_failures: set[str] = set()  # that have been told; one for each line that raises
        self.schedules: Schedules = NO_SCHEDULES  # the plan with which all promises held at the last decision
        self.review_s = math.inf  # the policy wants to be asked again then (Unix time)
        self.dirty: dict[JobId, None] = {}  # jobs to look at, in the order in which they were marked
        # Jobs that are over, without workers; first who was so first.
        self._over: OrderedDict[JobId, None] = OrderedDict()
        self.timers: Deadlines[JobId] = Deadlines()  # of the jobs that something happens to by itself: when first
        self._look_at_ages_s = now
        self._clock_set_s = now
        self._touched: dict[JobId, None] = {}  # jobs whose record may have changed
        self._written: dict[JobId, stored.Written] = {}
        self._effects = Effects()

    def aside(self, jobs: Iterable[Job]) -> Cluster:
        """A copy to suppose something about, with these jobs that are not over: a decision about it changes nothing here."""
        found = copy.copy(self)
        found.rng = copy.copy(self.rng)
        for name in ("sessions", "health", "gpu_health", "overruled", "barred", "offers_nothing"):
            setattr(found, name, dict(getattr(self, name)))
        found.jobs, found.index, found.rows = {}, Index(), Rows(found.gpu_name)
        found._most_gpus, found._effects = {}, Effects()
        found._touched, found.dirty = {}, {}
        for job in jobs:
            own = found.jobs[job.id] = job.aside()
            own.on_change = found._job_changed
            found.index.changed(own)
            found.rows.changed(own)
        return found

    # -- state

    @property
    def policy(self) -> Policy:
        """The policy that decides now."""
        return self.decider.scheduler.policy

    def add_job(self, job: Job, written: tuple[Submission, stored.Written | None] | None = None) -> None:
        """`written`: what the store holds of it already."""
        self.jobs[job.id] = job
        job.on_change = self._job_changed
        self.index.changed(job)
        self.rows.changed(job)
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

    def _job_changed(self, job: Job) -> None:
        self._touched[job.id] = None
        self.index.changed(job)
        self.rows.changed(job)

    def mark_dirty(self, job: Job) -> None:
        """`job` has changed: record it, and look whether it needs something."""
        self.dirty[job.id] = None
        self._touched[job.id] = None
        self.rows.changed(job)

    def touch(self, job: Job) -> None:
        """The record of `job` may have changed, but nothing that calls for a decision."""
        self._touched[job.id] = None

    def moved(self, job: Job) -> None:
        """`job` has come further; its record may have changed."""
        self._touched[job.id] = None
        self.rows.moved(job)

    def mark_all_dirty(self) -> None:
        """The controller knows enough to decide again: look at every job. None of them has changed by that."""
        self.schedule_due = True
        self.dirty.update(dict.fromkeys(self.index.live))

    def mark_waiting_dirty(self) -> None:
        """A GPU may have become free: look at the jobs that wait for one, once in this turn."""
        self.gpu_freed = True

    def heard_of(self, now: float, session: Session) -> None:
        """The lease of a server begins anew."""
        session.last_heard_s = now
        name = session.server.server
        self.leases[name] = None
        self.leases.move_to_end(name)

    def estimate(self, now: float, job: Job, fewest: Ints) -> Estimated:
        """What is known of the throughput of `job`; `fewest` servers by share."""
        earlier = self.history.find(job.kind, now)
        profile = self.settings.profiles.get(job.spec.model.casefold(), {})
        job.estimated = estimated(job.estimated, job.spec, job.record.measured, earlier, profile, fewest)
        return job.estimated

    def reserve(self, job: Job | None) -> None:
        """GPUs are held for this job alone from now on; None: for no job."""
        name = job.id if job is not None else None
        if name == self.reserved:
            return
        if self.reserved in self.jobs:
            self.jobs[self.reserved].update(reserved=False)
        if job is not None:
            job.update(reserved=True)
        self.reserved = name

    def take_dirty(self) -> tuple[JobId, ...]:
        if self.gpu_freed:
            self.gpu_freed = False
            for job in self.index.waiting():
                self.mark_dirty(job)
        dirty = tuple(self.dirty)
        self.dirty.clear()
        return dirty

    def clock_goes_since(self, since_s: float) -> None:
        """An earlier controller's clock has gone on without a leap since then, as far as is recorded."""
        self._clock_set_s = min(self._clock_set_s, since_s)

    def clock_was_set(self, now: float, by_s: float) -> None:
        """The controller's clock was set to `now`, forward by so much (back: less than 0)."""
        self._clock_set_s = now
        self._look_at_ages_s = min(self._look_at_ages_s, now)
        accounting.clock_was_set(self.usage.holding, by_s)

    def put_session(self, session: Session) -> None:
        """A server is known, or is known anew."""
        name = session.server.server
        before = self.sessions.get(name)
        self.sessions[name] = session
        if before is None or before.server.gpus != session.server.gpus:
            self._most_gpus.clear()
        self.known_gpus += len(session.server.gpus) - (len(before.server.gpus) if before is not None else 0)

    def stocks(self) -> list[Stock]:
        """What each server that is known has, absent ones included."""
        return [session.whole.stock for _, session in sorted(self.sessions.items())]

    def most_gpus(self, demand: Demand) -> int:
        """The largest share that such a job could have, alone on all servers that are known."""
        if demand not in self._most_gpus:
            if len(self._most_gpus) >= KEPT_DEMANDS:
                self._most_gpus.clear()
            self._most_gpus[demand] = most_gpus(demand, self.stocks())
        return self._most_gpus[demand]

    @property
    def present_gpus(self) -> int:
        """Of all servers that are there."""
        return sum([len(session.server.gpus) for session in self.sessions.values() if session.alive])

    def gpu_name(self, gpu: GpuAddress) -> str:
        """What `gpu` is called; empty: it is not known."""
        session = self.sessions.get(gpu.server)
        told = session.server.gpus if session is not None else ()
        return next((each.name for each in told if each.index == gpu.index), "")

    def fit(self, server: ServerId) -> bool:
        """May workers be started on `server`? Not for a while after that has failed."""
        health = self.health.get(server)
        return health is None or health.until_s is None

    def bar(self, gpu: GpuAddress) -> Bar | None:
        """Why `gpu` takes no new work; None: nothing speaks against it but, perhaps, its server (`fit`)."""
        return self.barred.get(gpu.server, _NO_BARS).get(gpu.index)

    def usable(self, gpu: GpuAddress) -> bool:
        """May a worker be started on `gpu`, as far as it and its server go?"""
        session = self.sessions.get(gpu.server)
        return session is not None and session.alive and self.fit(gpu.server) and self.bar(gpu) is None

    def weigh(self, server: ServerId) -> tuple[dict[int, Bar], dict[int, Bar]]:
        """Look anew which GPUs of `server` take no new work. Returns what was so before, and what is so now."""
        before, session = self.barred.pop(server, {}), self.sessions.get(server)
        self.offers_nothing.pop(server, None)
        if session is None:
            return before, {}
        if why := nothing_sentence(session.server, session.troubles):
            self.offers_nothing[server] = why
        failing = {
            gpu.index: health.reason
            for gpu, health in self.gpu_health.items()
            if gpu.server == server and health.until_s is not None
        }
        found = bars(session.server, session.troubles, self.overruled.get(server, NOTHING_OVERRULED), failing)
        if found:
            self.barred[server] = found
        return before, found

    def trusted(self, gpu: GpuAddress) -> tuple[str, ...]:
        """The codes of the troubles of `gpu` and its server that an operator has overruled."""
        session, overruled = self.sessions.get(gpu.server), self.overruled.get(gpu.server)
        return trusted_codes(session.troubles, overruled, gpu.index) if session is not None and overruled else ()

    def gpu_free(self, gpu: GpuAddress) -> bool:
        """Is it certain that no process is on `gpu`, and is it usable?"""
        if not self.usable(gpu):
            return False
        session = self.sessions[gpu.server]
        if any(gpu in stray.gpus for stray in session.strays.values()):
            return False
        if any(gpu.index in local.all_gpus for local in session.unknown.values()):
            return False
        return self.index.on_gpu(gpu) is None

    def left_at_once(self) -> frozenset[GpuAddress]:
        """The GPUs that somebody waits for, to whom they are lent, or who drains them by preempting."""
        return frozenset(
            GpuAddress(server=server, index=index)
            for server, found in self.barred.items()
            for index, bar in found.items()
            if bar.drain is CordonKind.DRAIN_BY_PREEMPTING
        )

    @property
    def decision_due_s(self) -> float:
        """When the scheduler may be asked again (Unix time): with many jobs not at once, as that takes a while; not while the
        cluster is being stopped."""
        pause_s = len(self.index.live) * DECISION_INTERVAL_PER_JOB_S if self.many_jobs else 0.0
        return max(self.decided_s + pause_s, self.quiet_until_s)

    @property
    def many_jobs(self) -> bool:
        """So many that a decision takes a while."""
        return len(self.index.live) > JOBS_DECIDED_AT_ONCE

    def may_decide(self, now: float) -> bool:
        return now >= self.decision_due_s or now < self.decided_s

    def is_parted(self, job: JobId) -> bool:
        """Does the store hold the state of `job` in parts (`jobs.stored`)?"""
        return job in self._written and self._written[job].parted

    # -- effects

    @property
    def record(self) -> ClusterRecord:
        return ClusterRecord(id=self.id, first_job=self.first_job)

    def record_itself(self) -> None:
        self._effects.put(CLUSTER_KEY, self.record)

    @property
    def elected(self) -> bool:
        """Are there several controllers, one of which reigns? Else this one has a store of its own."""
        return self.settings.term > 0

    def begin_reign(self, recorded: LeaderRecord) -> None:
        """`recorded`: the last reign that the store knows of. An election has recorded its own; with a store of one's own a
        start begins the next one."""
        self.leader = recorded
        if not self.elected:
            self.reign_beyond(recorded.term)
        elif recorded.term != self.settings.term:
            raise OperatorError(f"the store says that term {recorded.term} reigns, and this is {self.settings.term}")

    def reign_beyond(self, term: int) -> None:
        """From now on under a higher term than this one: it is recorded before anything more is sent."""
        self.leader = replace(self.leader, term=term + 1)
        self._effects.put(LEADER_KEY, self.leader)

    def stand_down(self, term: int, told_by: ServerId) -> None:
        """An agent of that server has heard of a higher term than the one that this controller was elected for."""
        self._effects.act(StandDown(term, told_by))

    def replace_record(self, key: str) -> None:
        """What an earlier version has recorded there stands elsewhere now."""
        self._effects.delete(key)

    def new_uid(self, job: JobId) -> str:
        """Of a job that is being submitted: a secret of the servers that run its workers, which nobody can tell from others."""
        return hashlib.blake2b(job.encode(), key=self._uid_key, digest_size=8).hexdigest()

    def skip_jobs(self, first: int) -> None:
        """Never use a number below `first` for a new job."""
        self.first_job = self.next_job = max(first, self.next_job)
        self.record_itself()

    def record_adoption(self, server: ServerId, agent: str | None) -> None:
        """`server` is to be taken over; None: it has been, or there is nothing left to take over."""
        if agent is not None:
            self.adopted[server] = agent
            self._effects.put(ADOPTED + server, AdoptionRecord(agent=agent))
        elif self.adopted.pop(server, None) is not None:
            self._effects.delete(ADOPTED + server)

    def record_overruled(self, server: ServerId, record: OverruleRecord) -> None:
        """What operators have decided about `server` from now on."""
        if record != NOTHING_OVERRULED:
            self.overruled[server] = record
            self._effects.put(OVERRULED + server, record)
        elif self.overruled.pop(server, None) is not None:
            self._effects.delete(OVERRULED + server)

    def record_removal(self, server: ServerId, record: RemovalRecord | None) -> None:
        """The agent that runs on `server` is not taken in any more; None: another one is, or may be."""
        if record is None:
            if self.removed.pop(server, None) is not None:
                self._effects.delete(REMOVED + server)
            return
        self.removed.pop(server, None)
        self.removed[server] = record
        self._effects.put(REMOVED + server, record)
        if len(self.removed) > KEPT_REMOVALS:
            self.record_removal(next(iter(self.removed)), None)

    def record_policy(self, record: PolicyRecord | None) -> None:
        """None: what was set at run time is over."""
        if record is not None:
            self._effects.put(POLICY_KEY, record)
        else:
            self._effects.delete(POLICY_KEY)

    def record_server(self, session: Session) -> None:
        record = ServerRecord(server=session.server, agent=session.agent)
        self._effects.put(server_key(session.server.server), record)

    def forget_server(self, server: ServerId) -> None:
        """It is gone, or is to go, and nothing runs there."""
        self.awaited.discard(server)
        self.leases.pop(server, None)
        self.known_gpus -= len(self.sessions.pop(server).server.gpus)
        self._most_gpus.clear()
        self.health.pop(server, None)
        for gpu in [gpu for gpu in self.gpu_health if gpu.server == server]:
            del self.gpu_health[gpu]
        self.barred.pop(server, None)
        self.offers_nothing.pop(server, None)
        self.told_troubles.pop(server, None)
        self.record_overruled(server, NOTHING_OVERRULED)
        self.forged.pop(server, None)
        self.record_adoption(server, None)
        self._effects.delete(server_key(server))

    def record_throughput(self, now: float, job: Job) -> None:
        """What `job` has been measured at is what later jobs of its kind start from."""
        puts, deletes = self.history.note(job.kind, job.record.measured, now)
        self._effects.put_encoded(puts)
        self._effects.delete(*deletes)

    def tell(self, now: float, kind: EventKind, job: JobId | None, text: str) -> None:
        """Add to the history of the cluster."""
        event = EventView(number=self.next_event, time_s=now, kind=kind, job=job, text=text)
        self.next_event += 1
        self.tallies.happened(kind)
        if len(self.events) == self.events.maxlen:
            self._effects.delete(event_key(self.events[0].number))
        self.events.append(event)
        self._effects.put(event_key(event.number), event)

    def send(self, server: ServerId, message: ToAgentFromController) -> None:
        """Send to an agent, if its server is there; if not, its next hello brings everything up to date."""
        session = self.sessions.get(server)
        if session is None or not session.alive:
            return
        if not isinstance(message, Acknowledged):
            session.sent += 1
        self._effects.act(SendAgent(server, message, session.agent))

    def send_guest(self, guest: Guest, message: ToAgentFromController) -> None:
        """Send to the agent of a server that belongs to another cluster."""
        if not isinstance(message, Acknowledged):
            guest.sent += 1
        self._effects.act(SendAgent(guest.server.server, message, guest.agent))

    def refuse_agent(self, server: ServerId, agent: str, reason: str) -> None:
        self._effects.act(SendAgent(server, HelloRefused(reason=reason), agent))

    def ask_for_hello(self, server: ServerId, agent: str) -> None:
        """Answer an agent that has no session here, in such a way that it says hello: it misses messages, however many it had."""
        again = Acknowledged(incarnation=self.settings.incarnation, sent=MORE_THAN_ANY_SESSION)
        self._effects.act(SendAgent(server, again, agent))

    def answer(self, asked: ClientRequest, answer: Answer) -> None:
        self._effects.act(ReplyClient(asked.client, Reply(id=asked.envelope.id, answer=answer)))

    def fetch(self, request: ClientRequest | AgentMessage, keys: tuple[str, ...]) -> None:
        """These records of the archive are needed to answer `request`."""
        self._effects.act(Fetch(request, keys))

    def keep_part(self, key: str, data: bytes) -> None:
        """Of a snapshot."""
        self._effects.put_encoded({key: data})

    def remember_answer(self, request: str, answer: Answer, recorded: bool = False) -> None:
        """To a request of this name that has changed something. `recorded`: the store holds it already.

        Submissions are remembered by the store too: their jobs may be over, and in the archive, before a repetition comes.
        """
        if isinstance(answer, Submitted) and not recorded:
            self._effects.put(request_key(request), RequestRecord(job=answer.job))
        for oldest, forgotten in self.answers.put(request, answer):
            if isinstance(forgotten, Submitted):
                self._effects.delete(request_key(oldest))

    def warn(self, text: str, server: str = "", job: str = "") -> None:
        """In the log; about a server, a job, as they are called there."""
        self._effects.act(Warn(text, server, job))

    def audit(self, now: float, asked: ClientRequest, act: str, of: str, text: str) -> None:
        """Somebody has done something."""
        self._effects.act(Audit(now, str(asked.who), act, of, True, text, asked.envelope.id))

    def audit_refusal(self, now: float, who: Principal, act: str, of: str, text: str, request: str = "") -> None:
        """Somebody has tried what he may not. Of many attempts some are written, and how many there were between them.

        A client repeats a request until it hears an answer: that is one attempt.
        """
        name = str(who)
        attempts = self.attempts.pop(name, None) or Attempts()
        self.attempts[name] = attempts
        if len(self.attempts) > KEPT_PRINCIPALS:
            self.attempts.popitem(last=False)
        if request and request == attempts.last:
            return
        attempts.last = request
        before = attempts.told.held_back
        if attempts.told.lets(now):
            also = f" ({before} more attempts since the last line)" if before else ""
            self._effects.act(Audit(now, name, act, of, False, text + also, request))

    def _archive_jobs(self) -> None:
        """Jobs that were over first, where there are too many, leave the memory: some at a time."""
        for _ in range(min(ARCHIVED_AT_ONCE, len(self._over) - self.settings.keeping.recent)):
            name, _ = self._over.popitem(last=False)
            job = self.jobs.pop(name)
            self._written.pop(name, None)
            self.timers.put(name, None)
            self.dirty.pop(name, None)
            self.index.forget(job)
            job.leave()
            self._effects.delete(submission_key(name), state_key(name))
            archived = ArchivedJob(submission=job.submission, record=job.record)
            self._effects.put(job.ended_key, archived)
            self.archive.add(job.ended_key)

    def _forget_archived(self, now: float) -> None:
        """Jobs in the archive that are too many or too old: some at a time. No number is used twice for that."""
        keeping = self.settings.keeping
        trusted = now - self._clock_set_s >= TRUSTED_AFTER_S
        if len(self.archive) <= keeping.ended and not (trusted and self._look_at_ages_s - now < 0):
            return
        if trusted:
            self.usage.forget_before(first_kept(now, keeping.usage_days))
        first_key = first_key_of(now, keeping.days) if trusted else ""
        gone = self.archive.forget(keeping.ended, first_key, ARCHIVED_AT_ONCE)
        if len(gone) < ARCHIVED_AT_ONCE:
            self._look_at_ages_s = now + LOOK_AT_AGES_S
        if gone:
            self._effects.delete(*gone)
            highest = max(job_number(job_of(key).job) for key in gone)
            self.first_job = max(self.first_job, highest + 1)
            self.record_itself()

    def _learn_length(self, job: Job) -> None:
        """`job` is over: later ones are compared with it."""
        ended = lengths.with_job(self.ended, job)
        if ended is not self.ended:
            self.ended = ended
            self._effects.put(lengths.KEY, lengths.record(ended))

    def _record_usage(self) -> None:
        changed, gone = self.usage.take_changed()
        for key, record in changed.items():
            self._effects.put(key, record)
        self._effects.delete(*gone)

    def take_effects(self, now: float) -> list[Action]:
        """The effects since the last call: what is to be recorded, then the rest."""
        for name in self._touched:
            job = self.jobs[name]
            timers = job.timers()
            self.timers.put(name, min(timers.values()) if timers else None)
            accounting.look(self.usage, now, job)
            before = self._written.get(name)
            changes, self._written[name] = stored.changes(job, before, self.settings.whole_workers)
            if changes is not None:
                for key, value in changes.puts.items():
                    self._effects.put(key, value)
                self._effects.delete(*changes.deletes)
            if job.final and not (before is not None and before.record.phase.final):
                self._learn_length(job)
            if job.final and not job.workers:
                self._over[name] = None
        self._touched.clear()
        self._archive_jobs()
        self._forget_archived(now)
        if self.snapshots.due(now):
            of_jobs = ((job.submission.owner, job.spec.snapshot) for job in self.index.live.values())
            used = [id_of(owner, snapshot) for owner, snapshot in of_jobs if snapshot is not None]
            self._effects.delete(*self.snapshots.forget_unused(now, used))
        if self.usage.has_changed:
            self._record_usage()
        return self._effects.take()
