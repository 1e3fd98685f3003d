"""`tiresias-l` (Tiresias, NSDI'19, discretised two-dimensional LAS) and `elastic-tiresias` (EDL 6.2).

Jobs stand in queues by the service that they have attained, in GPU-seconds: jobs with little service go first, since
short jobs are over before they leave the first queue. So lengths need not be known.

Inside a queue the order follows Tiresias' own simulator (`dlas-gpu`), as far as a view allows:

* A running job goes before waiting ones, so that no job is interrupted for a job of the same queue.
* Only at the moment at which a job comes down into a queue, it goes behind the jobs that wait there: they had to wait
  for it. A moment is a tenth of a second here; if a decision comes later than that, the job counts as running, and they
  wait for it again.
* Waiting jobs are in the order in which they began to wait: by submission in the first queue, since no job in it is
  ever interrupted. A job that is interrupted goes to the tail of its queue, where the simulator puts it before those
  that waited already. So only the lower queues differ, and there no job is overtaken by one that began to wait later.
* A job that does not fit into the remaining GPUs is passed over.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Ints, least_of
from ..order import Served, serve, serve_anew
from ..view import JobTable, Reason
from .base import Shares, grow, relative_gain, waits_for
from .reviews import EARLY_S

QUEUE_S = 1e10  # distance between the keys of two queues; several times any Unix time, so that queues do not overlap
CAME_S = 0.1  # a job that reached its queue's entry service at most this long ago has just entered the queue
ROUNDING_GPU_S = 1.0  # a job with so little left of its queue's service has finished it


class TiresiasParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`thresholds_gpu_s`: after how many GPU-seconds of service a job leaves a queue for the next, so that there is one
    queue more than thresholds. EDL 6.2 has 10,000 and 200,000; Tiresias' simulator 3,250 and 7,200; Pollux, with two
    queues, 57,600.

    `promotion`: a job that has waited this many times as long as it has run goes back to the first queue until it has
    got that queue's service once more. Without it no job does, which is the default of the simulator.

    `peak`: a job asks for the GPUs of its greatest throughput, not for those that its user requested (AFS Fig. 6).
    """

    thresholds_gpu_s: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)] = (10_000.0, 200_000.0)
    promotion: Annotated[float, msgspec.Meta(gt=0)] | None = None
    peak: bool = False

    def __post_init__(self) -> None:
        levels = (ROUNDING_GPU_S, *self.thresholds_gpu_s)
        if any(not lower < higher for lower, higher in itertools.pairwise(levels)):
            raise ValueError(f"thresholds_gpu_s: must ascend, from more than {ROUNDING_GPU_S:g}")


class TiresiasL:
    """Least attained service in queues: rigid and preemptive."""

    name = "tiresias-l"
    needs_lengths = False
    Parameters: type[TiresiasParameters] = TiresiasParameters

    def __init__(self, parameters: TiresiasParameters) -> None:
        self.parameters = parameters
        self._order = ByService(parameters)

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        served = self._serve(jobs, gpus, self._order, now)
        return self._with_reasons(jobs, gpus, now, served, served.free)

    def _serve(self, jobs: JobTable, gpus: int, order: ByService, now: float) -> Served:
        """Serve the jobs in order. With promotion the order changes with time and is sorted again."""
        return (serve if self.parameters.promotion is None else serve_anew)(jobs, gpus, order, now)

    def _with_reasons(
        self, jobs: JobTable, gpus: int, now: float, served: Served, free: int, halved: bool = False
    ) -> Shares:
        given = served.given

        def why(row: int) -> Reason | None:
            if given[row]:
                return None
            want = ByService(self.parameters, halved).ranks(jobs, np.array([row]), now)[1]
            return waits_for(int(want[0]), free, gpus)

        review_s = self._review_s(jobs, served, now)
        if self.parameters.promotion is not None:
            waiting = np.flatnonzero(given == 0)
            review_s = min(review_s, _Queues(self._order, jobs, waiting, now).starves_s())
        return Shares(given, why, review_s, served.rows)

    def _review_s(self, jobs: JobTable, served: Served, now: float) -> float:
        """Return the Unix time at which the first of the served jobs changes its queue."""
        rows = served.rows
        if self.parameters.promotion is not None:
            return _Queues(self._order, jobs, rows, now).review_s(served.given[rows])
        attained = jobs.attained_gpu_s[rows]
        rest_s = (self._order.thresholds[self._order.queues(attained)] - attained) / served.given[rows]
        return now + least_of(rest_s)


class ElasticTiresiasParameters(TiresiasParameters, frozen=True, forbid_unknown_fields=True):
    """`pending`: if more jobs than this wait, those outside the first queue shrink (EDL's N, which the paper does not
    state)."""

    pending: Annotated[int, msgspec.Meta(ge=0)] = 10


