"""`fifo`: rigid, in the order of submission (the baseline of Elan VI-C)."""

from __future__ import annotations

import random

import msgspec
import numpy as np

from ..view import Ints, JobTable, Reason, ReasonCode
from .base import Shares, no_shares, waits_for


class FifoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class Fifo:
    """A job gets the GPUs it requested (its maximum), all of them or none, and keeps them until it ends. Only where
    GPUs are lost, or taken by hand, does it go on with fewer, but not with less than its minimum.

    The first job that does not fit holds all later ones back, except where it could not fit into the whole cluster.
    """

    name = "fifo"
    needs_lengths = False
    Parameters = FifoParameters

    def __init__(self, parameters: FifoParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, queue = in_order(jobs, gpus)
        return behind_the_first(jobs, given, queue, gpus)


def going_on(jobs: JobTable, gpus: int) -> Ints:
    """The shares of those that run, in the order of submission; where GPUs are gone, what is left, but at least the
    minimum."""
    given = no_shares(jobs)
    free = gpus
    for row in np.flatnonzero(jobs.share > 0).tolist():
        kept = min(int(jobs.share[row]), free)
        if kept >= jobs.min_gpus[row]:
            given[row] = kept
            free -= kept
    return given


def in_order(jobs: JobTable, gpus: int) -> tuple[Ints, Ints]:
    """Who runs goes on, and the waiting jobs start in the order of submission until one does not fit.

    The shares, and the rows of those that still wait and would fit into the empty cluster.
    """
    given, want = going_on(jobs, gpus), jobs.requested_gpus
    free = gpus - int(given.sum())
    queue = np.flatnonzero((given == 0) & (want <= gpus))
    starting = int(np.searchsorted(np.cumsum(want[queue[:free]]), free, side="right"))
    given[queue[:starting]] = want[queue[:starting]]
    return given, queue[starting:]


def behind_the_first(jobs: JobTable, given: Ints, queue: Ints, gpus: int) -> Shares:
    """These shares, and for those in the queue that they wait for the first one in it."""
    want, free = jobs.requested_gpus, gpus - int(given.sum())
    head = int(queue[0]) if len(queue) else len(jobs)

    def why(row: int) -> Reason | None:
        if given[row]:
            return None
        if row > head and want[row] <= gpus:
            return Reason(ReasonCode.BEHIND_ANOTHER, f"waits behind {jobs.name(head)}")
        return waits_for(int(want[row]), free, gpus, "free")

    return Shares(given, why)
