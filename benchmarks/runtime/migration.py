"""Migration in this runtime: the leader is replaced by another worker, which receives the state from the nearest holder.

No command moves a single job, so the measurement itself gives the orders that the controller would give: the union of the old and
the new workers, then the new ones.
"""

from __future__ import annotations

import subprocess

from .jobs import MOST, MeasuredJob
from .processes import end_tree, module
from .station import Station


class MovingJob(MeasuredJob):
    """A job of this runtime, with orders given by the measurement."""

    name = "elasticctl"

    def start(self, workers: int) -> None:
        self._station = Station()
        self._station.__enter__()
        self._started: list[subprocess.Popen[bytes]] = []
        self._generation = 0
        self._current = [self._launch() for _ in range(workers)]
        self._order(self._current)

    def resize(self, workers: int) -> None:
        raise NotImplementedError("this job only moves")

    def move(self) -> None:
        union = [*self._current, self._launch()]
        self._order(union)
        self._station.until_committed("bench", self._generation)
        self._current = union[1:]
        self._order(self._current)

    def _launch(self) -> int:
        """Start one more worker. Returns its number."""
        number = len(self._started)
        variables = self._station.variables("bench", number, MOST, "elastic", str(self.directory / "checkpoints"))
        command = module("train_elastic", self.load.model, str(self.directory / "record"), str(self.load.pace_s))
        self._started.append(self.family.start(command, variables, self.log))
        return number

    def _order(self, numbers: list[int]) -> None:
        """Order a roster. The first member leads: it has been there longest, so it has the state."""
        self._generation += 1
        self._station.order("bench", self._generation, numbers, leader=numbers[0])

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                end_tree(process.pid)
        self._station.__exit__(None, None, None)
