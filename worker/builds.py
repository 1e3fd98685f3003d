"""The communicators beside the one in use: which attempt is wanted, until when; the others are dropped. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol import times
from ..protocol.model import Roster, WorkerId
from .events import Action, BuildGroup, CloseRendezvous, DropGroup


@dataclass
class _Build:
    attempt: int
    leads: bool
    give_up_at: float | None  # None: it stands


class Builds:
    """Communicators that stand or are being built, by generation."""

    def __init__(self, me: WorkerId, device: bool) -> None:
        self._me = me
        self.timeout_s = times.DEVICE_BUILD_TIMEOUT_S if device else times.BUILD_TIMEOUT_S
        self._builds: dict[int, _Build] = {}

    def deadline(self) -> float | None:
        """When the next one has taken too long (Unix time, s)."""
        return min((b.give_up_at for b in self._builds.values() if b.give_up_at is not None), default=None)

    def build(self, now: float, roster: Roster, attempt: int, leader_address: str) -> list[Action]:
        """Begin; an earlier attempt at the same generation is dropped."""
        dropped = self.drop((roster.generation,))
        self._builds[roster.generation] = _Build(attempt, roster.leader == self._me, now + self.timeout_s)
        return [*dropped, BuildGroup(roster, attempt, leader_address, self.timeout_s)]

    def built(self, generation: int, attempt: int) -> list[Action]:
        """One stands. An attempt that has been overtaken is dropped."""
        build = self._builds.get(generation)
        if build is None or build.attempt != attempt:
            return [DropGroup(generation, attempt)]
        build.give_up_at = None
        return []

    def failed(self, generation: int, attempt: int) -> list[Action]:
        """One could not be built: nobody needs to wait in its meeting any more."""
        build = self._builds.get(generation)
        if build is None or build.attempt != attempt or build.give_up_at is None:
            return []
        return self.drop((generation,))

    def overdue(self, now: float) -> list[tuple[int, int]]:
        """Generation and attempt of those that have taken too long."""
        return [
            (generation, build.attempt)
            for generation, build in sorted(self._builds.items())
            if build.give_up_at is not None and now >= build.give_up_at
        ]

    def drop(self, generations: tuple[int, ...]) -> list[Action]:
        """These are not wanted any more."""
        actions: list[Action] = []
        for generation in generations:
            build = self._builds.pop(generation, None)
            if build is not None:
                actions += [DropGroup(generation, build.attempt), *self._close(generation, build)]
        return actions

    def used(self, generation: int) -> list[Action]:
        """This one is in use from now on: its meeting is over."""
        return self._close(generation, self._builds.pop(generation))

    def _close(self, generation: int, build: _Build) -> list[Action]:
        return [CloseRendezvous(generation, build.attempt)] if build.leads else []
