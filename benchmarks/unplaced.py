"""Placement that chooses no GPUs.

Where changes cost nothing only shares matter: completion times stay the same to the second, in half of the run time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from elasticd.scheduler.arrays import Ints
from elasticd.scheduler.placement.fewest_servers import Placements
from elasticd.scheduler.placement.registry import FewestServersParameters
from elasticd.scheduler.view import Gpus, ServerInView


class _Incremental:
    """Gives every job the first GPUs, as many as its share."""

    def __init__(self) -> None:
        self.gpus: dict[int, Gpus] = {}

    def leave(self, job: int) -> Gpus:
        return self.gpus.pop(job)

    def change(self, shares: Mapping[int, int], *, stay: Collection[int] = ()) -> dict[int, tuple[Gpus, Gpus]]:
        moves = {}
        for job, share in shares.items():
            had, has = self.gpus.get(job, 0), (1 << share) - 1
            if had != has:
                moves[job] = (had, has)
                self.gpus[job] = has
                if not has:
                    del self.gpus[job]
        return moves


class Unplaced:
    name = "unplaced"
    parameters = FewestServersParameters()

    def place(
        self,
        servers: Sequence[ServerInView],
        present: Mapping[int, Gpus],
        shares: Ints | Mapping[int, int],
        first: Mapping[int, Gpus] | None = None,
        stay: Collection[int] = (),
    ) -> Placements:
        raise NotImplementedError("only simulations go on from one decision to the next")

    def incremental(self, servers: Sequence[ServerInView]) -> _Incremental:
        return _Incremental()
