"""`themis`: finish-time fairness by auctions of leases (Themis, NSDI'20, as AFS 6 sums it up).

A job's unfairness is  rho = (age + left / T(x)) / (isolated time so far + left / T_isolated) . That is its time from
submission to end with a share of x GPUs, over the time that it would have taken alone. The isolated share is an equal
share of the cluster for each of the present jobs, but not more than the job can use. That is the metric of Gavel's code
and of PCS'. (AFS 6 describes it as the throughput at the peak over the number of jobs, which is the same where
throughput is linear.) The view does not hold how much work a job has done. It is calculated from the time that the job
has run with its average share, which is exact while the share stays the same.

The remaining time is not always known: AFS 5.2 counts Themis among the policies that do not know it. With unknown
`lengths` a job is expected to take as long again as it has worked, a new one as long as a lease.

GPUs are leased, and all leases end at the same moments. Then all GPUs are up for auction; in between only the free ones
are.

1. Only the jobs with the greatest rho may bid, a share of 1 - `fairness` of them (Themis 4). A job without GPUs is
   taken as if it had its minimum.
2. The auction maximises the product of all bidders' 1 / rho. It gives one GPU after the other to the bidder with the
   largest gain, which finds the maximum, since log(1 / rho) is concave in x wherever throughput is. As long as a bidder
   has nothing the product is 0: so first each gets its minimum, the most unfairly treated first. No job bids for more
   than makes its rho 1: Themis "tries to assign GPUs to this job until it achieves" the speedup of its isolated share
   (AFS 6). Without this limit, jobs that can use many GPUs win far more of them than bring them any notable gain.
3. Each bidder pays for the cost of its presence to the others (partial allocation, which makes honest bids the best
   ones). Of the GPUs that it wins it keeps the ratio of the others' product with it to their product without it, but at
   least its minimum.
4. The remaining GPUs go at random, one after the other, to jobs that were not allowed to bid, and then to any job.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from ..arrays import Floats, Ints, sum_of
from ..curves import Curves
from ..view import JobTable, Reason
from .base import Shares, no_shares, smallest, waits_for
from .reviews import EARLY_S, LATE_S


class ThemisParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lease_s`: for how many seconds GPUs are given (as PCS).

    `fairness`: the part of the jobs that may not bid, from 0 to less than 1 (as Themis).

    `lengths`: given: the lengths of jobs are used, where they are known; unknown: they are never used.
    """

    lease_s: Annotated[float, msgspec.Meta(gt=LATE_S)] = 600.0
    fairness: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.8
    lengths: Literal["given", "unknown"] = "given"


class Themis:
    """The jobs that are treated most unfairly bid for the GPUs with ended leases; leftovers at random."""

    name = "themis"
    Parameters = ThemisParameters

    def __init__(self, parameters: ThemisParameters) -> None:
        self.parameters = parameters
        self.needs_lengths = parameters.lengths == "given"

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        lease_s = self.parameters.lease_s
        if not self.needs_lengths:
            jobs = jobs.assuming(np.maximum(_worked_s(jobs), lease_s))
        lease = math.floor((now + EARLY_S) / lease_s)
        over = now - lease * lease_s <= LATE_S
        given = no_shares(jobs)
        free = gpus if over else gpus - _keep(jobs, given, gpus)
        anybody = bool(free < gpus)
        if free > 0:
            most = np.minimum(jobs.max_gpus, jobs.curves.most)
            isolated_s = isolated_times_s(jobs, gpus)
            bidders = self._bidders(jobs, given, most, free, now, isolated_s)
            free -= _auction(jobs, given, most, bidders, free, now, isolated_s)
            if free > 0:
                others = np.ones(len(jobs), dtype=bool)
                others[bidders] = False
                free = _scatter(jobs, given, most, others.nonzero()[0], free, rng)
                free = _scatter(jobs, given, most, bidders, free, rng)
            anybody = free < gpus

        def why(row: int) -> Reason | None:
            return waits_for(int(jobs.min_gpus[row]), free, gpus) if not given[row] else None

        return Shares(given, why, (lease + 1) * lease_s if anybody else math.inf)

    def _bidders(self, jobs: JobTable, given: Ints, most: Ints, free: int, now: float, isolated_s: Floats) -> Ints:
        """Return the rows that may bid, the most unfairly treated first."""
        asked = jobs.min_gpus.copy()
        asked[given.nonzero()[0]] = 1
        rows: Ints = ((given < most) & (asked <= free)).nonzero()[0]
        if not len(rows):
            return rows
        allowed = max(1, math.ceil((1 - self.parameters.fairness) * len(rows) - 1e-9))  # 0.3 of 10 are 3
        rho = shared_times_s(jobs, np.maximum(given, jobs.min_gpus), now) / isolated_s
        return rows[smallest(-rho[rows], min(allowed, free))]


