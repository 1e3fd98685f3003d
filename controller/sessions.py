"""What is known of servers: the connection with the agent of each, what runs there, and how starts have gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..protocol.messages import LocalWorker, StopWorker, session_name
from ..protocol.model import GpuAddress, JobId, Server, Trouble, WorkerId
from ..protocol.sparing import Sparing
from ..scheduler.view import ServerInView

CLOCK_INTERVAL_S = 60.0
MAX_CLOCK_S = 1e11  # what is later is no time
FORGERIES_AT_ONCE, FORGERY_INTERVAL_S = 3, 600.0  # of one server: so many are told at once, then one in so long


@dataclass(frozen=True)
class Stray:
    """A process that nobody wants."""

    gpus: tuple[GpuAddress, ...]  # that it holds; empty: not known
    stop: StopWorker  # the order for its agent


@dataclass
class ServerClock:
    """How far a server's clock is ahead of the controller's.

    What a message tells of it is too little by the time that the message took. So the most of a minute or two counts.
    """

    ahead_s: float | None = None
    since_s: float = 0.0
    _now_s: float | None = None  # the most of this minute

    def heard(self, now: float, clock_s: float) -> None:
        """A message says what its sender's clock was. 0: it does not say; nor do numbers count that are none."""
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
    start: int = 0  # which of the agent's starts this is
    hello: int = 0  # number of its last hello
    sent: int = 0  # messages since its last hello
    places: dict[WorkerId, LocalWorker] = field(default_factory=dict)  # of the workers in its last hello
    strays: dict[WorkerId, Stray] = field(default_factory=dict)
    strays_told_s: float = 0.0  # when the agent was last told to stop them (Unix time)
    unknown: dict[WorkerId, LocalWorker] = field(default_factory=dict)  # of jobs that are not in the store (`guests`)
    troubles: tuple[Trouble, ...] = ()  # as told last; not recorded: an agent tells all of them with each hello
    clock: ServerClock = field(default_factory=ServerClock)

    @property
    def name(self) -> str:
        return session_name(self.incarnation, self.hello)

    @cached_property
    def whole(self) -> ServerInView:
        """The server with all of its GPUs, for the scheduler."""
        return ServerInView.of(self.server)

    def uid(self, worker: WorkerId) -> str:
        """Of the job of a worker in the last hello; "": not told."""
        return self.places[worker].uid if worker in self.places else ""


@dataclass
class Guest:
    """A server that belongs to another cluster, and the connection with its agent (`guests`)."""

    server: Server
    cluster: str  # the other one's id
    last_heard_s: float
    agent: str
    incarnation: str
    start: int
    hello: int
    sent: int = 0
    running: dict[WorkerId, LocalWorker] = field(default_factory=dict)
    ended: dict[WorkerId, str] = field(default_factory=dict)  # uids of their jobs


@dataclass(frozen=True)
class Doubt:
    """A job's script has failed at its start on a server."""

    times: int
    kind: str  # of the job, which may be over long since
    owner: str = ""  # of the job


@dataclass
class Health:
    """What the starts of workers on a server, or on a GPU, have come to since the last one that went well (`health`)."""

    failures: int = 0  # in a row, by the server's fault
    until_s: float | None = None  # it is left alone until then (Unix time)
    reason: str = ""
    suspected: bool = False  # the scripts' exit codes are laid at its door
    doubts: dict[JobId, Doubt] = field(default_factory=dict)  # jobs whose scripts failed at their start; newest last

    def sentence(self, now: float) -> str:
        """Why it is left alone, and how long still; after the server's name and a colon."""
        what = "workers of jobs that run elsewhere fail at their start" if self.suspected else "cannot start workers"
        return f"{what}: {self.reason}; next try in {max(0.0, (self.until_s or now) - now):.0f} s"


@dataclass
class Forgeries:
    """Reports of a server's agent that were refused, since this controller started (`forgery`)."""

    count: int = 0
    last: str = ""  # what the last one spoke of, in words
    told: Sparing = field(default_factory=lambda: Sparing(FORGERIES_AT_ONCE, FORGERY_INTERVAL_S))
