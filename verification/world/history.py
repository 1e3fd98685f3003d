"""One history, from its plan to the verdict; and the shrinking of a failing one."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from .plan import Plan
from .violation import Violation
from .world import World


@dataclass(frozen=True)
class Outcome:
    """The result of a history. `invariant` is empty if none was broken."""

    seed: int
    invariant: str = ""
    text: str = ""
    events: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    repeated_steps: int = 0
    story: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.invariant)

    @property
    def digest(self) -> str:
        """Digest of the story: equal for equal seeds, byte for byte."""
        return hashlib.sha256("\n".join(self.story).encode()).hexdigest()


def play(plan: Plan, tell: bool = False) -> Outcome:
    """Run a history. An exception of a state machine counts as a broken invariant, too."""
    began = time.process_time()
    world = World(plan, tell)
    invariant = text = ""
    try:
        world.run(plan.storm_s)
        world.clear()
        world.run_until_quiet()
        world.oracle.at_end()
    except Violation as violation:
        invariant, text = violation.invariant, violation.text
    except (
        Exception
    ) as error:  # the edge of a history: an exception of a state machine is a finding, not the end of the search
        where = traceback.extract_tb(error.__traceback__)[-1]
        file = "/".join(where.filename.split("/")[-2:])
        invariant = "no machine raises"
        text = f"{type(error).__name__}: {error} ({file}:{where.lineno})"
    if invariant:
        world.story.say(f"VIOLATION of '{invariant}': {text}")
    return Outcome(
        plan.seed,
        invariant,
        text,
        world.timeline.events,
        world.elapsed_s,
        time.process_time() - began,
        world.oracle.repeated_steps,
        tuple(world.story.lines),
    )


def shrink(
    plan: Plan, invariant: str, on_try: Callable[[int], None] = lambda left: None
) -> tuple[Plan, frozenset[int]]:
    """Return the shortest plan found that breaks the same invariant, and the numbers (in `plan`) of the entries that it keeps.

    Entries are left out by halves, then one by one (Zeller's ddmin, without its complements). `on_try`: called with the number
    left.
    """
    kept = list(range(len(plan.entries)))
    size = max(1, len(kept) // 2)
    while True:
        start, smaller = 0, False
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            on_try(len(fewer))
            if play(plan.keep(frozenset(fewer))).invariant == invariant:
                kept, smaller = fewer, True
            else:
                start += size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    return plan.keep(frozenset(kept)), frozenset(kept)
