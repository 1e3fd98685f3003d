"""Discrete events in virtual time (AFS 5.1). What decides is the scheduler of real clusters: its policies, packing and placement.

Theory of operation
-------------------
Between two events nothing changes: each running job works at the rate of its share. Events are arrivals, ends, switches (a job's
new GPUs are ready) and reviews that a policy has asked for. At an arrival, an end or a review the scheduler decides about all;
what changes costs what `Costs` says. All events of one moment are taken in before it is asked.

Jobs' states are columns as long as the trace, and `active` lists the rows that are not over, so that a decision costs what the
policy looks at, not what the trace holds. A review may change all running jobs at once, so changes of one kind are made together;
what they cost is a column for each kind of cost (`_Prices`).

What policies see of how jobs scale is a `Knowledge`: the true curves, or what has been measured so far. It also says when more
will be known, which is an event, and with how many of its GPUs a job is to be measured.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..scheduler.admission import ADMIT_ALL, Admission, Newcomer, Situation
from ..scheduler.measuring import Measuring
from ..scheduler.pipeline import Decision, decide
from ..scheduler.placement.registry import FEWEST_SERVERS, Placement
from ..scheduler.policies.base import Policy
from ..scheduler.view import ClusterView, Columns, Floats, Gpus, Ints, ServerInView
from .costs import NONE, Costs
from .knowledge import Knowledge, KnownCurves
from .learning import MeasuredCurves
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
    executed_s: Floats  # time with any GPU
    gpu_s: Floats  # GPU-seconds that it had
    changes: Ints  # of its GPUs while it ran, being taken all of them included


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
        placement: Placement = FEWEST_SERVERS,
        admission: Admission = ADMIT_ALL,
        watch: Callable[[ClusterView, Decision], None] | None = None,
        measuring: Measuring | None = None,
    ) -> None:
        """`packing`: shares are regulated so that no two jobs share a server's network (AFS 4.4).

        `watch` is told each decision. `measuring`: how the policy finds out how jobs scale; None: it knows.
        """
        n = len(workload)
        self._load = workload
        self._cluster = cluster
        self._packing = packing
        self._placement = placement
        self._admission = admission
        self._watch = watch
        self._gpus = sum(len(server.gpus) for server in cluster)
        self._policy = policy
        self._prices = _Prices(costs, workload)
        self._switching = costs.switches
        self._releasing = costs.releases
        self._rng = random.Random(seed)
        self._speedup = workload.curves.speedup
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
        self._knowledge: Knowledge = (
            KnownCurves(self.columns, workload.curves)
            if measuring is None
            else MeasuredCurves(self.columns, workload.curves, cluster, policy, packing, measuring)
        )
        self._active: Ints = np.empty(0, dtype=np.int64)
        self._running: Ints = np.empty(0, dtype=np.int64)
        self._placed: dict[int, Gpus] = {}
        self._works_with = np.zeros(n, dtype=np.int64)  # GPUs, all or some of its own; those to come are counted
        self._rate = np.zeros(n)
        self._idle_until_s = np.zeros(n)
        self._given_s = np.zeros(n)  # when it got its first GPUs, the last time that it had none
        self._all_work_from_s = 0.0  # from then on no job stands still
        self._end_s = np.full(n, math.inf)  # if nothing changes
        self._switch_s = np.full(n, math.inf)
        self._now = 0.0
        self._next = 0  # arrival
        self._review_s = math.inf
        self._blocking = _Blocking()
        self.outcome = Outcome(
            start_s=np.full(n, np.nan),
            end_s=np.full(n, np.nan),
            resizes=0,
            preemptions=0,
            migrations=0,
            events=0,
            decisions=0,
            wall_s=0.0,
            decision_s=[],
            timeline=Timeline(),
            executed_s=self.columns.executed_s,
            gpu_s=self.columns.attained_gpu_s,
            changes=np.zeros(n, dtype=np.int64),
        )

    def run(self, progress: Callable[[int], None] = lambda _: None) -> Outcome:
        """Until all jobs that fit into the cluster are over. `progress` is told how many are."""
        began = time.perf_counter()
        ended = 0
        while (at := self._next_event()) < math.inf:
            self._advance(at)
            arrived = self._arrive()
            self._switch()
            learned = self._knowledge.learn(self._running, at)
            over = self._end()
            if over:
                ended += over
                progress(ended)
            if arrived or learned or over or at >= self._review_s:
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
        learns = self._knowledge.next_s(running)
        if not self._switching:
            return min(arrival, ends, learns, self._review_s)
        switches = float(self._switch_s[running].min())
        return min(arrival, ends, switches, learns, self._review_s)

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
            done = np.minimum(self._rate[rows] * worked, columns.left_s[rows])
            self.outcome.timeline.efficiency[-1] = float(done.sum()) / passed / self._gpus  # some began meanwhile
        columns.left_s[rows] = np.maximum(columns.left_s[rows] - self._rate[rows] * worked, 0.0)
        columns.executed_s[rows] += passed
        columns.attained_gpu_s[rows] += columns.share[rows] * passed

    def _arrive(self) -> bool:
        begin = self._next
        submit_s = self._load.submit_s
        admitted: list[int] = []
        while self._next < len(self._load) and submit_s[self._next] <= self._now:
            if self._admits(self._next, len(admitted)):
                admitted.append(self._next)
                self._blocking.add(float(self._load.work_s[self._next]), float(submit_s[self._next]))
            self._next += 1
        if admitted:
            self._active = np.concatenate([self._active, admitted])
        return self._next > begin

    def _admits(self, job: int, others: int) -> bool:
        """Is a job that arrives admitted? `others`: have been, at the same moment. Traces do not tell whose jobs they are."""
        if self._admission is ADMIT_ALL:
            return True
        waiting = len(self._active) - len(self._running) + others
        situation = Situation(gpus=self._gpus, waiting_jobs=waiting, user_jobs=0)
        return not self._admission.refusal(Newcomer(int(self._load.min_gpus[job]), user=""), situation)

    def _switch(self) -> None:
        """New GPUs of some jobs are ready."""
        if not self._switching:
            return
        ready = self._running[self._switch_s[self._running] <= self._now]
        if len(ready):
            self._work(ready, self._prices.pause_s[ready])

    def _end(self) -> int:
        ends = self._end_s[self._running] <= self._now
        if not np.count_nonzero(ends):
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
        table = self._knowledge.sees(self._active)
        at = np.searchsorted(self._active, self._running).tolist()
        present = {row: self._placed[job] for row, job in zip(at, self._running.tolist(), strict=True)}
        view = ClusterView(self._now, table, self._cluster, present)
        began = time.perf_counter()
        decision = decide(view, self._policy, self._rng, self._packing, placement=self._placement)
        self.outcome.decision_s.append(time.perf_counter() - began)
        self.outcome.decisions += 1
        if self._watch is not None:
            self._watch(view, decision)
        self._review_s = decision.review_s if decision.review_s > self._now else math.inf
        self._change(present, decision.placements)
        self._running = self._active[np.flatnonzero(decision.shares > 0)]
        if self._knowledge.explores:
            self._explore()

    def _change(self, present: Mapping[int, Gpus], decided: Mapping[int, Gpus]) -> None:
        """From one placement to another one, both by row of `active`."""
        rows = [row for row, gpus in decided.items() if present.get(row) != gpus]
        rows += [row for row in present if row not in decided]
        if not rows:
            return
        rows.sort()
        jobs = self._active[rows]
        before, after = [present.get(row, 0) for row in rows], [decided.get(row, 0) for row in rows]
        shares = np.array([gpus.bit_count() for gpus in after])
        self.columns.share[jobs] = self._works_with[jobs] = shares
        self._knowledge.given(jobs, shares)
        for job, gpus in zip(jobs.tolist(), after, strict=True):
            if gpus:
                self._placed[job] = gpus
            else:
                del self._placed[job]
        free_s = self._free_s(jobs, before, after)
        moves = list(zip(before, after, strict=True))
        starts = [at for at, (had, _) in enumerate(moves) if not had]
        stops = [at for at, (_, has) in enumerate(moves) if not has]
        stay = [at for at, (had, has) in enumerate(moves) if had and has]
        if stops:
            self._fall_back(jobs[stops])
        if starts or stops:
            turned = sorted(starts + stops)
            self._count_blocked(jobs[turned], [before[at] > 0 for at in turned])
        if starts:
            self._start(jobs[starts], free_s[starts])
        if stops:
            self._stop(jobs[stops])
        if stay:
            self._resize(jobs[stay], [moves[at] for at in stay], free_s[stay])

    def _free_s(self, jobs: Ints, before: Sequence[Gpus], after: Sequence[Gpus]) -> Floats:
        """How long each of these jobs waits until running jobs have given up the GPUs that it gets.

        One that keeps none of its own goes on with them until its new ones are ready.
        """
        free_s = np.zeros(len(jobs))
        if self._releasing:
            given_up = left_late = 0
            for had, has in zip(before, after, strict=True):
                given_up |= had & ~has
                left_late |= had if has and not had & has else 0
            for at, (had, has) in enumerate(zip(before, after, strict=True)):
                if taken := has & ~had & given_up:
                    release_s, ready_s = self._prices.release_s[jobs[at]], self._prices.ready_s[jobs[at]]
                    free_s[at] = release_s + (ready_s if taken & left_late else 0.0)
        return free_s

    def _count_blocked(self, jobs: Ints, stops: Sequence[bool]) -> None:
        """Those that stop begin to wait, the others do not wait any more; the sums are made in the order of the jobs."""
        columns = self.columns
        since_s = columns.submitted_s[jobs] + columns.executed_s[jobs]
        for left_s, since, stop in zip(columns.left_s[jobs].tolist(), since_s.tolist(), stops, strict=True):
            if stop:
                self._blocking.add(left_s, since)
            else:
                self._blocking.remove(left_s, since)

    def _start(self, jobs: Ints, free_s: Floats) -> None:
        self.columns.waiting_since_s[jobs] = math.nan
        self._given_s[jobs] = self._now + free_s
        starts = self.outcome.start_s
        starts[jobs[np.isnan(starts[jobs])]] = self._now
        self._work(jobs, free_s + self._prices.start_s[jobs])

    def _fall_back(self, jobs: Ints) -> None:
        """Jobs that give all their GPUs up go on from their last checkpoint later."""
        every_s = self._prices.checkpoint_every_s[jobs]
        trained_s = self._now - self._given_s[jobs] - self._prices.start_s[jobs]
        falls = (every_s > 0) & (trained_s > 0)
        if np.count_nonzero(falls):
            jobs = jobs[falls]
            lost_s = trained_s[falls] % every_s[falls]
            left_s = self.columns.left_s[jobs] + lost_s * self._rate[jobs]
            self.columns.left_s[jobs] = np.minimum(self._load.work_s[jobs], left_s)

    def _stop(self, jobs: Ints) -> None:
        self.columns.waiting_since_s[jobs] = self._now
        self._rate[jobs] = 0.0
        self._end_s[jobs] = self._switch_s[jobs] = math.inf
        self.outcome.preemptions += len(jobs)
        self.outcome.changes[jobs] += 1

    def _resize(self, jobs: Ints, held: Sequence[tuple[Gpus, Gpus]], free_s: Floats) -> None:
        """`held`: the GPUs before and after, of each; `free_s`: until its new ones are free."""
        prices = self._prices
        over = (prices.end_s[jobs] > 0) & (self.columns.left_s[jobs] <= 0)
        if np.count_nonzero(over):  # the last step of some is done: they keep to their ends
            stay = np.flatnonzero(~over)
            jobs, held, free_s = jobs[stay], [held[at] for at in stay.tolist()], free_s[stay]
        keep_some = sum([before & after > 0 for before, after in held])
        self.outcome.resizes += keep_some
        self.outcome.migrations += len(held) - keep_some
        self.outcome.changes[jobs] += 1
        waits_s = self._idle_until_s[jobs] - self._now  # above 0: it has not begun yet, or stands still
        pause_s = np.maximum(waits_s, prices.pause_s[jobs])
        if self._switching:
            takes = np.array([after & ~before > 0 for before, after in held], dtype=bool)
            later = takes & (waits_s <= 0) & (free_s + prices.ready_s[jobs] > 0)
            self._switch_s[jobs[later]] = self._now + free_s[later] + prices.ready_s[jobs[later]]
            jobs, pause_s = jobs[~later], pause_s[~later]
        if len(jobs):
            self._work(jobs, pause_s)

    def _explore(self) -> None:
        """Let jobs work with as many of their GPUs as they are to be measured with."""
        running = self._running
        resting = running[(self._idle_until_s[running] <= self._now) & (self._switch_s[running] == math.inf)]
        wanted = self._knowledge.wants(resting)
        if not wanted:
            return
        jobs, gpus = np.array(list(wanted)), np.array(list(wanted.values()))
        ready_s = self._prices.ready_s[jobs]
        later = (gpus > self._works_with[jobs]) & (ready_s > 0)
        self._works_with[jobs] = gpus
        self.outcome.resizes += len(jobs)
        self.outcome.changes[jobs] += 1
        self._switch_s[jobs[later]] = self._now + ready_s[later]
        if len(jobs := jobs[~later]):
            self._work(jobs, self._prices.pause_s[jobs])

    def _work(self, jobs: Ints, wait_s: Floats) -> None:
        """Each at the rate of its share, after a while."""
        gpus = self._works_with[jobs]
        rate = self._speedup[self.columns.curve[jobs], gpus]
        begin_s = self._now + wait_s
        self._rate[jobs] = rate
        self._idle_until_s[jobs] = begin_s
        self._all_work_from_s = max(self._all_work_from_s, self._now + float(wait_s.max()))
        self._end_s[jobs] = begin_s + self.columns.left_s[jobs] / rate + self._prices.end_s[jobs]
        self._switch_s[jobs] = math.inf
        self._knowledge.began(jobs, gpus, rate, begin_s)

    def _note(self) -> None:
        line, running = self.outcome.timeline, self._running
        line.time_s.append(self._now)
        line.queue.append(len(self._active) - len(running))
        line.efficiency.append(float(self._rate[running] @ (self._idle_until_s[running] <= self._now)) / self._gpus)
        line.blocking.append(self._blocking.index(self._now))
        line.used_gpus.append(int(self.columns.share[running].sum()))


class _Prices:
    """What changes cost each job of a workload (s), by the names of `Costs`."""

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
