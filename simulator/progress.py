"""The jobs' progress with their GPUs, and the costs of changes.

Jobs are given by number, and where that saves a look-up, by their places in the columns as well (`jobs`). Between two
events each running job works at the rate of its share, or stands still until its pause is over. Each kind of cost is a
column, as a review may change all running jobs at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..scheduler.arrays import Floats, Ints, least_of
from ..scheduler.view import Gpus
from .costs import Costs
from .jobs import Jobs
from .standstill import Standstill
from .workload import Workload

Began = Callable[[Ints, Ints, Floats, Floats], None]  # as `Knowledge.began`


class Progress:
    def __init__(self, jobs: Jobs, workload: Workload, costs: Costs, began: Began) -> None:
        """`began`: called with the jobs that work with other GPUs from some time on."""
        n = len(workload)
        self.now = 0.0
        self._jobs = jobs
        self._began = began
        self._speedup = workload.curves.speedup
        self._curve = workload.curve.copy()  # on the GPUs that the job has
        self._work_s = workload.work_s
        self._prices = _Prices(costs, workload)
        self._standstill = Standstill(workload.work_s)
        self._switching = costs.switches
        self._releasing = costs.releases
        self._falling = bool(self._prices.checkpoint_every_s.any())
        self._ending = bool(self._prices.end_s.any())
        self._starting = bool(self._prices.start_s.any())
        self.works_with = np.zeros(n, dtype=np.int64)  # number of GPUs, all or some of its own; including those to come
        self._rate = np.zeros(n)
        self._idle_until_s = np.zeros(n)
        self._given_s = np.zeros(n)  # when the job last got its first GPUs; only where checkpoints matter
        self._end_s = np.full(n, math.inf)  # if nothing changes
        self._switch_s = np.full(n, math.inf)
        self._all_work_from_s = 0.0  # no job stands still from then on
        # Values of the running jobs, constant until the next change.
        self._next_end_s = self._next_switch_s = math.inf
        self._rates = np.empty(0)
        self._ones = np.ones(n)
        self._gpus_at_work = 0.0

    def refresh(self) -> None:
        """Recompute the values of the running jobs after a change."""
        run = self._jobs.run
        self._rates = self._rate[run]
        self._gpus_at_work = float(self._rates.dot(self._ones[: len(run)]))
        self._next_end_s = least_of(self._end_s[run])
        if self._switching:
            self._next_switch_s = least_of(self._switch_s[run])

    # -- time

    def next_s(self) -> float:
        """Return when a job ends, or its new GPUs are ready, if nothing changes; inf: never."""
        return min(self._next_end_s, self._next_switch_s)

    def advance(self, at: float) -> float | None:
        """Let the running jobs work until `at`.

        If some stood still at first, return the average sum of the speedups at work meanwhile; otherwise None.
        """
        before, self.now = self.now, at
        passed = at - before
        jobs = self._jobs
        if passed <= 0 or not len(jobs.run):
            return None
        worked: float | Floats = passed
        average = None
        if self._all_work_from_s > before:
            worked = np.maximum(at - np.maximum(self._idle_until_s[jobs.run], before), 0.0)
            done = np.minimum(self._rates * worked, jobs.columns.left_s[jobs.running])
            average = float(done.sum()) / passed
        jobs.work(self._rates, worked, passed)
        return average

    def switch(self) -> None:
        """Let jobs use new GPUs that are ready."""
        if self._next_switch_s <= self.now:
            run = self._jobs.run
            ready = run[self._switch_s[run] <= self.now]
            self.work(ready, self._jobs.places(ready), self._prices.pause_s[ready])
            self.refresh()

    def over(self) -> Ints:
        """Return the rows (`jobs`) of the jobs that have ended by now."""
        jobs = self._jobs
        if self._next_end_s > self.now:
            return jobs.running[:0]
        self._standstill.ended()
        return jobs.running[self._end_s[jobs.run] <= self.now]

    def at_work(self) -> float:
        """Return the sum of the speedups at which the jobs work now."""
        if self._all_work_from_s <= self.now:
            return self._gpus_at_work
        return float(self._rates @ (self._idle_until_s[self._jobs.run] <= self.now))

    # -- changes

    def scale(self, job: int, curve: int) -> None:
        """Let a job scale by this curve from its next change on."""
        self._curve[job] = curve

    def add_curve(self, speedup: Floats) -> int:
        """Return a curve that is not in the workload. speedup: by number of GPUs."""
        self._speedup = np.vstack([self._speedup, speedup])
        return len(self._speedup) - 1

    def free_s(self, numbers: Ints, held: Sequence[tuple[Gpus, Gpus]]) -> Floats:
        """Return how many seconds each of these jobs waits until running jobs have given up the GPUs that it gets.

        `held`: as for `resize`.

        A job that keeps none of its own GPUs goes on with them until its new ones are ready.
        """
        free_s = np.zeros(len(numbers))
        if self._releasing:
            given_up = left_late = 0
            for had, has in held:
                given_up |= had & ~has
                left_late |= had if has and not had & has else 0
            for at, (had, has) in enumerate(held):
                if taken := has & ~had & given_up:
                    release_s, ready_s = self._prices.release_s[numbers[at]], self._prices.ready_s[numbers[at]]
                    free_s[at] = release_s + (ready_s if taken & left_late else 0.0)
        return free_s

    def fall_back(self, numbers: Ints, places: Ints) -> None:
        """Reset jobs that give up all GPUs to their last checkpoint. Raises UserError if no job makes any progress."""
        if not self._falling:
            return
        every_s = self._prices.checkpoint_every_s[numbers]
        if not every_s.any():
            return
        left_s = self._jobs.columns.left_s
        trained_s = self.now - self._given_s[numbers] - self._prices.start_s[numbers]
        falls = (every_s > 0) & (trained_s > 0)
        if np.count_nonzero(falls):
            fallen, lost_s = places[falls], trained_s[falls] % every_s[falls]
            back_s = left_s[fallen] + lost_s * self._rate[numbers[falls]]
            left_s[fallen] = np.minimum(self._work_s[numbers[falls]], back_s)
        self._standstill.interrupted(numbers, left_s[places], len(self._jobs))

    def start(self, numbers: Ints, places: Ints, free_s: Floats) -> None:
        if self._falling:
            self._given_s[numbers] = self.now + free_s
        self.work(numbers, places, free_s + self._prices.start_s[numbers] if self._starting else free_s)

    def stop(self, numbers: Ints) -> None:
        self._rate[numbers] = 0.0
        self._end_s[numbers] = math.inf
        if self._switching:
            self._switch_s[numbers] = math.inf

    def goes_on(self, numbers: Ints, places: Ints) -> Ints | None:
        """Return the positions of jobs that have not done their last step yet; None: all."""
        if not self._ending:
            return None
        over = (self._prices.end_s[numbers] > 0) & (self._jobs.columns.left_s[places] <= 0)
        return np.flatnonzero(~over) if np.count_nonzero(over) else None

    def resize(self, numbers: Ints, places: Ints, held: Sequence[tuple[Gpus, Gpus]], free_s: Floats) -> None:
        """Resize running jobs.

        `held`: the GPUs before and after, of each. `free_s`: seconds until its new ones are free.
        """
        prices = self._prices
        waits_s = self._idle_until_s[numbers] - self.now  # positive: the job has not begun yet, or stands still
        pause_s = np.maximum(waits_s, prices.pause_s[numbers])
        if self._switching:
            takes = np.array([after & ~before > 0 for before, after in held], dtype=bool)
            later = takes & (waits_s <= 0) & (free_s + prices.ready_s[numbers] > 0)
            ready_s = self.now + free_s[later] + prices.ready_s[numbers[later]]
            self._switch_s[numbers[later]] = ready_s
            self._jobs.columns.still_until_s[places[later]] = ready_s + prices.pause_s[numbers[later]]
            numbers, places, pause_s = numbers[~later], places[~later], pause_s[~later]
        if len(numbers):
            self.work(numbers, places, pause_s)

    def explore(self, numbers: Ints, places: Ints, gpus: Ints) -> None:
        """Let jobs work with so many of their GPUs from now on."""
        ready_s = self._prices.ready_s[numbers]
        later = (gpus > self.works_with[numbers]) & (ready_s > 0)
        self.works_with[numbers] = gpus
        self._switch_s[numbers[later]] = self.now + ready_s[later]
        if len(numbers := numbers[~later]):
            self.work(numbers, places[~later], self._prices.pause_s[numbers])

    def resting(self) -> Ints:
        """Return running jobs that neither stand still nor wait for GPUs."""
        run = self._jobs.run
        resting: Ints = run[(self._idle_until_s[run] <= self.now) & (self._switch_s[run] == math.inf)]
        return resting

    def work(self, numbers: Ints, places: Ints, wait_s: Floats) -> None:
        """Let each job work at the rate of its share, after `wait_s` seconds."""
        gpus = self.works_with[numbers]
        rate = self._speedup[self._curve[numbers], gpus]
        begin_s = self.now + wait_s
        self._rate[numbers] = rate
        self._idle_until_s[numbers] = begin_s
        self._all_work_from_s = max(self._all_work_from_s, begin_s.item(begin_s.argmax()))
        columns = self._jobs.columns
        left_s = columns.left_s[places]
        columns.still_until_s[places] = begin_s
        end_s = begin_s + left_s / rate
        self._end_s[numbers] = end_s + self._prices.end_s[numbers] if self._ending else end_s
        if self._switching:
            self._switch_s[numbers] = math.inf
        self._began(numbers, gpus, rate, begin_s)


class _Prices:
    """Costs of changes for each job of a workload (s), by the names of `Costs`."""

    def __init__(self, costs: Costs, workload: Workload) -> None:
        of = [costs.of(model) for model in workload.models]

        def column(name: str) -> Floats:
            by_curve = np.array([getattr(one, name) for one in of], dtype=np.float64)
            return by_curve[workload.curve]

        self.start_s = column("start_s")
        self.ready_s = column("ready_s")
        self.pause_s = column("pause_s")
        self.release_s = column("release_s")
        self.end_s = column("end_s")
        self.checkpoint_every_s = column("checkpoint_every_s")
