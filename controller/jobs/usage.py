"""Use of a job's workers, as agents report it, and the time since which all of its GPUs have been idle.

Agents repeat sums and peaks of living workers, so only the use of workers that have ended is recorded
(`JobRecord.use`): with the record of their end, which is written anyway. The next controller receives the use of living
workers again. An agent that restarts counts from zero, so the use that its workers had before is then recorded at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...protocol.messages import WorkerUse
from ...protocol.model import NO_USE, Use, WorkerId


@dataclass(frozen=True)
class Reported:
    """Last report of one worker's use."""

    use: Use
    at_s: float  # arrival (Unix time)
    busy: float | None = None  # part of the time since the report before in which its GPUs computed; None: unknown


@dataclass
class Uses:
    """Use of the living workers of one job."""

    reports: dict[WorkerId, Reported] = field(default_factory=dict)
    idle: dict[WorkerId, float] = field(default_factory=dict)  # since when the GPUs of a worker do nothing (Unix time)

    def take(self, now: float, report: WorkerUse) -> Use:
        """Take a report.

        Return the use to record now: that counted before the agent restarted, which its counts omit.
        """
        worker, before = report.worker, self.reports.get(report.worker)
        anew = before is not None and (report.use.gpu_s < before.use.gpu_s or report.use.wall_s < before.use.wall_s)
        earlier = before.use if before is not None and not anew else NO_USE
        gpu_s = report.use.gpu_s - earlier.gpu_s
        busy = min(1.0, max(0.0, report.use.busy_gpu_s - earlier.busy_gpu_s) / gpu_s) if gpu_s > 0 else None
        self.reports[worker] = Reported(report.use, now, busy)
        if report.idle_s:
            self.idle[worker] = now - report.idle_s
        else:
            self.idle.pop(worker, None)
        return before.use if before is not None and anew else NO_USE

    def end(self, worker: WorkerId) -> Use:
        """Forget a worker that has ended, and return what it has used."""
        self.idle.pop(worker, None)
        report = self.reports.pop(worker, None)
        return report.use if report is not None else NO_USE

    def total(self) -> Use:
        """Return the use of all living workers together."""
        found = NO_USE
        for report in self.reports.values():
            found = found.plus(report.use)
        return found

    def busy(self) -> float | None:
        """Return the part of the time (0 to 1) in which the GPUs computed lately; None: unknown for a worker."""
        parts = [report.busy for report in self.reports.values()]
        known = [part for part in parts if part is not None]
        return sum(known) / len(known) if known and len(known) == len(parts) else None

    def idle_since_s(self, workers: int, at_least_s: float) -> float | None:
        """Return since when the GPUs of all `workers` have been idle (Unix time).

        None: some compute or are unknown, or the last report on some is older than `at_least_s` (Unix time).
        """
        if not workers or len(self.idle) < workers or any(self.reports[each].at_s < at_least_s for each in self.idle):
            return None
        return max(self.idle.values())