def shared_times_s(jobs: JobTable, share: Ints, now: float) -> Floats:
    """Return each job's time from submission to end with these shares from now on, in seconds: the numerator of rho."""
    return np.asarray(now - jobs.submitted_s + jobs.left_s / jobs.speedup(slice(None), share), dtype=np.float64)


def isolated_times_s(jobs: JobTable, gpus: int) -> Floats:
    """Return the time that each job would take with its isolated share, in seconds: the denominator of rho."""
    fair = gpus / max(len(jobs), 1)
    # Every curve begins with 0 and 1, so a fraction of a GPU gives the same fraction of its throughput.
    isolated = (
        fair if fair <= 1 <= jobs.curves.most else _speedup(jobs.curves, np.minimum(fair, jobs.max_gpus), jobs.curve)
    )
    return np.asarray(np.maximum((_worked_s(jobs) + jobs.left_s) / isolated, EARLY_S), dtype=np.float64)


def _worked_s(jobs: JobTable) -> Floats:
    """Return the seconds that one GPU would have taken for the work done so far, by job."""
    worked_s = np.zeros(len(jobs))
    ran = jobs.executed_s.nonzero()[0]
    executed_s = jobs.executed_s[ran]
    average = jobs.attained_gpu_s[ran] / np.maximum(executed_s, EARLY_S)
    worked_s[ran] = executed_s * _speedup(jobs.curves, average, jobs.curve[ran])
    return worked_s


def _speedup(curves: Curves, share: Floats, curve: Ints) -> Floats:
    """Return T / T(1) of these curves with shares that may lie between whole GPUs."""
    most, speedup = curves.most, curves.speedup.ravel()  # all curves one after the other in one array
    share = np.minimum(share, most)
    below = share.astype(np.int64)  # rounds down
    place = curve * (most + 1) + below
    at, then = speedup[place], speedup[place + (below < most)]
    return np.asarray(at + (share - below) * (then - at), dtype=np.float64)


def _keep(jobs: JobTable, given: Ints, gpus: int) -> int:
    """Give the shares of running leases, and return their number of GPUs. Changes `given`.

    If the shares do not fit any more, because GPUs were lost, all leases are over.
    """
    rows = jobs.running
    kept = np.minimum(np.minimum(jobs.share[rows], jobs.max_gpus[rows]), jobs.curves.most)
    kept[kept < jobs.min_gpus[rows]] = 0
    gpus_kept = sum_of(kept)
    if gpus_kept > gpus:
        return 0
    given[rows] = kept
    return gpus_kept


