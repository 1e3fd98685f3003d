"""Controllers that stand for election at a model of a store, in virtual time.

Each has a clock of its own speed, is paused or cut off, and its requests and their answers are late or lost."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from elasticd.controller.election.events import (
    Action,
    Campaign,
    CampaignLost,
    CampaignWon,
    ElectionTick,
    Event,
    Grant,
    Holder,
    Lead,
    LeaderObserved,
    LeaseGone,
    LeaseGranted,
    Reign,
    Renew,
    Renewed,
    RequestFailed,
    Revoke,
    StandBy,
    StateLoaded,
)
from elasticd.controller.election.machine import Election, State
from elasticd.protocol.times import leadership

TIMES = leadership(5)
NAMES = ("a", "b", "c")
DELAYS = (0.001, 0.005, 0.02, 0.2, 0.6, 1.5)  # the last ones come too late
QUICK = (0.001, 0.005, 0.02, 0.1)
DRIFT = 0.01  # clocks run faster or slower by so much at most: the margin is far greater


class ModelStore:
    """Leases, one leadership key and one term. `alive` tells whether it answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.revision = 1
        self.leases: dict[int, float] = {}
        self.holder: Holder | None = None
        self.holder_lease = 0
        self.term = 0
        self.alive = True
        self.watchers: list[Callable[[LeaderObserved], None]] = []

    def pass_time(self, now: float) -> None:
        self.now = now
        if self.alive:
            for lease in [lease for lease, ends_s in self.leases.items() if ends_s <= now]:
                self.end(lease)

    def end(self, lease: int) -> None:
        self.leases.pop(lease, None)
        if self.holder is not None and self.holder_lease == lease:
            self._set(None, 0)

    def campaign(self, name: str, lease: int, above: int) -> Reign | None:
        if lease not in self.leases or self.holder is not None:
            return None
        self.term = max(self.term, above) + 1
        self._set(Holder(name, self.revision + 1), lease)
        return Reign(self.term, self.revision)

    def look(self) -> LeaderObserved:
        return LeaderObserved(self.holder, self.revision)

    def _set(self, holder: Holder | None, lease: int) -> None:
        self.revision += 1
        self.holder, self.holder_lease = holder, lease
        for watcher in self.watchers:
            watcher(self.look())


@dataclass
class Candidate:
    """One controller: its election, and a shell around it that asks the store and acts as a leader."""

    name: str
    speed: float
    election: Election
    paused_until: float = 0.0
    cut_until: float = 0.0  # off from the store
    held: list[Event] = field(default_factory=list)  # what has come while it was paused
    reigns: list[int] = field(default_factory=list)


