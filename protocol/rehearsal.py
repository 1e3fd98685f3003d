"""Instructions of a worker that takes part in a rehearsal (`elasticctl check`): a JSON file, named in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

VARIABLE = "ELASTICD_REHEARSAL"
REMEDY = "elasticctl: "  # begins the line below a script's last error that says what to write instead


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions of one worker in one part of a check."""

    worker: int
    noted_by: int | None = None  # the number under which it writes its notes, where it differs from `worker`
    directory: str  # directory of the part: the workers' meeting place and their notes
    checkpoints: str
    entries: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (0,)),)  # `timetable.Timetable`
    losses: tuple[int, ...] = ()
    virtual_workers: int | None = None  # None: the script's own number, else `DEFAULT_VIRTUAL_WORKERS`
    steps: int | None = None  # most steps; None: until one step into the third epoch
    budget_s: float | None = None  # no step begins later than this after the first
    before: int = 0  # number of earlier generations of the job
    suspended_at: int | None = None  # number of applied steps after which the job is preempted
    backwards: bool = False  # the bodies of a step run in reverse order
    meet_within_s: float = 120.0

    @property
    def notes(self) -> Path:
        """Return the file in which this worker records its observations."""
        return Path(self.directory) / f"{self.worker if self.noted_by is None else self.noted_by}.notes"


DEFAULT_VIRTUAL_WORKERS = 4


def asked(environ: Mapping[str, str]) -> Errand | None:
    """Return the instructions of this process, or None if the process is not part of a rehearsal."""
    path = environ.get(VARIABLE)
    return None if path is None else msgspec.json.decode(Path(path).read_bytes(), type=Errand)
