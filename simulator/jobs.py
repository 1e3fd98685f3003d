"""The jobs of a simulation: the policies' view of them, and their progress.

Jobs that have arrived and are not over form a window of the columns, in the order of submission, so that a policy gets
parts of arrays, not copies. The window's end moves over jobs as they arrive. Where a job ends, the jobs before it move
up by one or those behind it down, the smaller number of both: a queue may be long, and ending jobs are mostly near its
front or its end. So a job has a *number*, which stays, and a *place* in the columns. Waiting jobs also stand in lines,
one for each order that a policy has asked for (`scheduler.order`).

Data that policies do not see is kept by number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..scheduler.arrays import Floats, Ints
from ..scheduler.length_statistics import NOTHING_ENDED
from ..scheduler.view import UNKNOWN_S, Columns, JobTable, Order
from ..scheduler.waiting_queue import WaitingQueue
from .workload import Workload

MANY = 2000  # number of present jobs from which lines are kept; they are dropped below half of that
AT_ONCE = 100  # a line takes more jobs than this at once, fewer one by one
_FLOATS = (
    "submitted_s",
    "left_s",
    "told_s",
    "done_s",
    "attained_gpu_s",
    "executed_s",
    "waiting_since_s",
    "deadline_s",
    "still_until_s",
)
_LENGTHS = ("work_s", "told_left_s")  # the truth, and the reports that policies see in place of `left_s`
_INTS = ("min_gpus", "max_gpus", "requested_gpus", "priority", "share", "curve", "soft", "changes")


class Jobs:
    """Columns are by place; `begin` and `end` are those of the window."""

    def __init__(self, workload: Workload, cluster_gpus: int) -> None:
        n = len(workload)
        self.begin = self.end = 0
        self.next = 0  # the number of the next job to arrive
        self._curves = workload.curves
        self._most_needed = int(workload.min_gpus.max(initial=0))
        self.lines_from = MANY
        self._lines: dict[Order, WaitingQueue] = {}
        self._stirred: list[int] = []  # numbers of jobs that may have entered or left the lines
        self._floats = np.zeros((len(_FLOATS) + len(_LENGTHS), n))
        self._ints = np.zeros((len(_INTS) + 1, n), dtype=np.int64)
        self.numbers: Ints = self._ints[-1]
        self.numbers[:] = np.arange(n)
        self.columns = _columns(workload, self._floats, self._ints)
        columns = self.columns
        columns.submitted_s[:] = columns.waiting_since_s[:] = workload.submit_s
        columns.left_s[:] = workload.work_s
        self._work_s, self._told_left_s = self._floats[len(_FLOATS) :]
        self._work_s[:] = workload.work_s
        columns.told_s[:] = workload.work_s if workload.told_s is None else workload.told_s
        self._truth_told = workload.told_s is None
        columns.min_gpus[:] = workload.min_gpus
        columns.max_gpus[:] = np.minimum(workload.max_gpus, cluster_gpus)
        columns.requested_gpus[:] = workload.requested_gpus
        columns.curve[:] = workload.curve
        columns.deadline_s[:] = math.nan if workload.deadline_s is None else workload.deadline_s
        columns.soft[:] = 0 if workload.soft is None else workload.soft
        columns.priority[:] = 0 if workload.priority is None else workload.priority
        floats, ints = self._floats.view(), self._ints.view()
        floats.flags.writeable = ints.flags.writeable = False  # read-only for policies
        seen = _columns(workload, floats, ints)
        self._seen = seen if self._truth_told else replace(seen, left_s=floats[-1])
        self._seen_numbers: Ints = ints[-1]
        self.ended = NOTHING_ENDED
        self.executed_s: Floats = np.zeros(n)  # by number, of ended jobs
        self.gpu_s: Floats = np.zeros(n)
        self.changes: Ints = np.zeros(n, dtype=np.int64)  # changes of their GPUs, likewise
        self.running: Ints = np.empty(0, dtype=np.int64)  # places of the jobs with GPUs
        self.run: Ints = np.empty(0, dtype=np.int64)  # numbers of the jobs with GPUs

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def window(self) -> slice:
        return slice(self.begin, self.end)

    @property
    def present(self) -> Ints:
        """Numbers of the jobs in the window."""
        return self._seen_numbers[self.begin : self.end]

    def seen(self) -> Columns:
        """Return the policies' columns, which are right in the window. They change as the simulation goes on."""
        window = self.window
        left_s, done_s = self.columns.left_s[window], self.columns.done_s[window]
        np.subtract(self._work_s[window], left_s, out=done_s)
        if not self._truth_told:
            told_s = self.columns.told_s[window]
            self._told_left_s[window] = np.where(np.isnan(told_s), UNKNOWN_S, np.maximum(told_s - done_s, 0.0))
        return self._seen

    def table(self) -> JobTable:
        """Return the jobs in the window, as policies see them."""
        window = self.window
        table = JobTable(self.seen(), self._seen_numbers[window], self._curves, at=window, ended=self.ended, kept=self)
        table.running = self.running - self.begin
        table.most_needed = self._most_needed
        return table

    def came(self) -> None:
        """Extend the window by the next job of the workload."""
        if self._lines:
            self._stirred.append(self.next)
        if self.end != self.next:
            self._floats[:, self.end] = self._floats[:, self.next]
            self._ints[:, self.end] = self._ints[:, self.next]
        self.end += 1
        self.next += 1

    def line(self, order: Order, jobs: JobTable) -> WaitingQueue | None:
        """Return a line as `scheduler.view.Kept` specifies."""
        if len(jobs) < (self.lines_from // 2 if self._lines else self.lines_from):  # sorting them again is cheaper
            self._lines.clear()
            self._stirred.clear()
            return None
        if self._stirred:
            self._settle_lines(jobs)
        found = self._lines.get(order)
        if found is None:
            found = self._lines[order] = WaitingQueue()
            _stand_in(found, order, jobs, np.flatnonzero(jobs.share == 0))
        return found

    def _settle_lines(self, jobs: JobTable) -> None:
        stirred = sorted(set(self._stirred))
        self._stirred = []
        rows, numbers, share = jobs.rows.searchsorted(stirred).tolist(), jobs.rows, jobs.share
        waiting = [
            row
            for row, number in zip(rows, stirred, strict=True)
            if row < len(numbers) and numbers[row] == number and not share[row]  # the others are over, or run
        ]
        for order, line in self._lines.items():
            for number in stirred:
                line.drop(number)
            if waiting:
                _stand_in(line, order, jobs, np.array(waiting))

    def places(self, numbers: Ints | Sequence[int] | int) -> Ints:
        """Return the places of jobs in the window."""
        found: Ints = self.numbers[self.begin : self.end].searchsorted(numbers)
        return found + self.begin

    def work(self, rate: Floats, seconds: float | Floats, passed_s: float) -> None:
        """Account for `passed_s` seconds of the running jobs with their GPUs, in which they worked for `seconds` at
        these rates."""
        columns, places = self.columns, self.running
        columns.left_s[places] = np.maximum(columns.left_s[places] - rate * seconds, 0.0)
        columns.executed_s[places] += passed_s
        columns.attained_gpu_s[places] += columns.share[places] * passed_s

    def give(self, places: Ints, shares: Ints, new: Ints, stops: bool) -> None:
        """Set the shares of these jobs.

        `new`: places of jobs with GPUs that had none. `stops`: whether some lose all of theirs.
        """
        share = self.columns.share
        share[places] = shares
        if self._lines:
            self._stirred += self.numbers[places].tolist()
        running = self.running
        if stops:
            running = running[share[running].nonzero()[0]]
        if len(new):
            running = np.concatenate((running, new))
            running.sort()
        self.running = running
        self.run = self.numbers[running]

    def finish(self, places: Ints) -> None:
        """Record the ends of these jobs, and remove them."""
        columns = self.columns
        of_each = columns.requested_gpus[places], self._work_s[places], columns.told_s[places]
        for requested, work_s, told_s in zip(*[column.tolist() for column in of_each], strict=True):
            self.ended = self.ended.and_one(requested, work_s, told_s)
        self.remove(places)

    def remove(self, places: Ints) -> None:
        """Remove jobs that are over, or were not admitted."""
        numbers = self.numbers[places]
        if self._lines:
            self._stirred += numbers.tolist()
        self.executed_s[numbers] = self.columns.executed_s[places]
        self.gpu_s[numbers] = self.columns.attained_gpu_s[places]
        self.changes[numbers] = self.columns.changes[places]
        running = self.running
        moved = 0
        for place in places.tolist():  # in ascending order
            place -= moved
            begin, end = self.begin, self.end
            running = running[running != place]
            if place - begin < end - place:
                if place > begin:
                    self._floats[:, begin + 1 : place + 1] = self._floats[:, begin:place]
                    self._ints[:, begin + 1 : place + 1] = self._ints[:, begin:place]
                self.begin = begin + 1
                running = running + (running < place)
            else:
                if place < end - 1:
                    self._floats[:, place : end - 1] = self._floats[:, place + 1 : end]
                    self._ints[:, place : end - 1] = self._ints[:, place + 1 : end]
                self.end = end - 1
                running = running - (running > place)
                moved += 1
        self.running = running
        self.run = self.numbers[running]

    def settle(self) -> None:
        """Record the GPU times of unfinished jobs at the end of the simulation."""
        self.executed_s[self.present] = self.columns.executed_s[self.window]
        self.gpu_s[self.present] = self.columns.attained_gpu_s[self.window]
        self.changes[self.present] = self.columns.changes[self.window]


def _stand_in(line: WaitingQueue, order: Order, jobs: JobTable, rows: Ints) -> None:
    """Put these waiting jobs into the line."""
    keys, wants = order.ranks(jobs, rows, math.nan)  # no time, since the key must not depend on it
    wishes = zip(keys.tolist(), jobs.rows[rows].tolist(), wants.tolist(), strict=True)
    if len(rows) > AT_ONCE:
        line.put_all(wishes)
    else:
        for key, number, want in wishes:
            line.put(number, key, want)


def _columns(workload: Workload, floats: Floats, ints: Ints) -> Columns:
    by_name = dict(zip(_FLOATS, floats[: len(_FLOATS)], strict=True)) | dict(zip(_INTS, ints[:-1], strict=True))
    return Columns(names=workload.names, **by_name)
