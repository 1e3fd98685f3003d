"""Hosting several virtual workers in one process, against plain gradient accumulation (EasyScale 5.2: at most 1.9 %)."""

from __future__ import annotations

from statistics import median
from typing import Any

from .loops import Times, accumulation, in_turn, ours, ratio
from .measurement import Goal, Measurement
from .processes import Family
from .ranks import run_ranks

GROUP = "hosting"
GOAL = Goal(1.9)
HOSTED = (2, 4, 8)


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure two models with 2, 4 and 8 virtual workers."""
    found = []
    for model, blocks in (("convolutions-0.1M", 11), ("transformer-10M", 11)):
        for hosted in HOSTED:
            job = {"name": "bench", "virtual_workers": hosted, "determinism": "elastic"}
            settings = {"warm_up": 2, "blocks": 2 if quick else blocks, "steps": max(1, 8 // hosted)}
            times = run_ranks(family, "hosting:rank", 1, 1200.0, jobs=[job], model=model, hosted=hosted, **settings)
            found.append(
                Measurement(
                    group=GROUP,
                    what=f"{model}, {hosted} virtual workers",
                    against=f"accumulating {hosted} micro-batches: {median(times['wall']['accumulation']) * 1e3:.0f} ms a step; "
                    f"{100 * (ratio(times['cpu'], 'bench', 'accumulation') - 1):.2f} % more processor time",
                    value=100 * (ratio(times["wall"], "bench", "accumulation") - 1),
                    unit="% more time",
                    goal=GOAL,
                    count=settings["blocks"],
                    detail={"times_s": times},
                ).show()
            )
        if quick:
            break
    return found


def rank(
    rank: int,
    size: int,
    model: str,
    hosted: int,
    warm_up: int,
    blocks: int,
    steps: int,
    variables: dict[str, dict[str, str]],
    **_: Any,
) -> dict[str, Times]:
    """Run the only process."""
    own = ours(
        "bench", model, variables["bench"]
    )  # first, as this runtime's loop refuses models that others have changed
    return in_turn([accumulation(model, hosted), own], warm_up, blocks, steps)
