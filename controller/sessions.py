"""State of servers: the connection with the agent of each, the workers that run there, and the results of starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..protocol.messages import LocalWorker, StopWorker, session_name
from ..protocol.model import GpuAddress, JobId, Server, Trouble, WorkerId
from ..protocol.rate_limit import RateLimiter
from ..protocol.times import STOP_AGAIN_S
from ..scheduler.view import ServerInView

CLOCK_INTERVAL_S = 60.0
MAX_CLOCK_S = 1e11  # Unix time; later times are invalid
FORGERIES_AT_ONCE, FORGERY_INTERVAL_S = 3, 600.0  # log lines per server: first a burst, then one per interval
MAX_ENDED = 4096  # ended workers of a foreign server that its hello did not name
KEPT_DOUBTS = 16


@dataclass(frozen=True)
class Orphan:
    """A worker process that belongs to no order of this controller, and has to be stopped."""

    gpus: tuple[GpuAddress, ...]  # GPUs of the process; empty: unknown
    stop: StopWorker  # the order for its agent


@dataclass
class ServerClock:
    """Estimate of how far a server's clock is ahead of the controller's.

    Each message gives a value that is too small by the message's latency. So the maximum of the last one or two minutes counts.
    """

    ahead_s: float | None = None
    since_s: float = 0.0
    _now_s: float | None = None  # the maximum of this minute

    def heard(self, now: float, clock_s: float) -> None:
        """Take in the time of the sender's clock in a message (Unix time, s). 0 (not given) and invalid times are ignored."""
        if not 0 < clock_s < MAX_CLOCK_S:
            return
        ahead_s = clock_s - now
        if self._now_s is None or not 0 <= now - self.since_s < CLOCK_INTERVAL_S:
            before_s, self._now_s, self.since_s = self._now_s, ahead_s, now
            self.ahead_s = ahead_s if before_s is None else max(ahead_s, before_s)
        else:
            self._now_s = max(self._now_s, ahead_s)
            self.ahead_s = self._now_s if self.ahead_s is None else max(self._now_s, self.ahead_s)


@dataclass
class Session:
    """A server, and the connection with its agent."""

    server: Server
    alive: bool
    last_heard_s: float
    incarnation: str = ""
    agent: str = ""  # the agent's identity
    start: int = 0  # number of the agent's start
    hello: int = 0  # number of its last hello
    sent: int = 0  # messages since its last hello
    places: dict[WorkerId, LocalWorker] = field(default_factory=dict)  # workers in the last hello
    orphans: dict[WorkerId, Orphan] = field(default_factory=dict)
    orphans_last_sent_s: float = 0.0  # when the agent was last ordered to stop the orphans (Unix time)
    unknown: dict[WorkerId, LocalWorker] = field(default_factory=dict)  # workers of jobs not in the store (`foreign`)
    troubles: tuple[Trouble, ...] = ()  # as last reported; not recorded, as each hello of an agent lists all troubles
    clock: ServerClock = field(default_factory=ServerClock)

    @property
    def name(self) -> str:
        return session_name(self.incarnation, self.hello)

    @cached_property
    def whole(self) -> ServerInView:
        """The server with all of its GPUs, for the scheduler."""
        return ServerInView.of(self.server)

    def uid(self, worker: WorkerId) -> str:
        """Return the job's uid of a worker in the last hello; "" if the hello does not list the worker."""
        return self.places[worker].uid if worker in self.places else ""

    def heard(self, now: float) -> None:
        """Renew the lease at `now`."""
        self.last_heard_s = now

    def has_troubles(self, troubles: tuple[Trouble, ...]) -> None:
        """Take in the troubles of the server, as its agent has found them."""
        self.troubles = troubles

    def lost(self) -> None:
        """End the session, as the server's lease has expired: nothing is known of its processes any more."""
        self.alive, self.orphans, self.unknown = False, {}, {}

    def sends(self) -> None:
        """Count one message to the agent."""
        self.sent += 1

    # -- processes that belong to no order

    def stop_orphan(self, now: float, worker: WorkerId, orphan: Orphan) -> None:
        """Note a process that the agent is ordered to stop."""
        self.orphans[worker], self.orphans_last_sent_s = orphan, now

    def stops_due(self, now: float) -> list[StopWorker]:
        """Return the stop orders to repeat: if one or its answer were lost, the GPU would never become free."""
        if not self.orphans or now - self.orphans_last_sent_s < STOP_AGAIN_S:
            return []
        self.orphans_last_sent_s = now
        return [orphan.stop for orphan in self.orphans.values()]

    def orphan_ended(self, worker: WorkerId) -> bool:
        """Take in the end of a process; return whether it was an orphan."""
        return self.orphans.pop(worker, None) is not None

    def runs_unknown(self, local: LocalWorker) -> None:
        """Note a process of a job that is not in the store."""
        self.unknown[local.worker] = local

    def unknown_ended(self, worker: WorkerId) -> bool:
        """Take in the end of a process; return whether it was one of an unknown job."""
        return self.unknown.pop(worker, None) is not None


