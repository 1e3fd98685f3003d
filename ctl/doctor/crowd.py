"""Detection of an overloaded machine, on which a slow operation is no sign of a fault.

The kernel reports how many threads run or want to at this moment (the fourth field of ``/proc/loadavg``). Where that is
many times the number of processors, checks get more time, and a check that exceeds even this says nothing about its
subject.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LOADAVG = Path("/proc/loadavg")
CROWDED = 4.0  # runnable threads per processor from which on a machine counts as overloaded
MOST_PATIENCE = 6.0  # largest factor of time limits on an overloaded machine


@dataclass(frozen=True)
class Crowd:
    """Runnable threads, and the processors that this process may use."""

    threads: int
    processors: int

    @property
    def crowded(self) -> bool:
        return self.threads >= CROWDED * self.processors

    @property
    def patience(self) -> float:
        """Return the factor by which operations may take longer than usual."""
        return min(MOST_PATIENCE, self.threads / self.processors) if self.crowded else 1.0

    def sentence(self, what: str) -> str:
        """Return the sentence about a check without a result."""
        many = f"{self.threads} threads want to run on {self.processors} processor{'s' if self.processors > 1 else ''}"
        return f"too busy to tell: {many}; {what}"


def crowd(path: Path = LOADAVG) -> Crowd:
    """Return the present load; no threads if the kernel does not report it."""
    processors = len(os.sched_getaffinity(0))
    try:
        running, _, _ = path.read_text().split()[3].partition("/")
        return Crowd(int(running), processors)
    except (OSError, ValueError, IndexError):
        return Crowd(0, processors)
