"""A leader's way to one commit: who has said Ready, which attempt at the communicator stands, who has prepared it. Pure.

An attempt begins when all of the roster are ready from one common base, and rests on what they have said. Whoever moves meanwhile
says something else, also in its `Prepared`, and the next attempt begins; but not while the number is in flight in a step's
control word: then the step decides about the attempt that stands (`membership` has the whole protocol).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol import times
from ...protocol.messages import Prepare, Prepared, Ready
from ...protocol.model import JobId, Roster, WorkerId

RETRY_INTERVAL_S = times.WORKER_RETRY_S

Said = list[tuple[WorkerId, Prepare]]  # to whom; the leader says it to itself last


@dataclass(frozen=True)
class Stand:
    """Where the leader itself stands."""

    base: int | None  # the generation that it trains in; 0: it stands still; None: it cannot say yet
    in_flight: bool  # may the step that runs decide for the attempt that stands?


class Campaign:
    """One leader, one order."""

    def __init__(self, job: JobId, me: WorkerId, roster: Roster, timeout_s: float, attempt: int = 0) -> None:
        """timeout_s: for an attempt. attempt: the last one that has been made; 0: none."""
        self._job = job
        self._me = me
        self._roster = roster
        self._timeout_s = timeout_s
        self._ready: dict[WorkerId, Ready] = {}
        self._prepared: set[WorkerId] = set()
        self._holders: tuple[WorkerId, ...] = ()
        self._deadline = 0.0
        self.attempt = attempt
        self.base = 0  # that the attempt starts from

    @property
    def generation(self) -> int:
        return self._roster.generation

    @property
    def unheard(self) -> tuple[WorkerId, ...]:
        """The others of the roster that have not said yet what is waited for."""
        heard = self._prepared if self.attempt else self._ready.keys()
        return tuple(worker for worker in self._roster.workers if worker != self._me and worker not in heard)

    @property
    def all_prepared(self) -> bool:
        return self.attempt > 0 and self._prepared == set(self._roster.workers)

    @property
    def deadline(self) -> float | None:
        """When `try_again` is wanted (Unix time, s)."""
        return None if self.attempt == 0 or self.all_prepared else self._deadline

    def anew(self) -> Campaign:
        """From another base: everybody says Ready again."""
        return Campaign(self._job, self._me, self._roster, self._timeout_s, self.attempt)

    def knows_already(self, ready: Ready) -> None:
        """Somebody was ready before the leader had heard of the order."""
        if ready.generation == self.generation and ready.worker in self._roster.workers:
            self._ready[ready.worker] = ready

    def on_ready(self, now: float, ready: Ready, stand: Stand) -> Said:
        """Somebody is ready, perhaps from another place than before."""
        if ready.generation != self.generation or ready.worker not in self._roster.workers:
            return []
        before = self._ready.get(ready.worker)
        self._ready[ready.worker] = ready
        if self.attempt and before is not None and _same_place(before, ready):
            if ready.worker in self._prepared or ready.worker == self._me:
                return []
            return [(ready.worker, self._message())]  # it has missed the first one
        return self.try_again(now, stand)

    def on_prepared(self, now: float, message: Prepared, stand: Stand) -> Said | None:
        """Somebody's communicator stands, or does not. None: it counts as one that has prepared."""
        if (message.generation, message.attempt) != (self.generation, self.attempt):
            return []
        if message.error:
            self._deadline = min(self._deadline, now + RETRY_INTERVAL_S)
            return []
        said = self._ready.get(message.worker)
        if said is None or not _same_place(said, message):
            ready = Ready(
                job=message.job,
                generation=message.generation,
                worker=message.worker,
                base=message.base,
                applied=message.applied,
                settled=message.settled,
            )
            return self.on_ready(now, ready, stand)
        self._prepared.add(message.worker)
        return None

    def try_again(self, now: float, stand: Stand) -> Said:
        """Start the next attempt if all of the roster are ready from one common base."""
        base, workers = stand.base, self._roster.workers
        self._deadline = now + self._timeout_s
        if base is None or stand.in_flight or set(self._ready) != set(workers):
            return []
        readies = [self._ready[worker] for worker in workers]
        if any(ready.base not in (0, base) for ready in readies):
            return []  # somebody is about to switch, or to be told that its generation is broken, and will say so
        self.attempt += 1
        self.base = base
        self._holders = self._choose_holders(base, readies)
        self._prepared = set()
        others = [worker for worker in workers if worker != self._me]
        return [(worker, self._message()) for worker in (*others, self._me)]

    def _choose_holders(self, base: int, readies: list[Ready]) -> tuple[WorkerId, ...]:
        if base:
            return tuple(ready.worker for ready in readies if ready.base == base)
        newest = max(((ready.applied, ready.settled) for ready in readies if ready.applied is not None), default=None)
        if newest is None:
            return (self._me,)
        return tuple(ready.worker for ready in readies if (ready.applied, ready.settled) == newest)

    def _message(self) -> Prepare:
        return Prepare(
            job=self._job,
            generation=self.generation,
            attempt=self.attempt,
            base=self.base,
            holders=self._holders,
        )


def _same_place(one: Ready | Prepared, other: Ready | Prepared) -> bool:
    """Do both say the same to a leader? How far somebody is who trains goes on changing, and does not matter."""
    same_state = (one.applied, one.settled) == (other.applied, other.settled)
    return one.base == other.base and (one.base > 0 or same_state)
