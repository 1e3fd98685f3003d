"""Cost of comparing the workers' whole states, against a job without it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from elasticd.protocol.limits import COMPARE_EVERY, MAX_COMPARE_EVERY

from .loops import Times, in_turn, ours, ratio
from .measurement import Goal, Measurement, number
from .processes import Family
from .ranks import run_ranks

GROUP = "comparing"
GOAL = Goal(0.1)
WORKERS = 2
WARM_UP = 4  # steps
NAMES = ("bench-off", "bench-on")
NOTES = (
    f"Two workers compare all of their state in every step, and in the other job not at all. In the default that is spread over "
    f"{COMPARE_EVERY} steps, and so is its cost: that is the value.",
)


@dataclass(frozen=True)
class Case:
    """One model, with the extent of its measurement."""

    model: str
    blocks: int
    steps: int


FULL = (Case("convolutions-0.1M", 15, 4), Case("transformer-10M", 15, 4), Case("stack-0.1M", 31, 50))
QUICK = (Case("convolutions-0.1M", 5, 4), Case("stack-0.1M", 9, 50))


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure all cases with two workers."""
    return spread_costs(family, quick, GROUP, "to compare all", COMPARE_EVERY, GOAL)


def spread_costs(family: Family, quick: bool, group: str, what: str, every: int, goal: Goal) -> list[Measurement]:
    """Measure an extra that the second of two jobs does in each step and the first never, spread over `every` steps."""
    found = []
    jobs = [{"name": name, "virtual_workers": WORKERS, "determinism": "elastic"} for name in NAMES]
    off, on = NAMES
    for case in QUICK if quick else FULL:
        settings = {"model": case.model, "blocks": case.blocks, "steps": case.steps}
        times = run_ranks(family, f"{group}:rank", WORKERS, 3000.0, jobs=jobs, **settings)
        step_s = median(times["wall"][off])
        more = ratio(times["wall"], on, off) - 1
        found.append(
            Measurement(
                group=group,
                what=f"{case.model}, W = {WORKERS}",
                against=f"none: {number(step_s * 1e3)} ms a step; {what} takes {number(more * step_s * 1e3)} ms",
                value=100 * more / every,
                unit="% more time",
                goal=goal,
                count=case.blocks,
                detail={"times_s": times},
            ).show()
        )
    return found


def rank(
    rank: int,
    size: int,
    model: str,
    blocks: int,
    steps: int,
    variables: dict[str, dict[str, str]],
    **_: Any,
) -> dict[str, Times]:
    """Run one rank: blocks of both jobs in turn."""
    rounds = dict(zip(NAMES, (MAX_COMPARE_EVERY, 1), strict=True))
    rivals = [
        ours(name, model, {**variables[name], "ELASTICD_COMPARE_EVERY": str(every)}) for name, every in rounds.items()
    ]
    return in_turn(rivals, WARM_UP, blocks, steps)
