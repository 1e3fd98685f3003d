"""Throughput without changes, W = N: this runtime against stock DistributedDataParallel (worker-runtime 10)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from .loops import Times, in_turn, ours, ratio, stock
from .measurement import Goal, Measurement, number
from .processes import Family
from .ranks import run_ranks

GROUP = "throughput"
MODES = ("none", "elastic")
GOALS = {"none": Goal(0.997, at_least=True), "elastic": Goal(0.97, at_least=True)}
SMALL = Goal(0.97, at_least=True)  # steps of a millisecond or two, in which the runtime's own work shows


@dataclass(frozen=True)
class Case:
    """One model, with the extent of its measurement."""

    model: str
    warm_up: int
    blocks: int
    steps: int
    compute_bound: bool = True


FULL = (
    Case("convolutions-0.1M", 3, 15, 4),
    Case("transformer-10M", 3, 15, 4),
    Case("transformer-100M", 2, 7, 1),
    Case("stack-0.1M", 20, 31, 50, compute_bound=False),
)
QUICK = (Case("convolutions-0.1M", 2, 3, 2), Case("stack-0.1M", 5, 5, 20, compute_bound=False))


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure all cases with 1 and 2 workers."""
    found = []
    for case in QUICK if quick else FULL:
        for workers in (1, 2):
            jobs = [{"name": f"bench-{mode}", "virtual_workers": workers, "determinism": mode} for mode in MODES]
            settings = {"model": case.model, "warm_up": case.warm_up, "blocks": case.blocks, "steps": case.steps}
            times = run_ranks(family, "throughput:rank", workers, 3000.0, jobs=jobs, **settings)
            found += [_row(case, workers, mode, times) for mode in MODES]
    return found


def _row(case: Case, workers: int, mode: str, times: dict[str, Times]) -> Measurement:
    step_ms = median(times["wall"]["ddp"]) * 1e3
    work = ratio(times["cpu"], f"bench-{mode}", "ddp")
    return Measurement(
        group=GROUP,
        what=f"{case.model}, W = {workers}, `determinism: {mode}`",
        against=f"stock DDP: {number(step_ms)} ms a step; ours takes {work:.3f} of its processor time",
        value=ratio(times["wall"], "ddp", f"bench-{mode}"),
        unit="of DDP's",
        goal=GOALS[mode] if case.compute_bound else SMALL,
        count=case.blocks,
        detail={"times_s": times},
    ).show()


def rank(
    rank: int,
    size: int,
    model: str,
    warm_up: int,
    blocks: int,
    steps: int,
    variables: dict[str, dict[str, str]],
    **_: Any,
) -> dict[str, Times]:
    """Run one rank: blocks of the loops in turn."""
    # This runtime first: its loop refuses models that others have changed.
    own = [ours(name, model, place) for name, place in variables.items()]
    return in_turn([stock(model, rank, size), *own], warm_up, blocks, steps)
