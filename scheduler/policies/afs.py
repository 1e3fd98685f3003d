"""`afs-l`, `afs-p`, `afs-s`: apathetic future share (AFS 3, Alg. 1, App. D).

The next GPU goes to the longer job b rather than to the shorter job a if ``(p'_b - p_b) / p'_b > (p'_a - p_a) / p_a``
(3), with p and p' the throughputs now and with one GPU more. Lengths are those at the present shares, and a job without
GPUs counts as infinitely long. Below, the left side is a job's `gain` and the right side its `bar`: b beats a if its
gain is above the bar of a.

The paper leaves a choice in three points:

*The order of comparing.* Algorithm 1 finds the top job by comparing one job after another with the best so far, in any
order. App. C proves (3) transitive for a < b < c in length where both comparisons say yes. Where one says no, the
comparisons are not transitive: a may win against b, b against c, and c against a (worked out in
tests/scheduling/test_afs.py). So the top job depends on the order. This implementation compares in ascending order of
length; of equal lengths, the job submitted first counts as the shorter. The top job is then the last of the records:
jobs with a gain above the bar of the record before them.

*The first GPUs.* As printed, Algorithm 1 gives a job that scales linearly its second GPU before a waiting job gets its
first: both sides of (3) are 1 then. This implementation follows the text ("stage one", and AFS 5.4, which explains low
tails with it): first each job gets its minimum.

*Minimums above one GPU*, which the paper does not have. Stage one gives the jobs their minimums in ascending order of
their length. A job with a minimum that does not fit into the rest is passed over, and GPUs that fit no minimum go to
stage two.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect, bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from ..arrays import Floats, Ints, least_of
from ..order import Served, serve
from ..view import JobTable, Reason
from .base import Shares, waits_for
from .max_min import level
from .reviews import EARLY_S, LATE_S

BLOCK = 32  # size of a block of neighbouring jobs when a decision begins


class AfsLParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """AFS with known lengths takes no parameters."""


class AfsL:
    """AFS with known lengths (Alg. 1): each job its minimum in ascending order of length; what is left by (3)."""

    name = "afs-l"
    needs_lengths = True
    Parameters = AfsLParameters

    def __init__(self, parameters: AfsLParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        served = serve(jobs, gpus, _BY_LENGTH, now)
        free = _by_inequality(jobs, served)
        return _shares(jobs, served, gpus, free)


@dataclass(frozen=True)
class _ByLength:
    """Order of jobs by the remaining time with their minimums, the shortest first. Each wants its minimum."""

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        least = jobs.min_gpus[rows]
        return jobs.left_s[rows] / jobs.speedup(rows, least), least


_BY_LENGTH = _ByLength()


class AfsPParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`unit_s`: how many seconds a job runs before another one takes its turn, if there are too many jobs (AFS 3.3:
    7200)."""

    unit_s: Annotated[float, msgspec.Meta(gt=LATE_S)] = 7200.0


class AfsP:
    """AFS without lengths (AFS 3.3): (3) as far as it can be decided without lengths, and processor sharing while not
    all jobs fit.

    The counter of a job is the number of units that the job has run. The lowest counters come first, of equal ones the
    job submitted first, and a job is not preempted before its unit is over. The paper's jobs all take one GPU then;
    with minimums above one some GPUs may be left over, which (3) gives away.

    Which of two jobs is shorter is not known. So (3) is evaluated both ways: a job that wins whichever of the two is
    shorter is preferred, else "either one at random".
    """

    name = "afs-p"
    needs_lengths = False
    Parameters = AfsPParameters

    def __init__(self, parameters: AfsPParameters) -> None:
        self.parameters = parameters
        self._order = _ByUnits(parameters.unit_s)

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        unit_s = self.parameters.unit_s
        served = serve(jobs, gpus, self._order, now)
        free = self._share_out(jobs, served, rng) if served.free else 0
        review_s = math.inf
        if served.waiting:  # some job waits for its turn
            executed_s = jobs.executed_s[served.rows]
            review_s = now + least_of((_units(executed_s, unit_s) + 1) * unit_s - executed_s)
        return _shares(jobs, served, gpus, free, review_s)

    def _share_out(self, jobs: JobTable, served: Served, rng: random.Random) -> int:
        """Run stage two on the GPUs that are left. Return how many remain."""
        return _without_lengths(jobs, served, rng)


@dataclass(frozen=True)
class _ByUnits:
    """Order of jobs: those in the middle of a unit first, then by run units, the fewest first.

    Each wants its minimum.
    """

    unit_s: float

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        executed_s = jobs.executed_s[rows]
        counter = _units(executed_s, self.unit_s)
        runs = jobs.share[rows].nonzero()[0]
        in_a_unit = executed_s[runs] - counter[runs] * self.unit_s > LATE_S
        counter[runs[in_a_unit]] = -1.0
        return counter, jobs.min_gpus[rows]


def _units(executed_s: Floats, unit_s: float) -> Floats:
    counter: Floats = np.floor((executed_s + EARLY_S) / unit_s)
    return counter


