"""Fence against overwriting: a worker that was left behind overwrites no file that later generations of its job have
saved.

A worker that is cut off does not learn of a newer generation, and may go on training. Its checkpoints are fenced by
their names (`lineages`). A file that a script saves has the name and place of the script's choice. So a worker that
saves leaves a mark with the number of its generation among the job's checkpoints, before the file gets its name. No
worker saves if there is a mark, or a checkpoint, of a greater generation.

As with checkpoints, this needs a directory of checkpoints that the servers share.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from ...protocol.errors import OperatorError
from ..lineages import overtaken_by
from .checkpoint import checkpoints

_MARK = re.compile(r"saved-by-generation-(\d{8,})")


class Fence:
    """Fence of one job. `generation`: returns this worker's present generation."""

    def __init__(self, directory: Path, generation: Callable[[], int]) -> None:
        self._directory = directory
        self._generation = generation

    def overtaken_by(self) -> int | None:
        """Return the greater generation that runs elsewhere; None if there is no sign of one."""
        generation = self._generation()
        try:
            newer = [overtaken_by(checkpoints(self._directory), generation), max(self._marks(), default=0)]
        except (OSError, OperatorError):  # an unreadable directory is no sign of another generation
            return None
        found = max(number or 0 for number in newer)
        return found if found > generation else None

    def mark(self) -> None:
        """Record that this generation saves. A failure to write the mark is ignored, and the save continues."""
        generation = self._generation()
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / f"saved-by-generation-{generation:08d}").touch()
            for number in self._marks():
                if number < generation:
                    (self._directory / f"saved-by-generation-{number:08d}").unlink(missing_ok=True)

    def _marks(self) -> list[int]:
        try:
            files = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return [int(found[1]) for file in files if (found := _MARK.fullmatch(file)) is not None]
