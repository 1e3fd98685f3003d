"""GPUs that are out of use from one time to another in simulations: timed reservations, and loans that have an end.

As on a real cluster (`controller.requests.reserving`), a reservation takes its GPUs when it begins: idle ones first, on
as few servers as possible. Jobs leave theirs with their state, as for any other preemption. Fixed jobs keep theirs, so
a reservation that finds too few GPUs takes others as they become free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..scheduler.deadlines.table import Busy
from ..scheduler.sets import elements, union
from ..scheduler.view import Gpus, ServerInView


@dataclass(frozen=True)
class Period:
    """`count` GPUs are out of use from one time to another (s of the simulation). `taken`: those that already are."""

    from_s: float
    to_s: float
    count: int
    taken: Gpus = 0


class Reserved:
    """The GPUs that are out of use as time goes on."""

    def __init__(self, periods: Sequence[Period], servers: Sequence[ServerInView]) -> None:
        self._periods = [one for one in periods if one.to_s > one.from_s]
        self._taken = [one.taken for one in self._periods]
        self._masks = list(_masks(servers))
        self._all = union(self._masks)
        self.gpus: Gpus = union(self._taken)

    def next_s(self, now: float) -> float:
        """Return when the next period begins or ends; inf: never."""
        times = [at for one in self._periods for at in (one.from_s, one.to_s) if at > now]
        return min(times, default=math.inf)

    def advance(self, now: float, held: Gpus, kept: Gpus, down: Gpus) -> bool:
        """Take the GPUs that are due, and return those that are not any more; return whether any have changed.

        `held`: GPUs of all jobs, `kept`: of jobs that keep them. `down`: GPUs out of order.
        """
        before = self.gpus
        due = [one.from_s <= now < one.to_s for one in self._periods]
        self._taken = [taken if is_due else 0 for taken, is_due in zip(self._taken, due, strict=True)]
        for at, one in enumerate(self._periods):
            missing = one.count - self._taken[at].bit_count() if due[at] else 0
            if missing > 0:
                able = self._all & ~(union(self._taken) | kept | down)
                self._taken[at] |= union(1 << gpu for gpu in self._in_order(able, held)[:missing])
        self.gpus = union(self._taken)
        return self.gpus != before

    def busy(self, now: float) -> Busy:
        """Return the periods and numbers of usable GPUs that will be out of use, for plans of deadlines."""
        return tuple(
            (max(now, one.from_s), one.to_s, left)
            for one, taken in zip(self._periods, self._taken, strict=True)
            if one.to_s > now and (left := one.count - taken.bit_count()) > 0
        )

    def _in_order(self, able: Gpus, held: Gpus) -> list[int]:
        """Return GPUs in the order in which they are taken."""
        idle = [(able & ~held & mask).bit_count() for mask in self._masks]
        places = {gpu: at for at, mask in enumerate(self._masks) for gpu in elements(able & mask)}
        return sorted(places, key=lambda gpu: (held >> gpu & 1, -idle[places[gpu]], gpu))


def _masks(servers: Sequence[ServerInView]) -> Iterator[Gpus]:
    begin = 0
    for server in servers:
        yield ((1 << len(server.gpus)) - 1) << begin
        begin += len(server.gpus)
