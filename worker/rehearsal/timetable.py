"""A membership that follows a timetable: all workers know in advance at which step the roster changes.

An entry of the timetable is a generation: the step at which it begins, and its workers. A worker that is new in an
entry joins there. A generation begins between two steps; or *by a loss*: a worker of the previous generation dies in
the entry's first step, which the others then train again without it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...protocol.errors import PeerError
from ...protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId
from ..membership import machine as m

MEET_WITHIN_S = 300.0
FAILED = "failed"  # name of a file in the meeting directory


class Timetable(m.Membership):
    """The membership of one worker. Entries are (first step, workers)."""

    extends_proofs = False  # a generation begins at its step

    def __init__(
        self,
        me: int,
        entries: Sequence[tuple[int, Sequence[int]]],
        late: Sequence[Sequence[int]] = (),
        broken: Mapping[int, int] | None = None,
        *,
        meeting: Path,
        losses: frozenset[int] = frozenset(),
        before: int = 0,
    ) -> None:
        """late: by entry, the workers that miss the previous step, which the others have applied. broken: by entry, the
        evaluation of its first step after which the previous communicator breaks. meeting: a directory in which workers
        see each other's positions. losses: entries that begin by the death of a worker. before: number of earlier
        generations of the job.
        """
        super().__init__(JobId("w"), WorkerId(f"w.{me}"))
        self._number = me
        self._meeting = meeting
        self.entries = [(int(step), list(workers)) for step, workers in entries]
        self._late = [*(list(each) for each in late), *([] for _ in entries[len(late) :])]
        self._broken = dict(broken or {})
        self._losses = losses
        self._before = before
        self._next_step = 0
        self._position = next(i for i, (_, workers) in enumerate(self.entries) if me in workers)

    def mine(self) -> list[int]:
        """Return the generations that include this worker."""
        return [self._before + i + 1 for i, (_, workers) in enumerate(self.entries) if self._number in workers]

    def rank_in(self, generation: int) -> tuple[int, int]:
        """Return this worker's rank in a generation, and the number of its workers."""
        workers = self.entries[generation - self._before - 1][1]
        return workers.index(self._number), len(workers)

    def handle(self, now: float, event: m.Event) -> list[m.Action]:
        match event:
            case m.Arrived():
                return self._switch_to(self._position)
            case m.StepStarted():
                return [self._proposal()]
            case m.StepApplied(step):
                self._next_step = step + 1
            case m.BoundaryReached():
                return self._at_boundary()
            case m.CollectiveFailed(reason):
                return self.failed(reason)
        return []

    def meet(self) -> None:
        """Block until all workers of the present generation have come here.

        A worker that closes its connections too early would destroy messages that another has not read yet. Raises
        PeerError if one of the workers has failed.
        """
        workers = self.entries[self._position][1]
        (self._meeting / f"{self._position}.{self._number}.here").touch()
        deadline = time.monotonic() + MEET_WITHIN_S
        while not all((self._meeting / f"{self._position}.{worker}.here").exists() for worker in workers):
            if time.monotonic() > deadline or (self._meeting / FAILED).exists():
                raise PeerError(f"not all of {workers} have come: another worker has failed")
            time.sleep(0.001)

    def misses(self, step: int) -> bool:
        """Return whether this worker misses that step."""
        return self._number in self._missing(step)

    def is_missed(self, step: int) -> bool:
        """Return whether any worker misses that step."""
        return bool(self._missing(step))

    def _missing(self, step: int) -> list[int]:
        following = self._position + 1
        ends = following < len(self.entries) and self.entries[following][0] == step + 1
        return self._late[following] if ends else []

    def breaks(self, step: int, evaluation: int) -> bool:
        """Return whether the communicator in use breaks after this evaluation."""
        following = self._position + 1
        is_next = following < len(self.entries) and self.entries[following][0] == step
        return is_next and self._broken.get(following) == evaluation

    def dies_in(self, step: int) -> bool:
        """Return whether this worker's death in this step begins the next generation."""
        following = self._position + 1
        if following not in self._losses or self.entries[following][0] != step:
            return False
        return self._number not in self.entries[following][1]

    def failed(self, reason: str) -> list[m.Action]:
        following = self._position + 1
        if following in self._losses or self._broken.pop(following, None) is not None:
            return self._switch_to(following)
        is_behind = self.misses(self._next_step)
        if not is_behind and not self.is_missed(self._next_step - 1):
            raise PeerError(f"another worker has ended where none was to: {reason}")
        return self._switch_to(following)

    def _proposal(self) -> m.Propose:
        """Return the generation that begins behind the step in progress, unless it begins by a failure."""
        following = self._position + 1
        ends = following < len(self.entries) and self.entries[following][0] == self._next_step + 1
        if not ends or following in self._losses or following in self._broken or self._late[following]:
            return m.Propose(0)
        workers = tuple(WorkerId(f"w.{each}") for each in self.entries[following][1])
        return m.Propose(self._before + following + 1, workers)

    def _at_boundary(self) -> list[m.Action]:
        following = self._position + 1
        if following == len(self.entries) or self._next_step != self.entries[following][0]:
            return [m.Proceed()]
        if following in self._broken or following in self._losses:
            return [m.Proceed()]
        self.meet()
        if self._number not in self.entries[following][1]:
            return [m.Leave()]
        return self._switch_to(following)

    def _switch_to(self, position: int) -> list[m.Action]:
        self._position = position
        workers = self.entries[position][1]
        before = self.entries[position - 1][1] if position else []
        members = tuple(
            Member(worker=WorkerId(f"w.{w}"), gpu=GpuAddress(server=ServerId("s"), index=w)) for w in workers
        )
        roster = Roster(generation=self._before + position + 1, members=members, leader=members[0].worker)
        self._roster = roster
        whole = [w for w in before if w not in self._late[position]]
        holders = tuple(WorkerId(f"w.{w}") for w in workers if (w in whole if before else w == workers[0]))
        return [m.BuildGroup(roster, 1, ""), m.Switch(roster, 1, holders, recovery=not position)]
