"""Results of a simulation, recorded at each event."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..scheduler.arrays import Floats, Ints

Flags = npt.NDArray[np.bool_]

SHORTEST_S = 1.0
FEW = 8  # so few values are added one by one faster than as an array


@dataclass
class Timeline:
    """State of the cluster from each event to the next."""

    time_s: list[float] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    efficiency: list[float] = field(default_factory=list)
    blocking: list[float] = field(default_factory=list)  # at the beginning of the interval
    used_gpus: list[int] = field(default_factory=list)


@dataclass
class Outcome:
    """All events of the jobs and of the cluster."""

    start_s: Floats  # first GPU; nan: never
    end_s: Floats
    resizes: int
    preemptions: int
    migrations: int
    events: int
    decisions: int
    wall_s: float
    decision_s: list[float]
    timeline: Timeline
    executed_s: Floats  # time with any GPU
    gpu_s: Floats  # GPU-seconds that the job had
    changes: Ints  # of its GPUs while it ran, including the loss of all; known at the end
    refused: Flags  # whether the admission refused it
    failures: int = 0  # of servers and of GPUs
    interrupted: int = 0  # jobs that lost a GPU by one, counted each time

    @classmethod
    def of(cls, jobs: int) -> Outcome:
        """Return the outcome of so many jobs before any event."""
        never, none = np.full(jobs, np.nan), np.zeros(jobs)
        timeline = Timeline()
        refused = np.zeros(jobs, dtype=np.bool_)
        changes = np.zeros(jobs, np.int64)
        return cls(never, never.copy(), 0, 0, 0, 0, 0, 0.0, [], timeline, none, none.copy(), changes, refused)


class Blocking:
    """AFS's blocking index: the mean over waiting jobs of time waited over time left on one GPU (AFS 2.2), kept as two
    sums.

    A job with less than a second left counts as if it had a second left: it has been interrupted at its end, and would
    outweigh all others.
    """

    def __init__(self) -> None:
        self._count = 0
        self._inverse = 0.0
        self._offset = 0.0

    def add(self, left_s: Floats, since_s: Floats) -> None:
        """Add waiting jobs without GPUs since `since_s`, counted as if their running time had come before their
        submission."""
        self._count += len(left_s)
        self._sum(left_s, since_s, 1.0)

    def remove(self, left_s: Floats, since_s: Floats) -> None:
        self._count -= len(left_s)
        if not self._count:
            self._inverse = self._offset = 0.0
        else:
            self._sum(left_s, since_s, -1.0)

    def _sum(self, left_s: Floats, since_s: Floats, sign: float) -> None:
        if len(left_s) < FEW:
            for left, since in zip(left_s.tolist(), since_s.tolist(), strict=True):
                left = max(left, SHORTEST_S)
                self._inverse += sign / left
                self._offset += sign * since / left
        else:
            left_s = np.maximum(left_s, SHORTEST_S)
            self._inverse += sign * float((1.0 / left_s).sum())
            self._offset += sign * float((since_s / left_s).sum())

    def index(self, now: float) -> float:
        return (self._inverse * now - self._offset) / self._count if self._count else 0.0
