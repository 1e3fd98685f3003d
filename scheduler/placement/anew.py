"""One decision after another under a rule that looks at all jobs in each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..view import Gpus, ServerInView
from .fewest_servers import Placements

Place = Callable[[Sequence[ServerInView], Mapping[int, Gpus], Mapping[int, int]], Placements]  # as `Placement.place`


class Anew:
    """Who is where: `registry.Standing`."""

    def __init__(self, place: Place, servers: Sequence[ServerInView]) -> None:
        """Nobody is anywhere yet."""
        self._place, self._servers = place, servers
        self.gpus: Placements = {}

    def leave(self, job: int) -> Gpus:
        return self.gpus.pop(job)

    def change(self, shares: Mapping[int, int]) -> dict[int, tuple[Gpus, Gpus]]:
        before = self.gpus
        wanted = {job: gpus.bit_count() for job, gpus in before.items()} | dict(shares)
        self.gpus = self._place(self._servers, before, wanted)
        pairs = {job: (before.get(job, 0), self.gpus.get(job, 0)) for job in wanted}
        return {job: (had, has) for job, (had, has) in pairs.items() if had != has}
