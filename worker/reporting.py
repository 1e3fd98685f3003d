"""Times and contents of a worker's reports to its agent. Pure.

A status is due at once after a change that the controller should know, and at every heartbeat. Each has a number, which
the agent acknowledges. A worker that ends waits for the acknowledgement of its last status for a limited time: without
an agent its end counts as a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..protocol.limits import MAX_METRIC_NAME, MAX_METRICS, MAX_NOTE
from ..protocol.model import BatchChange, Straggler, WorkerId, WorkerStatus
from ..protocol.times import WORKER_HEARTBEAT_S
from .events import WorkerConfig
from .membership.machine import Membership
from .progress import StepTimes


class Reporting:
    """The statuses of one worker. `StepTimes` measures its pace."""

    def __init__(self, place: WorkerConfig, membership: Membership, now: float) -> None:
        self._place = place
        self._membership = membership
        self.times = StepTimes()
        self.metrics: dict[str, float] = {}
        self.samples_per_step = 0  # without scaling
        self._batch_changes: tuple[BatchChange, ...] = ()
        self._batch_ceiling = 0
        self.hardware_agnostic: bool | None = None  # all operators have one algorithm on all hardware; None: not traced
        self._news = ""
        self._due_at = now
        self._sequence = 0
        self._acknowledged = 0

    def change(self, now: float) -> None:
        """Make a status due now."""
        self._due_at = min(self._due_at, now)

    def notice(self, now: float, text: str) -> None:
        """Add a sentence to the next status, for the job's events."""
        self._news = text
        self.change(now)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Keep the script's own metrics. A status must stay small: of too many metrics the first are kept."""
        self.metrics = dict([*self.metrics.items(), *_within_bounds(metrics)])
        if len(self.metrics) > MAX_METRICS:
            self.metrics = dict(list(self.metrics.items())[:MAX_METRICS])

    def batch_changed(self, changes: tuple[BatchChange, ...], ceiling: int) -> None:
        """Keep all changes of the batch. The pace of steps is another from now on."""
        if changes != self._batch_changes:
            self.times.paced_anew()
        self._batch_changes, self._batch_ceiling = changes, ceiling

    def acknowledged(self, sequence: int) -> None:
        """Take note that the agent has this status and all before it."""
        self._acknowledged = max(self._acknowledged, min(sequence, self._sequence))

    @property
    def next_sequence(self) -> int:
        """Number of the next status."""
        return self._sequence + 1

    def has_arrived(self, sequence: int) -> bool:
        return self._acknowledged >= sequence

    @property
    def deadline(self) -> float:
        """Time at which the next status is due (Unix time, s)."""
        return self._due_at

    def status(
        self,
        now: float,
        epoch: int,
        total_steps: int | None,
        longest_step_s: float,
        saving_s: float,
        saved: int | None,
        saved_generation: int,
        saved_file: str,
        waits_s: float,
        save_failures: int,
        unconnected_s: float,
        stragglers: tuple[Straggler, ...],
        exchange_s: float,
        paces: dict[WorkerId, float],
        note: str,
    ) -> WorkerStatus:
        """Return the next status; the next heartbeat is due one interval from now."""
        self._due_at = now + WORKER_HEARTBEAT_S
        self._sequence += 1
        membership = self._membership
        step_s = self.times.median_step_s()
        samples = self.samples_per_step * (self._batch_changes[-1].factor if self._batch_changes else 1)
        return WorkerStatus(
            job=self._place.job,
            worker=self._place.worker,
            pid=self._place.pid,
            address=self._place.address,
            phase=membership.phase,
            generation=membership.generation,
            order=membership.order_generation,
            floor=membership.floor,
            applied=membership.applied,
            sequence=self._sequence,
            epoch=epoch,
            total_steps=total_steps,
            samples_per_s=samples / step_s if step_s else 0.0,
            median_step_s=step_s,
            steady=self.times.steady(),
            metrics=self.metrics,
            resizes=self.times.resizes,
            note=note[:MAX_NOTE],
            news=self._news[:MAX_NOTE],
            saving_s=saving_s,
            longest_step_s=longest_step_s,
            saved=saved,
            saved_generation=saved_generation,
            saved_file=saved_file,
            waits_s=waits_s,
            save_failures=save_failures,
            unconnected_s=unconnected_s,
            unheard=membership.unheard,
            batch_samples=samples,
            batch_changes=self._batch_changes,
            batch_ceiling=self._batch_ceiling,
            stragglers=stragglers,
            exchange_s=exchange_s,
            paces=paces,
            hardware_agnostic=self.hardware_agnostic,
        )


def _within_bounds(metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((name[:MAX_METRIC_NAME], value) for name, value in metrics.items())
