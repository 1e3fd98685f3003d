"""`srtf`, `srsf`, and with the leftovers given away `srtf-e`, `srsf-e` (AFS 2.2, 5.5)."""

from __future__ import annotations

import random

import msgspec
import numpy as np

from ..view import Floats, Ints, JobTable, Reason
from .base import Shares, grow, relative_gain, rigid, waits_for


class RemainingParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`peak`: a job asks for the GPUs of its greatest throughput, not for those that its user requested (AFS Fig. 6)."""

    peak: bool = False


class Srtf:
    """Shortest remaining time first: rigid, preemptive; who does not fit is passed over (AFS 2.2).

    The remaining time is that with the requested GPUs.
    """

    name = "srtf"
    needs_lengths = True
    Parameters = RemainingParameters
    altruistic = False

    def __init__(self, parameters: RemainingParameters) -> None:
        self.parameters = parameters

    def keys(self, left_s: Floats, want: Ints) -> Floats:
        return left_s

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        want = jobs.max_gpus if self.parameters.peak else jobs.requested_gpus
        left_s = jobs.left_s / jobs.speedup(slice(None), np.minimum(want, jobs.curves.most))
        given = rigid(jobs, gpus, self.keys(left_s, want), want)
        if self.altruistic:
            grow(jobs, given, gpus, relative_gain)
        free = gpus - int(given.sum())

        def why(row: int) -> Reason | None:
            return waits_for(int(want[row]), free, gpus) if not given[row] else None

        return Shares(given, why)


class Srsf(Srtf):
    """Shortest remaining service first: the remaining time times the GPUs (AFS 2.2, from Tiresias)."""

    name = "srsf"

    def keys(self, left_s: Floats, want: Ints) -> Floats:
        return left_s * want


class SrtfE(Srtf):
    """`srtf`, and the GPUs that are left go one by one to whose throughput they raise most, relatively (AFS 5.5)."""

    name = "srtf-e"
    altruistic = True


class SrsfE(Srsf):
    """`srsf`, with leftovers as in `srtf-e` (AFS 5.5)."""

    name = "srsf-e"
    altruistic = True
