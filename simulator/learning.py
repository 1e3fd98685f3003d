"""The policies' view of how jobs scale where throughput has to be measured: the measurements so far (AFS 4.5).

The estimates, the fair share of a new job, the shares on the way down and the decision when that is worthwhile are the
scheduler's own (`scheduler.speedup_curve`, `scheduler.measuring`). This module only determines when a measurement is
ready. Going down and up again costs as much as every change of a job's GPUs.

* A step is the work of a second on one GPU.
* Every job is measured by itself, even if an earlier one had the same model.
* Throughput is the table's for a share, wherever its GPUs are. So it is noted as measured on the fewest servers.
* Policies that know lengths know them in seconds on one GPU. A job may not have been measured on one GPU. Then policies
  see the length that makes its remaining time right for the share with which it has been measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from ..scheduler.arrays import Floats, Ints, least_of
from ..scheduler.curves import Curves
from ..scheduler.hull import concave
from ..scheduler.measuring import Measuring, first_share, smaller_shares, unknown, worth_measuring
from ..scheduler.packing import server_size
from ..scheduler.policies import RIGID
from ..scheduler.policies.base import Policy
from ..scheduler.speedup_curve import Rate, Source, estimate, fewest_servers, peak
from ..scheduler.view import UNKNOWN_S, JobTable, ServerInView
from .jobs import Jobs


class MeasuredCurves:
    """Knowledge from measurements alone."""

    def __init__(
        self,
        jobs: Jobs,
        curves: Curves,
        cluster: tuple[ServerInView, ...],
        policy: Policy,
        packing: bool,
        measuring: Measuring,
    ) -> None:
        """Start without measurements. Of `curves` only the largest share is known."""
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
        self._peak = self._most.copy()  # best share as far as is known
        self._estimates = np.tile(np.arange(most + 1, dtype=np.float64), (n, 1))  # steps per second by job and share
        self._seen_curves = Curves(self._estimates.copy())  # relative to one GPU
        self._rates: dict[int, dict[int, Rate]] = {}  # measurements by job and share
        self._fresh = np.ones(n, dtype=np.bool_)  # whether nothing has been measured yet
        self._works_with = np.zeros(n, dtype=np.int64)  # GPUs
        self._steps_per_s = np.zeros(n)  # with these
        self._measured_s = np.full(n, math.inf)  # when the measurement with the present share will be complete
        self._way: dict[int, tuple[int, ...]] = {}  # shares still to be measured on a job's way down

    # -- events

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

    # -- knowledge

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
        """Return the next share on the job's way down, or all its GPUs at the end of the way; 0: no change."""
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
            return 0  # the measurement is in progress
        if way:
            self._way[job] = way
            return way[0]
        return share if self._way.pop(job, None) else 0

    def _still_unknown(self, job: int, share: int) -> tuple[int, ...]:
        """Return the shares to measure on the way down from `share`."""
        way = self._smaller_shares(share, int(self._least[job]))
        return unknown(way, self._rates.get(job, {}))