@dataclass
class ForeignServer:
    """A server that belongs to another cluster, and the connection with its agent (`foreign`)."""

    server: Server
    cluster: str  # id of the other cluster
    last_heard_s: float
    agent: str
    incarnation: str
    start: int
    hello: int
    sent: int = 0
    running: dict[WorkerId, LocalWorker] = field(default_factory=dict)
    ended: dict[WorkerId, str] = field(default_factory=dict)  # uids of their jobs

    def heard(self, now: float) -> None:
        """Renew the lease at `now`."""
        self.last_heard_s = now

    def sends(self) -> None:
        """Count one message to the agent."""
        self.sent += 1

    def worker_ended(self, worker: WorkerId, uid: str) -> None:
        """Take in the end of a worker; of workers that the hello did not name, at most MAX_ENDED are noted."""
        known = self.running.pop(worker, None) is not None or worker in self.ended
        if known or len(self.ended) < MAX_ENDED:
            self.ended[worker] = uid

    def take_ended(self) -> dict[WorkerId, str]:
        """Return the ended workers, which the agent is told to forget, with the uids of their jobs."""
        found, self.ended = self.ended, {}
        return found


@dataclass(frozen=True)
class Doubt:
    """Failures of a job's script at its start on a server: the fault of the script or of the server."""

    times: int
    kind: str  # fingerprint of the job's kind; the job may have ended long ago
    owner: str = ""  # owner of the job


@dataclass
class Health:
    """Failures of worker starts on a server, or on a GPU, since the last successful start (`health`)."""

    failures: int = 0  # consecutive failed starts that count against the server
    until_s: float | None = None  # end of the back-off (Unix time); None: starts are allowed
    reason: str = ""
    suspected: bool = False  # the server is suspected to cause the scripts' exit codes
    doubts: dict[JobId, Doubt] = field(default_factory=dict)  # jobs whose scripts failed at their start; newest last

    def doubt(self, job: JobId, kind: str, owner: str) -> None:
        """Count a failure of a job's script at its start."""
        before = self.doubts.pop(job, None)
        self.doubts[job] = Doubt((before.times if before is not None else 0) + 1, kind, owner)
        while len(self.doubts) > KEPT_DOUBTS:
            del self.doubts[next(iter(self.doubts))]

    def start_failed(self, reason: str) -> None:
        """Note why the last start failed."""
        self.reason = reason

    def back_off(self, until_s: float, suspected: bool) -> None:
        """Count a failed start by the server's fault, and start nothing before `until_s`."""
        self.failures += 1
        self.suspected, self.until_s = suspected, until_s

    def end_back_off(self, now: float) -> bool:
        """Return whether a back-off has expired by `now`, and end it."""
        if self.until_s is None or now < self.until_s:
            return False
        self.until_s = None
        return True

    def leave_out(self, gap_s: float) -> None:
        """Postpone the end of a back-off by `gap_s` seconds, in which the controller was absent."""
        if self.until_s is not None:
            self.until_s += gap_s

    def sentence(self, now: float) -> str:
        """Return why and for how long (seconds) no start is tried; the text follows the server's name and a colon."""
        what = "workers of jobs that run elsewhere fail at their start" if self.suspected else "cannot start workers"
        return f"{what}: {self.reason}; next try in {max(0.0, (self.until_s or now) - now):.0f} s"


@dataclass
class Forgeries:
    """Refused reports of a server's agent since this controller started (`forgery`)."""

    count: int = 0
    last: str = ""  # subject of the last refused report, in words
    limiter: RateLimiter = field(default_factory=lambda: RateLimiter(FORGERIES_AT_ONCE, FORGERY_INTERVAL_S))

    def refused(self, subject: str) -> None:
        """Count a refused report about this subject."""
        self.count += 1
        self.last = subject
