"""A leader's way to one commit: the members that are ready, the attempt at a communicator, the members that have prepared it.
Pure.

An attempt begins when all members of the roster are ready from one common base, and rests on the content of their
`Ready` messages. A member that moves meanwhile sends other content, also in its `Prepared`, and the next attempt
begins; but not while the number is in flight in a step's control word: then the step decides about the prepared attempt
(`membership` has the whole protocol).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol import times
from ...protocol.messages import Prepare, Prepared, Ready
from ...protocol.model import JobId, Roster, WorkerId

RETRY_INTERVAL_S = times.WORKER_RETRY_S

Said = list[tuple[WorkerId, Prepare]]  # receivers and messages; the leader's message to itself is the last


@dataclass(frozen=True)
class Stand:
    """Position of the leader itself."""

    base: int | None  # the generation in which the leader trains; 0: it stands still; None: neither yet
    in_flight: bool  # whether the step in progress may decide for the prepared attempt


class Campaign:
    """State of one leader for one order."""

    def __init__(self, job: JobId, me: WorkerId, roster: Roster, timeout_s: float, attempt: int = 0) -> None:
        """timeout_s: limit of an attempt in seconds. attempt: number of the last attempt; 0: none was made."""
        self._job = job
        self._me = me
        self._roster = roster
        self._timeout_s = timeout_s
        self._ready: dict[WorkerId, Ready] = {}
        self._prepared: set[WorkerId] = set()
        self._holders: tuple[WorkerId, ...] = ()
        self._deadline = 0.0
        self.attempt = attempt
        self.base = 0  # generation from which the attempt starts

    @property
    def generation(self) -> int:
        return self._roster.generation

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The members of the roster."""
        return tuple(self._roster.workers)

    @property
    def unheard(self) -> tuple[WorkerId, ...]:
        """The other members of the roster that have not sent the expected message."""
        heard = self._prepared if self.attempt else self._ready.keys()
        return tuple(worker for worker in self._roster.workers if worker != self._me and worker not in heard)

    @property
    def all_prepared(self) -> bool:
        return self.attempt > 0 and self._prepared == set(self._roster.workers)

    @property
    def deadline(self) -> float | None:
        """Time at which `try_again` has to be called (Unix time, s); None: never."""
        return None if self.attempt == 0 or self.all_prepared else self._deadline

    def anew(self) -> Campaign:
        """Return a campaign for the same order from another base: every member has to send Ready again."""
        return Campaign(self._job, self._me, self._roster, self._timeout_s, self.attempt)

    def knows_already(self, ready: Ready) -> None:
        """Take over a Ready message that came before the leader had received the order."""
        if ready.generation == self.generation and ready.worker in self._roster.workers:
            self._ready[ready.worker] = ready

    def on_ready(self, now: float, ready: Ready, stand: Stand) -> Said:
        """Handle a member's Ready message, perhaps from another base or step than its previous one."""
        if ready.generation != self.generation or ready.worker not in self._roster.workers:
            return []
        before = self._ready.get(ready.worker)
        self._ready[ready.worker] = ready
        if self.attempt and before is not None and _same_place(before, ready):
            if ready.worker in self._prepared or ready.worker == self._me:
                return []
            return [(ready.worker, self._message())]  # the member has missed the first message
        return self.try_again(now, stand)

    def on_prepared(self, now: float, message: Prepared, stand: Stand) -> Said | None:
        """Handle a member's success or failure to build the communicator. None: the member counts as prepared."""
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
        """Start the next attempt if all members of the roster are ready from one common base."""
        base, workers = stand.base, self._roster.workers
        self._deadline = now + self._timeout_s
        if base is None or stand.in_flight or set(self._ready) != set(workers):
            return []
        readies = [self._ready[worker] for worker in workers]
        if any(ready.base not in (0, base) for ready in readies):
            # a member is about to switch, or to learn that its generation is broken, and will send Ready again
            return []
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
    """Return whether both messages are equal to a leader.

    The applied step of a member that trains goes on changing and is ignored.
    """
    same_state = (one.applied, one.settled) == (other.applied, other.settled)
    return one.base == other.base and (one.base > 0 or same_state)
