"""Deadlines by name, for many names of which few change at a time."""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

K = TypeVar("K", bound=str)

MOST_STALE = 64  # outdated entries of the heap beyond the number of current ones


class Deadlines(Generic[K]):
    """Priority queue of deadlines by name (Unix time, s)."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []  # may hold several entries of one name, of which the newest counts

    def __contains__(self, name: K) -> bool:
        return name in self._due

    def put(self, name: K, due_s: float | None) -> None:
        """Set the deadline of `name`; None: no deadline."""
        if due_s is None:
            self._due.pop(name, None)
        elif self._due.get(name) != due_s:
            self._due[name] = due_s
            heapq.heappush(self._heap, (due_s, name))
            if len(self._heap) > 2 * len(self._due) + MOST_STALE:
                self._heap = [(due, name) for name, due in self._due.items()]
                heapq.heapify(self._heap)

    def soonest(self) -> float:
        """Return the earliest deadline; inf if there is none."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[K]:
        """Return all names that are due, the earliest first. They stay due until `put` changes their deadlines."""
        found: list[K] = []
        again: list[tuple[float, K]] = []
        while self.soonest() <= now:
            entry = heapq.heappop(self._heap)
            if entry not in again[-1:]:
                again.append(entry)
                found.append(entry[1])
        for entry in again:
            heapq.heappush(self._heap, entry)
        return found
