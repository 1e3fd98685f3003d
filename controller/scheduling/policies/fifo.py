"""`fifo`: rigid, in the order of submission (the baseline of Elan VI-C)."""

from __future__ import annotations

import random

import msgspec
import numpy as np

from ..view import JobTable, Reason, ReasonCode
from .base import Shares, no_shares, waits_for


class FifoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class Fifo:
    """A job gets the GPUs it requested (its maximum), all of them or none, and keeps them until it ends. Only where GPUs are
    lost, or taken by hand, does it go on with fewer, but not with less than its minimum.

    The first job that does not fit holds all later ones back, except where it could not fit into the whole cluster.
    """

    name = "fifo"
    needs_lengths = False
    Parameters = FifoParameters

    def __init__(self, parameters: FifoParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given = no_shares(jobs)
        free = gpus
        for row in np.flatnonzero(jobs.share).tolist():  # who runs goes on; where GPUs are gone, with what is left
            kept = min(int(jobs.share[row]), free)
            if kept >= jobs.min_gpus[row]:
                given[row] = kept
                free -= kept
        want = jobs.requested_gpus
        head = len(jobs)
        for row in np.flatnonzero((given == 0) & (want <= gpus)).tolist():
            if want[row] > free:
                head = row
                break
            given[row] = want[row]
            free -= int(want[row])

        def why(row: int) -> Reason | None:
            if given[row]:
                return None
            if row > head and want[row] <= gpus:
                return Reason(ReasonCode.BEHIND_ANOTHER, f"waits behind {jobs.name(head)}")
            return waits_for(int(want[row]), free, gpus, "free")

        return Shares(given, why)
