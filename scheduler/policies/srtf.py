"""`srtf` and `srsf` (AFS 2.2), and their variants `srtf-e` and `srsf-e`, which give away leftover GPUs (AFS 5.5)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import numpy as np

from ..arrays import Floats, Ints
from ..order import serve
from ..view import JobTable, Reason
from .base import Shares, grow, relative_gain, waits_for


class RemainingParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`peak`: a job asks for the GPUs of its greatest throughput, not for its requested ones (AFS Fig. 6)."""

    peak: bool = False


class Srtf:
    """Shortest remaining time first: rigid, preemptive; a job that does not fit is passed over (AFS 2.2).

    The remaining time is that with the requested GPUs.
    """

    name = "srtf"
    needs_lengths = True
    Parameters = RemainingParameters
    altruistic = False
    service = False  # True: jobs are ordered by GPU-seconds instead of seconds

    def __init__(self, parameters: RemainingParameters) -> None:
        self.parameters = parameters
        self._order = _Remaining(parameters.peak, self.service)

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        served = serve(jobs, gpus, self._order, now)
        given, want = served.given, jobs.max_gpus if self.parameters.peak else jobs.requested_gpus
        free = grow(jobs, given, gpus, relative_gain, served.rows) if self.altruistic else served.free

        def why(row: int) -> Reason | None:
            return waits_for(int(want[row]), free, gpus) if not given[row] else None

        return Shares(given, why, rows=served.rows)


@dataclass(frozen=True)
class _Remaining:
    """Order of jobs by the remaining time with the wanted GPUs, or by the remaining GPU-seconds, the least first."""

    peak: bool
    service: bool

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        want = (jobs.max_gpus if self.peak else jobs.requested_gpus)[rows]
        left_s: Floats = jobs.left_s[rows] / jobs.speedup(rows, np.minimum(want, jobs.curves.most))
        return left_s * want if self.service else left_s, want


class Srsf(Srtf):
    """Shortest remaining service first: the remaining time times the GPUs (AFS 2.2, from Tiresias)."""

    name = "srsf"
    service = True


class SrtfE(Srtf):
    """`srtf`, and the GPUs that are left go one by one to the job with the largest relative rise of throughput (AFS
    5.5)."""

    name = "srtf-e"
    altruistic = True


class SrsfE(Srsf):
    """`srsf`, with leftovers as in `srtf-e` (AFS 5.5)."""

    name = "srsf-e"
    altruistic = True
