"""Who is served first, and what of that stays from one decision to the next.

Tens of thousands of jobs may wait while a few run. An `Order` ranks jobs by keys that do not change while a job waits. So
whoever keeps jobs from one decision to the next can keep those that wait in order, too (`Line`), and a decision looks only at
the jobs that run and at those that come next. Where nobody keeps a line, all jobs are put in order anew; the outcome is the same.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from .arrays import sum_of

if TYPE_CHECKING:
    from .view import Floats, Ints, JobTable

Place = tuple[float, int]  # a key, and the job's number: of equal keys the job submitted first comes first
Wish = tuple[float, int, int]  # the same, and how many GPUs it wants


class Order(Hashable, Protocol):
    """Jobs are served in ascending order of their keys, which are finite; each gets what it wants or nothing."""

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        """The keys of these jobs, and how many GPUs each wants.

        For a job that waits neither may depend on the time, or on anything but this job's own columns.
        """
        ...


class Line:
    """Jobs that wait, by the number of GPUs that they want, in ascending order of their keys."""

    def __init__(self) -> None:
        self.by_want: dict[int, list[Place]] = {}
        self._where: dict[int, Wish] = {}

    def put(self, number: int, key: float, want: int) -> None:
        self._where[number] = key, number, want
        insort(self.by_want.setdefault(want, []), (key, number))

    def put_all(self, wishes: Iterable[Wish]) -> None:
        """As `put`, for many at once."""
        for wish in wishes:
            key, number, want = self._where[wish[1]] = wish
            self.by_want.setdefault(want, []).append((key, number))
        for places in self.by_want.values():
            places.sort()

    def drop(self, number: int) -> None:
        """A job waits no more, if it did."""
        wish = self._where.pop(number, None)
        if wish is not None:
            places = self.by_want[wish[2]]
            del places[bisect_left(places, wish[:2])]

    def least_key(self, gpus: int) -> float:
        """Of those that want no more GPUs than this; inf: there are none."""
        return min([places[0][0] for want, places in self.by_want.items() if want <= gpus and places], default=math.inf)

    def fitting(self, gpus: int) -> int:
        """How many of them want no more GPUs than this."""
        return sum([len(places) for want, places in self.by_want.items() if want <= gpus])

    def from_key(self, key: float) -> list[Wish]:
        """Those whose keys are not below this one."""
        return [
            (*place, want)
            for want, places in self.by_want.items()
            for place in places[bisect_left(places, (key, -1)) :]
        ]


def take(free: int, own: list[Wish], line: Line, below: float = math.inf) -> list[Wish]:
    """Serve jobs in order: those of `own`, which is sorted, and those of the line whose keys are below a bound.

    Who does not fit into what is left is passed over. Returns who gets what it wants.
    """
    heads = [
        (*places[0], want, 1)
        for want, places in line.by_want.items()
        if want <= free and places and places[0][0] < below
    ]
    heapq.heapify(heads)
    served: list[Wish] = []
    at, end = 0, len(own)
    while free:
        if at < end and (not heads or own[at] < heads[0]):
            wish = own[at]
            at += 1
            if wish[2] <= free:
                free -= wish[2]
                served.append(wish)
            continue
        if not heads:
            break
        key, number, want, following = heads[0]
        if want > free:
            heapq.heappop(heads)
            continue
        free -= want
        served.append((key, number, want))
        places = line.by_want[want]
        if following < len(places) and places[following][0] < below:
            heapq.heapreplace(heads, (*places[following], want, following + 1))
        else:
            heapq.heappop(heads)
    return served


class Served(msgspec.Struct, frozen=True):
    """`given`: the shares; `rows`: who got some, in ascending order; `waiting`: how many got nothing and want no more GPUs than
    there are; `free`: GPUs that are left by these shares."""

    given: Ints
    rows: Ints
    waiting: int
    free: int


def serve(jobs: JobTable, gpus: int, order: Order, now: float) -> Served:
    """Each job what it wants or nothing, in ascending order of the keys; who does not fit into what is left is passed over."""
    line = jobs.line(order)
    if line is None:
        return serve_anew(jobs, gpus, order, now)
    running = jobs.running
    keys, want = order.ranks(jobs, running, now)
    first = keys < line.least_key(gpus)  # most of those that run, as a rule
    rows, wanted_by_first = running[first], want[first]
    free = gpus - sum_of(wanted_by_first)
    if free < 0:
        first[:] = False
        rows, wanted_by_first, free = running[:0], want[:0], gpus
    rest: list[Wish] = []
    if len(rows) < len(running):
        later = np.logical_not(first).nonzero()[0]
        rest = sorted(zip(keys[later].tolist(), jobs.rows[running[later]].tolist(), want[later].tolist(), strict=True))
    more = take(free, rest, line) if free else []
    given = np.zeros(len(jobs), dtype=np.int64)
    given[rows] = wanted_by_first
    if more:
        others = jobs.rows.searchsorted(np.array([number for _, number, _ in more]))
        wants = [wanted for _, _, wanted in more]
        given[others] = wants
        free -= sum(wants)
        rows = np.concatenate((rows, others))
        rows.sort()
    return Served(given, rows, line.fitting(gpus) + int(np.count_nonzero(want <= gpus)) - len(rows), free)


def serve_anew(jobs: JobTable, gpus: int, order: Order, now: float) -> Served:
    """The same, of all jobs put in order now: so keys may depend on the time."""
    keys, want = order.ranks(jobs, slice(None), now)
    given = np.zeros(len(jobs), dtype=np.int64)
    fitting = (want <= gpus).nonzero()[0]
    free = hand_out(given, gpus, keys, want, fitting)
    rows = given.nonzero()[0]
    return Served(given, rows, len(fitting) - len(rows), free)


def wishes(jobs: JobTable, order: Order, rows: Ints, now: float) -> list[Wish]:
    """Of these jobs, in order."""
    keys, wants = order.ranks(jobs, rows, now)
    return sorted(zip(keys.tolist(), jobs.rows[rows].tolist(), wants.tolist(), strict=True))


def counted(given: Ints, want: Ints, gpus: int, free: int) -> Served:
    """Of shares where each job has what it wants or nothing. `free`: so many of the `gpus` are left."""
    rows = given.nonzero()[0]
    return Served(given, rows, int(np.count_nonzero(want <= gpus)) - len(rows), free)


def found(jobs: JobTable, served: list[Wish], fitting: int, gpus: int) -> Served:
    """The same as shares of so many GPUs. `fitting`: how many jobs want no more than there are."""
    given = np.zeros(len(jobs), dtype=np.int64)
    numbers = np.array([number for _, number, _ in served], dtype=np.int64)
    wants = [want for _, _, want in served]
    rows = jobs.rows.searchsorted(numbers)
    given[rows] = wants
    rows.sort()
    return Served(given, rows, fitting - len(served), gpus - sum(wants))


def hand_out(given: Ints, gpus: int, keys: Floats, want: Ints, rows: Ints) -> int:
    """`want` GPUs each or none to these rows, in ascending order of `keys`; who does not fit into what is left is passed over.
    Nobody wants 0. Changes `given`. Returns how many are left."""
    free = gpus
    fitting = rows
    while free and len(fitting):
        order = fitting[smallest(keys[fitting], free)]
        wanted = want[order]
        up_to = wanted.cumsum()
        begin = int(up_to.searchsorted(free, "right"))  # those before it fit one after the other
        if begin:
            given[order[:begin]] = wanted[:begin]
            free -= int(up_to[begin - 1])
        for row, more in zip(order[begin:].tolist(), wanted[begin:].tolist(), strict=True):
            if more <= free:
                given[row] = more
                free -= more
        if free:
            fitting = fitting[(given[fitting] == 0) & (want[fitting] <= free)]  # nobody who has been passed over
    return free


def smallest(keys: Floats, count: int) -> Ints:
    """The rows of the `count` smallest keys in ascending order; of equal ones the first come first."""
    if count == 1 and len(keys) > 1:
        return np.array([keys.argmin()])
    if count < len(keys):
        bound = np.partition(keys, count)[count]
        candidates: Ints = (keys <= bound).nonzero()[0]
        return candidates[keys[candidates].argsort(kind="stable")[:count]]
    return keys.argsort(kind="stable")