class Electorate:
    """`run` until a time, with whatever `plan` does to it meanwhile; the promises are looked at after each event."""

    def __init__(self, rng: random.Random, delays: tuple[float, ...] = DELAYS, lost: float = 0.02) -> None:
        """delays: of a request, and of its answer (s). lost: the part of them that does not arrive."""
        self.rng = rng
        self._delays, self._lost = delays, lost
        self.store = ModelStore()
        self.store.watchers.append(self._tell_all)
        self.now = 0.0
        self.candidates = [Candidate(name, 1 + rng.uniform(-DRIFT, DRIFT), Election(TIMES, 0.0)) for name in NAMES]
        self.terms: list[tuple[int, str]] = []
        self.last_led_s = 0.0
        self.sent = 0
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._lease = itertools.count(1)
        for candidate in self.candidates:
            self.at(0.0, lambda candidate=candidate: self.take(candidate, self.store.look()))
            self._tick(candidate)

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time_s, next(self._order), what))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            time_s, _, what = heapq.heappop(self._queue)
            self.now = max(self.now, time_s)
            self.store.pass_time(self.now)
            what()
            self.check()
        self.now = until

    # -- what happens to them

    def pause(self, candidate: Candidate, seconds: float) -> None:
        candidate.paused_until = max(candidate.paused_until, self.now + seconds)
        self.at(candidate.paused_until, lambda: self._wake(candidate))

    def _wake(self, candidate: Candidate) -> None:
        held, candidate.held = candidate.held, []
        for event in held:
            self.take(candidate, event)

    def cut(self, candidate: Candidate, seconds: float) -> None:
        candidate.cut_until = max(candidate.cut_until, self.now + seconds)

    def stop_store(self, seconds: float) -> None:
        self.store.alive = False

        def back() -> None:
            self.store.alive = True
            # A store that has been away gives all leases their whole time again.
            self.store.leases = dict.fromkeys(self.store.leases, self.now + TIMES.lease_s)

        self.at(self.now + seconds, back)

    # -- promises

    def clock(self, candidate: Candidate) -> float:
        return self.now * candidate.speed

    def says_it_leads(self, candidate: Candidate) -> bool:
        until_s = candidate.election.leads_until_s
        return until_s is not None and self.clock(candidate) < until_s

    def check(self) -> None:
        leaders = [candidate for candidate in self.candidates if self.says_it_leads(candidate)]
        assert len(leaders) <= 1, f"{[leader.name for leader in leaders]} lead at {self.now}"
        for leader in leaders:
            reign = leader.election.reign
            assert reign is not None
            holder = self.store.holder
            assert holder is not None, f"{leader.name} leads without the key"
            assert holder.revision == reign.revision, f"{leader.name} leads, and {holder.name} has the key"
            assert reign.term == self.store.term, f"{leader.name} leads with an old term"
            self.last_led_s = self.now
            self.sent += leader.election.state is State.LEADING

    # -- the shells

    def _tick(self, candidate: Candidate) -> None:
        self.take(candidate, ElectionTick(self.clock(candidate)))
        self.at(self.now + 0.1, lambda: self._tick(candidate))

    def _tell_all(self, seen: LeaderObserved) -> None:
        for candidate in self.candidates:
            self._later(candidate, seen)

    def _later(self, candidate: Candidate, event: Event) -> None:
        delay_s = self.rng.choice((0.001, 0.01, 0.1, 0.5))

        def come() -> None:
            if self.now >= candidate.cut_until or not isinstance(event, LeaderObserved):
                self.take(candidate, event)

        self.at(self.now + delay_s, come)

    def take(self, candidate: Candidate, event: Event) -> None:
        if self.now < candidate.paused_until:
            if not isinstance(event, ElectionTick):
                candidate.held.append(event)
            return
        for action in candidate.election.handle(self.clock(candidate), event):
            self._carry_out(candidate, action)

    def _carry_out(self, candidate: Candidate, action: Action) -> None:
        match action:
            case Grant() | Renew() | Campaign():
                self._ask(candidate, action)
            case Revoke(lease):
                if self._reaches(candidate):
                    self.at(self.now + self._delay(), lambda: self.store.end(lease))
            case Lead(reign):
                assert reign.term > max((term for term, _ in self.terms), default=0), "terms only grow"
                self.terms.append((reign.term, candidate.name))
                candidate.reigns.append(reign.term)
                self._later(candidate, StateLoaded(reign.term))
            case StandBy(term):
                assert candidate.reigns[-1] == term

    def _ask(self, candidate: Candidate, ask: Grant | Renew | Campaign) -> None:
        """The request takes a while, or is lost; so does its answer. Who has no answer in time is told so."""
        asked_s, asked_at = self.clock(candidate), self.now
        gives_up = self.now + TIMES.answer_s / candidate.speed
        settled = [False]

        def settle(event: Event) -> None:
            if not settled[0]:
                settled[0] = True
                self.take(candidate, event)

        def reach() -> None:
            if not (self.store.alive and self.now >= candidate.cut_until):
                return
            events = self._answer(candidate, ask, asked_s)
            if self._reaches(candidate):
                comes = self.now + self._delay()
                for event in events[:1]:
                    self.at(comes, lambda event=event: settle(event))
                for event in events[1:]:
                    self.at(comes, lambda event=event: self.take(candidate, event))

        if self._reaches(candidate):
            self.at(asked_at + self._delay(), reach)
        self.at(gives_up, lambda: settle(RequestFailed(ask, "no answer")))

    def _answer(self, candidate: Candidate, ask: Grant | Renew | Campaign, asked_s: float) -> list[Event]:
        store = self.store
        match ask:
            case Grant():
                lease = next(self._lease)
                store.leases[lease] = self.now + TIMES.lease_s
                return [LeaseGranted(lease, TIMES.lease_s, asked_s)]
            case Renew(lease):
                if lease not in store.leases:
                    return [LeaseGone(lease), store.look()]
                store.leases[lease] = self.now + TIMES.lease_s
                return [Renewed(lease, TIMES.lease_s, asked_s), store.look()]
            case Campaign(lease, above):
                reign = store.campaign(candidate.name, lease, above)
                return [CampaignLost(lease)] if reign is None else [CampaignWon(lease, reign)]

    def _delay(self) -> float:
        return self.rng.choice(self._delays)

    def _reaches(self, candidate: Candidate) -> bool:
        return self.store.alive and self.now >= candidate.cut_until and self.rng.random() >= self._lost
