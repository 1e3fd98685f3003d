"""Time from SIGKILL of a worker to the next step without it: this runtime, torchrun's restart, and torchft where installed.

The time of the kill is taken just before it. The step that counts is the first one applied by a formation without the victim: a
step under way that completed does not count.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from .jobs import Load, MeasuredJob, OurJob, TorchrunJob, kill
from .measurement import Goal, Measurement, number
from .processes import Family, until
from .torchft_job import TorchftJob, installed

GROUP = "losses"
WORKERS = 3
BEYOND_A_STEP_MS = 60.0
WORST_MS = 1000.0
RECOVERED_WITHIN_S = 240.0


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement of one load."""

    load: Load
    ours: int
    theirs: int
    steps: int
    quiet_s: float


FULL = (
    Plan(Load("stack-0.1M", pace_s=0.01), 30, 4, 20, 1.0),
    Plan(Load("stack-10M"), 15, 3, 12, 1.0),
    Plan(Load("stack-100M"), 3, 1, 4, 0.0),
)
QUICK = (Plan(Load("stack-0.1M", pace_s=0.01), 3, 1, 10, 0.5),)


@dataclass(frozen=True)
class Loss:
    """One killed worker."""

    rank: int
    recovered_s: float  # to the first step applied without it
    step_s: float  # median before the kill
    repeated: int  # steps run again


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Kill each rank in turn, the leader included."""
    found: list[Measurement] = []
    rivals: list[type[MeasuredJob]] = [TorchrunJob, *([TorchftJob] if installed() else [])]
    for plan in QUICK if quick else FULL:
        ours = _losses(family, OurJob, plan, plan.ours)
        theirs = {rival.name: _losses(family, rival, plan, plan.theirs) for rival in rivals}
        found += _rows(plan, ours, theirs)
    return found


def _losses(family: Family, regime: type[MeasuredJob], plan: Plan, count: int) -> list[Loss]:
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory:
        job = regime(family, Path(directory), plan.load)
        try:
            job.start(WORKERS)
            old: frozenset[int] = frozenset()
            for turn in range(count):
                old = job.until_steady(WORKERS, plan.steps, not_these=old)
                time.sleep(plan.quiet_s)
                found.append(_one(job, turn % WORKERS, plan.steps))
                job.replace_lost()
                print(f"  {plan.load.model} {job.name}: {found[-1]}", flush=True)
        finally:
            job.close()
    return found


def _one(job: MeasuredJob, rank: int, steps: int) -> Loss:
    before = job.lines()[-WORKERS * steps :]
    victim = next(line for line in reversed(before) if line.rank == rank)
    killed_s = kill(victim.pid)

    def probe() -> Loss | None:
        after = (line for line in job.lines() if line.at_s > killed_s and line.pid != victim.pid)
        first = next((line for line in after if (line.world, line.formation) != (victim.world, victim.formation)), None)
        if first is None:
            return None
        last = max(line.step for line in job.lines() if line.at_s <= first.at_s and line is not first)
        return Loss(rank, first.at_s - killed_s, step_s, last + 1 - first.step)

    own = [line.at_s for line in before if line.pid == victim.pid]
    step_s = (own[-1] - own[0]) / (len(own) - 1)
    return until(f"{job.name} goes on without a worker", probe, RECOVERED_WITHIN_S)


def _rows(plan: Plan, ours: list[Loss], theirs: dict[str, list[Loss]]) -> list[Measurement]:
    our_ms = [loss.recovered_s * 1e3 for loss in ours]
    step_ms = median(loss.step_s for loss in ours) * 1e3
    beside = "; ".join(f"{name}: {_summary(losses)}" for name, losses in theirs.items())
    detail = {name: [asdict(loss) for loss in losses] for name, losses in {OurJob.name: ours, **theirs}.items()}

    def row(text: str, against: str, value: float, unit: str, goal: Goal | None) -> Measurement:
        return Measurement(GROUP, f"{plan.load.model}: {text}", against, value, unit, len(ours), goal, detail).show()

    return [
        row(
            "median",
            f"median step {number(step_ms)} ms; {beside}",
            median(our_ms),
            "ms",
            Goal(step_ms + BEYOND_A_STEP_MS),
        ),
        row("worst", f"median step {number(step_ms)} ms", max(our_ms), "ms", Goal(WORST_MS)),
        row("most steps repeated", "the one under way", max(loss.repeated for loss in ours), "", Goal(1)),
    ]


def _summary(losses: list[Loss]) -> str:
    middle_s = median(loss.recovered_s for loss in losses)
    repeated = max(loss.repeated for loss in losses)
    return f"median {number(middle_s)} s, up to {repeated} steps repeated"
