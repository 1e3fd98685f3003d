"""The controller's whole state, and the one place where the effects of an event gather.

The packages of the machine (`intake`, `reconcile`, `requests`) change this state and leave their effects here. The machine
takes the effects out at the end of each event, records first. A job's record is compared with the record last written, and
differences are stored, so that no caller can forget to record a change.
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
    RefusedJob,
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

MORE_THAN_ANY_SESSION = 1 << 62  # a count of messages to an agent that no session reaches
KEPT_EVENTS = 10_000
KEPT_REMOVALS = 1000  # removed servers with agents that ran at the removal
KEPT_DEMANDS = 1000  # demands with a cached largest share
ARCHIVED_AT_ONCE = 64  # at most this many jobs leave the memory in one event, and as many leave the archive
LOOK_AT_AGES_S = 600.0  # interval between searches for archived jobs beyond their retention
TRUSTED_AFTER_S = 3600.0  # nothing expires until the clock has run this long since it was set or the controller started
KEPT_PRINCIPALS = 1000  # principals with refused requests
_NO_BARS: dict[int, Bar] = {}
ATTEMPTS_AT_ONCE, ATTEMPT_INTERVAL_S = 20, 10.0  # audited refusals of one principal: a burst, then one per interval


@dataclass(frozen=True)
class Keeping:
    """Retention of ended jobs and of usage: how many, and how long."""

    recent: int = 1000  # ended jobs in memory; earlier ones are in the archive
    ended: int = 100_000  # jobs in the archive
    days: float = 365.0  # age of the oldest archived job, counted from its end
    usage_days: float = 1830.0  # months that ended longer ago leave the record of users' usage


@dataclass(frozen=True)
class Settings:
    """Settings that do not change while the controller runs."""

    cluster: str
    incarnation: str  # new for each start
    version: str
    pid: int
    term: int = (
        0  # term of this controller's reign, won and recorded in an election; 0: a private store counts the starts
    )
    server_lease_s: float = SERVER_LEASE_S
    max_restarts: int = DEATHS_IN_VAIN
    measuring: Measuring = OFF
    profiles: Profiles = field(default_factory=dict)
    keeping: Keeping = Keeping()
    open_jobs_per_user: int = 10_000
    user_priority: int = PRIORITIES["high"]  # the highest priority that a user may give a job
    operator_priority: int = MAX_PRIORITY  # the highest priority that an operator may give a job
    reserve_after_s: float = 600.0  # a job that has waited this long gets a reservation
    whole_workers: int = stored.WHOLE  # in a job with more workers than this, each worker has a record of its own


@dataclass
class PendingLog:
    """A client's request for a piece of a log, which the agent of `server` has yet to answer."""

    asked: ClientRequest
    server: ServerId
    deadline_s: float


@dataclass(frozen=True)
class Undecided:
    """A client's request that set a share, and waits for the decision that names the job's generation."""

    asked: ClientRequest
    job: Job
    after: int  # number of decisions made before the request


@dataclass(frozen=True)
class Decider:
    """The scheduler in use, and since when."""

    scheduler: Scheduler
    since_s: float
    record: PolicyRecord | None = None  # the policy set at run time; None: the configuration's policy decides


@dataclass
class Attempts:
    """Refused requests of one principal, counted so that the audit log is not flooded."""

    told: Sparing = field(default_factory=lambda: Sparing(ATTEMPTS_AT_ONCE, ATTEMPT_INTERVAL_S))
    last: str = ""  # id of the last request


