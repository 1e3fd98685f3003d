"""Clocks: Unix time in seconds. A process chooses one, by whether it can bear that time jumps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Unix time (s)."""
        ...


class SteadyClock:
    """Read once at the start and carried on by the monotonic clock: it never jumps, and after a jump of the machine's clock it
    is wrong. For agents and workers, which only measure how long something takes."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset_s + time.monotonic()


class WallClock:
    """The machine's clock as it is: it may jump either way. For the controller, which tells people when something happened and
    leaves the time of a jump out of its leases."""

    def now(self) -> float:
        return time.time()


LEAST_STEP_S = 0.5  # less than that is how a clock is corrected all the time


class StepMeter:
    """Tells by how much the machine's clock was set, beside the time that passed: by the clock that runs since the boot, which
    nobody sets."""

    def __init__(self, wall: Callable[[], float] = time.time, since_boot: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._since_boot = since_boot or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._offset_s = self._wall() - self._since_boot()

    def step(self) -> float:
        """By so much the clock was set forward since the last step that was told (back: less than 0); 0: it was not."""
        offset_s = self._wall() - self._since_boot()
        by_s = offset_s - self._offset_s
        if abs(by_s) < LEAST_STEP_S:
            return 0.0
        self._offset_s = offset_s
        return by_s
