"""The order in which jobs are served, and its reuse from one decision to the next.

Tens of thousands of jobs may wait while a few run. An `Order` ranks jobs by keys that do not change while a job waits.
So a keeper of jobs can keep the waiting ones in order from one decision to the next (`WaitingQueue`), and a decision examines
only the running jobs and those that come next. Without such a line all jobs are sorted again; the outcome is the same.
"""

from __future__ import annotations

import heapq
import math

import msgspec
import numpy as np

from .arrays import Floats, Ints, sum_of
from .view import JobTable, Order
from .waiting_queue import WaitingQueue, Wish


def take(free: int, own: list[Wish], line: WaitingQueue, below: float = math.inf) -> list[Wish]:
    """Serve jobs in order: those of `own`, which is sorted, and those of the line with keys below a bound.

    A job that does not fit into the rest is passed over. Returns the jobs that are served.
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
    """Result of serving jobs in order. `given`: the shares. `rows`: the served rows, in ascending order. `waiting`: how
    many jobs got nothing and want no more GPUs than there are. `free`: GPUs that are left."""

    given: Ints
    rows: Ints
    waiting: int
    free: int


def serve(jobs: JobTable, gpus: int, order: Order, now: float) -> Served:
    """Give each job all GPUs that it wants or none, in ascending order of the keys.

    A job that does not fit into the remaining GPUs is passed over.
    """
    line = jobs.line(order)
    if line is None:
        return serve_anew(jobs, gpus, order, now)
    running = jobs.running
    keys, want = order.ranks(jobs, running, now)
    first = keys < line.least_key(gpus)  # running jobs that precede all waiting ones: usually most of them
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
    """Serve jobs as `serve` does, but sort all of them now, so that keys may depend on the time."""
    keys, want = order.ranks(jobs, slice(None), now)
    given = np.zeros(len(jobs), dtype=np.int64)
    fitting = (want <= gpus).nonzero()[0]
    free = hand_out(given, gpus, keys, want, fitting)
    rows = given.nonzero()[0]
    return Served(given, rows, len(fitting) - len(rows), free)


def wishes(jobs: JobTable, order: Order, rows: Ints, now: float) -> list[Wish]:
    """Return the wishes of these jobs, in order."""
    keys, wants = order.ranks(jobs, rows, now)
    return sorted(zip(keys.tolist(), jobs.rows[rows].tolist(), wants.tolist(), strict=True))


def counted(given: Ints, want: Ints, gpus: int, free: int) -> Served:
    """Return the result for shares of either all wanted GPUs or none. `free`: how many of the `gpus` are left."""
    rows = given.nonzero()[0]
    return Served(given, rows, int(np.count_nonzero(want <= gpus)) - len(rows), free)


def found(jobs: JobTable, served: list[Wish], fitting: int, gpus: int) -> Served:
    """Return the result for served jobs out of `gpus` GPUs. `fitting`: how many jobs want no more than these."""
    given = np.zeros(len(jobs), dtype=np.int64)
    numbers = np.array([number for _, number, _ in served], dtype=np.int64)
    wants = [want for _, _, want in served]
    rows = jobs.rows.searchsorted(numbers)
    given[rows] = wants
    rows.sort()
    return Served(given, rows, fitting - len(served), gpus - sum(wants))


def hand_out(given: Ints, gpus: int, keys: Floats, want: Ints, rows: Ints) -> int:
    """Give `want` GPUs each or none to these rows, in ascending order of `keys`. Return how many GPUs are left.

    A job that does not fit into the rest is passed over. No job wants 0. Changes `given`.
    """
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
            fitting = fitting[(given[fitting] == 0) & (want[fitting] <= free)]  # passed-over jobs are out
    return free


def smallest(keys: Floats, count: int) -> Ints:
    """Return the rows of the `count` smallest keys in ascending order; of equal ones the first come first."""
    if count == 1 and len(keys) > 1:
        return np.array([keys.argmin()])
    if count < len(keys):
        bound = np.partition(keys, count)[count]
        candidates: Ints = (keys <= bound).nonzero()[0]
        return candidates[keys[candidates].argsort(kind="stable")[:count]]
    return keys.argsort(kind="stable")
