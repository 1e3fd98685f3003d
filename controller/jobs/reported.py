"""Progress, metrics and rates that a job's workers report. Workers report all of it again to a new controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...protocol.model import Until, WorkerPhase, WorkerStatus
from ...scheduler.speedup_curve import KEPT_RATES, NOISE, Measured
from .metric_forecast import Reports
from .records import Progress

KEPT_ODD = 64
KEPT_MEASURED = 256  # most recorded measurements, one for each share and number of servers
STEPS_OF_A_RATE = 32  # most steps over which a worker takes the median of a reported rate
OFTEN_ENOUGH_S = 10.0  # least time between two measurements with the same share, once KEPT_RATES of them are known


@dataclass
class Reported:
    """Progress, metrics and rates that the workers of one job have reported."""

    best_applied: int = -1
    newest: Progress | None = None
    reports: Reports = field(default_factory=Reports)  # reports of the metric that ends the training (`JobSpec.until`)
    rate_counts_from: int = -1  # first step at which a new measurement has no step in common with the last one
    # Set after a recovery: an earlier controller may have counted the first rates that workers report.
    recovered: bool = False
    odd: set[str] = field(default_factory=set)  # metrics with unusable values that have been reported to the user

    def take_progress(self, status: WorkerStatus) -> int:
        """Take over progress from the worker that is furthest ahead, and return the number of new steps."""
        assert status.applied is not None
        new = max(0, status.applied - self.best_applied)
        self.best_applied += new
        known = self.newest
        if known is not None and known.step is not None and status.applied < known.step:
            return new
        source = status if status.metrics or status.odd_metrics or known is None else known
        self.newest = Progress(
            step=status.applied,
            total_steps=status.total_steps,
            epoch=status.epoch,
            samples_per_s=status.samples_per_s,
            median_step_s=status.median_step_s,
            metrics=source.metrics,
            odd_metrics=source.odd_metrics,
            batch_samples=status.batch_samples or (known.batch_samples if known is not None else 0),
        )
        return new

    def take_reports(self, until: Until, status: WorkerStatus, known: int | None) -> int | None:
        """Take over reports of the metric that ends the training; return its expected length in steps.

        `known`: the length expected so far, which is returned if the prediction differs by no more than noise.
        """
        if status.applied is None or until.metric not in status.metrics:
            return known
        news = self.reports.add(status.applied + 1, status.metrics[until.metric])
        if not news or self.reports.few:
            return known
        found = self.reports.steps_until(until)
        return known if found and known and abs(found - known) <= NOISE * known else found

    def begin_generation(self) -> None:
        """Let the measurement of the rate begin again, with the first steps of a new generation."""
        self.rate_counts_from, self.recovered = -1, False

    def take_recovered(self) -> bool:
        """Return whether an earlier controller may have counted the rate at hand already; later rates are new."""
        recovered, self.recovered = self.recovered, False
        return recovered

    def forget_progress(self) -> None:
        """Forget the newest progress, since the workers that reported it are lost."""
        self.newest = None

    def rate_is_new(self, applied: int, own_delay: int) -> bool:
        """Note that a rate up to this step is measured; return whether it is the first one of its generation.

        own_delay: steps that the job waits longer for its second measurement.
        """
        first = self.rate_counts_from < 0
        self.rate_counts_from = applied + STEPS_OF_A_RATE + (own_delay if first else 0)
        return first

    def newly_odd(self, odd: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of these unusable values ("metric loss: nan") that have not been reported to the user before."""
        fresh = tuple(what for what in odd if what.rpartition(":")[0] not in self.odd)[: KEPT_ODD - len(self.odd)]
        self.odd |= {what.rpartition(":")[0] for what in fresh}
        return fresh


def counts_for_progress(status: WorkerStatus) -> bool:
    """Return whether the steps of a worker in this phase are those of the job."""
    return status.phase in (WorkerPhase.TRAINING, WorkerPhase.BROKEN, WorkerPhase.FINISHED, WorkerPhase.LEFT)


def measured_with(
    measured: tuple[Measured, ...], where: tuple[int, int], rate: float, gpu: str, now: float, first: bool
) -> tuple[tuple[Measured, ...], bool] | None:
    """Return the measurements with one more, and whether decisions should use it; None if it comes too soon.

    where: share and number of servers. rate: steps/s. gpu: the GPU type, "" where types are mixed. first: the rate is
    the first of its generation. Even if its value is not new, the job may then be measured with the next share.
    """
    known = next((entry for entry in measured if (entry.share, entry.servers) == where), None)
    if known is None:
        entry = Measured(share=where[0], servers=where[1], gpu=gpu, recent=(rate,), times=1, at_s=now)
    elif len(known.recent) == KEPT_RATES and 0 <= now - known.at_s < OFTEN_ENOUGH_S and not first:
        return None
    else:
        entry = known.again(rate, now)
    others = [other for other in measured if other is not known]
    if len(others) >= KEPT_MEASURED:
        others.remove(min(others, key=lambda one: one.at_s))
    all_of_them = tuple(sorted((*others, entry), key=lambda one: (one.share, one.servers)))
    news = known is None or first or abs(entry.steps_per_s - known.steps_per_s) > NOISE * known.steps_per_s
    return all_of_them, news
