"""Virtual time: a queue of events in time order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from .violation import Violation

START_S = 1_000_000.0  # Unix time at which histories begin
STANDSTILL = 20_000  # events at one instant: an endless loop without progress of time


class Timeline:
    """A heap of calls. Of two at one instant the one with the smaller `tie` comes first."""

    def __init__(self) -> None:
        self.now = START_S
        self.events = 0
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._same = 0

    def at(self, when: float, tie: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call at `when` (Unix time, s). `tie` comes from a random stream of the caller."""
        self._count += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, tie, self._count, call, arguments))

    def run(self, until: float) -> None:
        """Run all calls that are due before `until`. Raises Violation if time does not advance."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            when, _, _, call, arguments = pop(heap)
            self.events += 1
            if when == self.now:
                self._same += 1
                if self._same > STANDSTILL:
                    raise Violation(
                        "time stands still", f"{getattr(call, '__qualname__', call)} is called again and again"
                    )
            else:
                self._same = 0
                self.now = when
            call(*arguments)
        self.now = max(self.now, until)
