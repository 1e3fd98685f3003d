"""Pace of a worker's steps, and the cost of each switch of generations (design: worker-runtime 7)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ..protocol.model import Resize, Steady

STEPS_KEPT = 128
MEDIAN_STEPS = 32  # number of step times of which the pace is the median
STEADY_STEPS = 32  # the pace of a generation is the median of this number of its last steps
STEPS_BEFORE = 2  # the longest gap is searched from this number of steps before a switch
STEPS_AFTER = 4  # to this number of steps after it
RESIZES_KEPT = 32


@dataclass(frozen=True)
class _Pending:
    generation: int
    step: int
    workers_before: int
    workers_after: int
    recovery: bool
    median_step_s: float


class StepTimes:
    """Times at which steps were applied (monotonic seconds), and the gaps around switches."""

    def __init__(self) -> None:
        self._applied: deque[tuple[int, float]] = deque(maxlen=STEPS_KEPT)
        self._pending: list[_Pending] = []
        self._resizes: deque[Resize] = deque(maxlen=RESIZES_KEPT)
        self._generation = 0  # generation of the training thread; 0: it has joined in the middle
        self._own = 0  # steps applied in this generation

    @property
    def resizes(self) -> tuple[Resize, ...]:
        return tuple(self._resizes)

    def median_step_s(self) -> float:
        """Return the median time between the last applied steps in seconds; 0 without any."""
        times = [at for _, at in list(self._applied)[-MEDIAN_STEPS - 1 :]]
        gaps = [b - a for a, b in pairwise(times)]
        return median(gaps) if gaps else 0.0

    def steady(self) -> Steady:
        """Return the pace with the present workers alone, for the scheduler.

        A generation's first step, the switch itself, does not count.
        """
        own = min(self._own - 1, STEADY_STEPS + 1)
        times = [at for _, at in list(self._applied)[-own:]] if own > 1 and self._generation else []
        gaps = [b - a for a, b in pairwise(times)]
        return Steady(generation=self._generation, step_s=median(gaps), steps=len(gaps)) if gaps else Steady()

    def switched(self, generation: int, before: int, after: int, recovery: bool) -> None:
        """Record a switch after the last applied step. Measured only if this worker had been training before.

        If no step has been applied since the previous switch, both count as one, with one pause.
        """
        self._generation, self._own = generation, 0
        if not self._applied:
            return
        step = self._applied[-1][0]
        if self._pending and self._pending[-1].step == step:
            earlier = self._pending.pop()
            before, recovery = earlier.workers_before, recovery or earlier.recovery
        self._pending.append(_Pending(generation, step, before, after, recovery, self.median_step_s()))

    def applied(self, step: int, at: float) -> bool:
        """Record that `step` was applied at `at`. Returns True if this completes the measurement of a switch."""
        self._applied.append((step, at))
        self._own += 1
        if not self._pending:
            return False
        done = [p for p in self._pending if step >= p.step + STEPS_AFTER]
        self._pending = [p for p in self._pending if step < p.step + STEPS_AFTER]
        for pending in done:
            self._resizes.append(self._measure(pending))
        return bool(done)

    def paced_anew(self) -> None:
        """Take note that steps take another time from now on: their pace is that of the next ones."""
        self._own = 0

    def restarted(self) -> None:
        """Forget all times, since the state was replaced: gaps across this point mean nothing."""
        self._applied.clear()
        self._pending.clear()
        self._generation = self._own = 0

    def _measure(self, pending: _Pending) -> Resize:
        window = [at for step, at in self._applied if step >= pending.step - STEPS_BEFORE]
        gaps = [b - a for a, b in pairwise(window)]
        after = [at for step, at in self._applied if step > pending.step + 1]  # the first step was the switch itself
        return Resize(
            generation=pending.generation,
            step=pending.step,
            workers_before=pending.workers_before,
            workers_after=pending.workers_after,
            longest_gap_s=max(gaps, default=0.0),
            median_step_s=pending.median_step_s,
            median_step_after_s=median([b - a for a, b in pairwise(after)] or [0.0]),
            recovery=pending.recovery,
        )