class AfsS(AfsP):
    """AFS that only knows the share of each job's greatest throughput (App. D): `afs-p` with max-min instead of (3)."""

    name = "afs-s"

    def _share_out(self, jobs: JobTable, served: Served, rng: random.Random) -> int:
        rows = served.rows
        share = served.given[rows]
        free = level(share, jobs.max_gpus[rows], served.free)
        served.given[rows] = share
        return free


def _shares(jobs: JobTable, served: Served, gpus: int, free: int, review_s: float = math.inf) -> Shares:
    """Return the shares with their reasons. `free`: how many of the `gpus` are left."""
    given = served.given

    def why(row: int) -> Reason | None:
        return waits_for(int(jobs.min_gpus[row]), free, gpus) if not given[row] else None

    return Shares(given, why, review_s, served.rows)


def _growing(jobs: JobTable, served: Served) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the rows that run and can grow, each one's largest share, and its throughput now and with one GPU more."""
    rows = served.rows
    share, most = served.given[rows], np.minimum(jobs.max_gpus[rows], jobs.curves.most)
    can = share < most
    rows, share, most = rows[can], share[can], most[can]
    now, then = jobs.speedup(rows, share), jobs.speedup(rows, share + 1)
    growing = then > now
    return rows[growing], most[growing], now[growing], then[growing]


def _by_inequality(jobs: JobTable, served: Served) -> int:
    """Run stage two of Alg. 1: change the shares of jobs that have some. Return how many GPUs are left."""
    free = served.free
    if free <= 0:
        return free
    line = _Line(jobs, served)
    while free > 0 and line.give():
        free -= 1
    served.given[line.rows] = line.share
    return free


_Key = tuple[float, int]  # a job's place in the line: its length and its number, ascending


class _Line:
    """The jobs that can grow, in ascending order of length, with the records among them; the last record is the top
    job.

    A GPU makes the top job shorter, so that it moves forward. The records before its new place stay. If the job is no
    record there, the records behind it only lose the job itself.

    Jobs are kept in blocks of neighbours with a known greatest gain. So the next job above a bar is found without
    examining all jobs. The lengths at the beginning fix the borders of the blocks.
    """

    def __init__(self, jobs: JobTable, served: Served) -> None:
        self.rows, most, now, then = _growing(jobs, served)
        length = jobs.left_s[self.rows] / now
        order = np.argsort(length, kind="stable")
        # Lists by job, in the order of submission.
        self.share: list[int] = served.given[self.rows].tolist()
        self._most: list[int] = most.tolist()
        self._curve: list[int] = jobs.curve[self.rows].tolist()
        self._left_s: list[float] = jobs.left_s[self.rows].tolist()
        self._gain: list[float] = ((then - now) / then).tolist()
        self._bar: list[float] = ((then - now) / now).tolist()
        self._speedup = jobs.curves.speedup
        self._block: list[int] = [0] * len(order)  # the block of each job
        # Lists by block.
        keys: list[_Key] = list(zip(length[order].tolist(), order.tolist(), strict=True))
        self._blocks = [keys[begin : begin + BLOCK] for begin in range(0, len(keys), BLOCK)]
        self._first = [block[0] for block in self._blocks[1:]]  # a smaller key belongs to an earlier block
        self._greatest = [max([self._gain[job] for _, job in block]) for block in self._blocks]  # bound of each block
        for place, (_, job) in enumerate(keys):
            self._block[job] = place // BLOCK
        self._records: list[_Key] = []
        if keys:
            self._records.append(keys[0])
            self._find_records(keys[0], 0)

    def give(self) -> bool:
        """Give the top job one more GPU. Return False if no job can use one."""
        if not self._records:
            return False
        key = self._records.pop()
        job = key[1]
        at = self._block[job]
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        self.share[job] += 1
        share, curve = self.share[job], self._curve[job]
        now = self._speedup.item(curve, share)
        then = self._speedup.item(curve, share + 1) if share < self._most[job] else now
        if then <= now or not self._put(job, self._left_s[job] / now, (then - now) / then, (then - now) / now):
            self._find_records(key, at)
        return True

    def _put(self, job: int, length: float, gain: float, bar: float) -> bool:
        """Insert the former top job again, with its new length, gain and bar.

        Return whether the job takes the place of records. Then the records behind it have been found again, too.
        """
        key = length, job
        at = self._block[job] = bisect(self._first, key, 0, self._block[job])
        insort(self._blocks[at], key)
        self._gain[job], self._bar[job] = gain, bar
        if gain > self._greatest[at]:
            self._greatest[at] = gain
        records = self._records
        earlier = len(records)
        while earlier and records[earlier - 1] > key:
            earlier -= 1
        if earlier and gain <= self._bar[records[earlier - 1][1]]:
            return False
        displaces = earlier < len(records)
        records[earlier:] = [key]
        if displaces:
            self._find_records(key, at)
        return displaces

    def _find_records(self, key: _Key, at: int) -> None:
        """Find the records behind this place in a block, given those before it.

        One walk to the end of the line finds them all, since each has to be above the bar of the record before it.
        """
        gain, bars, greatest, blocks, records = self._gain, self._bar, self._greatest, self._blocks, self._records
        bar = bars[records[-1][1]] if records else -math.inf
        if greatest[at] > bar:
            block = blocks[at]
            for other in block[bisect(block, key) :]:
                if gain[other[1]] > bar:
                    records.append(other)
                    bar = bars[other[1]]
        for later in range(at + 1, len(blocks)):
            if greatest[later] > bar:
                before = len(records)
                for other in blocks[later]:
                    if gain[other[1]] > bar:
                        records.append(other)
                        bar = bars[other[1]]
                if len(records) == before:  # the block's best jobs have moved forward out of it
                    greatest[later] = max([gain[job] for _, job in blocks[later]], default=-math.inf)


