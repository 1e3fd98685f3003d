"""The network between processes: one directed link for each pair, with a random stream per link."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from elasticd.protocol.messages import Acknowledged

from . import storms
from .plan import Contract, Weather
from .process import PEER_TIMEOUT_S, Process
from .timeline import Timeline
from .violation import Violation

# messages of one process to another within `storms.WINDOW_S`, changed or not; about four times the most seen in histories
MOST_SENT = {"Controller": 250, "Zombie": 250, "Agent": 250, "Worker": 150}
LATEST_S = 3.0  # most that a late message is delayed


class _Link:
    """Directed link between two processes."""

    def __init__(self, seed: int, source: str, target: str) -> None:
        self.chance = random.Random(f"{seed}/link/{source}/{target}").random
        self.last = 0.0  # arrival time of the last message
        self._most = math.inf
        self._since, self._sent = 0.0, 0
        self._lives = 0, 0  # of source and target
        self._equal: Counter[storms.Words] = Counter()
        self._sessions = 0  # that the controller has begun with an agent

    def count(self, now: float, source: Process, target: Process, message: msgspec.Struct | None) -> None:
        """Count a message. Raises Violation if there are too many, or too many equal ones, between honest processes."""
        lives = source.life, target.life
        if now - self._since >= storms.WINDOW_S or lives != self._lives:
            self._equal.clear()
            self._lives, self._sessions = lives, 0
        if now - self._since >= storms.WINDOW_S:
            self._since, self._sent, self._most = now, 0, MOST_SENT.get(type(source).__name__, math.inf)
        self._sent += 1
        if source.provokes or target.provokes:
            return
        if self._sent > self._most:
            text = f"{source.name} has sent {target.name} {self._sent} messages within {now - self._since:.1f} s"
            raise Violation("no process floods another with messages", text)
        if message is not None and source.repeats_at_its_period:
            self._count_equal(source, target, message)

    def _count_equal(self, source: Process, target: Process, message: msgspec.Struct) -> None:
        self._sessions += isinstance(message, Acknowledged) and message.sent == 0
        words = storms.words(message)
        self._equal[words] += 1
        if self._equal[words] > storms.most(message, self._sessions, source.host == target.host):
            text = (
                f"{source.name} has sent {target.name} {self._equal[words]} times in {storms.WINDOW_S:.0f} s: {message}"
            )
            raise Violation("unchanged words are repeated at their period", text[:400])


class Network:
    """Delivers calls to processes. Hosts can be partitioned, in one direction or both."""

    def __init__(self, timeline: Timeline, seed: int, weather: Weather, peer_loss: float = 0.0) -> None:
        """`peer_loss`: loss rate of messages among workers, instead of the weather's."""
        self._timeline = timeline
        self._seed = seed
        self.weather, self.peer_loss = weather, peer_loss
        self._links: dict[tuple[str, str], _Link] = {}
        self._cuts: dict[tuple[str, str], float] = {}  # (from host, to host): time of the cut
        self.doubled: Callable[[Callable[..., None], tuple[Any, ...]], Callable[[], None]] | None = None
        self._held: list[tuple[str, str, Process, int, Callable[..., None], tuple[Any, ...]]] = []

    def connected(self, one: str, other: str) -> bool:
        """Return whether connections between two hosts stand: they break when a direction has been cut for PEER_TIMEOUT_S."""
        if not self._cuts:
            return True
        since = min(self._cuts.get((one, other), float("inf")), self._cuts.get((other, one), float("inf")))
        return self._timeline.now - since < PEER_TIMEOUT_S

    def cut_among(self, hosts: frozenset[str]) -> bool:
        """Return whether any direction between two of these hosts is cut."""
        return any(source in hosts and target in hosts for source, target in self._cuts)

    def send(
        self, source: Process, target: Process, call: Callable[..., None], *arguments: Any, peers: bool = False
    ) -> None:
        """Call `call(*arguments)`, a method of `target`, if and when the network delivers it. `peers`: both are workers."""
        if not target.alive:
            return
        link = self._links.get((source.name, target.name))
        if link is None:
            link = self._links[source.name, target.name] = _Link(self._seed, source.name, target.name)
        now, life = self._timeline.now, target.life
        said = next((each for each in arguments if isinstance(each, msgspec.Struct)), None)
        link.count(now, source, target, said)
        if source.host == target.host:
            link.last = max(now + 0.0001, link.last + 1e-6)
            self._timeline.at(link.last, link.chance(), target.arrive, life, call, *arguments)
            return
        delay, lost, late, copied, tie = link.chance(), link.chance(), link.chance(), link.chance(), link.chance()
        if self._cuts:
            if not self.connected(source.host, target.host):
                return
            if (source.host, target.host) in self._cuts:
                self._held.append((source.host, target.host, target, life, call, arguments))
                return
        weather = self.weather
        if lost < (self.peer_loss if peers else weather.loss):
            return
        delay = 0.0003 + 0.001 * delay
        if late < weather.late:
            delay += LATEST_S * (late / weather.late) ** 2
        when = now + delay
        if weather.contract is Contract.TCP:
            when = link.last = max(when, link.last + 1e-6)
        self._timeline.at(when, tie, target.arrive, life, call, *arguments)
        if copied < weather.copies:
            again = now + LATEST_S * (copied / weather.copies) ** 2
            if self.doubled is not None and again > when:
                self._timeline.at(again, tie, target.arrive, life, self.doubled(call, arguments))
            else:
                self._timeline.at(again, tie, target.arrive, life, call, *arguments)

    def cut(self, source: str, target: str) -> None:
        """Block messages from one host to another from now on."""
        self._cuts.setdefault((source, target), self._timeline.now)

    def heal(self, source: str, target: str) -> None:
        """Unblock messages. Messages in flight arrive, unless the connection has broken meanwhile."""
        since = self._cuts.pop((source, target), None)
        if since is None:
            return
        held, self._held = self._held, []
        for entry in held:
            if entry[:2] != (source, target):
                self._held.append(entry)
            elif self._timeline.now - since < PEER_TIMEOUT_S:
                _, _, process, life, call, arguments = entry
                self._timeline.at(self._timeline.now + 0.001, 0.5, process.arrive, life, call, *arguments)

    def heal_all(self) -> None:
        for source, target in list(self._cuts):
            self.heal(source, target)
