"""The cached order of jobs equals the order sorted from scratch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.arrays import Floats, Ints
from elasticd.scheduler.order import serve, serve_anew, smallest, take
from elasticd.scheduler.view import JobTable, Order
from elasticd.scheduler.waiting_queue import WaitingQueue

from .tables import job, table

KEYS = st.sampled_from([0.0, 1.0, 1.5, 7.0])
JOBS = st.lists(st.tuples(KEYS, st.integers(1, 6), st.booleans()), min_size=1, max_size=12)


@dataclass(frozen=True)
class ByPriority:
    """Ascending; a job wants its request."""

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        return jobs.executed_s[rows], jobs.requested_gpus[rows]


class Keeper:
    """Keeps the waiting jobs of a table in order."""

    def line(self, order: Order, jobs: JobTable) -> WaitingQueue:
        line = WaitingQueue()
        rows = np.flatnonzero(jobs.share == 0)
        keys, wants = order.ranks(jobs, rows, math.nan)
        for key, row, want in reversed(list(zip(keys.tolist(), rows.tolist(), wants.tolist(), strict=True))):
            line.put(row, key, want)
        return line


def kept(jobs: JobTable) -> JobTable:
    return JobTable(jobs._columns, jobs.rows, jobs.curves, kept=Keeper())


@given(JOBS, st.integers(1, 12))
def test_serving_from_a_line_is_serving_all_jobs_in_order(described: list[tuple[float, int, bool]], gpus: int) -> None:
    jobs = table(
        *(
            job(f"j{at}", 1, want, share=want if runs else 0, executed_s=key)
            for at, (key, want, runs) in enumerate(described)
        )
    )
    anew, found = serve_anew(jobs, gpus, ByPriority(), 0.0), serve(kept(jobs), gpus, ByPriority(), 0.0)
    assert found.given.tolist() == anew.given.tolist()
    assert found.rows.tolist() == anew.rows.tolist() == np.flatnonzero(anew.given).tolist()
    assert found.waiting == anew.waiting
    assert found.free == anew.free == gpus - int(anew.given.sum())


def test_who_does_not_fit_is_passed_over_and_equal_keys_go_by_number() -> None:
    line = WaitingQueue()
    line.put_all([(1.0, 5, 2), (1.0, 3, 2), (0.5, 9, 4), (2.0, 1, 1)])
    assert take(4, [], line) == [(0.5, 9, 4)]
    assert take(3, [], line) == [(1.0, 3, 2), (2.0, 1, 1)]
    assert take(3, [(1.0, 4, 1)], line) == [(1.0, 3, 2), (1.0, 4, 1)]
    assert take(8, [], line, below=1.0) == [(0.5, 9, 4)]


def test_a_line_forgets_who_waits_no_more() -> None:
    line = WaitingQueue()
    line.put_all([(1.0, 5, 2), (1.0, 3, 2)])
    line.drop(5)
    line.drop(6)  # it has never waited
    assert (line.fitting(2), line.fitting(1), line.least_key(2), line.least_key(1)) == (1, 0, 1.0, math.inf)
    assert line.from_key(1.0) == [(1.0, 3, 2)]
    assert line.from_key(1.1) == []


@given(st.lists(st.integers(0, 3), max_size=9), st.integers(1, 9))
def test_the_smallest_are_the_first_of_a_stable_order(keys: list[int], count: int) -> None:
    found = smallest(np.array(keys, dtype=np.float64), count).tolist()
    assert found == sorted(range(len(keys)), key=lambda row: keys[row])[:count]
