"""Times of a step, which every worker sends to all others in the word (EDL 5.4 also uses messages that are sent anyway).

Each worker has one integer of the word, of which the maximum over all workers is its own value, since the others
contribute nothing there. It carries two times of the step before. The first is the time of the worker's own part: from
the step's beginning until all computation that needs no other worker is done (on a device: `communicator.part_issued`),
and the rest of the last loop body of the step before, behind the update: a body's code may be there as well.
The second is its wait for the others, until the word has come. `training.stragglers` judges these times. If the leader
wants another hosting, it announces that in a payload of the next step. All workers read this payload, and use the new
hosting from the step after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .inband import NOTHING, Part
from .training.stragglers import NOT_MEASURED, packed, sizes_of


class Pace:
    """Times of this worker's steps, those of all workers, and the hosting that the leader wants (`inband.Participant`)."""

    name = "pace"

    def __init__(self, virtual_workers: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._virtual_workers = virtual_workers
        self._clock = clock
        self._leader = 0
        self._size = 1
        self._rank = 0
        self._wanted: tuple[int, ...] = ()  # by this worker, the leader
        self.times: Sequence[int] = ()  # of all workers, by rank, for the step before: `packed`, or NOT_MEASURED
        self.hosting: tuple[int, ...] = ()  # from the next step on, as the leader has announced; empty: as before
        self._own = NOT_MEASURED  # of the step before
        self._counts = False
        self._at = self._own_s = self._waited_s = 0.0
        self._applied_at: float | None = None  # the end of the update, until the script's body around it has ended
        self._rest_s = 0.0  # of the last loop body of the step before, behind the update

    @property
    def slots(self) -> int:
        """One for each worker; none for a single worker, which never waits."""
        return self._size if self._size > 1 else 0

    def enter(self, rank: int, size: int, leader: int) -> None:
        """Begin a generation with `size` workers. leader: the leader's rank."""
        self._rank, self._size, self._leader = rank, size, leader
        self._own, self.times = NOT_MEASURED, ()
        self._applied_at, self._rest_s = None, 0.0

    # -- a step

    def begin(self, wanted: tuple[int, ...]) -> None:
        """Begin a step. wanted: the hosting that this worker, the leader, wants; empty: the present one."""
        self._wanted, self.hosting, self._counts = wanted, (), False
        self._own_s, self._rest_s, self._waited_s = self._rest_s, 0.0, 0.0
        self._at = self._clock()

    def counts(self) -> None:
        """Note that this worker's part of the step can be measured: all bodies of its virtual workers, and no others."""
        self._counts = True

    def computed(self) -> None:
        """Note that this worker's part is computed."""
        now = self._clock()
        self._own_s += now - self._at
        self._at = now

    def others_came(self) -> None:
        """Note that the other workers' parts have arrived; another evaluation of the step may begin."""
        now = self._clock()
        self._waited_s += now - self._at
        self._at = now

    def word_came(self) -> None:
        """Note that the step's word has arrived."""
        self.others_came()
        counts = self._counts and self._size > 1
        self._own = packed(self._own_s, self._waited_s) if counts else NOT_MEASURED

    def applied(self) -> None:
        """Note that the step is applied: the script goes on behind the update."""
        self._applied_at = self._clock()

    def bodies_end(self) -> None:
        """Note that the step's last loop body has ended."""
        if self._applied_at is not None:
            self._rest_s = self._clock() - self._applied_at
            self._applied_at = None

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        found = [NOTHING] * self.slots
        if found and not part.joins:
            found[self._rank] = self._own
        return found

    def wants(self, part: Part) -> bool:
        return bool(self._wanted)

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        self.times = greatest
        return False

    def payload(self, part: Part) -> Any:
        return list(self._wanted) or None

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        self.hosting = sizes_of(payloads[self._leader], self._virtual_workers, len(payloads))
