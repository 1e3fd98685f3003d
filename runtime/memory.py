"""Memory that a process has freed, given back to the system.

The C library keeps what was freed for the next one who asks. After a flood of small messages that is most of what they took, for
good: what lives between them holds the whole heap up. `malloc_trim` of glibc gives back each page in it that nothing lies on.
"""

from __future__ import annotations

import ctypes
import logging
import os

log = logging.getLogger(__name__)

WORTH_BYTES = 8 << 20  # of growth, from which on it is worth while: that takes some milliseconds
INTERVAL_S = 1.0  # between two looks


def resident_bytes() -> int:
    """Of this process. Raises OSError where there is no /proc."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> bool:
    """Give back what is free. False: this C library cannot."""
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    give_back(0)
    return True


class Keeper:
    """Gives memory back when a process has grown and may have shrunk since."""

    def __init__(self) -> None:
        self._least: int | None = None  # resident bytes after the last time
        self._look_at_s = 0.0  # not before (monotonic)

    def look(self, now_s: float) -> None:
        """Is much more resident than there was? Call it while little is going on, as often as you like."""
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + INTERVAL_S
        before = resident_bytes()
        self._least = min(before, self._least or before)
        if before - self._least < WORTH_BYTES or not trim():
            return
        self._least = resident_bytes()
        if before - self._least >= WORTH_BYTES:
            log.info("%.0f MB of memory were free, and are given back to the system", (before - self._least) / 1e6)
