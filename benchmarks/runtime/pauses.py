"""Pause in training when the number of workers changes: this runtime, torchrun's restart, stop and resume.

A pause is the longest time between two applied steps from the request until the new workers train steadily, less the median step
before or after, whichever is longer. So it includes processor time that starting processes take from training ones, the switch,
and the first steps after it. On a machine with fewer cores than workers the first of these dominates.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from .jobs import ForkedJob, Load, MeasuredJob, OurJob, StopResumeJob, TorchrunJob
from .measurement import Goal, Measurement, number
from .migration import MovingJob
from .processes import Family
from .record import applied_times, gaps

GROUP = "pauses"
MOVE = "move"
CYCLE = (2, 4, 2)  # numbers of workers, starting from 1; the return to 1 for the next cycle is not measured
EXTRA_MS = 30.0
TIMES_SHORTER = 50.0
RIVALS: tuple[type[MeasuredJob], ...] = (TorchrunJob, StopResumeJob, ForkedJob)
RESIZED: tuple[type[MeasuredJob], ...] = (OurJob, *RIVALS)
MOVED: tuple[type[MeasuredJob], ...] = (MovingJob, *RIVALS)


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement of one load. This runtime is faster, so it gets more rounds."""

    load: Load
    small: bool
    rounds: int
    our_cycles: int
    their_cycles: int
    steps: int  # examined before and after each change
    quiet_s: float


FULL = (
    Plan(Load("stack-0.1M", pace_s=0.01), True, 2, 5, 1, 20, 1.0),
    Plan(Load("stack-10M"), False, 1, 5, 2, 12, 1.0),
    Plan(Load("stack-100M"), False, 1, 2, 1, 4, 0.0),
)
QUICK = (Plan(Load("stack-0.1M", pace_s=0.01), True, 1, 1, 1, 10, 0.5),)


@dataclass(frozen=True)
class Pause:
    """One change of the number of workers."""

    change: str  # "1 -> 2", MOVE
    gap_s: float  # longest time between two applied steps
    step_s: float  # median
    asked_s: float  # CLOCK_MONOTONIC
    took_s: float  # from the request until the new workers train
    gap_end_s: float  # CLOCK_MONOTONIC

    @property
    def pause_s(self) -> float:
        return max(0.0, self.gap_s - self.step_s)

    @property
    def grows(self) -> bool:
        before, _, after = self.change.partition(" -> ")
        return after > before


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure all loads, all changes, all runtimes; the runtimes alternate."""
    found: list[Measurement] = []
    for plan in QUICK if quick else FULL:
        pauses: dict[str, list[Pause]] = {job.name: [] for job in RESIZED}
        for _ in range(plan.rounds):
            for regime in RESIZED:
                pauses[regime.name] += _changes(family, regime, plan)
            for regime in MOVED:
                pauses[regime.name] += _moves(family, regime, plan)
        for change in dict.fromkeys(pause.change for pause in pauses[OurJob.name]):
            found += _rows(
                plan, change, {name: [p for p in all_ if p.change == change] for name, all_ in pauses.items()}
            )
    return found


def _cycles(regime: type[MeasuredJob], plan: Plan) -> int:
    return plan.their_cycles if regime in RIVALS else plan.our_cycles


def _changes(family: Family, regime: type[MeasuredJob], plan: Plan) -> list[Pause]:
    """Change 1 -> 2 -> 4 -> 2, several times."""
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory:
        job = regime(family, Path(directory), plan.load)
        try:
            job.start(1)
            workers = 1
            for cycle in range(_cycles(regime, plan)):
                if cycle:
                    one_change(job, plan.steps, plan.quiet_s, workers, 1)
                    workers = 1
                for target in CYCLE:
                    found.append(one_change(job, plan.steps, plan.quiet_s, workers, target))
                    _show(plan, job, found[-1])
                    workers = target
        finally:
            job.close()
    return found


def _moves(family: Family, regime: type[MeasuredJob], plan: Plan) -> list[Pause]:
    """Replace one of two workers, several times."""
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory:
        job = regime(family, Path(directory), plan.load)
        try:
            job.start(2)
            for _ in range(_cycles(regime, plan)):
                found.append(one_change(job, plan.steps, plan.quiet_s, 2, None))
                _show(plan, job, found[-1])
        finally:
            job.close()
    return found


def one_change(job: MeasuredJob, steps: int, quiet_s: float, before: int, after: int | None) -> Pause:
    """Change from `before` workers to `after` (None: one of them is replaced)."""
    old = job.until_steady(before, steps)
    time.sleep(quiet_s)
    asked_s = time.monotonic()
    if after is None:
        job.move()
    else:
        job.resize(after)
    workers = before if after is None else after
    job.until_steady(workers, steps, not_these=old)
    times = applied_times(job.lines())
    earlier = [at for at in times if at <= asked_s]
    later = [at for at in times if at > asked_s]
    step_s = max(median(gaps(earlier[-steps:])), median(gaps(later[-steps:])))
    change = MOVE if after is None else f"{before} -> {after}"
    gap_s, gap_end_s = max(zip(gaps([earlier[-1], *later]), later, strict=True))
    return Pause(change, gap_s, step_s, asked_s, later[-steps] - asked_s, gap_end_s)


def _show(plan: Plan, job: MeasuredJob, pause: Pause) -> None:
    print(
        f"  {plan.load.model} {job.name}, {pause.change}: pause {pause.pause_s * 1e3:.0f} ms, gap {pause.gap_s * 1e3:.0f} ms, "
        f"step {pause.step_s * 1e3:.0f} ms, {pause.took_s:.1f} s from asking",
        flush=True,
    )


def _rows(plan: Plan, change: str, pauses: dict[str, list[Pause]]) -> list[Measurement]:
    """Return one row for the pause itself, one against torchrun, one against the fastest resume."""
    ours = pauses[OurJob.name]
    longest_ms = max(p.pause_s for p in ours) * 1e3
    middle_ms = median(p.pause_s for p in ours) * 1e3
    step_ms = median(p.step_s for p in ours) * 1e3
    theirs_ms = {regime.name: median(p.pause_s for p in pauses[regime.name]) * 1e3 for regime in RIVALS}
    what = f"{plan.load.model}, {_words(change)}"
    detail = {"pauses": {name: [asdict(pause) for pause in found] for name, found in pauses.items()}}

    def row(text: str, against: str, value: float, unit: str, goal: Goal | None) -> Measurement:
        return Measurement(GROUP, f"{what}: {text}", against, value, unit, len(ours), goal, detail).show()

    beside = ", ".join(f"{name} {_time(value)}" for name, value in theirs_ms.items())
    within = Goal(step_ms + EXTRA_MS) if plan.small else None
    forked_ms, torchrun_ms = theirs_ms[ForkedJob.name], theirs_ms[TorchrunJob.name]
    return [
        row(
            "longest pause", f"median pause {number(middle_ms)} ms, step {number(step_ms)} ms", longest_ms, "ms", within
        ),
        row("longest pause, against a warm resume", beside, longest_ms, "ms", Goal(forked_ms)),
        row(
            "torchrun's over ours",
            f"torchrun: median of {len(pauses[TorchrunJob.name])}",
            torchrun_ms / max(longest_ms, 0.1),
            "times",
            Goal(TIMES_SHORTER, at_least=True),
        ),
    ]


def _words(change: str) -> str:
    return "one of 2 workers moves" if change == MOVE else change


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
