"""Parts of a job's state that workers and timers can rebuild, beside its durable record (`job`)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from ...protocol.messages import CounterOffer
from ...protocol.model import GpuAddress, ServerId, WorkerId, WorkerStatus
from .records import OrderRecord
from .throughput import Estimated


@dataclass
class ProfilingRun:
    """State of a job that is measured with fewer and fewer GPUs (`scheduler.measuring`).

    The GPUs that the job leaves idle meanwhile stay reserved for it.
    """

    shares: tuple[int, ...]  # shares still to be measured, the present one first
    reserved: tuple[GpuAddress, ...]
    began_s: float  # start of the measurement with the present share (Unix time)
    until_s: float
    overdue: bool = False  # the scheduler has been notified that `until_s` has passed

    @property
    def share(self) -> int:
        return self.shares[0]

    def is_late(self, now: float) -> bool:
        """Return, once, whether the measurement with the present share has taken too long."""
        late = now >= self.until_s and not self.overdue
        self.overdue = self.overdue or late
        return late

    def leave_out(self, gap_s: float) -> None:
        """Move the measurement by `gap_s` seconds without a controller."""
        self.began_s += gap_s
        self.until_s += gap_s


@dataclass
class Saving:
    """Progress of saving the state of a preempted job (`saving`)."""

    saver: WorkerId | None = None  # the worker that was named last to save the state
    until_s: float | None = None  # end of the saver's turn (Unix time)
    slow: set[WorkerId] = field(default_factory=set)  # workers that did not save the state within their turn
    # Per dismissed worker: the last step that was reported to it as saved.
    dismissed: dict[WorkerId, int] = field(default_factory=dict)

    def name(self, saver: WorkerId | None, until_s: float | None) -> None:
        """Name the worker that saves, until `until_s` (Unix time; None: without a limit)."""
        self.saver, self.until_s = saver, until_s

    def end_turn(self, now: float) -> None:
        """Count the saver as slow if its turn is over: other workers are preferred from now on."""
        if self.until_s is not None and self.saver is not None and now >= self.until_s:
            self.until_s = None
            self.slow.add(self.saver)

    def dismiss(self, worker: WorkerId, step: int) -> bool:
        """Return whether `worker` has yet to be notified that `step` is saved, and count it as notified."""
        if self.dismissed.get(worker, -1) >= step:
            return False
        self.dismissed[worker] = step
        return True

    def leave_out(self, now: float, gap_s: float, stop_by_s: float | None) -> None:
        """Move the end of the turn by `gap_s` seconds without a controller.

        `stop_by_s`: when the saver's agent kills it (Unix time). Agents count on during the gap, so the turn lasts at most
        half of the time that the agent still allows.
        """
        if self.until_s is None:
            return
        self.until_s += gap_s
        if stop_by_s is not None and stop_by_s > now:
            self.until_s = min(self.until_s, now + (stop_by_s - now) / 2)


@dataclass(frozen=True)
class _AllMeasured:
    """Estimate, GPUs and packing with which a job had no smaller share left to measure."""

    estimated: Estimated | None
    target: tuple[GpuAddress, ...]
    packed: int | None


@dataclass
class Profiled:
    """Shares with which a job has been profiled (`profiling`)."""

    shares: set[int] = field(default_factory=set)  # measured in a `ProfilingRun`, or not measurable in its time
    _all: _AllMeasured | None = None

    def add(self, share: int) -> None:
        """Note that the run with `share` GPUs is over."""
        self.shares.add(share)

    def note_all(self, estimated: Estimated | None, target: tuple[GpuAddress, ...], packed: int | None) -> None:
        """Note that a job with this estimate and these GPUs has no smaller share left to measure.

        `packed`: the number of GPUs of each server if the scheduler packs shares; else None.
        """
        self._all = _AllMeasured(estimated, target, packed)

    def is_all(self, estimated: Estimated | None, target: tuple[GpuAddress, ...], packed: int | None) -> bool:
        """Return whether `note_all` was called with the same objects, as in most decisions."""
        known = self._all
        return known is not None and known.target is target and known.estimated is estimated and known.packed == packed


@dataclass
class Unproven:
    """Joining workers that began together with one that computed different results (`reconcile.growth`)."""

    steps: dict[WorkerId, int] = field(default_factory=dict)  # a worker is proven once it has applied a later step

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __contains__(self, worker: object) -> bool:
        return worker in self.steps

    def add(self, workers: Iterable[WorkerId], step: int) -> None:
        """Count these workers as unproven until each has applied a later step than `step`."""
        self.steps |= dict.fromkeys(workers, step)

    def forget_all(self) -> None:
        """Count all workers as proven."""
        self.steps = {}

    def forget_proven(self, alive: Container[WorkerId], statuses: Mapping[WorkerId, WorkerStatus]) -> None:
        """Forget the workers that are proven by their last status, or have ended."""
        self.steps = {
            worker: step
            for worker, step in self.steps.items()
            if worker in alive and not _has_applied_later(statuses.get(worker), step)
        }


def _has_applied_later(status: WorkerStatus | None, step: int) -> bool:
    return status is not None and status.applied is not None and status.applied > step


@dataclass(frozen=True)
class Planned:
    """Plan for a job with a deadline (`reconcile.deadline_admission`). Times are Unix times in seconds."""

    finish_s: float | None = None  # end of the job with the GPUs that are kept for it; None if unknown
    least_gpus: int = 0  # minimum satisfactory share: the most GPUs that are kept for the job at any time
    waits_for: str = ""  # facts that must be known before a plan can be made
    final_by_s: float | None = None  # expected time at which that information is known
    saved_by: str = ""  # a change that would save a breaking promise; without a promise, the obstacle to one
    gpu_s: float = 0.0  # GPU time that is kept for the job (GPU-seconds)
    offer: CounterOffer | None = None  # changes with which a hard deadline would be promised that is not
    offered_s: float | None = None  # when `offer` was found; None: none was looked for


@dataclass(frozen=True)
class Meeting:
    """Ranks and servers of a gang's processes under one order, by which the processes find each other."""

    order: OrderRecord
    ranks: Mapping[WorkerId, int]
    servers: Mapping[ServerId, tuple[int, ...]]  # per server: the gang's GPUs there, in the order of ranks

    @staticmethod
    def of(order: OrderRecord) -> Meeting:
        """Return the meeting of all members of `order`."""
        servers: dict[ServerId, list[int]] = {}
        for member in order.roster.members:
            servers.setdefault(member.gpu.server, []).extend(member.gpus or (member.gpu.index,))
        ranks = {worker: rank for rank, worker in enumerate(order.roster.workers)}
        return Meeting(order, ranks, {server: tuple(gpus) for server, gpus in servers.items()})
