"""Time limits of a job's starting workers.

A worker that has started must call `elastic.join()` within `start_timeout_s`, and must come to its training loop within
`load_timeout_s` after that call. The controller stops a worker that does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.model import JobSpec, WorkerId, WorkerPhase, WorkerStatus
from .records import WorkerRecord, WorkerState


@dataclass(frozen=True)
class Lateness:
    """Progress that a started worker still owes, and its time limit."""

    worker: WorkerId
    what: str  # completes the sentence "the worker has not ..."
    limit_s: float  # time allowed
    until_s: float  # Unix time

    @property
    def reason(self) -> str:
        """Return the reason for stopping the worker at the time limit."""
        return f"{self.worker} has not {self.what} within {self.limit_s:g} s"


def lateness(
    spec: JobSpec, entry: WorkerRecord, status: WorkerStatus | None, joins: bool, watched_s: float
) -> Lateness | None:
    """Return what a worker of an unfinished job owes; None if the worker is not limited now.

    `status`: the worker's last status, if any. `joins`: the job's workers have to call `elastic.join()`. `watched_s`:
    since when this controller has watched the job (Unix time); no limit begins earlier.
    """
    if entry.state is WorkerState.ORDERED or entry.stopping or entry.trained:
        return None
    if status is None and entry.joined_s is None and entry.started_s is not None:
        if not joins:
            return None
        limit_s = spec.start_timeout_s
        began_s = max(entry.started_s, watched_s)
        return Lateness(entry.worker, "called elastic.join()", limit_s, began_s + limit_s)
    if status is not None and status.phase is WorkerPhase.STARTING and entry.joined_s is not None:
        limit_s = spec.load_timeout_s
        what = "come to its training loop (run.epochs)"
        began_s = max(entry.joined_s, watched_s)
        return Lateness(entry.worker, what, limit_s, began_s + limit_s)
    return None
