"""Waiting jobs in the order in which they are served, kept from one decision to the next (`order`)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable

Position = tuple[float, int]  # a key, and the job's number: of equal keys the job submitted first comes first
Wish = tuple[float, int, int]  # a place, and the number of GPUs that the job wants


class WaitingQueue:
    """Waiting jobs, by the number of GPUs that they want, in ascending order of their keys."""

    def __init__(self) -> None:
        self.by_want: dict[int, list[Position]] = {}
        self._where: dict[int, Wish] = {}

    def put(self, number: int, key: float, want: int) -> None:
        self._where[number] = key, number, want
        insort(self.by_want.setdefault(want, []), (key, number))

    def put_all(self, wishes: Iterable[Wish]) -> None:
        """Add many jobs at once, with the same result as `put` for each."""
        for wish in wishes:
            key, number, want = self._where[wish[1]] = wish
            self.by_want.setdefault(want, []).append((key, number))
        for places in self.by_want.values():
            places.sort()

    def drop(self, number: int) -> None:
        """Remove a job from the queue, if it is there."""
        wish = self._where.pop(number, None)
        if wish is not None:
            places = self.by_want[wish[2]]
            del places[bisect_left(places, wish[:2])]

    def least_key(self, gpus: int) -> float:
        """Return the least key of the jobs that want at most `gpus` GPUs; inf if there are none."""
        return min([places[0][0] for want, places in self.by_want.items() if want <= gpus and places], default=math.inf)

    def fitting(self, gpus: int) -> int:
        """Return how many jobs want at most `gpus` GPUs."""
        return sum([len(places) for want, places in self.by_want.items() if want <= gpus])

    def from_key(self, key: float) -> list[Wish]:
        """Return the jobs with keys of at least `key`."""
        return [
            (*place, want)
            for want, places in self.by_want.items()
            for place in places[bisect_left(places, (key, -1)) :]
        ]
