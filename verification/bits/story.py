"""Events of a history, as a pure function of its seed.

A story is a list of scenes. Each begins some steps after the one before, sets new targets, and arms or kills workers. The victims
(the leader, a newcomer, ...) are chosen when the scene begins, because a story does not know the course of the run.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from .points import Point


class Who(enum.Enum):
    """Set of workers from which victims are chosen."""

    LEADER = "the leader"
    HOLDERS = "workers with the state"
    NEWCOMERS = "workers that this scene's order names for the first time"
    LEAVERS = "workers that this scene's order sends away"


@dataclass(frozen=True)
class Target:
    """A new target of `share` GPUs, at least `moved` of them not in the present one, set `after_s` after the one before."""

    share: int
    moved: int = 0
    after_s: float = 0.0


@dataclass(frozen=True)
class Kill:
    """`victims` workers die: at their `passes`-th arrival at `point`, or by SIGKILL after `after_s`."""

    who: Who
    point: Point
    victims: int = 1
    passes: int = 1
    after_s: float = 0.0


@dataclass(frozen=True)
class Scene:
    """Begins `after_steps` steps after the beginning of the last scene, and not before its end."""

    after_steps: int
    targets: tuple[Target, ...] = ()
    kills: tuple[Kill, ...] = ()


@dataclass(frozen=True)
class Story:
    """Events of one history."""

    seed: int
    share: int  # initial number of GPUs
    scenes: tuple[Scene, ...]


AMONG_HOLDERS = (  # points in any step
    Point.STEP,
    Point.REDUCTION,
    Point.REDUCING,
    Point.BUFFERS,
    Point.UPDATE,
    Point.APPLIED,
    Point.ANY_TIME,
)
WHILE_GROWING = (  # points of workers that train already
    Point.BUILDING,
    Point.BUILT,
    Point.DECIDED,
    Point.COMMITTING,
    Point.SWITCHED,
    Point.SENDING,
    Point.TRAILING,
    Point.ANY_TIME,
)
WHILE_JOINING = (  # points of newcomers
    Point.STARTING,
    Point.BUILDING,
    Point.BUILT,
    Point.SWITCHED,
    Point.RECEIVING,
    Point.REDUCTION,
    Point.BUFFERS,
    Point.ADOPTING,
    Point.ADOPTED,
    Point.TRAILING,
    Point.APPLIED,
    Point.ANY_TIME,
)
PASSES = {Point.SENDING: 6, Point.RECEIVING: 5, Point.REDUCTION: 6, Point.REDUCING: 6, Point.APPLIED: 3, Point.STEP: 3}


def tell(seed: int, virtual_workers: int, steps: int) -> Story:
    """Return the story of `seed`, for a job of so many virtual workers and steps."""
    rng = random.Random(seed)
    share = rng.randint(1, virtual_workers)
    scenes: list[Scene] = []
    step = 0
    present = share
    while step < steps - 12:
        scene = _scene(rng, virtual_workers, present)
        present = scene.targets[-1].share if scene.targets else present
        scenes.append(scene)
        step += scene.after_steps
    if rng.random() < 0.25:
        scenes.append(Scene(1, (), (Kill(_anybody(rng), Point.FINISHING),)))
    return Story(seed, share, tuple(scenes))


def _scene(rng: random.Random, n: int, present: int) -> Scene:
    after = rng.randint(3, 16)
    kind = rng.choices(
        (
            "resize",
            "migrate",
            "burst",
            "overtake",
            "die",
            "die growing",
            "die joining",
            "die leaving",
            "die recovering",
        ),
        (16, 12, 5, 10, 18, 14, 14, 5, 6),
    )[0]
    target = Target(_other_share(rng, n, present))
    match kind:
        case "resize":
            return Scene(after, (target,))
        case "migrate":
            return Scene(after, (Target(present, moved=rng.randint(1, present)),))
        case "burst":
            return Scene(after, _burst(rng, n, rng.randint(5, 20), rng.uniform(0.2, 1.0)))
        case "overtake":
            return Scene(after, _burst(rng, n, rng.randint(2, 4), rng.uniform(0.01, 0.2)))
        case "die":
            point = rng.choice(AMONG_HOLDERS)
            return Scene(after, (), (_kill(rng, _anybody(rng), point),))
        case "die growing":
            grown = Target(min(n, present + rng.randint(1, 3)), moved=1)
            return Scene(after, (grown,), (_kill(rng, _anybody(rng), rng.choice(WHILE_GROWING)),))
        case "die joining":
            grown = Target(min(n, present + rng.randint(1, 3)), moved=1)
            return Scene(after, (grown,), (_kill(rng, Who.NEWCOMERS, rng.choice(WHILE_JOINING)),))
        case "die leaving":
            fewer = Target(max(1, present - rng.randint(1, 2)))
            return Scene(after, (fewer,), (_kill(rng, Who.LEAVERS, rng.choice((Point.LEAVING, Point.DECIDED))),))
        case _:
            second = Kill(Who.HOLDERS, rng.choice((Point.RECOVERING, Point.RECOVERED, Point.BUILDING, Point.BUILT)))
            return Scene(after, (), (second, Kill(_anybody(rng), Point.ANY_TIME)))


def _kill(rng: random.Random, who: Who, point: Point) -> Kill:
    passes = rng.randint(1, PASSES.get(point, 1))
    return Kill(who, point, victims=rng.choice((1, 1, 2)), passes=passes, after_s=rng.uniform(0.0, 0.15))


def _anybody(rng: random.Random) -> Who:
    return rng.choice((Who.LEADER, Who.HOLDERS, Who.HOLDERS))


def _other_share(rng: random.Random, n: int, present: int) -> int:
    return rng.choice([share for share in range(1, n + 1) if share != present])


def _burst(rng: random.Random, n: int, orders: int, within_s: float) -> tuple[Target, ...]:
    return tuple(
        Target(rng.randint(1, n), moved=rng.choice((0, 0, 1)), after_s=rng.uniform(0.0, 2 * within_s / orders))
        for _ in range(orders)
    )


def tour() -> tuple[Story, ...]:
    """Return a quick check: stories for four virtual workers that visit every point once, and a burst of 20 orders."""
    grow, shrink = Scene(3, (Target(4, moved=1),)), Scene(3, (Target(2),))
    in_a_step = [Scene(3, (), (Kill(Who.HOLDERS, point),)) for point in AMONG_HOLDERS]
    leader = Scene(3, (), (Kill(Who.LEADER, Point.ANY_TIME), Kill(Who.HOLDERS, Point.RECOVERING)))
    two = Scene(3, (), (Kill(Who.HOLDERS, Point.REDUCTION, victims=2), Kill(Who.HOLDERS, Point.RECOVERED)))
    growing = [replace(grow, kills=(Kill(Who.LEADER, point),)) for point in WHILE_GROWING]
    joining = [replace(grow, kills=(Kill(Who.NEWCOMERS, point),)) for point in WHILE_JOINING]
    leaving = Scene(3, (Target(1),), (Kill(Who.LEAVERS, Point.LEAVING, victims=2),))
    burst = Scene(3, tuple(Target(1 + turn % 4, moved=turn % 2, after_s=0.03) for turn in range(20)))
    finishing = Scene(1, (), (Kill(Who.HOLDERS, Point.FINISHING),))
    return (
        Story(1001, 4, (*in_a_step, leader, two, finishing)),
        Story(1002, 2, tuple(scene for each in growing for scene in (each, shrink))),
        Story(1003, 2, (*(scene for each in joining for scene in (each, shrink)), burst, leaving)),
    )
