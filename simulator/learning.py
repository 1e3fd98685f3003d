"""A simulation in which policies see of a job's throughput what has been measured so far (AFS 4.5), not its model's table.

The estimates, the fair share of a new job, the shares on the way down and when that is worth it are the scheduler's own
(`scheduler.speedup_curve`, `scheduler.measuring`); this module only says when a measurement is ready, and what going down and up
again costs: what every change of a job's GPUs costs.

* A step is what takes a second on one GPU.
* Every job is measured by itself, also where an earlier one had the same model.
* Throughput is the table's for a share, wherever its GPUs are. So it is noted as measured on the fewest servers.
* Policies that know lengths know them in seconds on one GPU. Of a job that has not been measured on one they see what makes its
  remaining time right for the share that it has been measured with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from ..scheduler.admission import ADMIT_ALL, Admission
from ..scheduler.measuring import Measuring, first_share, smaller_shares, unknown, worth_measuring
from ..scheduler.packing import server_size
from ..scheduler.pipeline import Decision
from ..scheduler.placement.registry import FEWEST_SERVERS, Placement
from ..scheduler.policies import RIGID
from ..scheduler.policies.base import Policy
from ..scheduler.speedup_curve import Rate, Source, estimate, fewest_servers, peak
from ..scheduler.view import ClusterView, Curves, Floats, Gpus, Ints, JobTable, ServerInView
from .costs import NONE, Costs
from .engine import Simulation
from .workload import Workload


class LearningSimulation(Simulation):
    """One trace under one policy that has to find out how jobs scale."""

    def __init__(
        self,
        workload: Workload,
        cluster: tuple[ServerInView, ...],
        policy: Policy,
        costs: Costs = NONE,
        seed: int = 0,
        packing: bool = False,
        placement: Placement = FEWEST_SERVERS,
        admission: Admission = ADMIT_ALL,
        watch: Callable[[ClusterView, Decision], None] | None = None,
        measuring: Measuring | None = None,
    ) -> None:
        super().__init__(workload, cluster, policy, costs, seed, packing, placement, admission, watch)
        self._measuring = measuring or Measuring()
        sizes = [len(server.gpus) for server in cluster]
        most = min(self._gpus, workload.curves.most)
        self._fewest = fewest_servers(sizes, most)
        packed = server_size(sizes) if packing else None
        self._smaller_shares = cache(lambda share, least: smaller_shares(share, least, packed))
        self._goes_down = self._measuring.way_down and policy.name not in RIGID
        n = len(workload)
        self._most = np.minimum(self.columns.max_gpus, most)
        self._peak = self._most.copy()  # as far as is known
        self._estimates = np.tile(np.arange(most + 1, dtype=np.float64), (n, 1))  # steps per second by job and share
        self._seen_curves = Curves(self._estimates.copy())  # relative to one GPU
        self._seen = replace(
            self.columns, max_gpus=self._most.copy(), left_s=self.columns.left_s.copy(), curve=np.arange(n)
        )
        self._rates: dict[int, dict[int, Rate]] = {}  # measured, by job and share
        self._fresh = np.ones(n, dtype=np.bool_)  # nothing measured yet
        self._works_with = np.zeros(n, dtype=np.int64)  # GPUs
        self._measured_s = np.full(n, math.inf)  # when the share that it works with will have been measured
        self._way: dict[int, tuple[int, ...]] = {}  # the shares that a job on its way down is still to be measured with

    # -- events

    def _next_event(self) -> float:
        running = self._running
        measured = float(self._measured_s[running].min()) if len(running) else math.inf
        return min(super()._next_event(), measured)

    def _switch(self) -> bool:
        return super()._switch() | self._measure()

    def _measure(self) -> bool:
        """Take over what has been measured by now. Whether there was anything."""
        done = self._running[self._measured_s[self._running] <= self._now].tolist()
        for job in done:
            share = int(self._works_with[job])
            rates = self._rates.setdefault(job, {})
            rates[share] = Rate(float(self._rate[job]), Source.MEASURED, 1, self._now)
            known = {(share, int(self._fewest[share])): rate for share, rate in rates.items()}
            curve = estimate(known, self._fewest)
            self._estimates[job] = curve
            self._seen_curves.correct(job, curve / curve[1])
            self._peak[job] = peak(curve, int(self.columns.min_gpus[job]), int(self._most[job]))
            self._fresh[job] = False
            self._measured_s[job] = math.inf
        return bool(done)

    # -- decisions

    def _table(self) -> JobTable:
        """What policies see."""
        jobs, seen, columns = self._active, self._seen, self.columns
        first = first_share(self._gpus, len(jobs)) if self._measuring.way_down else self._gpus
        at_first = np.maximum(
            columns.min_gpus[jobs], np.minimum(self._most[jobs], np.maximum(first, columns.share[jobs]))
        )
        seen.max_gpus[jobs] = np.where(self._fresh[jobs], at_first, self._peak[jobs])
        seen.left_s[jobs] = columns.left_s[jobs] / self._estimates[jobs, 1]
        return JobTable(seen, jobs, self._seen_curves)

    def _decide(self) -> None:
        super()._decide()
        if not self._goes_down:
            return
        for job in self._running.tolist():
            if self._idle_until_s[job] <= self._now and self._switch_s[job] == math.inf:
                self._go_down(job)

    def _change(self, present: Mapping[int, Gpus], decided: Mapping[int, Gpus]) -> None:
        rows = [row for row in {*present, *decided} if present.get(row) != decided.get(row)]
        for row, job in zip(rows, self._active[rows].tolist(), strict=True):
            self._works_with[job] = decided.get(row, 0).bit_count()
            self._way.pop(job, None)
        super()._change(present, decided)

    def _go_down(self, job: int) -> None:
        """Begin its way down, take the next share, or go back up."""
        way, rates = self._way.get(job), self._rates.get(job, {})
        if way is None:
            share = int(self.columns.share[job])
            if share not in rates or share != self._works_with[job]:
                return
            shares = self._still_unknown(job, share)
            left_s = float(self.columns.left_s[job] / self._rate[job])
            way = worth_measuring(self._measuring, shares, self._estimates[job], left_s)
        elif way[0] in rates:
            way = way[1:]
        else:
            return  # it is being measured
        if way:
            self._way[job] = way
            self._work_with(job, way[0])
        elif self._way.pop(job, None):
            self._work_with(job, int(self.columns.share[job]))

    def _still_unknown(self, job: int, share: int) -> tuple[int, ...]:
        """What there is to measure on the way down from `share`."""
        way = self._smaller_shares(share, int(self.columns.min_gpus[job]))
        return unknown(way, self._rates.get(job, {}))

    def _work_with(self, job: int, gpus: int) -> None:
        """So many of its GPUs, which all stay its own."""
        ready_s = self._prices.ready_s[job]
        grows = gpus > self._works_with[job]
        self._works_with[job] = gpus
        self.outcome.resizes += 1
        if grows and ready_s:
            self._switch_s[job] = self._now + ready_s
        else:
            self._work(np.array([job]), self._prices.pause_s[[job]])

    def _share_at_work(self, jobs: Ints) -> Ints:
        return self._works_with[jobs]

    def _work(self, jobs: Ints, wait_s: Floats) -> None:
        super()._work(jobs, wait_s)
        for job, waits_s in zip(jobs.tolist(), wait_s.tolist(), strict=True):
            share = int(self._works_with[job])
            learns = share not in self._rates.get(job, {}) or (
                self._goes_down and bool(self._still_unknown(job, share))
            )
            takes_s = self._measuring.steps / float(self._rate[job]) if learns else math.inf
            self._measured_s[job] = self._now + waits_s + takes_s

    def _stop(self, jobs: Ints) -> None:
        super()._stop(jobs)
        self._measured_s[jobs] = math.inf
