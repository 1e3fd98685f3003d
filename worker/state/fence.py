"""Who was left behind overwrites nothing that the job's later generations have saved.

A worker that is cut off hears nothing of a newer generation, and may train on. Its checkpoints are fenced by their names
(`lineages`). What a script saves has the name that the script gives it, wherever that is. So whoever saves leaves a mark with the
number of its generation among the job's checkpoints, before the file gets its name. Nobody saves where there is a mark, or a
checkpoint, of a greater generation.

That holds where the servers share the directory of checkpoints, as it does for checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from ...protocol.errors import OperatorError
from .checkpoint import checkpoints
from .lineages import overtaken_by

_MARK = re.compile(r"saved-by-generation-(\d{8,})")


class Fence:
    """Of one job. `generation`: the one that this worker is in now."""

    def __init__(self, directory: Path, generation: Callable[[], int]) -> None:
        self._directory = directory
        self._generation = generation

    def overtaken_by(self) -> int | None:
        """The greater generation that goes on elsewhere; None: nothing tells of one."""
        generation = self._generation()
        try:
            newer = [overtaken_by(checkpoints(self._directory), generation), max(self._marks(), default=0)]
        except (OSError, OperatorError):  # what cannot be read tells of nobody
            return None
        found = max(number or 0 for number in newer)
        return found if found > generation else None

    def mark(self) -> None:
        """This generation saves. Where that cannot be written down, it saves all the same."""
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
