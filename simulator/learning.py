"""What policies see of how jobs scale where that has to be found out: what has been measured so far (AFS 4.5).

The estimates, the fair share of a new job, the shares on the way down and when that is worth it are the scheduler's own
(`scheduler.speedup_curve`, `scheduler.measuring`); this module only says when a measurement is ready. Going down and up again
costs what every change of a job's GPUs costs.

* A step is what takes a second on one GPU.
* Every job is measured by itself, also where an earlier one had the same model.
* Throughput is the table's for a share, wherever its GPUs are. So it is noted as measured on the fewest servers.
* Policies that know lengths know them in seconds on one GPU. Of a job that has not been measured on one they see what makes its
  remaining time right for the share that it has been measured with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from ..scheduler.arrays import least_of
from ..scheduler.hull import concave
from ..scheduler.measuring import Measuring, first_share, smaller_shares, unknown, worth_measuring
from ..scheduler.packing import server_size
from ..scheduler.policies import RIGID
from ..scheduler.policies.base import Policy
from ..scheduler.speedup_curve import Rate, Source, estimate, fewest_servers, peak
from ..scheduler.view import UNKNOWN_S, Curves, Floats, Ints, JobTable, ServerInView
from .jobs import Jobs


class MeasuredCurves:
    """A `Knowledge` of what has been measured."""

    def __init__(
        self,
        jobs: Jobs,
        curves: Curves,
        cluster: tuple[ServerInView, ...],
        policy: Policy,
        packing: bool,
        measuring: Measuring,
    ) -> None:
        """Of `curves` only how far they go is known."""
        self._jobs = jobs
        self._measuring = measuring
        sizes = [len(server.gpus) for server in cluster]
        self._gpus = sum(sizes)
        most = min(self._gpus, curves.most)
        self._fewest = fewest_servers(sizes, most)
        packed = server_size(sizes) if packing else None
        self._smaller_shares = cache(lambda share, least: smaller_shares(share, least, packed))
        self.explores = measuring.way_down and policy.name not in RIGID
        columns = jobs.columns
        n = len(columns.share)
        self._least = columns.min_gpus.copy()
        self._most = np.minimum(columns.max_gpus, most)
        self._share = np.zeros(n, dtype=np.int64)
        self._peak = self._most.copy()  # as far as is known
        self._estimates = np.tile(np.arange(most + 1, dtype=np.float64), (n, 1))  # steps per second by job and share
        self._seen_curves = Curves(self._estimates.copy())  # relative to one GPU
        self._rates: dict[int, dict[int, Rate]] = {}  # measured, by job and share
        self._fresh = np.ones(n, dtype=np.bool_)  # nothing measured yet
        self._works_with = np.zeros(n, dtype=np.int64)  # GPUs
        self._steps_per_s = np.zeros(n)  # with these
        self._measured_s = np.full(n, math.inf)  # when the share that it works with will have been measured
        self._way: dict[int, tuple[int, ...]] = {}  # the shares that a job on its way down is still to be measured with

    # -- what happens

    def next_s(self, running: Ints) -> float:
        return least_of(self._measured_s[running])

    def learn(self, running: Ints, now: float) -> bool:
        done = running[self._measured_s[running] <= now].tolist()
        for job in done:
            share = int(self._works_with[job])
            rates = self._rates.setdefault(job, {})
            rates[share] = Rate(float(self._steps_per_s[job]), Source.MEASURED, 1, now)
            known = {(share, int(self._fewest[share])): rate for share, rate in rates.items()}
            curve = estimate(known, self._fewest)
            self._estimates[job] = curve
            self._seen_curves.correct(job, curve / curve[1])
            self._peak[job] = peak(concave(curve[None, :])[0], int(self._least[job]), int(self._most[job]))
            self._fresh[job] = False
            self._measured_s[job] = math.inf
        return bool(done)

    def given(self, jobs: Ints, shares: Ints) -> None:
        self._share[jobs] = shares
        self._measured_s[jobs[shares == 0]] = math.inf
        for job in jobs.tolist():
            self._way.pop(job, None)

    def began(self, jobs: Ints, gpus: Ints, speedup: Floats, begin_s: Floats) -> None:
        self._works_with[jobs] = gpus
        self._steps_per_s[jobs] = speedup
        for job, share, rate, begins_s in zip(
            jobs.tolist(), gpus.tolist(), speedup.tolist(), begin_s.tolist(), strict=True
        ):
            learns = share not in self._rates.get(job, {}) or (self.explores and bool(self._still_unknown(job, share)))
            self._measured_s[job] = begins_s + (self._measuring.steps / rate if learns else math.inf)

    # -- what is known

    def sees(self) -> JobTable:
        window, jobs = self._jobs.window, self._jobs.present
        columns = self._jobs.seen().cut(window)
        alone = self._estimates[jobs, 1]
        first = first_share(self._gpus, len(jobs)) if self._measuring.way_down else self._gpus
        at_first = np.maximum(self._least[jobs], np.minimum(self._most[jobs], np.maximum(first, columns.share)))
        seen = replace(
            columns,
            max_gpus=np.where(self._fresh[jobs], at_first, self._peak[jobs]),
            left_s=np.where(columns.left_s < UNKNOWN_S, columns.left_s / alone, UNKNOWN_S),
            told_s=columns.told_s / alone,
            done_s=columns.done_s / alone,
            curve=jobs,
        )
        return JobTable(seen, jobs, self._seen_curves, at=slice(0, len(jobs)), ended=self._jobs.ended)

    # -- the way down

    def wants(self, resting: Ints) -> Mapping[int, int]:
        wanted = {job: self._next_on_way(job) for job in resting.tolist()}
        return {job: gpus for job, gpus in wanted.items() if gpus}

    def _next_on_way(self, job: int) -> int:
        """The next share on its way down, or all its GPUs at the end of the way; 0: nothing is to change."""
        way, rates = self._way.get(job), self._rates.get(job, {})
        share = int(self._share[job])
        if way is None:
            if share not in rates or share != self._works_with[job]:
                return 0
            left_s = float(self._jobs.columns.left_s[self._jobs.places(job)] / self._steps_per_s[job])
            way = worth_measuring(self._measuring, self._still_unknown(job, share), self._estimates[job], left_s)
        elif way[0] in rates:
            way = way[1:]
        else:
            return 0  # it is being measured
        if way:
            self._way[job] = way
            return way[0]
        return share if self._way.pop(job, None) else 0

    def _still_unknown(self, job: int, share: int) -> tuple[int, ...]:
        """What there is to measure on the way down from `share`."""
        way = self._smaller_shares(share, int(self._least[job]))
        return unknown(way, self._rates.get(job, {}))
