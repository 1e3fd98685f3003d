"""Consecutive placement decisions under a rule that examines all jobs in each decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ..view import Gpus, ServerInView
from .fewest_servers import Placements


class PlaceFunction(Protocol):
    """Signature of `Placement.place`."""

    def __call__(
        self,
        servers: Sequence[ServerInView],
        present: Mapping[int, Gpus],
        shares: Mapping[int, int],
        *,
        stay: Collection[int] = (),
    ) -> Placements: ...


class RecomputedPlacement:
    """State of all placements between decisions: an implementation of `registry.IncrementalPlacement`."""

    def __init__(self, place: PlaceFunction, servers: Sequence[ServerInView]) -> None:
        """Start with no job placed."""
        self._place, self._servers = place, servers
        self.gpus: Placements = {}

    def leave(self, job: int) -> Gpus:
        return self.gpus.pop(job)

    def change(self, shares: Mapping[int, int], *, stay: Collection[int] = ()) -> dict[int, tuple[Gpus, Gpus]]:
        before = self.gpus
        wanted = {job: gpus.bit_count() for job, gpus in before.items()} | dict(shares)
        self.gpus = self._place(self._servers, before, wanted, stay=stay)
        pairs = {job: (before.get(job, 0), self.gpus.get(job, 0)) for job in wanted}
        return {job: (had, has) for job, (had, has) in pairs.items() if had != has}