def _without_lengths(jobs: JobTable, served: Served, rng: random.Random) -> int:
    """Run stage two without lengths: change the shares of jobs that have some. Return how many GPUs are left.

    A job beats another, whichever of them is shorter, if its gain is above the other's bar. So a job with a bar of at
    least the greatest gain of all is unbeaten. One of the unbeaten gets the GPU: a job with more GPUs at present than
    here if there is one, so that shares do not change for no reason. Otherwise it is the first in an order that is
    drawn once.
    """
    given, free = served.given, served.free
    rows, most, now, then = _growing(jobs, served)
    if not len(rows):
        return free
    order = list(range(len(rows)))
    rng.shuffle(order)
    rows, most, now, then = rows[order], most[order], now[order], then[order]
    share: list[int] = given[rows].tolist()
    limit: list[int] = most.tolist()
    present: list[int] = jobs.share[rows].tolist()
    curves = [jobs.curves.row(curve) for curve in jobs.curve[rows].tolist()]
    had = (given[rows] < jobs.share[rows]).tolist()
    line = Unbeaten(((then - now) / then).tolist(), ((then - now) / now).tolist(), had)
    while free > 0 and (at := line.first()) is not None:
        share[at] += 1
        free -= 1
        p = curves[at][share[at]]
        q = curves[at][share[at] + 1] if share[at] < limit[at] else p
        line.change(at, (q - p) / q, (q - p) / p, share[at] < present[at])
    given[rows] = share
    return free


class Unbeaten:
    """Jobs in the order drawn, and which of them are unbeaten: those with a bar of at least the greatest gain of all.

    Where throughput is concave the greatest gain only falls. So jobs join the unbeaten, and only the job that got a GPU
    may leave. Outdated heap entries are skipped when they come up. Jobs of one model with equal shares have the same
    gain and bar, so there are few distinct values: the heaps hold values, and their jobs are counted or listed beside.
    """

    def __init__(self, gain: list[float], bar: list[float], had: list[bool]) -> None:
        """`had`: whether each job has fewer GPUs here than at present."""
        self._gain, self._bar, self._had = gain, bar, had
        self._having = Counter(gain)  # number of jobs by gain
        self._gains = [-value for value in self._having]
        heapq.heapify(self._gains)
        self._begin()

    def _begin(self) -> None:
        highest = self._highest = -self._gains[0]
        self._beaten: dict[float, list[int]] = {}  # beaten jobs by bar
        # Heaps of unbeaten jobs, by whether they have fewer GPUs here than at present.
        self._unbeaten: dict[bool, list[int]] = {True: [], False: []}
        for at, bar in enumerate(self._bar):
            if bar >= highest:
                self._unbeaten[self._had[at]].append(at)
            else:
                self._beaten.setdefault(bar, []).append(at)
        self._bars = [-bar for bar in self._beaten]
        heapq.heapify(self._bars)

    def first(self) -> int | None:
        """Return the first of the unbeaten jobs, preferring those that had the GPU; None if no job gains."""
        if self._highest <= 0:
            return None
        for had in (True, False):
            found = self._unbeaten[had]
            while found:
                if self._had[found[0]] is had and self._bar[found[0]] >= self._highest:
                    return found[0]
                heapq.heappop(found)
        return None

    def change(self, at: int, gain: float, bar: float, had: bool) -> None:
        """Update a job that has got a GPU."""
        having, gains = self._having, self._gains
        having[self._gain[at]] -= 1
        if not having[gain]:
            heapq.heappush(gains, -gain)
        having[gain] += 1
        stays = self._bar[at] >= self._highest and self._had[at] is had  # whether the job stays unbeaten
        self._gain[at], self._bar[at], self._had[at] = gain, bar, had
        while not having[-gains[0]]:
            heapq.heappop(gains)
        if -gains[0] > self._highest:
            self._begin()
            return
        self._highest = -gains[0]
        if bar < self._highest:
            if bar not in self._beaten:
                self._beaten[bar] = []
                heapq.heappush(self._bars, -bar)
            self._beaten[bar].append(at)
        elif not stays:
            heapq.heappush(self._unbeaten[had], at)
        while self._bars and -self._bars[0] >= self._highest:
            value = -heapq.heappop(self._bars)
            for one in self._beaten.pop(value):
                if self._bar[one] == value:
                    heapq.heappush(self._unbeaten[self._had[one]], one)
