"""Words that all processes put into their sentences for people."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from .model import JobPhase


def gpu_count(count: int) -> str:
    """ "1 GPU", "2 GPUs"."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def ranges(numbers: Iterable[int]) -> str:
    """ "0-3, 5"."""
    found = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(found)


def over_words(phase: JobPhase) -> str:
    """Of a job that is over, after "it": "has finished", "has failed", "was cancelled"."""
    return "was cancelled" if phase is JobPhase.CANCELLED else f"has {phase.value}"
