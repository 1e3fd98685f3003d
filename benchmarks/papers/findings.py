"""A published number beside ours. A deviation over 10 % has an explanation, and nothing else has one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LIMIT = 0.10


@dataclass(frozen=True)
class Published:
    """A number, or the range in which numbers lie; the bounds of an open range are infinite."""

    low: float
    high: float
    where: str  # paper and section or figure, or the simulator it comes from

    def words(self, unit: str) -> str:
        if self.low == self.high:
            return f"{number(self.low)}{unit}"
        if math.isinf(self.high):
            return f"above {number(self.low)}{unit}"
        if math.isinf(self.low):
            return f"below {number(self.high)}{unit}"
        return f"{number(self.low)} to {number(self.high)}{unit}"


def exactly(value: float, where: str) -> Published:
    return Published(value, value, where)


def between(low: float, high: float, where: str) -> Published:
    return Published(low, high, where)


def above(low: float, where: str) -> Published:
    return Published(low, math.inf, where)


def below(high: float, where: str) -> Published:
    return Published(-math.inf, high, where)


@dataclass(frozen=True)
class Finding:
    """A published number and ours. An explanation names `key`.

    in_table: both numbers stand in a table of the section, so that the list of findings shows them only if they deviate.
    """

    key: str
    what: str
    published: Published
    ours: float
    unit: str = "x"
    in_table: bool = False

    @property
    def deviation(self) -> float:
        """0 within the range, else how far ours lies from the nearer bound, as a part of it."""
        low, high = self.published.low, self.published.high
        if low <= self.ours <= high:
            return 0.0
        bound = low if self.ours < low else high
        return self.ours / bound - 1.0

    @property
    def deviates(self) -> bool:
        return abs(self.deviation) > LIMIT


def faults(findings: Sequence[Finding], explanations: Mapping[str, str]) -> list[str]:
    """A sentence for each deviation without an explanation, and for each explanation of a deviation that is not there."""
    found = []
    for finding in findings:
        percent = f"{finding.deviation:+.0%}"
        if finding.deviates and finding.key not in explanations:
            found.append(f"{finding.key}: deviates by {percent}, and nothing explains it")
        if not finding.deviates and finding.key in explanations:
            found.append(f"{finding.key}: is explained, but deviates by {percent} only")
    return found


def number(value: float) -> str:
    """Three digits that mean something, thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"
