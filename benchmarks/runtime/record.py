"""Times of applied steps: every worker of a measured job appends lines to one file.

Times are of CLOCK_MONOTONIC, which all processes of a machine share, so that they compare with the time of a kill.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Applied:
    """One step applied by one worker."""

    at_s: float
    step: int
    pid: int
    rank: int
    world: int
    formation: str  # changes when the same workers form a new group


class Recorder:
    """Writer of the file. One `write` per line to a file opened for appending, so that lines do not mix."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.pid = os.getpid()

    def applied(self, step: int, rank: int, world: int, formation: str = "-") -> None:
        """Record that `step` has just been applied."""
        os.write(self._file, f"{time.monotonic():.6f} {step} {self.pid} {rank} {world} {formation}\n".encode())


class Record:
    """Reader of the file, which continues where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.lines: list[Applied] = []

    def read(self) -> list[Applied]:
        """Return all lines so far, in the order of their times."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return self.lines
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.lines += [_line(text) for text in whole.decode().splitlines()]
        self.lines.sort(key=lambda line: line.at_s)
        return self.lines


def _line(text: str) -> Applied:
    at_s, step, pid, rank, world, formation = text.split()
    return Applied(float(at_s), int(step), int(pid), int(rank), int(world), formation)


def applied_times(lines: Sequence[Applied]) -> list[float]:
    """Return when each step had been applied by its last worker; a repeated step counts again."""
    latest: dict[tuple[str, int, int], float] = {}
    for line in lines:
        key = (line.formation, line.world, line.step)
        latest[key] = max(latest.get(key, 0.0), line.at_s)
    return sorted(latest.values())


def gaps(times: Sequence[float]) -> list[float]:
    """Return the seconds between neighbours."""
    return [after - before for before, after in pairwise(times)]
