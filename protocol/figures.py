"""Metrics of a process as plain values: counters, gauges and histograms. `runtime.metrics` serves them."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MOST_VALUES = 200  # of one label: bounds the metrics of values that come from outside the process


class Kind(Enum):
    """Kind of a metric: how its value changes with time."""

    COUNTER = "counter"  # only grows, from 0 at the start of the process
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Buckets:
    """Histogram in progress: counts of observed values per bucket, and their sum."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def frozen(self) -> Distribution:
        """Return the histogram's present state as an immutable value."""
        below, cumulated = 0, []
        for count in self._counts:
            below += count
            cumulated.append(below)
        return Distribution(self.bounds, tuple(cumulated), self.sum)


@dataclass(frozen=True)
class Distribution:
    """Snapshot of a histogram. `below`: for each bound the number of values that were at most this bound; last, the
    number of all values.
    """

    bounds: tuple[float, ...]
    below: tuple[int, ...]
    sum: float


@dataclass(frozen=True)
class Figure:
    """A metric with one sample for each combination of label values. Names follow Prometheus' conventions, without the
    prefix of this program; names of counters omit `_total`.
    """

    name: str
    kind: Kind
    text: str  # description, one sentence
    samples: tuple[tuple[tuple[str, ...], float | Distribution], ...]
    labels: tuple[str, ...] = ()


def counter(name: str, text: str, value: float) -> Figure:
    return Figure(name, Kind.COUNTER, text, (((), value),))


def gauge(name: str, text: str, value: float) -> Figure:
    return Figure(name, Kind.GAUGE, text, (((), value),))


def histogram(name: str, text: str, buckets: Buckets) -> Figure:
    return Figure(name, Kind.HISTOGRAM, text, (((), buckets.frozen()),))


def labelled(kind: Kind, name: str, text: str, label: str, values: Mapping[str, float]) -> Figure:
    """Return a metric with one sample for each value of one label, at most `MOST_VALUES`."""
    return table(kind, name, text, (label,), (((value,), number) for value, number in values.items()))


def table(
    kind: Kind, name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Figure:
    """Return a metric with one sample for each combination of labels, at most `MOST_VALUES`."""
    return Figure(name, kind, text, tuple(samples)[:MOST_VALUES], labels)
