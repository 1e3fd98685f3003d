"""Discrete events in virtual time (AFS 5.1). What decides is the scheduler of real clusters: its policies, packing and placement.

Theory of operation
-------------------
Between two events nothing changes: each running job works at the rate of its share. Events are arrivals, ends, switches (a job's
new GPUs are ready) and reviews that a policy has asked for. At an arrival, an end or a review the scheduler decides about all;
what changes costs what `Costs` says. All events of one moment are taken in before it is asked.

Jobs' states are columns as long as the trace, and `active` lists the rows that are not over, so that a decision costs what the
policy looks at, not what the trace holds. A review may change all running jobs at once, so changes of one kind are made together.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..controller.scheduling.pipeline import decide
from ..controller.scheduling.policies.base import Policy
from ..controller.scheduling.throughput import concave
from ..controller.scheduling.view import ClusterView, Columns, Curves, Floats, Gpus, Ints, JobTable, ServerInView
from .costs import NONE, Costs
from .workload import Workload

SHORTEST_S = 1.0

Bools = npt.NDArray[np.bool_]


@dataclass
class Timeline:
    """What the cluster looked like from each event to the next."""

    time_s: list[float] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    efficiency: list[float] = field(default_factory=list)
    blocking: list[float] = field(default_factory=list)  # at the beginning of the interval
    used_gpus: list[int] = field(default_factory=list)


@dataclass
class Outcome:
    """All that happened to the jobs, and to the cluster."""

    start_s: Floats  # first GPU; nan: never
    end_s: Floats
    resizes: int
    preemptions: int
    migrations: int
    events: int
    decisions: int
    wall_s: float
    decision_s: list[float]
    timeline: Timeline


class Simulation:
    """One trace under one policy."""

    def __init__(
        self,
        workload: Workload,
        cluster: tuple[ServerInView, ...],
        policy: Policy,
        costs: Costs = NONE,
        seed: int = 0,
        packing: bool = False,
    ) -> None:
        """`packing`: shares are regulated so that no two jobs share a server's network (AFS 4.4)."""
        n = len(workload)
        self._load = workload
        self._cluster = cluster
        self._packing = packing
        self._gpus = sum(len(server.gpus) for server in cluster)
        self._policy = policy
        self._costs = costs
        self._switching = costs.switches
        self._rng = random.Random(seed)
        self._speedup = workload.curves.speedup
        self._curves = Curves(concave(workload.curves.speedup))
        self.columns = Columns(
            names=workload.names,
            submitted_s=workload.submit_s,
            min_gpus=workload.min_gpus,
            max_gpus=np.minimum(workload.max_gpus, self._gpus),
            requested_gpus=workload.requested_gpus,
            priority=np.zeros(n, dtype=np.int64),
            share=np.zeros(n, dtype=np.int64),
            left_s=workload.work_s.copy(),
            attained_gpu_s=np.zeros(n),
            executed_s=np.zeros(n),
            waiting_since_s=workload.submit_s.copy(),
            curve=workload.curve,
        )
        self._active: Ints = np.empty(0, dtype=np.int64)
        self._running: Ints = np.empty(0, dtype=np.int64)
        self._placed: dict[int, Gpus] = {}
        self._rate = np.zeros(n)
        self._idle_until_s = np.zeros(n)
        self._all_work_from_s = 0.0  # from then on no job stands still
        self._end_s = np.full(n, math.inf)  # if nothing changes
        self._switch_s = np.full(n, math.inf)
        self._now = 0.0
        self._next = 0  # arrival
        self._review_s = math.inf
        self._blocking = _Blocking()
        self.outcome = Outcome(np.full(n, np.nan), np.full(n, np.nan), 0, 0, 0, 0, 0, 0.0, [], Timeline())

    def run(self, progress: Callable[[int], None] = lambda _: None) -> Outcome:
        """Until all jobs that fit into the cluster are over. `progress` is told how many are."""
        began = time.perf_counter()
        ended = 0
        while (at := self._next_event()) < math.inf:
            self._advance(at)
            decide = self._arrive() | self._switch() | (at >= self._review_s)
            over = self._end()
            if over:
                ended += over
                progress(ended)
            if decide or over:
                self._decide()
            self.outcome.events += 1
            self._note()
        self.outcome.wall_s = time.perf_counter() - began
        return self.outcome

    # -- events

    def _next_event(self) -> float:
        arrival = float(self._load.submit_s[self._next]) if self._next < len(self._load) else math.inf
        running = self._running
        if not len(running):
            return min(arrival, self._review_s)
        ends = float(self._end_s[running].min())
        if not self._switching:
            return min(arrival, ends, self._review_s)
        switches = float(self._switch_s[running].min())
        return min(arrival, ends, switches, self._review_s)

    def _advance(self, at: float) -> None:
        """Let the running jobs work until `at`."""
        before, self._now = self._now, at
        passed = at - before
        rows = self._running
        if passed <= 0 or not len(rows):
            return
        columns = self.columns
        worked: float | Floats = passed
        if self._all_work_from_s > before:
            worked = np.maximum(at - np.maximum(self._idle_until_s[rows], before), 0.0)
        columns.left_s[rows] = np.maximum(columns.left_s[rows] - self._rate[rows] * worked, 0.0)
        columns.executed_s[rows] += passed
        columns.attained_gpu_s[rows] += columns.share[rows] * passed

    def _arrive(self) -> bool:
        begin = self._next
        submit_s = self._load.submit_s
        while self._next < len(self._load) and submit_s[self._next] <= self._now:
            self._blocking.add(float(self._load.work_s[self._next]), float(submit_s[self._next]))
            self._next += 1
        if self._next > begin:
            self._active = np.concatenate([self._active, np.arange(begin, self._next)])
        return self._next > begin

    def _switch(self) -> bool:
        """New GPUs of some jobs are ready."""
        if not self._switching:
            return False
        for row in self._running[self._switch_s[self._running] <= self._now].tolist():
            self._work(row, self._cost(row).pause_s)
        return False

    def _end(self) -> int:
        ends = self._end_s[self._running] <= self._now
        if not ends.any():
            return 0
        over = self._running[ends]
        self.outcome.end_s[over] = self._now
        self.columns.share[over] = 0
        for job in over.tolist():
            del self._placed[job]
        self._running = self._running[~ends]
        stay = np.ones(len(self._active), dtype=bool)
        stay[np.searchsorted(self._active, over)] = False
        self._active = self._active[stay]
        return len(over)

    # -- decisions

    def _decide(self) -> None:
        table = JobTable(self.columns, self._active, self._curves)
        at = np.searchsorted(self._active, self._running).tolist()
        present = {row: self._placed[job] for row, job in zip(at, self._running.tolist(), strict=True)}
        view = ClusterView(self._now, table, self._cluster, present)
        began = time.perf_counter()
        decision = decide(view, self._policy, self._rng, self._packing)
        self.outcome.decision_s.append(time.perf_counter() - began)
        self.outcome.decisions += 1
        self._review_s = decision.review_s if decision.review_s > self._now else math.inf
        self._change(present, decision.placements)
        self._running = self._active[np.flatnonzero(decision.shares)]

    def _change(self, present: Mapping[int, Gpus], decided: Mapping[int, Gpus]) -> None:
        """From one placement to another one, both by row of `active`."""
        rows = [row for row, gpus in decided.items() if present.get(row) != gpus]
        rows += [row for row in present if row not in decided]
        if not rows:
            return
        rows.sort()
        jobs = self._active[rows]
        before, after = [present.get(row, 0) for row in rows], [decided.get(row, 0) for row in rows]
        self.columns.share[jobs] = [gpus.bit_count() for gpus in after]
        for job, gpus in zip(jobs.tolist(), after, strict=True):
            if gpus:
                self._placed[job] = gpus
            else:
                del self._placed[job]
        had, has = np.array([gpus > 0 for gpus in before]), np.array([gpus > 0 for gpus in after])
        self._count_blocked(jobs, had, has)
        self._start(jobs[~had])
        self._stop(jobs[~has])
        for at in np.flatnonzero(had & has).tolist():
            self._resize(int(jobs[at]), before[at], after[at])

    def _count_blocked(self, jobs: Ints, had: Bools, has: Bools) -> None:
        """Those that stop begin to wait, those that start do not any more; the sums are made in the order of the jobs."""
        columns = self.columns
        turned = had != has
        jobs, stops = jobs[turned], had[turned].tolist()
        since_s = columns.submitted_s[jobs] + columns.executed_s[jobs]
        for left_s, since, stop in zip(columns.left_s[jobs].tolist(), since_s.tolist(), stops, strict=True):
            if stop:
                self._blocking.add(left_s, since)
            else:
                self._blocking.remove(left_s, since)

    def _start(self, jobs: Ints) -> None:
        if not len(jobs):
            return
        self.columns.waiting_since_s[jobs] = math.nan
        starts = self.outcome.start_s
        starts[jobs[np.isnan(starts[jobs])]] = self._now
        if self._costs.by_model:
            for job in jobs.tolist():
                self._work(job, self._cost(job).start_s)
        else:
            self._work(jobs, self._costs.start_s)

    def _stop(self, jobs: Ints) -> None:
        if not len(jobs):
            return
        self.columns.waiting_since_s[jobs] = self._now
        self._rate[jobs] = 0.0
        self._end_s[jobs] = self._switch_s[jobs] = math.inf
        self.outcome.preemptions += len(jobs)

    def _resize(self, job: int, before: Gpus, after: Gpus) -> None:
        costs = self._cost(job)
        if before & after:
            self.outcome.resizes += 1
        else:
            self.outcome.migrations += 1
        waits_s = self._idle_until_s[job] - self._now
        if waits_s > 0:  # it has not begun yet, or stands still
            self._work(job, max(waits_s, costs.pause_s))
        elif after & ~before and costs.ready_s:
            self._switch_s[job] = self._now + costs.ready_s
        else:
            self._work(job, costs.pause_s)

    def _cost(self, job: int) -> Costs:
        costs = self._costs
        return costs.of(self._load.models[self.columns.curve[job]]) if costs.by_model else costs

    def _work(self, jobs: int | Ints, wait_s: float) -> None:
        """One or several, each at the rate of its share, after a while."""
        rate = self._speedup[self.columns.curve[jobs], self.columns.share[jobs]]
        self._rate[jobs] = rate
        self._idle_until_s[jobs] = self._now + wait_s
        self._all_work_from_s = max(self._all_work_from_s, self._now + wait_s)
        self._end_s[jobs] = self._now + wait_s + self.columns.left_s[jobs] / rate
        self._switch_s[jobs] = math.inf

    def _note(self) -> None:
        line, running = self.outcome.timeline, self._running
        line.time_s.append(self._now)
        line.queue.append(len(self._active) - len(running))
        line.efficiency.append(float(self._rate[running] @ (self._idle_until_s[running] <= self._now)) / self._gpus)
        line.blocking.append(self._blocking.index(self._now))
        line.used_gpus.append(int(self.columns.share[running].sum()))


class _Blocking:
    """AFS's blocking index: the mean over waiting jobs of time waited over time left on one GPU (AFS 2.2), kept as two sums.

    A job that has less than a second left counts as if that was what it has left: it has been interrupted at its end, and would
    outweigh all others.
    """

    def __init__(self) -> None:
        self._count = 0
        self._inverse = 0.0
        self._offset = 0.0

    def add(self, left_s: float, since_s: float) -> None:
        """A job waits that has not had GPUs since `since_s`, counted as if its running time had come before its submission."""
        self._count += 1
        left_s = max(left_s, SHORTEST_S)
        self._inverse += 1.0 / left_s
        self._offset += since_s / left_s

    def remove(self, left_s: float, since_s: float) -> None:
        self._count -= 1
        if not self._count:
            self._inverse = self._offset = 0.0
        else:
            left_s = max(left_s, SHORTEST_S)
            self._inverse -= 1.0 / left_s
            self._offset -= since_s / left_s

    def index(self, now: float) -> float:
        return (self._inverse * now - self._offset) / self._count if self._count else 0.0
