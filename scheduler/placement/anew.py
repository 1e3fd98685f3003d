"""One decision after another under a rule that looks at all jobs in each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ..view import Gpus, ServerInView
from .fewest_servers import Placements


class Place(Protocol):
    """As `Placement.place`."""

    def __call__(
        self,
        servers: Sequence[ServerInView],
        present: Mapping[int, Gpus],
        shares: Mapping[int, int],
        *,
        stay: Collection[int] = (),
    ) -> Placements: ...


class Anew:
    """Who is where: `registry.Standing`."""

    def __init__(self, place: Place, servers: Sequence[ServerInView]) -> None:
        """Nobody is anywhere yet."""
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
