"""Clocks: Unix time in seconds. A process chooses one, by whether it can bear that time jumps."""

from __future__ import annotations

import time
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
