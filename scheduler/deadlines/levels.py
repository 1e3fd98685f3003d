"""With how many GPUs a job may run, and how fast it is then: its levels.

ElasticFlow rests on concave curves: the more GPUs, the less a further one adds. Measured curves are not always so. Only those
shares are levels that lie on the hull, the least concave curve above the allowed shares (and above none at all). A job that
runs for a part of the time on one level and for the rest on the next one is on average as fast as the hull says, so nothing is
promised that the job does not get. Shares in a dent are never given to a promised job: two neighbouring levels in turn do the
same work with fewer GPU-seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..view import Curves, Floats, Ints

ROUNDING = 1e-9  # of the greatest throughput: so far below the hull a share still counts as lying on it


@dataclass(frozen=True, eq=False)
class Levels:
    """`counts[0]` is 0 GPUs, the others ascend; `rates[k]` is T(counts[k]) / T(1), ascends, too, and is concave in the counts."""

    counts: tuple[int, ...]
    rates: tuple[float, ...]

    def __len__(self) -> int:
        """How many there are beside that of no GPUs."""
        return len(self.counts) - 1

    @cached_property
    def array(self) -> Ints:
        """All counts, 0 among them."""
        return np.array(self.counts, dtype=np.int64)

    @cached_property
    def fits(self) -> Ints:
        """By number of GPUs that are free, the highest level that needs no more; of larger numbers that of the last one."""
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
        """The highest level with no more GPUs than this."""
        return self._at_most[min(gpus, self.counts[-1])]

    def gain(self, level: int) -> float:
        """What a GPU adds to the rate between the level below and this one."""
        return self._gains[level - 1]


def levels_of(curves: Curves, curve: int, least: int, most: int, powers: bool) -> Levels:
    """The levels of a job with this curve that may have `least` to `most` GPUs.

    `powers`: only powers of two, as buddy placement wants them (4.3); a job whose range has none runs with its minimum.
    """
    most = min(most, curves.most)
    return _levels(curves.speedup[curve, : most + 1].tobytes(), least, powers)


def levels(speedup: Sequence[float] | Floats, least: int = 1, powers: bool = False) -> Levels:
    """The same of a curve by itself: `speedup[n]` is T(n) / T(1), from n = 0 on."""
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
    """Does b lie below the straight line from a to c? Points on it are kept: they serve where fewer GPUs are free."""
    line = a[1] + (c[1] - a[1]) * (b[0] - a[0]) / (c[0] - a[0])
    return b[1] < line - slack
