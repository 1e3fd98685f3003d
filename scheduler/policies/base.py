"""The interface of a policy, and helpers of several policies."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Collection
from typing import Protocol

import msgspec
import numpy as np

from ...protocol.texts import gpu_count
from ..arrays import Ints, sum_of
from ..order import smallest as smallest
from ..view import JobTable, Lack, Reason, ReasonCode, Schedules, Taken


class Shares(msgspec.Struct, frozen=True):
    """The number of GPUs of each job, by row, and why some jobs get less than they could use."""

    gpus: Ints
    why: Callable[[int], Reason | None]  # called for rows with a share below their maximum
    review_s: float = math.inf  # Unix time at which to ask again, even without an event
    rows: Ints | None = None  # all rows with GPUs, in ascending order; None: not stated
    stay: Collection[int] = ()  # rows without time for a change: they keep their GPUs if their share stays the same
    schedules: Schedules | None = None  # schedules of promised jobs, for `JobTable.schedules` of the next decision


class Policy(Protocol):
    """A rule that divides the GPUs. Pure: the same arguments and random source give the same shares."""

    name: str
    needs_lengths: bool  # whether the policy may see how long jobs take

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        """Divide `gpus` GPUs among `jobs`."""
        ...


def no_shares(jobs: JobTable) -> Ints:
    return np.zeros(len(jobs), dtype=np.int64)


Gain = Callable[[int, float, float], float]  # gain by row, throughput now, and throughput with one GPU more


def relative_gain(row: int, now: float, then: float) -> float:
    return (then - now) / now


def grow(jobs: JobTable, given: Ints, gpus: int, gain: Gain, among: Ints | None = None) -> int:
    """Give the rest of `gpus`, one by one, to the job with the greatest gain, up to its maximum.

    Return how many are still left.

    Changes `given`. Of equal gains, the job submitted first comes first. Jobs without GPUs get none. `among`: the rows
    of jobs with GPUs, in ascending order, where they are known.
    """
    among = given.nonzero()[0] if among is None else among
    free = gpus - sum_of(given[among])
    if free <= 0:
        return free
    most = np.minimum(jobs.max_gpus[among], jobs.curves.most)
    can = given[among] < most
    rows = among[can].tolist()
    share, limit = dict(zip(rows, given[rows].tolist(), strict=True)), dict(zip(rows, most[can].tolist(), strict=True))
    curves = {row: jobs.curves.row(curve) for row, curve in zip(rows, jobs.curve[rows].tolist(), strict=True)}
    heap: list[tuple[float, int]] = []

    def offer(row: int) -> None:
        gpus, curve = share[row], curves[row]
        if gpus < limit[row] and (value := gain(row, curve[gpus], curve[gpus + 1])) > 0:
            heapq.heappush(heap, (-value, row))

    for row in rows:
        offer(row)
    while free and heap:
        _, row = heapq.heappop(heap)
        share[row] += 1
        free -= 1
        offer(row)
    given[rows] = [share[row] for row in rows]
    return free


def waits_for(
    wanted: int, free: int, gpus: int, what: str = "left by jobs that go first", taken: Taken = Taken.GIVEN
) -> Reason:
    """Return the reason of a job that waits for `wanted` GPUs, while `free` of the policy's `gpus` are not `taken`."""
    lack = Lack(wanted, what, taken)
    if wanted > gpus:
        text = f"needs {gpu_count(wanted)}, the cluster has {gpus} that this policy may give"
        return Reason(ReasonCode.CLUSTER_TOO_SMALL, text, lack)
    return Reason(ReasonCode.NO_FREE_GPUS, f"waits for {gpu_count(wanted)}: {free} of {gpus} {what}", lack)
