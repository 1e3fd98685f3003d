"""Crash anywhere: one history is repeated, and in each repetition another durable operation fails.

Random histories draw when a controller dies, and so rarely hit the moment between two particular writes; this module enumerates
them. A *life* is a workload (`lives/`): jobs are submitted, resized, preempted, cancelled, and end. One undisturbed run counts
the store operations of the controllers and the disk operations of the agents. The life is then run once for each operation and
each failure that is possible there (`operations.How`). A process that died restarts after three seconds; where two controllers
share a store, the standby takes over. In the end all jobs must have ended as in any other history, and the oracle watches as
usual.

A command of a life waits for its subject: for its job to be submitted, for its worker to run.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .operations import How, Operation
from .stage import ScenarioError, Stage, command
from .violation import Violation
from .world import World

FOLDER = Path(__file__).parent / "lives"
STORES = ("sqlite", "etcd")
WAITS_S = 60.0  # that a command waits for its subject
LOOK_S = 0.5
Strikes = Mapping[int, How]


@dataclass(frozen=True)
class Life:
    """One run: a workload, a store, and the failures at given operations."""

    name: str
    store: str
    strikes: tuple[tuple[int, How], ...] = ()

    def __str__(self) -> str:
        """Return the name on the command line."""
        return f"{self.name}/{self.store}" + "".join(f"/{number}:{how.value}" for number, how in self.strikes)

    @staticmethod
    def of(text: str) -> Life:
        """Parse a name. Raises ValueError."""
        name, store, *strikes = text.split("/")
        if name not in names():
            raise ValueError(f"a life is one of {', '.join(names())}, not {name!r}")
        if store not in STORES:
            raise ValueError(f"a store is one of {', '.join(STORES)}, not {store!r}")
        parts = [strike.split(":") for strike in strikes]
        if any(len(part) != 2 or not part[0].isdecimal() for part in parts):
            raise ValueError(f"a strike is NUMBER:HOW, such as 17:{How.AFTER.value}, in {text!r}")
        return Life(name, store, tuple((int(number), How(how)) for number, how in parts))


@dataclass(frozen=True)
class Ended:
    """The result of a life. `invariant` is empty if none was broken."""

    life: Life
    invariant: str = ""
    text: str = ""
    operations: tuple[Operation, ...] = ()
    wall_s: float = 0.0
    story: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.invariant)


def names() -> list[str]:
    """Names of all lives, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def play(life: Life, tell: bool = False) -> Ended:
    """Play a life. An exception of a state machine counts as a broken invariant, too. Raises OperatorError if etcd's messages are
    needed and not installed.
    """
    began = time.process_time()
    make = partial(World, tell=tell, strikes=dict(life.strikes), shared=life.store == "etcd")
    stage = Stage(make)
    invariant = text = ""
    try:
        _carry_out(stage, (FOLDER / f"{life.name}.txt").read_text())
    except Violation as violation:
        invariant, text = violation.invariant, violation.text
    except Exception as error:  # the edge of a history, as in `history.play`
        where = traceback.extract_tb(error.__traceback__)[-1]
        file = "/".join(where.filename.split("/")[-2:])
        invariant, text = "no machine raises", f"{type(error).__name__}: {error} ({file}:{where.lineno})"
    world = stage.world
    if invariant:
        world.story.say(f"VIOLATION of '{invariant}': {text}")
    log = tuple(world.operations.log) if world.operations is not None else ()
    return Ended(life, invariant, text, log, time.process_time() - began, tuple(world.story.lines))


def _carry_out(stage: Stage, text: str) -> None:
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            _patiently(stage, line)


def _patiently(stage: Stage, line: str) -> None:
    """Carry a command out once its subject exists; skip it if its job ends first."""
    for _ in range(int(WAITS_S / LOOK_S)):
        try:
            command(stage, line)
            return
        except ScenarioError:
            stage.world.run(LOOK_S)
    stage.world.story.say(f"left out: {line}")


def lives(name: str, store: str, twice: int = 0) -> Iterator[Life]:
    """Yield each operation of an undisturbed life with each failure that is possible there.

    `twice`: number of following operations of the same process at which a second crash is tried, before and after each.
    """
    whole = play(Life(name, store))
    if whole.failed:
        yield whole.life
        return
    for number, operation in enumerate(whole.operations, 1):
        for how in How:
            if how in operation.hows:
                yield Life(name, store, ((number, how),))
    for number, operation in enumerate(whole.operations, 1):
        for how, more, second in itertools.product(How, range(1, twice + 1), How):
            if how in operation.hows and (second.kills or second is How.REFUSED):
                yield Life(name, store, ((number, how), (number + more, second)))


def sample(chosen: Sequence[Life], count: int) -> list[Life]:
    """`count` lives, evenly spaced."""
    if count >= len(chosen):
        return list(chosen)
    return [chosen[round(i * (len(chosen) - 1) / (count - 1))] for i in range(count)] if count > 1 else [chosen[0]]
