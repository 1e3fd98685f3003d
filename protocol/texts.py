"""Phrases that all processes use in their sentences for people."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from .messages import CounterOffer
from .model import JobPhase

RELEASED = "released: it was told to end"  # reason of the end of a worker that its job needs no more
LONGEST_REASON = 300  # characters, of the reason for a changed share


def gpu_count(count: int) -> str:
    """Return "1 GPU", "2 GPUs"."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def many(count: int, noun: str) -> str:
    """Return "1 worker", "2,000 workers"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """Return "4s", "3m20s", "2h05m", "3d04h"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: "0-3, 5"."""
    found = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(found)


def over_words(phase: JobPhase) -> str:
    """Return how a job ended, after "it": "has finished", "has failed", "was cancelled"."""
    return "was cancelled" if phase is JobPhase.CANCELLED else f"has {phase.value}"


def steps_kept(done: int, saved: int) -> str:
    """Return the progress of a job that has given its GPUs back, and how much of it is saved (steps): "after 12 steps,
    its state is saved".
    """
    after = f"after {done:,} step{'' if done == 1 else 's'}"
    if saved >= done:
        return f"{after}, its state is saved"
    return f"{after}; " + (f"what is saved is the state after {saved:,}" if saved else "nothing of that is saved")


def changes(offer: CounterOffer, deadline: str, left: str = "") -> list[str]:
    """Return the changes with which a deadline would be promised. deadline: the offered one in words; left: of which steps
    those of the offer are a part.
    """
    found = [f"a deadline {deadline}"] if offer.deadline_s is not None else []
    if offer.steps is not None:
        found.append(f"at most {many(offer.steps, 'step')}{left}")
    if offer.more_gpus is not None:
        found.append(f"{gpu_count(offer.more_gpus)} more in the cluster")
    if offer.consent:
        found.append(f"{', '.join(offer.consent)} going on without a promise")
    return found


def memory_text(bytes_: int) -> str:
    """Format an amount of memory: "500 MiB", "7.5 GiB", "100 TiB"."""
    size, unit = next(
        ((1 << bits, unit) for bits, unit in ((40, "TiB"), (30, "GiB")) if bytes_ >= 1 << bits), (1 << 20, "MiB")
    )
    return f"{bytes_ / size:.4g} {unit}"
