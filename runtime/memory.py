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
INTERVAL_S = 2.0  # between two times
LONGEST_PAUSE_S = 300.0  # where all that a process has grown by is in use


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
        self._least: int | None = None  # resident bytes when there were fewest
        self._left = 0  # after the last time
        self._pause_s = INTERVAL_S
        self._again_at_s = 0.0  # monotonic

    def look(self, now_s: float) -> None:
        """Is much more resident than there was? Call it while little is going on, about once a second."""
        before = resident_bytes()
        self._least = min(before, self._least or before)
        more = before - self._left >= WORTH_BYTES
        if before - self._least < WORTH_BYTES or (now_s < self._again_at_s and not more) or not trim():
            return
        self._left = resident_bytes()
        free = before - self._left
        self._pause_s = INTERVAL_S if more or free >= WORTH_BYTES else min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._again_at_s = now_s + self._pause_s
        if free >= WORTH_BYTES:
            log.info("%.0f MB of memory were free, and are given back to the system", free / 1e6)
