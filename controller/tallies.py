"""Counts since the controller's start, for its metrics (`controller.metrics`). No decision depends on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..protocol.figures import Buckets
from ..protocol.messages import EventKind

PAUSES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass
class Tallies:
    """Counts, from 0."""

    events: dict[EventKind, int] = field(default_factory=dict)
    steps: int = 0  # steps of jobs, each counted once although all workers of a job apply it
    pauses: Buckets = field(default_factory=lambda: Buckets(PAUSES_S))  # durations of pauses by resizes (s)

    def stepped(self, steps: int) -> None:
        self.steps += steps

    def resized(self, paused_s: float) -> None:
        self.pauses.add(paused_s)

    def happened(self, kind: EventKind) -> None:
        self.events[kind] = self.events.get(kind, 0) + 1
