"""Parts of a check, with the steps at which workers join and leave. Pure.

Each part runs the first steps of the script once. The first part, one worker alone, is the reference for the others.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

Entries = tuple[tuple[int, tuple[int, ...]], ...]
ALONE: Entries = ((0, (0,)),)


class Kind(enum.Enum):
    """Kind of a part of a check, by the disturbance of the training that it tests."""

    ALONE = "one worker"
    AGAIN = "one worker again"
    HASH_SEED = "another hash seed"
    BACKWARDS = "bodies in reverse"
    TWO = "two workers"
    ROSTER = "join, kill, leave"
    RESTART = "restarts"


@dataclass(frozen=True)
class Part:
    """A part of a check. Its stages run one after the other, the workers of a stage (by number) at the same time."""

    kind: Kind
    tried: str  # description for people, with the steps
    stages: tuple[tuple[int, ...], ...] = ((0,),)
    entries: Entries = ALONE
    losses: tuple[int, ...] = ()  # indices of roster entries that begin with the death of a worker
    suspended_at: tuple[int | None, ...] = ()  # step at which each stage is suspended; None: it runs to the end
    backwards: bool = False
    hash_seed: int = 0

    @property
    def killed(self) -> frozenset[int]:
        """Return the workers that are killed."""
        found: set[int] = set()
        for position in self.losses:
            found |= set(self.entries[position - 1][1]) - set(self.entries[position][1])
        return frozenset(found)


FIRST = Part(Kind.ALONE, "one worker alone")
AGAIN = Part(Kind.AGAIN, "the same again")
BACKWARDS = Part(Kind.BACKWARDS, "a step's loop bodies in the reverse order", backwards=True)
TWO = Part(Kind.TWO, "two workers from the start", ((0, 1),), ((0, (0, 1)),))
HASH_SEED = Part(Kind.HASH_SEED, "again with another hash seed", hash_seed=1)


def planned(steps: int, steps_per_epoch: int | None, virtual_workers: int) -> list[Part]:
    """Return the parts after the first one, which has run `steps` steps."""
    parts = [HASH_SEED]
    if virtual_workers > 1:
        # Two workers show code that only the leader runs, in every step. The roster has two in a few steps only.
        parts += [BACKWARDS, TWO]
    roster = _roster(steps, steps_per_epoch)
    if roster is not None:
        parts.append(roster)
    restart = _restarts(steps, steps_per_epoch)
    if restart is not None:
        parts.append(restart)
    return parts


def edges(steps: int, steps_per_epoch: int | None) -> int:
    """Return how many of these steps begin an epoch, the first epoch not counted."""
    return 0 if steps_per_epoch is None else (steps - 1) // steps_per_epoch


def _roster(steps: int, steps_per_epoch: int | None) -> Part | None:
    """Return a part in which a worker joins, the first one dies, and so on: each joining worker goes on without the
    earlier ones. A generation with a joining worker has at least two steps, since the worker is verified in the second
    one (worker/comparison/crosscheck.py).
    """
    entries: list[tuple[int, tuple[int, ...]]] = [(0, (0,))]
    losses: list[int] = []
    texts: list[str] = []

    def goes_on(step: int, workers: tuple[int, ...], text: str, loss: bool = False) -> bool:
        if step >= steps:
            return False
        if loss:
            losses.append(len(entries))
        entries.append((step, workers))
        texts.append(f"{text} {step}")
        return True

    def boundary(least: int) -> int:
        if steps_per_epoch is None:
            return least
        edge = -(-least // steps_per_epoch) * steps_per_epoch
        return edge if edge < steps else least

    goes_on(1, (0, 1), "join at step")
    if goes_on(3, (1,), "kill in", loss=True):
        second = boundary(4)
        if goes_on(second, (1, 2), "join at") and goes_on(second + 2, (2,), "leave at"):
            third = boundary(second + 3)
            if goes_on(third, (2, 3), "join at"):
                goes_on(third + 2, (3,), "leave at")
    elif len(entries) == 1:
        return None
    workers = sorted({worker for _, each in entries for worker in each})
    return Part(Kind.ROSTER, ", ".join(texts), (tuple(workers),), tuple(entries), tuple(losses))


def _restarts(steps: int, steps_per_epoch: int | None) -> Part | None:
    """Return a part that is preempted in the middle of an epoch, and at an epoch's end, with a new process from the
    checkpoint each time.
    """
    wanted = {steps // 2} if steps_per_epoch is None else {steps_per_epoch // 2, 2 * steps_per_epoch, steps // 2}
    at = sorted(step for step in wanted if 0 < step < steps)
    if steps_per_epoch is not None and len(at) > 1:
        at = [at[0], at[-1]] if 2 * steps_per_epoch in at else [steps // 2]
    if not at:
        return None
    stages = tuple((number,) for number in range(len(at) + 1))
    entries = ((0, (0,)),)
    steps_text = " and ".join(str(step) for step in at)
    return Part(
        Kind.RESTART, f"restart from a checkpoint of step {steps_text}", stages, entries, suspended_at=(*at, None)
    )
