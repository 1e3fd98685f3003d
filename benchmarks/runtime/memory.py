"""Copies of the gradient that a worker keeps beside the parameters' own, against plain accumulation and DDP (EasyScale 3.2).

A copy is as large as all parameters. Measured is the peak of a process's memory in a step, less that at its beginning. Plain
accumulation has the parameters, the momentum and the parameters' own gradients; the excess of the others counts.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from .jobs import MOST, Load, OurJob
from .loops import Rival, accumulation, ours, stock
from .measurement import Goal, Measurement, number
from .meter import Meter
from .processes import Family
from .ranks import run_ranks
from .train_memory import memory_of
from .workloads import build

GROUP = "memory"
MODEL = "stack-25M"
WARM_UP, STEPS = 3, 3
LOSSES = 3
NOTES = (
    "A copy is as large as all parameters (100 MB). Less than half a tenth of it, such as messages, is rounded away. Plain "
    "accumulation holds the parameters, the momentum and the gradients: the value is what a worker holds beyond that, at most.",
)


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure one and two workers with up to eight virtual workers; then one that loses its peer repeatedly."""
    cases = ((1, 4), (2, 4)) if quick else ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8))
    plain = {
        hosted: _copies(family, "accumulation", 1, hosted, hosted) for hosted in sorted({n // w for w, n in cases})
    }
    ddp = _copies(family, "ddp", 2, 1, 2) - _copies(family, "accumulation", 1, 1, 1)
    found = []
    for workers, virtual_workers in cases:
        hosted = virtual_workers // workers
        more = _copies(family, "bench", workers, hosted, virtual_workers) - plain[hosted]
        against = (
            f"accumulating {hosted} micro-batches: {number(plain[hosted])} copies of everything; DDP: {ddp:.1f} more"
        )
        found.append(_row(f"{MODEL}, W = {workers}, N = {virtual_workers}", against, more, hosted, 1))
    return [*found, *_after_losses(family, 1 if quick else LOSSES)]


def _row(what: str, against: str, value: float, hosted: int, count: int) -> Measurement:
    return Measurement(GROUP, what, against, round(value, 1), "copies", count, Goal(math.log2(hosted) + 1)).show()


def _copies(family: Family, rival: str, size: int, hosted: int, virtual_workers: int) -> float:
    job = {"name": "bench", "virtual_workers": virtual_workers, "determinism": "elastic"}
    jobs = [job] if rival == "bench" else []
    return float(run_ranks(family, "memory:rank", size, 600.0, jobs=jobs, rival=rival, hosted=hosted))


def rank(rank: int, size: int, rival: str, hosted: int, variables: dict[str, dict[str, str]], **_: Any) -> float:
    """Run one rank. Returns its memory in copies of the gradient."""
    meter = Meter(MODEL)
    loop = _loop(rival, rank, size, hosted, variables)
    loop.steps(WARM_UP)
    meter.reset()
    loop.steps(STEPS)
    return in_copies(meter.peak())


def _loop(rival: str, rank: int, size: int, hosted: int, variables: dict[str, dict[str, str]]) -> Rival:
    if rival == "bench":
        return ours(rival, MODEL, variables[rival])
    return accumulation(MODEL, hosted) if rival == "accumulation" else stock(MODEL, rank, size)


def in_copies(peak: int) -> float:
    """Convert bytes to copies of the gradient."""
    return peak / (4 * _parameters())


@cache
def _parameters() -> int:
    return build(MODEL).parameters


class _Job(OurJob):
    """A job with workers that record their peaks."""

    script = "train_memory"


def _after_losses(family: Family, losses: int) -> list[Measurement]:
    """Measure a worker that stays while the other one is lost repeatedly."""
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory:
        job = _Job(family, Path(directory), Load(MODEL))
        try:
            job.start(2)
            both = job.until_steady(2, STEPS + 1)
            stays = job.lines()[0].pid
            before = _peak(job, stays, STEPS)
            for _ in range(losses):
                (victim,) = both - {stays}
                os.kill(victim, signal.SIGKILL)
                both = job.until_steady(2, STEPS + 1, not_these=both)
            after, most = _peak(job, stays, STEPS), _peak(job, stays, 0)
        finally:
            job.close()
    more = round(after - before, 1)
    against = f"while others came and went, at most {most - before:.1f} more than before"
    what = f"{MODEL}, W = 2, N = {MOST}, after {losses} losses: more than before"
    return [Measurement(GROUP, what, against, more, "copies", losses, Goal(0.0)).show()]


def _peak(job: OurJob, pid: int, last: int) -> float:
    """Return the maximum over a process's last steps; `last` 0: over all."""
    return max(in_copies(peak) for peak in memory_of(job.directory / "record", pid)[-last:])
