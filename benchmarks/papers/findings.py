"""A published number beside this project's. A deviation above 10 % must have an explanation, and nothing else may have one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LIMIT = 0.10


@dataclass(frozen=True)
class Published:
    """A number, or a range of numbers; the bounds of an open range are infinite."""

    low: float
    high: float
    where: str  # paper with section or figure, or the simulator that gave it

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
    """A published number and this project's. Explanations refer to `key`.

    in_table: a table of the section has both numbers, so the list of findings shows them only if they deviate.
    """

    key: str
    what: str
    published: Published
    ours: float
    unit: str = "x"
    in_table: bool = False

    @property
    def deviation(self) -> float:
        """0 within the range, else the relative distance from the nearer bound."""
        low, high = self.published.low, self.published.high
        if low <= self.ours <= high:
            return 0.0
        bound = low if self.ours < low else high
        return self.ours / bound - 1.0

    @property
    def deviates(self) -> bool:
        return abs(self.deviation) > LIMIT


def faults(findings: Sequence[Finding], explanations: Mapping[str, str]) -> list[str]:
    """Return a sentence per deviation without an explanation, and per explanation of a deviation that does not exist."""
    found = []
    for finding in findings:
        percent = f"{finding.deviation:+.0%}"
        if finding.deviates and finding.key not in explanations:
            found.append(f"{finding.key}: deviates by {percent}, and nothing explains it")
        if not finding.deviates and finding.key in explanations:
            found.append(f"{finding.key}: is explained, but deviates by {percent} only")
    return found


def number(value: float) -> str:
    """Format with three significant digits and thousands separators."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"
