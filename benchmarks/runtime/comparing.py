"""Comparing the workers' states: what a round of it costs, against a job that does without."""

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
ROUND = 16  # steps; a block is one round, so that each block has all of the cost of one
WORKERS = 2
NOTES = (
    f"Two workers compare all of their state in rounds of {ROUND} steps, and in the other job not at all. In the default a "
    f"round has {COMPARE_EVERY} steps, so its cost is spread over so many: that is the value.",
)


@dataclass(frozen=True)
class Case:
    """One model, and how much of it."""

    model: str
    blocks: int
    rounds: int  # in a block


FULL = (Case("convolutions-0.1M", 15, 1), Case("transformer-10M", 7, 1), Case("stack-0.1M", 31, 8))
QUICK = (Case("stack-0.1M", 5, 4),)


def measure(family: Family, quick: bool) -> list[Measurement]:
    """All cases with two workers."""
    found = []
    jobs = [{"name": name, "virtual_workers": WORKERS, "determinism": "elastic"} for name in ("bench-off", "bench-on")]
    for case in QUICK if quick else FULL:
        settings = {"model": case.model, "blocks": case.blocks, "steps": ROUND * case.rounds}
        times = run_ranks(family, "comparing:rank", WORKERS, 3000.0, jobs=jobs, **settings)
        step_s = median(times["wall"]["bench-off"])
        more = ratio(times["wall"], "bench-on", "bench-off") - 1
        found.append(
            Measurement(
                group=GROUP,
                what=f"{case.model}, W = {WORKERS}",
                against=f"none: {number(step_s * 1e3)} ms a step; a round takes {number(more * ROUND * step_s * 1e3)} ms",
                value=100 * more * ROUND / COMPARE_EVERY,
                unit="% more time",
                goal=GOAL,
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
    """One rank: both jobs' blocks in turn."""
    rounds = {"bench-off": MAX_COMPARE_EVERY, "bench-on": ROUND}
    rivals = [
        ours(name, model, {**variables[name], "ELASTICD_COMPARE_EVERY": str(every)}) for name, every in rounds.items()
    ]
    return in_turn(rivals, ROUND, blocks, steps)
