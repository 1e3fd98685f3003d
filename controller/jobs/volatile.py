"""Parts of a job's state that workers and timers can rebuild, beside its durable record (`job`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...protocol.messages import CounterOffer
from ...protocol.model import GpuAddress, ServerId, WorkerId
from .records import OrderRecord
from .throughput import Estimated


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


@dataclass
class Saving:
    """Progress of saving the state of a preempted job (`saving`)."""

    saver: WorkerId | None = None  # the worker that was named last to save the state
    until_s: float | None = None  # end of the saver's turn (Unix time)
    slow: set[WorkerId] = field(default_factory=set)  # workers that did not save the state within their turn
    # Per dismissed worker: the last step that was reported to it as saved.
    dismissed: dict[WorkerId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class AllMeasured:
    """Evidence that a job with this estimate and these GPUs has no smaller share left to measure (`profiling`)."""

    estimated: Estimated
    target: tuple[GpuAddress, ...]
    packed: int | None  # GPUs of each server if the scheduler packs shares; else None


@dataclass(frozen=True)
class Planned:
    """Plan for a job with a deadline (`promising`). Times are Unix times in seconds."""

    finish_s: float | None = None  # end of the job with the GPUs that are kept for it; None if unknown
    least_gpus: int = 0  # the most GPUs that are kept at any time
    waits_for: str = ""  # information that must be known before anything can be planned
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
