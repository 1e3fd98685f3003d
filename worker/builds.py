"""The communicators beside the one in use: which attempt is wanted, and until when; the others are dropped. Pure.

A communicator that cannot be built is tried again as long as its order stands. The worker's status gives the reason,
the number of failures, and the time of the first one. A worker without a state to lose ends itself when no build has
succeeded for `UNREACHABLE_TIMEOUT_S`, so that the controller puts another worker in its place. A worker that holds the
state stays, and a worker that trains continues in its generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from ..protocol import times
from ..protocol.model import Roster, WorkerId
from .events import Action, BuildGroup, CloseRendezvous, DropGroup


def clock_time(at: float) -> str:
    """Return a Unix time as text for people, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"


@dataclass
class _Build:
    attempt: int
    leads: bool
    give_up_at: float | None  # None: the communicator is built


@dataclass
class _Failures:
    """Failed builds since the last communicator that was used."""

    since: float
    generation: int
    times: int
    reason: str


class Builds:
    """Communicators that are built or being built, by generation."""

    def __init__(self, me: WorkerId, device: bool) -> None:
        self._me = me
        self.timeout_s = times.DEVICE_BUILD_TIMEOUT_S if device else times.BUILD_TIMEOUT_S
        self._builds: dict[int, _Build] = {}
        self._failures: _Failures | None = None

    def __len__(self) -> int:
        return len(self._builds)

    def deadline(self) -> float | None:
        """Return when the next build has taken too long (Unix time, s)."""
        if not self._builds:
            return None
        return min((b.give_up_at for b in self._builds.values() if b.give_up_at is not None), default=None)

    def build(self, now: float, roster: Roster, attempt: int, leader_address: str) -> list[Action]:
        """Begin a build. An earlier attempt at the same generation is dropped."""
        dropped = self.drop((roster.generation,))
        self._builds[roster.generation] = _Build(attempt, roster.leader == self._me, now + self.timeout_s)
        return [*dropped, BuildGroup(roster, attempt, leader_address, self.timeout_s)]

    def built(self, generation: int, attempt: int) -> list[Action]:
        """Take note of a finished build. An attempt that has been overtaken is dropped."""
        build = self._builds.get(generation)
        if build is None or build.attempt != attempt:
            return [DropGroup(generation, attempt)]
        build.give_up_at = None
        return []

    def failed(self, now: float, generation: int, attempt: int, reason: str) -> list[Action]:
        """Take note of a failed build, and close its rendezvous."""
        build = self._builds.get(generation)
        if build is None or build.attempt != attempt or build.give_up_at is None:
            return []
        before = self._failures or _Failures(now, generation, 0, "")
        self._failures = _Failures(before.since, generation, before.times + 1, reason)
        return self.drop((generation,))

    @property
    def note(self) -> str:
        """Description of the failures for people; empty without any."""
        if self._failures is None:
            return ""
        found = self._failures
        tried = f"tried {found.times} times since {clock_time(found.since)}" if found.times > 1 else "tried once"
        return f"cannot connect to the other workers of generation {found.generation}, {tried}: {found.reason}"

    def failing_s(self, now: float) -> float:
        """Return for how many seconds every build has failed, after at least one retry; else 0."""
        return now - self._failures.since if self._failures is not None and self._failures.times > 1 else 0.0

    def out_of_patience(self, now: float) -> bool:
        """Return whether builds have failed for so long that a worker without a state should make room for another."""
        return self._failures is not None and now >= self._failures.since + times.UNREACHABLE_TIMEOUT_S

    def overdue(self, now: float) -> list[tuple[int, int]]:
        """Return generation and attempt of the builds that have taken too long."""
        return [
            (generation, build.attempt)
            for generation, build in sorted(self._builds.items())
            if build.give_up_at is not None and now >= build.give_up_at
        ]

    def drop(self, generations: tuple[int, ...]) -> list[Action]:
        """Drop the communicators of these generations."""
        actions: list[Action] = []
        for generation in generations:
            build = self._builds.pop(generation, None)
            if build is not None:
                actions += [DropGroup(generation, build.attempt), *self._close(generation, build)]
        return actions

    def used(self, generation: int) -> list[Action]:
        """Take note that this communicator is in use now: its rendezvous is closed."""
        self._failures = None
        return self._close(generation, self._builds.pop(generation))

    def _close(self, generation: int, build: _Build) -> list[Action]:
        return [CloseRendezvous(generation, build.attempt)] if build.leads else []
