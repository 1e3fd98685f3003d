"""Is this machine too busy to tell? What takes long on a crowded machine need not hang, and is not to be installed once more.

The kernel says how many threads run or want to at this moment (the fourth field of ``/proc/loadavg``). Where that is many times
the processors, checks get more time, and one that does not end in it says nothing about what it has looked at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LOADAVG = Path("/proc/loadavg")
CROWDED = 4.0  # threads per processor that want to run: from here on each waits for most of the time
MOST_PATIENCE = 6.0  # times the usual limits


@dataclass(frozen=True)
class Crowd:
    """Threads that run or want to, and the processors that this process may use."""

    threads: int
    processors: int

    @property
    def crowded(self) -> bool:
        return self.threads >= CROWDED * self.processors

    @property
    def patience(self) -> float:
        """How much longer than usual things may take."""
        return min(MOST_PATIENCE, self.threads / self.processors) if self.crowded else 1.0

    def sentence(self, what: str) -> str:
        """What cannot be said."""
        many = f"{self.threads} threads want to run on {self.processors} processor{'s' if self.processors > 1 else ''}"
        return f"too busy to tell: {many}; {what}"


def crowd(path: Path = LOADAVG) -> Crowd:
    """As it is now; nobody where the kernel does not tell."""
    processors = len(os.sched_getaffinity(0))
    try:
        running, _, _ = path.read_text().split()[3].partition("/")
        return Crowd(int(running), processors)
    except (OSError, ValueError, IndexError):
        return Crowd(0, processors)
