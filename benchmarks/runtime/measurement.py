"""Measurements and their goals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A bound on a measured value."""

    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def words(self, unit: str) -> str:
        """Return the goal as in the table."""
        return f"{'>=' if self.at_least else '<='} {number(self.bound)} {unit}".rstrip()


@dataclass(frozen=True)
class Measurement:
    """One row of the table."""

    group: str
    what: str
    against: str  # the alternative, with its own value
    value: float
    unit: str
    count: int  # of samples of which the value is the median (or the maximum)
    goal: Goal | None = None
    detail: dict[str, Any] = field(default_factory=dict)  # for the JSON

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "yes" if self.goal.met(self.value) else "**no**"

    def show(self) -> Measurement:
        """Print the row. Returns itself."""
        goal = f"(goal {self.goal.words(self.unit)}: {self.verdict.strip('*')})" if self.goal else ""
        print(f"{self.group}: {self.what}: {number(self.value)} {self.unit} {goal}  [{self.against}]", flush=True)
        return self

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "met": None if self.goal is None else self.goal.met(self.value)}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Measurement:
        """Decode a document."""
        known = {name: value for name, value in document.items() if name != "met"}
        return cls(**{**known, "goal": Goal(**known["goal"]) if known["goal"] else None})


def number(value: float) -> str:
    """Format with three or four significant digits."""
    if abs(value) >= 100 or value in (0.0, 1.0):
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.2f}"