def _auction(jobs: JobTable, given: Ints, most: Ints, bidders: Ints, free: int, now: float, isolated_s: Floats) -> int:
    """Sell up to `free` GPUs to the bidders. Changes `given`; return how many have been sold."""
    rows: list[int] = bidders.tolist()
    before: list[int] = given[bidders].tolist()
    least: list[int] = jobs.min_gpus[bidders].tolist()
    won = dict.fromkeys(rows, 0)
    with_some = []
    left = free
    for row, has, needs in zip(rows, before, least, strict=True):
        if has:
            with_some.append(row)
        elif needs <= left:
            given[row] = won[row] = needs
            left -= needs
            with_some.append(row)
    bids = _bids(jobs, given, most, with_some, now, isolated_s)
    for _, row in itertools.islice(bids, left):
        won[row] += 1
    left = free
    shares = []
    for row, has, needs, kept in zip(rows, before, least, _after_payments(won, bids), strict=True):
        sold = min(won[row], kept if has else max(kept, needs))
        shares.append(has + sold)
        left -= sold
    given[bidders] = shares
    return free - left


def _bids(
    jobs: JobTable, given: Ints, most: Ints, rows: list[int], now: float, isolated_s: Floats
) -> Iterator[tuple[float, int]]:
    """Yield one GPU after the other: the largest rise of a job's log(1 / rho), and that job's row.

    The bids go on past the available GPUs: the caller decides when to stop.
    """
    asked = np.array(rows, dtype=np.int64)
    age: list[float] = (now - jobs.submitted_s[asked]).tolist()
    left_s: list[float] = jobs.left_s[asked].tolist()
    fair_s: list[float] = isolated_s[asked].tolist()
    share: list[int] = given[asked].tolist()
    limit: list[int] = most[asked].tolist()
    curves = [jobs.curves.row(curve) for curve in jobs.curve[asked].tolist()]

    def offer(at: int) -> tuple[float, int, int] | None:
        x, curve = share[at], curves[at]
        now_s = age[at] + left_s[at] / curve[x]
        if x < limit[at] and now_s > fair_s[at]:
            then_s = age[at] + left_s[at] / curve[x + 1]
            if then_s < now_s:
                return -math.log(now_s / then_s), rows[at], at
        return None

    heap = [one for at in range(len(rows)) if (one := offer(at)) is not None]
    heapq.heapify(heap)
    while heap:
        loss, row, at = heap[0]
        yield -loss, row
        share[at] += 1
        following = offer(at)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, following)


def _after_payments(won: dict[int, int], further: Iterator[tuple[float, int]]) -> list[int]:
    """Return how many of its won GPUs each winner keeps.

    Without a winner, the others would get its GPUs: the further bids of other jobs show the value of these GPUs, as
    logarithms of the others' product. Bidders with a minimum that did not fit are left out of the product, which would
    be 0 with them.
    """
    most = max(won.values(), default=0)
    own = dict.fromkeys(won, 0)
    largest = 0
    bids: list[tuple[float, int]] = []
    while len(bids) - largest < most and (bid := next(further, None)) is not None:
        bids.append(bid)
        own[bid[1]] += 1
        largest = max(largest, own[bid[1]])
    if not bids:
        return list(won.values())
    kept = []
    for row, gpus in won.items():
        if not gpus:
            kept.append(0)
            continue
        loss, counted = 0.0, 0
        for gain, of in bids:
            if of != row:
                loss += gain
                counted += 1
                if counted == gpus:
                    break
        kept.append(math.floor(gpus * math.exp(-loss) + EARLY_S))
    return kept


def _scatter(jobs: JobTable, given: Ints, most: Ints, among: Ints, free: int, rng: random.Random) -> int:
    """Give GPUs to random jobs of these rows: a job without GPUs gets its minimum, another one GPU more.

    Return how many are left.

    Changes `given`.
    """
    while free > 0:
        has = given[among]
        asked = jobs.min_gpus[among]
        asked[has.nonzero()[0]] = 1
        among = among[(asked <= free) & (has < most[among])]
        if not len(among):
            break
        while free > 0:
            row = int(among[rng.randrange(len(among))])
            ask = 1 if given[row] else int(jobs.min_gpus[row])
            if ask > free or given[row] >= most[row]:
                break  # look again for jobs that can still get some
            given[row] += ask
            free -= ask
    return free