class ElasticTiresias(TiresiasL):
    """`tiresias-l` with two rules (EDL 6.2), which make one plan together.

    R1: if more than `pending` jobs would wait, each job outside the first queue gets half of the GPUs it wants, rounded
    down, but not less than its minimum. The rule counts with the shares that jobs want, not with those that they have.
    So jobs that were shrunk get their GPUs back as soon as the queue is short again, and none goes back and forth in
    between.

    R2: if no job waits and GPUs are idle, they go one by one to the job with the largest relative rise of throughput. A
    job that wants more GPUs than the cluster has does not count as waiting.
    """

    name = "elastic-tiresias"
    Parameters = ElasticTiresiasParameters

    def __init__(self, parameters: ElasticTiresiasParameters) -> None:
        super().__init__(parameters)
        self._pending = parameters.pending
        self._halved = ByService(parameters, halved=True)

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        served = self._serve(jobs, gpus, self._order, now)
        halved = served.waiting > self._pending
        if halved:
            served = self._serve(jobs, gpus, self._halved, now)
        free = served.free
        if not served.waiting:
            free = grow(jobs, served.given, gpus, relative_gain, served.rows)
        return self._with_reasons(jobs, gpus, now, served, free, halved)


@dataclass(frozen=True)
class ByService:
    """Order of jobs by queue, and within a queue by their places.

    `halved`: jobs outside the first queue ask for half, but at least for their minimum.
    """

    parameters: TiresiasParameters
    halved: bool = False

    @cached_property
    def thresholds(self) -> Floats:
        """The service after which a job leaves each queue, in GPU-seconds."""
        return np.array([*self.parameters.thresholds_gpu_s, math.inf])

    @cached_property
    def entered(self) -> Floats:
        """The service at which a job comes into each queue, in GPU-seconds."""
        return np.array([0.0, *self.parameters.thresholds_gpu_s])

    def queues(self, attained_gpu_s: Floats) -> Ints:
        """Return the queues of jobs with this attained service."""
        return np.searchsorted(self.thresholds, attained_gpu_s + ROUNDING_GPU_S, side="right")

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        queues = _Queues(self, jobs, rows, now)
        want = queues.want
        if self.halved:
            want = np.where(queues.queue > 0, np.maximum(want // 2, jobs.min_gpus[rows]), want)
        return queues.keys(), want


class _Queues:
    """The queue of each of these jobs, and its place there."""

    def __init__(self, order: ByService, jobs: JobTable, rows: Ints | slice, now: float) -> None:
        parameters = order.parameters
        self._now = now
        self._promotion = parameters.promotion
        self._thresholds, self._entered = order.thresholds, order.entered
        self.want = (jobs.max_gpus if parameters.peak else jobs.requested_gpus)[rows]
        self._share = jobs.share[rows]
        self._waiting_since_s = jobs.waiting_since_s[rows]
        self._attained = jobs.attained_gpu_s[rows]
        self._own = order.queues(self._attained)
        self.queue = self._own
        if self._promotion is not None:
            self._turn_s = self._thresholds[0] / self.want  # seconds that the first queue's service takes
            self._submitted_s, self._executed_s = jobs.submitted_s[rows], jobs.executed_s[rows]
            self._waited_s = now - self._submitted_s - self._executed_s
            self._promoted = self._promote(self._promotion)
            self.queue = np.where(self._promoted, 0, self._own)

    def _promote(self, promotion: float) -> npt.NDArray[np.bool_]:
        """Return which jobs are promoted: waiting jobs that starve, and running ones that have not yet got the first
        queue's service once more.

        Tiresias' simulator counts the waiting since the first start or the last promotion and then restarts the count
        of service. A view knows the whole times only. So the waiting before the first start counts too, and later
        promotions come at the same ratio of the whole times.
        """
        starves = self._waited_s + EARLY_S >= promotion * self._executed_s
        in_its_turn = self._waited_s - EARLY_S > promotion * (self._executed_s - self._turn_s)
        return (self._own > 0) & np.where(self._share > 0, in_its_turn, starves)

    def keys(self) -> Floats:
        """Return the keys by which jobs get their GPUs, in ascending order."""
        runs = self._share > 0
        entered = self._entered[self._own]
        just_came = (self._own > 0) & (self._attained < entered + CAME_S * self._share)
        since_s = np.where(runs, self._now, self._waiting_since_s)
        if self._promotion is not None:
            just_came &= ~self._promoted
            promoted_s = self._submitted_s + (1 + self._promotion) * self._executed_s  # when it had waited long enough
            since_s = np.where(self._promoted & ~runs, promoted_s, since_s)
        place = np.where(runs & ~just_came, -QUEUE_S / 4, since_s)
        return np.asarray(self.queue * QUEUE_S + place, dtype=np.float64)

    def review_s(self, given: Ints) -> float:
        """Return the Unix time at which the first of these jobs changes its queue, with these shares."""
        rest_s = (self._thresholds[self._own] - self._attained) / given
        if self._promotion is not None:
            turn_over_s = self._waited_s / self._promotion + self._turn_s - self._executed_s
            rest_s = np.where(self._promoted, turn_over_s, rest_s)
        return self._now + least_of(rest_s)

    def starves_s(self) -> float:
        """Return the Unix time at which the first of these waiting jobs will be promoted."""
        assert self._promotion is not None
        waits = (self._own > 0) & ~self._promoted
        rest_s = self._promotion * self._executed_s[waits] - self._waited_s[waits]
        return self._now + least_of(rest_s)
