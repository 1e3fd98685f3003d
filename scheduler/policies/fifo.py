"""`fifo`: rigid, in the order of submission (the baseline of Elan VI-C)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import numpy as np

from ..arrays import Ints
from ..view import JobTable, Reason, ReasonCode
from .base import Shares, no_shares, waits_for


class FifoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """FIFO takes no parameters."""


class Fifo:
    """A job gets its requested GPUs (its maximum), all of them or none, and keeps them until it ends. Only where GPUs
    are lost, or taken by hand, does it go on with fewer, but not with less than its minimum.

    The first job that does not fit holds all later ones back, except where it could not fit into the whole cluster.
    """

    name = "fifo"
    needs_lengths = False
    Parameters = FifoParameters

    def __init__(self, parameters: FifoParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        return behind_the_first(jobs, in_order(jobs, gpus), gpus)


@dataclass
class InOrder:
    """Shares, the rows with a share, and the first waiting row that would fit into the empty cluster, or None."""

    given: Ints
    rows: Ints
    head: int | None


def going_on(jobs: JobTable, gpus: int) -> tuple[Ints, Ints]:
    """Return the shares of the running jobs, and the rows that have some.

    If GPUs are lost, jobs get the rest in the order of submission, at least their minimum.
    """
    given, rows = no_shares(jobs), jobs.running
    share, least = jobs.share[rows], jobs.min_gpus[rows]
    if share.sum() <= gpus:
        kept = np.where(share >= least, share, 0)
    else:
        kept, free = np.zeros_like(share), gpus
        for at, (has, needs) in enumerate(zip(share.tolist(), least.tolist(), strict=True)):
            if min(has, free) >= needs:
                kept[at] = min(has, free)
                free -= min(has, free)
    given[rows] = kept
    return given, rows[kept > 0]


def in_order(jobs: JobTable, gpus: int) -> InOrder:
    """Let running jobs go on, and start the waiting jobs in the order of submission until one does not fit."""
    (given, rows), want = going_on(jobs, gpus), jobs.requested_gpus
    free = gpus - int(given[rows].sum())
    queue = first_waiting(given, rows, want, gpus, free + 1)
    starting = int(np.searchsorted(np.cumsum(want[queue[:free]]), free, side="right"))
    if starting:
        started = queue[:starting]
        given[started] = want[started]
        rows = np.sort(np.concatenate([rows, started]))
    return InOrder(given, rows, int(queue[starting]) if starting < len(queue) else None)


def first_waiting(given: Ints, rows: Ints, want: Ints, gpus: int, count: int) -> Ints:
    """Return the first `count` rows that have no share and want no more GPUs than there are.

    `rows`: those that have a share.
    """
    end = len(rows) + count
    while True:
        queue = np.flatnonzero((given[:end] == 0) & (want[:end] <= gpus))
        if len(queue) >= count or end >= len(given):
            return queue[:count]
        end *= 2


def behind_the_first(jobs: JobTable, division: InOrder, gpus: int) -> Shares:
    """Return these shares, with the reason that waiting jobs wait behind the first one."""
    want, given = jobs.requested_gpus, division.given
    free = gpus - int(given[division.rows].sum())
    head = len(jobs) if division.head is None else division.head

    def why(row: int) -> Reason | None:
        if given[row]:
            return None
        if row > head and want[row] <= gpus:
            return Reason(ReasonCode.BEHIND_ANOTHER, f"waits behind {jobs.name(head)}")
        return waits_for(int(want[row]), free, gpus, "free")

    return Shares(given, why, rows=division.rows)
