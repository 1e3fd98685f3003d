"""Discrete events in virtual time (AFS 5.1). What decides is the scheduler of real clusters: its policies, packing and placement.

Theory of operation
-------------------
Between two events nothing changes: each running job works at the rate of its share. Events are arrivals, ends, switches (a job's
new GPUs are ready) and reviews that a policy has asked for. At an arrival, an end or a review the scheduler decides about all;
what changes costs what `Costs` says. All events of one moment are taken in before it is asked.

Jobs' states are columns as long as the trace, and `active` lists the rows that are not over, so that a decision costs what the
policy looks at, not what the trace holds.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..controller.scheduling.pipeline import decide
from ..controller.scheduling.policies.base import Policy
from ..controller.scheduling.throughput import concave
from ..controller.scheduling.view import ClusterView, Columns, Curves, Floats, Gpus, Ints, JobTable, ServerInView
from .costs import NONE, Costs
from .workload import Workload

SHORTEST_S = 1.0


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
        worked = np.maximum(at - np.maximum(self._idle_until_s[rows], before), 0.0)
        columns.left_s[rows] = np.maximum(columns.left_s[rows] - self._rate[rows] * worked, 0.0)
        columns.executed_s[rows] += passed
        columns.attained_gpu_s[rows] += columns.share[rows] * passed

    def _arrive(self) -> bool:
        begin = self._next
        submit_s = self._load.submit_s
        while self._next < len(self._load) and submit_s[self._next] <= self._now:
            self._blocking.add(self._load.work_s[self._next], submit_s[self._next])
            self._next += 1
        if self._next > begin:
            self._active = np.concatenate([self._active, np.arange(begin, self._next)])
        return self._next > begin

    def _switch(self) -> bool:
        """New GPUs of some jobs are ready."""
        for row in self._running[self._switch_s[self._running] <= self._now].tolist():
            self._work(row, self._cost(row).pause_s)
        return False

    def _end(self) -> int:
        over = self._running[self._end_s[self._running] <= self._now]
        if not len(over):
            return 0
        self.outcome.end_s[over] = self._now
        self.columns.share[over] = 0
        for job in over.tolist():
            del self._placed[job]
        self._running = self._running[~np.isin(self._running, over)]
        self._active = np.delete(self._active, np.searchsorted(self._active, over))
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
        changes = [
            (row, present.get(row, 0), decision.placements.get(row, 0))
            for row in sorted({*present, *decision.placements})
        ]
        given_up = 0
        for _, before, after in changes:
            given_up |= before & ~after
        for row, before, after in changes:
            if before != after:
                self._change(int(self._active[row]), before, after, bool(after & ~before & given_up))
        self._running = self._active[np.flatnonzero(decision.shares)]

    def _change(self, job: int, before: Gpus, after: Gpus, from_others: bool) -> None:
        """`from_others`: some of its new GPUs are still to be given up by a running job."""
        columns = self.columns
        columns.share[job] = after.bit_count()
        if after:
            self._placed[job] = after
        waits_s = self._cost(job).release_s if from_others else 0.0
        if not before:
            self._start(job, waits_s)
        elif not after:
            self._stop(job)
        else:
            self._resize(job, before, after, waits_s)

    def _start(self, job: int, free_s: float) -> None:
        columns = self.columns
        self._blocking.remove(columns.left_s[job], columns.submitted_s[job] + columns.executed_s[job])
        columns.waiting_since_s[job] = math.nan
        if math.isnan(self.outcome.start_s[job]):
            self.outcome.start_s[job] = self._now
        self._work(job, free_s + self._cost(job).start_s)

    def _stop(self, job: int) -> None:
        columns = self.columns
        del self._placed[job]
        self._blocking.add(columns.left_s[job], columns.submitted_s[job] + columns.executed_s[job])
        columns.waiting_since_s[job] = self._now
        self._rate[job] = 0.0
        self._end_s[job] = self._switch_s[job] = math.inf
        self.outcome.preemptions += 1

    def _resize(self, job: int, before: Gpus, after: Gpus, free_s: float) -> None:
        """`free_s`: until its new GPUs are free."""
        costs = self._cost(job)
        if costs.end_s and self.columns.left_s[job] <= 0:
            return  # its last step is done: it keeps to its end
        if before & after:
            self.outcome.resizes += 1
        else:
            self.outcome.migrations += 1
        waits_s = self._idle_until_s[job] - self._now
        if waits_s > 0:  # it has not begun yet, or stands still
            self._work(job, max(waits_s, costs.pause_s))
        elif after & ~before and free_s + costs.ready_s:
            self._switch_s[job] = self._now + free_s + costs.ready_s
        else:
            self._work(job, costs.pause_s)

    def _cost(self, job: int) -> Costs:
        costs = self._costs
        return costs.of(self._load.models[self.columns.curve[job]]) if costs.by_model else costs

    def _work(self, job: int, wait_s: float) -> None:
        """At the rate of its share, after a while."""
        rate = float(self._speedup[self.columns.curve[job], self.columns.share[job]])
        self._rate[job] = rate
        self._idle_until_s[job] = self._now + wait_s
        self._end_s[job] = self._now + wait_s + self.columns.left_s[job] / rate + self._cost(job).end_s
        self._switch_s[job] = math.inf

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
