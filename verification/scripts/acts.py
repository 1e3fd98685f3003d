"""Events of a history, as pure functions of a seed. An act begins when the one before is over."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

RESIZES = 20
KILLS = 8  # among these resizes
DELAY_S = 0.5  # longest time between an order and a kill


class Victim(enum.Enum):
    """The worker that is killed."""

    LEADER = "leader"
    ANYBODY = "anybody"  # newcomers included


@dataclass(frozen=True)
class Resize:
    """Resize to `share` GPUs, at least `moved` of them other ones than now; `victim` is killed `after_s` after the order."""

    share: int
    moved: int = 0
    victim: Victim | None = None
    after_s: float = 0.0


@dataclass(frozen=True)
class Kill:
    """Kill one worker, which is replaced."""

    victim: Victim


@dataclass(frozen=True)
class Preempt:
    """Take all GPUs away; when all workers have left, give the job `share` GPUs again."""

    share: int


@dataclass(frozen=True)
class LoseAll:
    """Kill all workers at once, after a checkpoint was written."""


Act = Resize | Kill | Preempt | LoseAll


@dataclass(frozen=True)
class Story:
    """Acts of one history, with the initial number of workers."""

    name: str
    share: int
    acts: tuple[Act, ...]


def resizes(seed: int, virtual_workers: int, count: int = RESIZES, kills: int = KILLS) -> Story:
    """Return random resizes and moves, with kills during some of the orders."""
    rng = random.Random(f"resizes {seed}")
    share = first = rng.randint(1, virtual_workers)
    deadly = set(rng.sample(range(count), kills))
    acts: list[Act] = []
    for number in range(count):
        share = rng.choice([other for other in range(1, virtual_workers + 1) if other != share])
        victim = rng.choice(tuple(Victim)) if number in deadly else None
        acts.append(Resize(share, rng.choice((0, 0, 1)), victim, rng.uniform(0.0, DELAY_S)))
    return Story("resizes", first, tuple(acts))


def stories(seed: int, virtual_workers: int) -> tuple[Story, ...]:
    """Return the histories of the full table."""
    n = virtual_workers
    leader = Kill(Victim.LEADER)
    return (
        resizes(seed, n),
        Story("leader killed", n - 1, (leader, leader, Resize(n), leader)),
        Story("preempted", n - 1, (Preempt(2), Preempt(n), Preempt(1))),
        Story("from a checkpoint", n - 1, (LoseAll(), Resize(1), LoseAll())),
    )


def short(seed: int, virtual_workers: int) -> Story:
    """Return a short history with acts of all kinds, for a test."""
    few = resizes(seed, virtual_workers, count=4, kills=1)
    return Story("all", few.share, (*few.acts, Kill(Victim.LEADER), Preempt(2), LoseAll()))
