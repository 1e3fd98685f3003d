"""Clocks, in Unix time (s). A process chooses one by whether it tolerates jumps of the machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Source of the current time."""

    def now(self) -> float:
        """Return Unix time (s)."""
        ...


class SteadyClock:
    """Clock read once at the start and carried on by the monotonic clock: it never jumps, but is off after the machine's clock
    was set. For agents and workers, which only measure durations."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset_s + time.monotonic()


class WallClock:
    """The machine's clock, which may jump either way. For the controller, which shows times of events to people, and excludes
    the length of a jump from its leases."""

    def now(self) -> float:
        return time.time()


LEAST_STEP_S = 0.5  # smaller steps are ordinary corrections of a clock


class StepMeter:
    """Measures by how much the machine's clock was set, against the clock that runs since boot and cannot be set."""

    def __init__(self, wall: Callable[[], float] = time.time, since_boot: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._since_boot = since_boot or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._offset_s = self._wall() - self._since_boot()

    def step(self) -> float:
        """Return by how many seconds the clock was set forward since the last reported step (back: negative); 0 if it was not."""
        offset_s = self._wall() - self._since_boot()
        by_s = offset_s - self._offset_s
        if abs(by_s) < LEAST_STEP_S:
            return 0.0
        self._offset_s = offset_s
        return by_s
