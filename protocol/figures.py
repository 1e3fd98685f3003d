"""Figures about a process: counts, levels and distributions, as plain values. Who serves them: `runtime.metrics`."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MOST_VALUES = 200  # of one label, whatever comes from outside


class Kind(Enum):
    """What becomes of a figure with time."""

    COUNTER = "counter"  # only grows, from 0 at the start of the process
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Buckets:
    """How often a value lay below each of some bounds, and the sum of all."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def frozen(self) -> Distribution:
        """As it is now."""
        below, cumulated = 0, []
        for count in self._counts:
            below += count
            cumulated.append(below)
        return Distribution(self.bounds, tuple(cumulated), self.sum)


@dataclass(frozen=True)
class Distribution:
    """`below`: how many values were at most each bound, and in the end how many there were."""

    bounds: tuple[float, ...]
    below: tuple[int, ...]
    sum: float


@dataclass(frozen=True)
class Figure:
    """A figure by the values of its labels. Names follow Prometheus' conventions, without the prefix of this program; counters
    are named without `_total`."""

    name: str
    kind: Kind
    text: str  # what it is, in a sentence
    samples: tuple[tuple[tuple[str, ...], float | Distribution], ...]
    labels: tuple[str, ...] = ()


def counter(name: str, text: str, value: float) -> Figure:
    return Figure(name, Kind.COUNTER, text, (((), value),))


def gauge(name: str, text: str, value: float) -> Figure:
    return Figure(name, Kind.GAUGE, text, (((), value),))


def histogram(name: str, text: str, buckets: Buckets) -> Figure:
    return Figure(name, Kind.HISTOGRAM, text, (((), buckets.frozen()),))


def labelled(kind: Kind, name: str, text: str, label: str, values: Mapping[str, float]) -> Figure:
    """One figure for each value of one label; no more than `MOST_VALUES`."""
    return table(kind, name, text, (label,), (((value,), number) for value, number in values.items()))


def table(
    kind: Kind, name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Figure:
    """One figure for each combination of labels; no more than `MOST_VALUES`."""
    return Figure(name, kind, text, tuple(samples)[:MOST_VALUES], labels)
