"""Returns freed memory of a process to the system.

The C library keeps freed memory for later allocations. After a flood of small messages it keeps most of their memory for good,
because live allocations between them hold the heap up. `malloc_trim` of glibc returns each page that holds no live allocation.
"""

from __future__ import annotations

import ctypes
import logging
import os

log = logging.getLogger(__name__)

WORTH_BYTES = 8 << 20  # of growth, below which trimming, which takes some milliseconds, does not pay
INTERVAL_S = 2.0  # between two trims
LONGEST_PAUSE_S = 300.0  # between two trims where all grown memory is in use


def resident_bytes() -> int:
    """Return the resident memory of this process. Raises OSError where there is no /proc."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> bool:
    """Return free memory to the system. Returns False if this C library cannot."""
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    give_back(0)
    return True


class Keeper:
    """Trims a process's memory when it has grown and may have shrunk since.

    Made at the process's start: a flood may keep it from its first `look` until the memory has grown.
    """

    def __init__(self) -> None:
        """Raises OSError where there is no /proc."""
        self._least = resident_bytes()  # smallest resident size seen (bytes)
        self._left = 0  # resident bytes after the last trim
        self._pause_s = INTERVAL_S
        self._again_at_s = 0.0  # monotonic

    def look(self, now_s: float) -> None:
        """Trim if the resident size has grown enough. Call it about once a second, while the process is idle."""
        before = resident_bytes()
        self._least = min(before, self._least)
        more = before - self._left >= WORTH_BYTES
        if before - self._least < WORTH_BYTES or (now_s < self._again_at_s and not more) or not trim():
            return
        self._left = resident_bytes()
        free = before - self._left
        self._pause_s = INTERVAL_S if more or free >= WORTH_BYTES else min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._again_at_s = now_s + self._pause_s
        if free >= WORTH_BYTES:
            log.info("%.0f MB of memory were free, and are given back to the system", free / 1e6)
