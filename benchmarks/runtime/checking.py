"""Cost of cross-checks, in which all workers compute one micro-batch now and then, against a job without them."""

from __future__ import annotations

from typing import Any

from elasticd.worker.comparison import crosscheck

from .comparing import NAMES, spread_costs
from .loops import Rival, Times, in_turn, ours
from .measurement import Goal, Measurement
from .processes import Family

GROUP = "checking"
GOAL = Goal(0.5)
WARM_UP = max(crosscheck.SOON) + 4  # steps, after which the checks that follow a change of the roster are over
EVERY = dict(zip(NAMES, (1 << 62, 1), strict=True))  # steps
NOTES = (
    f"Two workers with one virtual worker each, the worst case, check a micro-batch in every step, and in the other job in none. "
    f"By default that is one of {crosscheck.EVERY} steps: that is the value.",
)


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure all cases with two workers."""
    return spread_costs(family, quick, GROUP, "one check", crosscheck.EVERY, GOAL)


class _Checked:
    """A job's loop with cross-checks at the interval in `EVERY`."""

    def __init__(self, loop: Rival) -> None:
        self.name = loop.name
        self._loop = loop

    def steps(self, count: int) -> float:
        crosscheck.EVERY = EVERY[self.name]
        return self._loop.steps(count)


def rank(
    rank: int, size: int, model: str, blocks: int, steps: int, variables: dict[str, dict[str, str]], **_: Any
) -> dict[str, Times]:
    """Run one rank: blocks of both jobs in turn."""
    rivals = [_Checked(ours(name, model, variables[name])) for name in EVERY]
    return in_turn(rivals, WARM_UP, blocks, steps)