class Cluster:
    """Jobs in the order of submission, servers by name, and the effects of the event at hand."""

    def __init__(self, settings: Settings, configured: Scheduler, rng: random.Random, now: float) -> None:
        self.settings = settings
        self.id = ""  # the cluster's id, recovered or drawn in `recovery`
        self.leader = LeaderRecord(term=0)  # this controller with the term of its reign, which begins in `recovery`
        self.configured = configured  # the scheduler that the configuration names
        self.decider = Decider(configured, now)
        self.rng = rng
        self._uid_key = rng.randbytes(32)
        self.started_s = now
        self.jobs: dict[JobId, Job] = {}  # unfinished jobs, and the most recently ended ones
        self.index = Index()
        self.rows = Rows(self.gpu_name)
        self.decided_s = -math.inf  # when the scheduler was last asked
        self.decisions = 0  # how often the scheduler has been asked
        self.last_seen: Snapshot | None = None  # the last decision's input
        # For each of the last decisions with manual shares: its number, and the jobs that lose GPUs by it.
        self.pushes: deque[tuple[int, Callable[[], Iterator[ShareForecast]]]] = deque(maxlen=2)
        self.archive = Archive()
        self.snapshots = Snapshots()
        self.usage = Usage()
        self.tallies = Tallies()
        self.sessions: dict[ServerId, Session] = {}
        self.known_gpus = 0  # GPUs of all known servers, absent ones included
        self._most_gpus: dict[Demand, int] = {}  # largest share by demand; emptied when the known servers change
        self.guests: dict[ServerId, Guest] = {}
        self.adopted: dict[ServerId, str] = {}  # servers to be taken over, with the identities of their agents
        self.removed: dict[ServerId, RemovalRecord] = {}  # removed by operators while their agents ran, oldest first
        self.refused: OrderedDict[tuple[ServerId, str], None] = OrderedDict()  # refused agents reported to the operator
        self.refused_jobs: tuple[RefusedJob, ...] = ()  # with records in the store that no controller has written
        self.store_is_old = False  # a store behind its agents was reported to the operator
        # The workers of each server at its first hello to this controller: only these may be ahead of the store (`forgery`).
        self.met: dict[ServerId, dict[WorkerId, str]] = {}  # with the uids of the workers' jobs
        self.forged: dict[ServerId, Forgeries] = {}
        self.attempts: OrderedDict[str, Attempts] = OrderedDict()  # by principal
        self.health: dict[ServerId, Health] = {}  # of servers on which a worker failed to start
        self.gpu_health: dict[GpuAddress, Health] = {}  # of GPUs on which scripts fail at their start
        self.overruled: dict[ServerId, OverruleRecord] = {}  # operators' decisions about troubles and cordons
        self.barred: dict[
            ServerId, dict[int, Bar]
        ] = {}  # GPUs that take no new work; servers without such GPUs are absent (`bars`)
        self.cramped: tuple[Job, ...] = ()  # jobs of which the last decision found the `room`
        self.cornered: dict[JobId, str] = {}  # jobs that the last decision left on GPUs that they should leave, and why
        self.offers_nothing: dict[ServerId, str] = {}  # servers without a GPU, and the reasons that their agents give
        self.told_troubles: dict[ServerId, Sparing] = {}
        self.awaited: set[ServerId] = set()  # servers in the store that have sent no hello since the start
        # Servers with a lease, and awaited servers; the longest silent server is first.
        self.leases: OrderedDict[ServerId, None] = OrderedDict()
        self.events: deque[EventView] = deque(maxlen=KEPT_EVENTS)
        # By name (`ClientRequest.name`): answers to requests that changed something, and requests that wait for one.
        self.answers = RememberedAnswers()
        self.pending_logs: dict[str, PendingLog] = {}
        self.newcomers: dict[str, tuple[ClientRequest, JobSpec]] = {}  # submissions with deadlines, admitted together
        self.undecided: dict[str, Undecided] = {}  # empty unless there are very many jobs
        self.history = History()
        self.ended = NOTHING_ENDED  # statistics of the lengths of ended jobs
        self.first_job = 1  # see ClusterRecord
        self.next_job = 1
        self.next_event = 1
        self.schedule_due = False
        self.quiet_until_s = -math.inf  # the cluster is being stopped: no job gets GPUs before then (Unix time)
        self.gpu_freed = False  # since the last look at jobs that wait for a GPU
        self.plan_unfinished = False  # part of the last plan waits for the rest to be carried out
        self.reserved: JobId | None = None  # the job for which GPUs are held
        self.reservations_s = -math.inf  # when reservations by time were last examined
        self.policy_trouble = ""  # the exception of the policy's last call; empty: the call succeeded
        self.policy_failures: set[str] = set()  # reported failures of the policy, one for each line that raises
        self.schedules: Schedules = NO_SCHEDULES  # the plan with which all promises held at the last decision
        self.review_s = math.inf  # the policy wants to be asked again then (Unix time)
        self.dirty: dict[JobId, None] = {}  # jobs to reconcile, in the order in which they were marked
        # Ended jobs without workers, in the order in which they became so.
        self._over: OrderedDict[JobId, None] = OrderedDict()
        self.timers: Deadlines[JobId] = Deadlines()  # the earliest timer of each job that has one
        self._look_at_ages_s = now
        self._clock_set_s = now
        self._touched: dict[JobId, None] = {}  # jobs whose record may have changed
        self._written: dict[JobId, stored.Written] = {}
        self._effects = Effects()

    def aside(self, jobs: Iterable[Job]) -> Cluster:
        """Return a copy with these unfinished jobs for a trial decision, which changes nothing in the original."""
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
        """The policy in use."""
        return self.decider.scheduler.policy

    def add_job(self, job: Job, written: tuple[Submission, stored.Written | None] | None = None) -> None:
        """Add a job. `written`: the job's submission and record as the store holds them already."""
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
        """Have every unfinished job reconciled, as the controller knows enough to decide again. No record changes by that."""
        self.schedule_due = True
        self.dirty.update(dict.fromkeys(self.index.live))

    def mark_waiting_dirty(self) -> None:
        """Note that a GPU may have become free: waiting jobs are reconciled once in this turn."""
        self.gpu_freed = True

    def heard_of(self, now: float, session: Session) -> None:
        """Renew the lease of the session's server at `now`."""
        session.last_heard_s = now
        name = session.server.server
        self.leases[name] = None
        self.leases.move_to_end(name)

    def estimate(self, now: float, job: Job, fewest: Ints, on: str | None = None) -> Estimated:
        """Return the best estimate of the throughput of `job`. `fewest`: by share, the fewest servers that hold it.

        `on`: on GPUs of this name; None: on those that the job began on, or else on those of the last measurements.
        """
        earlier = self.history.find(job.kind, now)
        profile = self.settings.profiles.get(job.spec.model.casefold(), {})
        name, before = (job.record.gpu_name, job.estimated) if on is None else (on, None)
        found = estimated(before, job.spec, job.record.measured, earlier, profile, fewest, name)
        if on is None:
            job.estimated = found
        return found

    def reserve(self, job: Job | None) -> None:
        """Hold GPUs for this job alone from now on. None: release the reservation."""
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
        """Count the clock as trusted since `since_s`: an earlier controller recorded no leap after that time."""
        self._clock_set_s = min(self._clock_set_s, since_s)

    def clock_was_set(self, now: float, by_s: float) -> None:
        """Take in that the controller's clock was set to `now`, forward by `by_s` seconds (negative: back)."""
        self._clock_set_s = now
        self._look_at_ages_s = min(self._look_at_ages_s, now)
        accounting.clock_was_set(self.usage.holding, by_s)

    def put_session(self, session: Session) -> None:
        """Add the session of a new server, or replace the session of a known one."""
        name = session.server.server
        before = self.sessions.get(name)
        self.sessions[name] = session
        if before is None or before.server.gpus != session.server.gpus:
            self._most_gpus.clear()
        self.known_gpus += len(session.server.gpus) - (len(before.server.gpus) if before is not None else 0)

    def stocks(self) -> list[Stock]:
        """Return the stock of each known server, absent servers included."""
        return [session.whole.stock for _, session in sorted(self.sessions.items())]

    def most_gpus(self, demand: Demand) -> int:
        """Return the largest share that a job with this demand could have, alone on all known servers."""
        if demand not in self._most_gpus:
            if len(self._most_gpus) >= KEPT_DEMANDS:
                self._most_gpus.clear()
            self._most_gpus[demand] = most_gpus(demand, self.stocks())
        return self._most_gpus[demand]

    @property
    def present_gpus(self) -> int:
        """Number of GPUs of all servers with a live session."""
        return sum([len(session.server.gpus) for session in self.sessions.values() if session.alive])

    def gpu_name(self, gpu: GpuAddress) -> str:
        """Return the product name of `gpu`, or "" if it is not known."""
        session = self.sessions.get(gpu.server)
        told = session.server.gpus if session is not None else ()
        return next((each.name for each in told if each.index == gpu.index), "")

    def fit(self, server: ServerId) -> bool:
        """Return whether workers may be started on `server`: not for a while after a failed start."""
        health = self.health.get(server)
        return health is None or health.until_s is None

    def bar(self, gpu: GpuAddress) -> Bar | None:
        """Return why `gpu` takes no new work. None: the GPU does, unless its server is unfit (`fit`)."""
        return self.barred.get(gpu.server, _NO_BARS).get(gpu.index)

    def usable(self, gpu: GpuAddress) -> bool:
        """Return whether the state of `gpu` and of its server allows a worker to start there."""
        session = self.sessions.get(gpu.server)
        return session is not None and session.alive and self.fit(gpu.server) and self.bar(gpu) is None

    def weigh(self, server: ServerId) -> tuple[dict[int, Bar], dict[int, Bar]]:
        """Find again which GPUs of `server` take no new work. Returns the bars by GPU index before and after."""
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
        """Return the codes of the troubles of `gpu` and its server that an operator has overruled."""
        session, overruled = self.sessions.get(gpu.server), self.overruled.get(gpu.server)
        return trusted_codes(session.troubles, overruled, gpu.index) if session is not None and overruled else ()

    def gpu_free(self, gpu: GpuAddress) -> bool:
        """Return whether `gpu` is usable and certainly has no process."""
        if not self.usable(gpu):
            return False
        session = self.sessions[gpu.server]
        if any(gpu in stray.gpus for stray in session.strays.values()):
            return False
        if any(gpu.index in local.all_gpus for local in session.unknown.values()):
            return False
        return self.index.on_gpu(gpu) is None

    def left_at_once(self) -> frozenset[GpuAddress]:
        """Return the GPUs that jobs vacate at once, by preemption if need be, for a borrower or an operator's drain."""
        return frozenset(
            GpuAddress(server=server, index=index)
            for server, found in self.barred.items()
            for index, bar in found.items()
            if bar.drain is CordonKind.DRAIN_BY_PREEMPTING
        )

    @property
    def decision_due_s(self) -> float:
        """Earliest time of the next decision (Unix time).

        With many jobs decisions take long, and are spaced out; while the cluster is being stopped, none is made.
        """
        pause_s = len(self.index.live) * DECISION_INTERVAL_PER_JOB_S if self.many_jobs else 0.0
        return max(self.decided_s + pause_s, self.quiet_until_s)

    @property
    def many_jobs(self) -> bool:
        """Whether there are so many unfinished jobs that a decision takes long."""
        return len(self.index.live) > JOBS_DECIDED_AT_ONCE

    def may_decide(self, now: float) -> bool:
        return now >= self.decision_due_s or now < self.decided_s

    def is_parted(self, job: JobId) -> bool:
        """Return whether the store holds the state of `job` in parts (`jobs.stored`)."""
        return job in self._written and self._written[job].parted

    # -- effects

    @property
    def record(self) -> ClusterRecord:
        return ClusterRecord(id=self.id, first_job=self.first_job)

    def record_itself(self) -> None:
        self._effects.put(CLUSTER_KEY, self.record)

    @property
    def elected(self) -> bool:
        """Whether this controller is one of several and was elected; otherwise it has a store of its own."""
        return self.settings.term > 0

    def begin_reign(self, recorded: LeaderRecord) -> None:
        """Begin this controller's reign. `recorded`: the last reign in the store.

        An election has recorded this reign already; with a private store each start begins the next term. Raises
        OperatorError if the store names another term than the one that the election gave.
        """
        self.leader = recorded
        if not self.elected:
            self.reign_beyond(recorded.term)
        elif recorded.term != self.settings.term:
            raise OperatorError(f"the store says that term {recorded.term} reigns, and this is {self.settings.term}")

    def reign_beyond(self, term: int) -> None:
        """Reign with a term higher than `term`, which is recorded before anything more is sent."""
        self.leader = replace(self.leader, term=term + 1)
        self._effects.put(LEADER_KEY, self.leader)

    def stand_down(self, term: int, told_by: ServerId) -> None:
        """End this reign, as the agent of server `told_by` knows `term`, which is higher than this controller's."""
        self._effects.act(StandDown(term, told_by))

    def replace_record(self, key: str) -> None:
        """Delete the record at `key`, written by an earlier version, as its content stands under another key now."""
        self._effects.delete(key)

    def new_uid(self, job: JobId) -> str:
        """Return the uid of a new job: a secret known only to servers that run its workers, and not derivable from others."""
        return hashlib.blake2b(job.encode(), key=self._uid_key, digest_size=8).hexdigest()

    def skip_jobs(self, first: int) -> None:
        """Give no new job a number below `first`."""
        self.first_job = self.next_job = max(first, self.next_job)
        self.record_itself()

    def record_adoption(self, server: ServerId, agent: str | None) -> None:
        """Record that `server` with this agent is to be taken over. None: the takeover is complete or void."""
        if agent is not None:
            self.adopted[server] = agent
            self._effects.put(ADOPTED + server, AdoptionRecord(agent=agent))
        elif self.adopted.pop(server, None) is not None:
            self._effects.delete(ADOPTED + server)

    def record_overruled(self, server: ServerId, record: OverruleRecord) -> None:
        """Record the operators' decisions about `server`, in place of earlier ones."""
        if record != NOTHING_OVERRULED:
            self.overruled[server] = record
            self._effects.put(OVERRULED + server, record)
        elif self.overruled.pop(server, None) is not None:
            self._effects.delete(OVERRULED + server)

    def record_removal(self, server: ServerId, record: RemovalRecord | None) -> None:
        """Record that the agent that runs on `server` is not admitted any more. None: an agent of that name may be."""
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
        """Record the policy set at run time. None: the configuration's policy decides again."""
        if record is not None:
            self._effects.put(POLICY_KEY, record)
        else:
            self._effects.delete(POLICY_KEY)

    def record_server(self, session: Session) -> None:
        record = ServerRecord(server=session.server, agent=session.agent)
        self._effects.put(server_key(session.server.server), record)

    def forget_server(self, server: ServerId) -> None:
        """Forget a server that has no workers, because it is gone or was removed."""
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
        """Record the measured throughput of `job`, from which the estimates of later jobs of its kind start."""
        puts, deletes = self.history.note(job.kind, job.record.measured, now)
        self._effects.put_encoded(puts)
        self._effects.delete(*deletes)

    def tell(self, now: float, kind: EventKind, job: JobId | None, text: str) -> None:
        """Append an event to the history of the cluster; the oldest beyond KEPT_EVENTS is deleted."""
        event = EventView(number=self.next_event, time_s=now, kind=kind, job=job, text=text)
        self.next_event += 1
        self.tallies.happened(kind)
        if len(self.events) == self.events.maxlen:
            self._effects.delete(event_key(self.events[0].number))
        self.events.append(event)
        self._effects.put(event_key(event.number), event)

    def send(self, server: ServerId, message: ToAgentFromController) -> None:
        """Send `message` to the agent of `server` if its session is alive; otherwise the agent's next hello resynchronizes."""
        session = self.sessions.get(server)
        if session is None or not session.alive:
            return
        if not isinstance(message, Acknowledged):
            session.sent += 1
        self._effects.act(SendAgent(server, message, session.agent))

    def send_guest(self, guest: Guest, message: ToAgentFromController) -> None:
        """Send `message` to the agent of a server that belongs to another cluster."""
        if not isinstance(message, Acknowledged):
            guest.sent += 1
        self._effects.act(SendAgent(guest.server.server, message, guest.agent))

    def refuse_agent(self, server: ServerId, agent: str, reason: str) -> None:
        self._effects.act(SendAgent(server, HelloRefused(reason=reason), agent))

    def ask_for_hello(self, server: ServerId, agent: str) -> None:
        """Make an agent without a session here say hello.

        The acknowledgement counts more sent messages than any agent can have received, so the agent finds some missing.
        """
        again = Acknowledged(incarnation=self.settings.incarnation, sent=MORE_THAN_ANY_SESSION)
        self._effects.act(SendAgent(server, again, agent))

    def answer(self, asked: ClientRequest, answer: Answer) -> None:
        self._effects.act(ReplyClient(asked.client, Reply(id=asked.envelope.id, answer=answer)))

    def fetch(self, request: ClientRequest | AgentMessage, keys: tuple[str, ...]) -> None:
        """Read these records of the archive, which the answer to `request` needs."""
        self._effects.act(Fetch(request, keys))

    def keep_part(self, key: str, data: bytes) -> None:
        """Record one encoded part of a snapshot of a job's code."""
        self._effects.put_encoded({key: data})

    def remember_answer(self, request: str, answer: Answer, recorded: bool = False) -> None:
        """Keep the answer to the request of this name, which changed something, so that a repetition gets the same answer.

        Answers to submissions are stored as well, because a job may be over and archived before its submission is repeated.
        `recorded`: the store holds the answer already.
        """
        if isinstance(answer, Submitted) and not recorded:
            self._effects.put(request_key(request), RequestRecord(job=answer.job))
        for oldest, forgotten in self.answers.put(request, answer):
            if isinstance(forgotten, Submitted):
                self._effects.delete(request_key(oldest))

    def warn(self, text: str, server: str = "", job: str = "") -> None:
        """Write a warning into the controller's log, labelled with a server or a job if given."""
        self._effects.act(Warn(text, server, job))

    def audit(self, now: float, asked: ClientRequest, act: str, of: str, text: str) -> None:
        """Write into the audit log that the principal of `asked` has done `act` to `of`."""
        self._effects.act(Audit(now, str(asked.who), act, of, True, text, asked.envelope.id))

    def audit_refusal(self, now: float, who: Principal, act: str, of: str, text: str, request: str = "") -> None:
        """Write into the audit log that `who` was refused `act` on `of`.

        Of many refusals only some are written, each with the number left out since the last line. A client repeats a request
        until an answer arrives; the repetitions count as one attempt.
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
        """Move the jobs that ended first from memory to the archive while there are too many, a bounded number per event."""
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
        """Delete archived jobs that are too many or too old, a bounded number per event. Their numbers are never reused."""
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
        """Add the length of `job`, which has ended, to the statistics that later jobs are compared with."""
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
        """Return the effects since the last call: first the records to write, then all other actions."""
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
