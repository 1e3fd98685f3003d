"""The controller's process: its turn, its store, its sockets. The controller's state machine is the product's."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import assert_never

from elasticd.controller.events import (
    AgentMessage,
    Audit,
    ClientRequest,
    ClockSet,
    Event,
    NoticeDone,
    ReplyClient,
    SendAgent,
    Warn,
)
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.records import OverruleRecord
from elasticd.controller.recovery import differences
from elasticd.controller.settings import Keeping, Settings
from elasticd.controller.store import Deposed, StoreUnavailable
from elasticd.controller.turn import Build, Turn
from elasticd.protocol.messages import (
    AgentHello,
    Envelope,
    Order,
    StartWorker,
    StopWorker,
    ToAgentFromController,
    ToControllerFromAgent,
)
from elasticd.protocol.model import Idle, ServerId, Severity
from elasticd.protocol.principals import Principal
from elasticd.scheduler.scheduler import Scheduler

from .disk import Disk
from .ground import Ground
from .operations import Crashed
from .plan import Moment
from .process import Process, State
from .violation import Violation

YEAR_S = 3.2e7
COMPARE_EVERY = 50  # commits
RESERVE_AFTER_S = 20.0  # short, since histories last minutes
# workers up to which the state of a job is one record; so few that most jobs cross the limit in both directions
WHOLE_WORKERS = 1
IDLE_RULES = Idle(warn_s=4.0, shrink_s=8.0)  # as short, and without `suspend`: nobody would resume the jobs
RECENT = 1  # finished jobs kept in memory; so few that archived jobs occur in histories
KEPT_SAID = 40  # messages to agents
RESTART_S = 3.0  # until systemd restarts a controller that has crashed
RENEW_S = 1.0  # between two renewals of a lease, where there is one
NOTICE_S = 0.7  # until a notice is delivered
STANDBY_LOOK_S = 0.5  # between two checks of the standby whether a leader exists

_MOMENTS: dict[type, Moment] = {StartWorker: Moment.START, Order: Moment.ORDER, StopWorker: Moment.STOP}


class Controller(Process):
    """One controller, restarted by a supervisor."""

    def __init__(self, world: Ground, disk: Disk, scheduler: Scheduler) -> None:
        super().__init__(world, "controller", "controller")
        self._world = world
        self._disk = disk
        self._scheduler = scheduler
        self._turn: Turn
        self._made = 0  # number of state machines made by this process
        self._between_turns = False  # False: a turn was interrupted
        self._found = 0  # number of the disk that this life began with
        self._compare_at = COMPARE_EVERY  # commits
        self._notifying: set[int] = set()  # notices on their way, in this life
        self._clock_set_s = 0.0  # sum of the jumps that its clock has noticed
        self.said: deque[tuple[ServerId, ToAgentFromController, str]] = deque(maxlen=KEPT_SAID)  # in this life
        self.heard: dict[str, float] = {}  # by name of a request: when it came first, in this life
        self._told = 0  # number of cluster events that the story already has
        self._barred: dict[ServerId, frozenset[tuple[int | None, str, float]]] = {}  # state after the last turn

    @property
    def _reign(self) -> str:
        """Identifies the reign: with an election, all state machines of one process share it, also after a loss of the store."""
        return f"c{self.life}" if self._disk.leases else self.machine.cluster.settings.incarnation

    @property
    def has_reigned(self) -> bool:
        """Whether any life of this controller has completed its recovery."""
        return hasattr(self, "_turn")

    @property
    def machine(self) -> ControllerMachine:
        return self._turn.machine

    def boot(self) -> None:
        """Start, unless the controller runs."""
        if self.alive:
            return
        if not self._disk.vacant():
            self._world.after(STANDBY_LOOK_S, self.boot)
            return
        self.born()
        self._clock_set_s = self.clock_ahead_s
        self._barred = {}
        self._between_turns = False
        self._world.story.say(f"controller starts, for the {self.life}. time")
        try:
            self._made = 0
            self._notifying = set()
            self.said.clear()
            self.heard.clear()
            self._turn = self._disk.begin(self.life, self._build, self.now)
        except Crashed:
            self._crash()
            return
        except StoreUnavailable as error:
            self._world.story.say(f"controller cannot start: {error}")
            self.die()
            self._world.after(RESTART_S, self.boot)
            return
        if self._disk.leases:
            self.later(RENEW_S, self._renew)
        self._found = self._disk.replaced
        self._compare_at = self._world.oracle.commits + COMPARE_EVERY
        self._told = self.machine.cluster.history.next_number
        self.settle()

    def die(self) -> None:
        self._compare()
        if self.has_reigned and not (self._turn.clock_recorded and self._clock_set_s == self.clock_ahead_s):
            self._world.books.unsure()  # a restarted controller cannot know that the clock was set
        super().die()
        if self._disk.leases:
            self._world.after(RESTART_S, self._disk.follow)

    def _renew(self) -> None:
        if self._disk.renew():
            self.later(RENEW_S, self._renew)
        else:
            self._crash()

    def _compare(self) -> None:
        """Between two turns, a controller that recovers from the store must have the same state and the same timers as this
        one.
        """
        if not self._between_turns or self._turn.trouble or self._disk.replaced != self._found:
            return
        later = self.now + YEAR_S  # past every time that a record can hold
        other = self._make(later, self._disk.contents())
        if odd := differences(self.machine.cluster, other.cluster):
            raise Violation("the store, replayed, equals the live state", "; ".join(odd[:3]))

    def _build(self, term: int) -> Build:
        """Return the factory of a reign's state machines."""

        def build(now: float, records: Sequence[tuple[str, bytes]]) -> ControllerMachine:
            self._made += 1
            return self._make(now, records, term)

        return build

    def _make(self, now: float, records: Sequence[tuple[str, bytes]], term: int = 0) -> ControllerMachine:
        settings = Settings(
            cluster="world",
            incarnation=f"c{self.life}.{self._made}",
            version="0",
            pid=self.life,
            term=term,
            keeping=Keeping(recent=RECENT),
            reserve_after_s=RESERVE_AFTER_S,
            whole_workers=WHOLE_WORKERS,
            idle=IDLE_RULES,
        )
        chance = random.Random(f"{self._world.seed}/{settings.incarnation}")
        return ControllerMachine(settings, self._scheduler, chance, now, records)

    def deadline(self) -> float | None:
        return self._turn.next_deadline()

    def settle(self) -> None:
        self.turn()  # process all input: commit, and send
        if self.state is State.RUNNING:
            self._wait(self.deadline())

    def turn(self) -> None:
        self._between_turns = False
        self._look_at_clock()
        try:
            outbox = self._turn.finish(self.now)
            self._between_turns = True
        except (Crashed, Deposed):
            self._crash()
            return
        for action in outbox:
            match action:
                case SendAgent(peer, message, identity):
                    self._send(peer, message, identity)
                case ReplyClient(client, reply):
                    self._world.answered(client, reply)
                case Warn(text):
                    self._world.story.say(f"controller warns: {text}")
                case Audit():
                    self._world.oracle.audited(action)
                case _:
                    assert_never(action)
        if not self._turn.trouble:
            self._notify()
        self._world.oracle.shares_are_recorded()
        self._barred = {name: self._barred_on(name) for name in self.machine.cluster.servers.sessions}
        self._look()
        if troubles := self.machine.cluster.planning.policy_failures:
            raise Violation("every policy decides, whatever the jobs are", "; ".join(sorted(troubles)))
        if self._world.oracle.turning or self._world.oracle.commits >= self._compare_at:
            self._world.oracle.turning = False
            self._compare_at = self._world.oracle.commits + COMPARE_EVERY
            self._compare()

    def _notify(self) -> None:
        """Deliver the recorded notices, each after a while; what this life does not get to is left to the next."""
        for number in [number for number in self.machine.cluster.notices.pending if number not in self._notifying]:
            self._notifying.add(number)
            self.later(NOTICE_S, self._noticed, number)

    def _noticed(self, number: int) -> None:
        self._notifying.discard(number)
        notice = self.machine.cluster.notices.pending.get(number)
        if notice is None:
            return  # dropped, or the store was replaced
        self._world.story.say(f"a notice tells that {notice.job} has {notice.event.value}")
        self._world.oracle.noticed(notice.job, notice.event)
        self.take(NoticeDone(number))
        if self.alive:
            self.settle()

    def _crash(self) -> None:
        self._world.story.say("controller dies at a commit")
        self.die()
        self._world.after(RESTART_S, self.boot)

    def _send(self, peer: ServerId, message: ToAgentFromController, identity: str) -> None:
        if isinstance(message, StopWorker):
            self._check_stop(peer, message)
            self._world.oracle.stop_sent(peer, message)
        elif isinstance(message, Order | StartWorker):
            self._world.oracle.told(message)
            if isinstance(message, StartWorker):
                self._check_start(peer, message)
                self._world.starting(peer, message)
        self.said.append((peer, message, identity))
        self._world.oracle.reigns(self.machine.term, self._reign)
        self._world.to_agent(peer, message, identity, self.machine.term)
        moment = _MOMENTS.get(type(message))
        if moment is not None:
            assert isinstance(message, StartWorker | Order | StopWorker)
            self._world.moment(moment, message.job)

    def _check_stop(self, server: ServerId, stop: StopWorker) -> None:
        cluster = self.machine.cluster
        job = cluster.jobs.get(stop.job) or cluster.jobs.archive.find(stop.job)
        if (job is None or not job.has_uid(stop.uid)) and server not in cluster.servers.adopted:
            text = f"{stop.worker} on {server} is stopped; no job here is its own, and no operator has asked for it"
            raise Violation("what belongs to no job here is left alone", text)

    def _check_start(self, server: ServerId, start: StartWorker) -> None:
        """Check a start against the statements of the agent and of operators, computed independently of the controller."""
        wrong = [
            text
            for gpu, text, since_s in self._barred_on(server) & self._barred.get(server, frozenset())
            if gpu in (None, start.gpu, *start.gpus)
        ]
        if wrong:
            text = f"{start.worker} is started on {server}:{start.gpu}: {'; '.join(sorted(wrong))}"
            raise Violation("nothing is started on a GPU that takes no new work", text)

    def _barred_on(self, server: ServerId) -> frozenset[tuple[int | None, str, float]]:
        cluster = self.machine.cluster
        overruled = cluster.servers.overruled.get(server, OverruleRecord())
        trusted = {(one.gpu, one.code, one.since_s) for one in overruled.trusted}
        cordoned = [(one.gpu, f"cordoned: {one.reason}", one.since_s) for one in overruled.cordons]
        troubled = [
            (one.gpu, one.text, one.since_s)
            for one in cluster.servers.sessions[server].troubles
            if one.severity is not Severity.NOTE and (one.gpu, one.code, one.since_s) not in trusted
        ]
        return frozenset([*cordoned, *troubled])

    def _look(self) -> None:
        """Add the controller's new cluster events to the story."""
        cluster = self.machine.cluster
        if not self._world.story.on or self._turn.trouble:  # events of an uncommitted turn do not count
            return
        self._told = min(self._told, cluster.history.next_number)
        fresh = cluster.history.next_number - self._told
        for event in list(cluster.history.events)[-fresh:] if fresh else ():
            self._world.story.say(f"{event.job or 'cluster'} {event.kind.value}: {event.text}")
        self._told = cluster.history.next_number

    # -- input

    @property
    def trouble(self) -> str:
        """Reason why the controller cannot commit at present; empty: it can."""
        return self._turn.trouble

    def from_agent(self, peer: ServerId, message: ToControllerFromAgent, identity: str) -> None:
        if isinstance(message, AgentHello):
            message = self._world.as_heard(message, identity, peer not in self.machine.cluster.servers.met)
        self.take(AgentMessage(peer, message, identity))

    def from_client(self, client: bytes, envelope: Envelope, who: Principal) -> None:
        self.heard.setdefault(envelope.id, self._world.timeline.now)
        self.take(ClientRequest(client, envelope, who))

    def take(self, event: Event) -> None:
        self._between_turns = False  # effects of this input are not committed yet
        self._look_at_clock()
        try:
            self._turn.take(self.now, event)
        except (Crashed, Deposed):
            self._crash()

    def _look_at_clock(self) -> None:
        by_s, self._clock_set_s = self.clock_ahead_s - self._clock_set_s, self.clock_ahead_s
        if by_s:
            self._turn.take(self.now, ClockSet(by_s))
