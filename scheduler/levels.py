"""Levels of a job: the numbers of GPUs with which it may run, and its speed with each.

ElasticFlow rests on concave curves: the more GPUs, the less a further one adds. Measured curves are not always concave.
So only shares on the hull are levels: the least concave curve above the allowed shares (and above zero GPUs). A job
that runs for a part of the time on one level and for the rest on the next is on average as fast as the hull. So the
hull promises no more than the job gets. Shares in a dent are never given to a promised job: two neighbouring levels in
turn do the same work with fewer GPU-seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from .arrays import Floats, Ints
from .curves import Curves

ROUNDING = 1e-9  # relative to the greatest throughput: a share so little below the hull counts as on it


@dataclass(frozen=True, eq=False)
class Levels:
    """Levels in ascending order: `counts[0]` is 0 GPUs; `rates[k]` is T(counts[k]) / T(1), ascending and concave in the
    counts."""

    counts: tuple[int, ...]
    rates: tuple[float, ...]

    def __len__(self) -> int:
        """Return the number of levels without that of no GPUs."""
        return len(self.counts) - 1

    @cached_property
    def array(self) -> Ints:
        """All counts, including 0."""
        return np.array(self.counts, dtype=np.int64)

    @cached_property
    def fits(self) -> Ints:
        """By number of free GPUs, the highest level that fits; for larger numbers the last entry holds."""
        return np.searchsorted(self.array[1:], np.arange(self.counts[-1] + 1), side="right")

    @cached_property
    def _at_most(self) -> tuple[int, ...]:
        return tuple(self.fits.tolist())

    @cached_property
    def _gains(self) -> tuple[float, ...]:
        steps = itertools.pairwise(zip(self.counts, self.rates, strict=True))
        return tuple((rate - slower) / (count - fewer) for (fewer, slower), (count, rate) in steps)

    @property
    def fastest(self) -> float:
        return self.rates[-1]

    def at_most(self, gpus: int) -> int:
        """Return the highest level with no more GPUs than this."""
        return self._at_most[min(gpus, self.counts[-1])]

    def gain(self, level: int) -> float:
        """Return the gain in rate by each GPU between the level below and this one."""
        return self._gains[level - 1]


def levels_of(curves: Curves, curve: int, least: int, most: int, powers: bool) -> Levels:
    """Return the levels of a job with this curve that may have `least` to `most` GPUs.

    `powers`: only powers of two, as buddy placement requires (4.3); a job without one in its range runs with its
    minimum.
    """
    most = min(most, curves.most)
    return _levels(curves.speedup[curve, : most + 1].tobytes(), least, powers)


def levels_by(curves: Curves, curve: int, least: int, most: int, each: int) -> Levels:
    """Return the levels of a job with a fixed number of GPUs, `each`, on every server: all numbers of servers, since
    the job keeps its share to the end and need not be able to mix two levels."""
    most = min(most, curves.most)
    return _levels_by(curves.speedup[curve, : most + 1].tobytes(), least, each)


@lru_cache(maxsize=1024)
def _levels_by(speedup: bytes, least: int, each: int) -> Levels:
    rates = np.maximum.accumulate(np.frombuffer(speedup, dtype=np.float64))
    counts = range(-(-least // each) * each, len(rates), each)
    return Levels((0, *counts), (0.0, *rates[list(counts)].tolist()))


def levels(speedup: Sequence[float] | Floats, least: int = 1, powers: bool = False) -> Levels:
    """Return the levels of a curve by itself: `speedup[n]` is T(n) / T(1), from n = 0 on."""
    return _levels(np.asarray(speedup, dtype=np.float64).tobytes(), least, powers)


@lru_cache(maxsize=4096)
def _levels(speedup: bytes, least: int, powers: bool) -> Levels:
    rates = np.frombuffer(speedup, dtype=np.float64)
    allowed = np.arange(least, len(rates))
    if powers:
        allowed = allowed[allowed & (allowed - 1) == 0] if (allowed & (allowed - 1) == 0).any() else allowed[:1]
    allowed = allowed[: int(np.argmax(rates[allowed])) + 1] if len(allowed) else allowed
    points = [(0, 0.0)] + [(int(n), float(rates[n])) for n in allowed if rates[n] > 0]
    kept: list[tuple[int, float]] = []
    slack = ROUNDING * max(rate for _, rate in points)
    for n, rate in points:
        while len(kept) > 1 and _below(kept[-2], kept[-1], (n, rate), slack):
            kept.pop()
        if not kept or rate > kept[-1][1]:
            kept.append((n, rate))
    return Levels(tuple(n for n, _ in kept), tuple(rate for _, rate in kept))


def _below(a: tuple[int, float], b: tuple[int, float], c: tuple[int, float], slack: float) -> bool:
    """Return whether b lies below the straight line from a to c.

    Points on it are kept: they are useful where fewer GPUs are free.
    """
    line = a[1] + (c[1] - a[1]) * (b[0] - a[0]) / (c[0] - a[0])
    return b[1] < line - slack
