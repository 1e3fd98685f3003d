"""What a rehearsed worker is told: a JSON file, whose path is in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

VARIABLE = "ELASTICD_REHEARSAL"


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """Of one worker in one part of a check."""

    worker: int
    noted_by: int | None = None  # the number of its notes, where that is another one
    directory: str  # of the part: where its workers meet, and what they note
    checkpoints: str
    entries: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (0,)),)  # `timetable.Timetable`
    losses: tuple[int, ...] = ()
    virtual_workers: int | None = None  # None: as the script says, else `DEFAULT_VIRTUAL_WORKERS`
    steps: int | None = None  # at most so many; None: to the step behind the beginning of the third epoch
    budget_s: float | None = None  # no step begins later than this after the first
    before: int = 0  # generations of the job that have been
    suspended_at: int | None = None  # preempted when so many steps are applied
    backwards: bool = False  # the bodies of a step run in the reverse order
    meet_within_s: float = 120.0

    @property
    def notes(self) -> Path:
        """Where this worker notes what it sees."""
        return Path(self.directory) / f"{self.worker if self.noted_by is None else self.noted_by}.notes"


DEFAULT_VIRTUAL_WORKERS = 4


def asked(environ: Mapping[str, str]) -> Errand | None:
    """What this process is told; None: it is no rehearsal."""
    path = environ.get(VARIABLE)
    return None if path is None else msgspec.json.decode(Path(path).read_bytes(), type=Errand)
