"""Discrete events in virtual time (AFS 5.1).

The scheduler of real clusters decides: its policies, packing and placement.

Theory of operation
-------------------

Between two events nothing changes. Events are arrivals, ends, switches (a job's new GPUs are ready), reviews that a
policy has asked for, and new measurements of how jobs scale. At all of them but switches the scheduler decides about
all jobs; changes cost as `Costs` states. All events of one moment are taken in before the scheduler is asked.

`Simulation.run` is the only loop. It is made of these parts, none of which treats particular policies, traces or costs
in a special way:

* `Jobs` (`jobs`): the jobs that have arrived and are not over, as the columns that policies see;
* `Progress` (`progress`): the jobs' progress with their GPUs, and the costs of changes;
* `Knowledge` (`knowledge`, `learning`): the policies' view of how jobs scale, which is the truth or the measurements so
  far;
* `IncrementalPlacement` (`scheduler.placement`), or `Typed` (`typed`): the GPUs of each job;
* `Outages` (`failures`): the GPUs that are out of order;
* `Reserved` (`reserved`): the GPUs that are out of use from one time to another;
* `Tenants` (`tenants`): the owners of the jobs, with their quotas;
* `Outcome` (`outcome`): the results.

The cost of a decision depends on the jobs that the policy examines and changes, not on the length of the trace or the
jobs that stay as they are.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..protocol.errors import UserError
from ..scheduler.admission import ADMIT_ALL, Admission, AdmissionState, Newcomer
from ..scheduler.arrays import Floats, Ints
from ..scheduler.deadline_guard import Deadlines
from ..scheduler.deadlines.admitting import ElasticflowAdmission
from ..scheduler.measuring import Measuring
from ..scheduler.pipeline import Decision, Division, decide, divide
from ..scheduler.placement.registry import FEWEST_SERVERS, IncrementalPlacement, Placement
from ..scheduler.policies import ELASTIC
from ..scheduler.policies.base import Policy
from ..scheduler.policies.elasticflow import Elasticflow
from ..scheduler.profiles.tables import Table
from ..scheduler.quotas.dividing import Tenancy
from ..scheduler.sets import union
from ..scheduler.view import NO_SCHEDULES, ClusterView, Gpus, JobTable, ServerInView
from .allowances import covering
from .costs import NONE, Costs
from .failures import Outages, Rates
from .jobs import Jobs
from .knowledge import Knowledge, KnownCurves
from .learning import MeasuredCurves
from .outcome import Blocking, Outcome
from .owners import By
from .progress import Progress
from .reserved import Period, Reserved
from .tenants import Tenants
from .typed import Typed, differs
from .workload import Begun, Workload

IDLE_REVIEWS = 10_000  # in a row; a policy that only waits for a time asks once


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
        failures: Rates | Table | None = None,
        begun: Begun | None = None,
        tenancy: Tenancy | None = None,
        deadlines: Deadlines | None = None,
        reserved: Sequence[Period] = (),
    ) -> None:
        """`packing`: shares are regulated so that no two jobs share a server's network (AFS 4.4).

        `watch`: called with each decision. `measuring`: how the policy finds out how jobs scale; None: it knows.
        `begun`: the state from which the simulation goes on; None: an empty cluster. `tenancy`: the owner of each job of
        the workload, and the quotas; None: there are no quotas. `deadlines`: those to keep beside the policy; None: those that
        the admission promises. `reserved`: when GPUs are out of use.
        """
        policy, admission = covering(policy, costs), covering(admission, costs)
        self._outages = None if failures is None else Outages(failures, cluster, seed)
        fixed = frozenset() if begun is None else frozenset(begun.fixed.nonzero()[0].tolist())
        self._reserved = Reserved(reserved, cluster) if reserved else None
        some_away = failures is not None or self._reserved is not None
        places = some_away or (tenancy is not None and bool(tenancy.stays)) or differs(workload, cluster)
        self._typed = Typed(workload, cluster, fixed) if places else None
        self._load = workload
        self._cluster = cluster
        self._packing = packing
        self._admission = admission
        self._watch = watch
        self._gpus = sum(len(server.gpus) for server in cluster)
        self._policy = policy
        self._deadlines = deadlines or _kept_beside(policy, admission, self._typed is not None)
        self._tenants = Tenants(workload.owners.get(By.USER), tenancy)
        self._rng = random.Random(seed)
        self._jobs = Jobs(workload, self._gpus)
        self._knowledge: Knowledge = (
            KnownCurves(self._jobs)
            if measuring is None
            else MeasuredCurves(self._jobs, workload.curves, cluster, policy, packing, measuring)
        )
        self._progress = Progress(self._jobs, workload, costs, self._knowledge.began)
        self._placement = placement
        self._placements: IncrementalPlacement = placement.incremental(cluster)
        self._schedules = NO_SCHEDULES  # the plan of the jobs with promises
        self._used = 0  # number of GPUs
        self._now = 0.0
        self._submit_s: list[float] = [*np.maximum(workload.submit_s, 0.0).tolist(), math.inf]
        self._begun = begun
        self._review_s = math.inf
        self._idle_reviews = 0  # in a row, without an arrival or a running job
        self._blocking = Blocking()
        self.outcome = Outcome.of(len(workload))

    def run(self, progress: Callable[[int], None] = lambda _: None, until_started: int | None = None) -> Outcome:
        """Run until all jobs that fit into the cluster are over, or until the job of this number has started.

        `progress`: called with the number of ended jobs.
        """
        began = time.perf_counter()
        ended = 0
        while (at := self._next_event()) < math.inf:
            if until_started is not None and not math.isnan(self.outcome.start_s[until_started]):
                break
            self._advance(at)
            arrived = self._arrive()
            if self._begun is not None and not self.outcome.events:
                self._go_on(self._begun)
            self._progress.switch()
            learned = self._knowledge.learn(self._jobs.run, at)
            over = self._end()
            if over:
                ended += over
                progress(ended)
            failed = self._fail()
            failed |= self._reserve()
            if arrived or learned or over or failed or at >= self._review_s:
                self._decide()
                self._idle_reviews = 0 if arrived or failed or len(self._jobs.run) else self._idle_reviews + 1
                if self._idle_reviews > IDLE_REVIEWS:
                    raise UserError(
                        f"{self._policy.name}: was called {IDLE_REVIEWS:,} times in a row as it had asked, and gave no GPU to "
                        f"any of {len(self._jobs)} waiting jobs"
                    )
            self.outcome.events += 1
            self._note()
        self._jobs.settle()
        self.outcome.executed_s, self.outcome.gpu_s = self._jobs.executed_s, self._jobs.gpu_s
        self.outcome.changes += self._jobs.changes  # in addition to those for measurements
        self.outcome.wall_s = time.perf_counter() - began
        return self.outcome

    def _go_on(self, begun: Begun) -> None:
        """Take over the state of the jobs that have begun, at the simulation's first moment."""
        jobs, columns = self._jobs, self._jobs.columns
        for name in ("left_s", "executed_s", "attained_gpu_s", "waiting_since_s", "changes"):
            getattr(columns, name)[:] = getattr(begun, name)
        numbers = begun.share.nonzero()[0]
        if not len(numbers):
            return
        shares = begun.share[numbers]
        places = jobs.places(numbers)
        if self._typed is None:
            self._placements.change(dict(zip(numbers.tolist(), shares.tolist(), strict=True)))
        else:
            assert begun.gpus is not None
            self._rescale(self._typed, self._typed.change({job: begun.gpus[job] for job in numbers.tolist()}))
        self._progress.works_with[numbers] = shares
        jobs.give(places, shares, places, stops=False)
        self._knowledge.given(numbers, shares)
        self.outcome.start_s[numbers] = self._now
        self._progress.work(numbers, places, np.zeros(len(numbers)))
        self._progress.refresh()
        self._used = int(shares.sum())

    # -- events

    def _next_event(self) -> float:
        arrival = self._submit_s[self._jobs.next]
        if not len(self._jobs):
            return arrival  # a review of no job changes nothing, and a policy may ask for one without end
        if self._reserved is not None:
            arrival = min(arrival, self._reserved.next_s(self._now))
        if not len(self._jobs.run):  # failures change nothing then
            repair_s = math.inf if self._outages is None else self._outages.repair_s()
            return min(arrival, self._review_s, repair_s)
        if self._outages is not None:
            arrival = min(arrival, self._outages.next_s())
        return min(arrival, self._progress.next_s(), self._knowledge.next_s(self._jobs.run), self._review_s)

    def _advance(self, at: float) -> None:
        self._now = at
        average = self._progress.advance(at)
        if average is not None:  # some jobs began meanwhile
            self.outcome.timeline.efficiency[-1] = average / self._gpus

    def _arrive(self) -> bool:
        jobs, submit_s = self._jobs, self._submit_s
        first = jobs.next
        if self._admission.by_view:
            return self._arrive_together()
        while submit_s[jobs.next] <= self._now:
            job = jobs.next
            admitted = self._admits(job)
            jobs.came()
            if admitted:
                self._tenants.came(job)
                self._blocking.add(self._load.work_s[job : job + 1], self._load.submit_s[job : job + 1])
            else:
                self._refuse(job)
        return jobs.next > first

    def _refuse(self, job: int) -> None:
        self.outcome.refused[job] = True
        self._jobs.remove(self._jobs.places(np.array([job])))

    def _arrive_together(self) -> bool:
        """Let all jobs arrive that are due, with an admission that sees them together in the view."""
        jobs, submit_s = self._jobs, self._submit_s
        first = jobs.next
        count = 0
        while submit_s[jobs.next] <= self._now:
            job = jobs.next
            jobs.came()
            if self._tenants.refusal(job):
                self._refuse(job)
            else:
                self._tenants.came(job)
                count += 1
        if not count:
            return jobs.next > first
        table = self._sees()
        view = self._view(table, {} if self._typed is None else self._by_row())
        newcomers = range(len(table) - count, len(table))
        if isinstance(self._admission, ElasticflowAdmission):
            busy = self._reserved.busy(self._now) if self._reserved is not None else ()
            promised = self._tenants.promised(table.rows)
            answers, self._schedules = self._admission.answers(view, newcomers, promised, busy)
        else:
            answers = self._admission.refusals(view, newcomers)
        refused = sorted(answers)
        admitted = np.setdiff1d(np.arange(newcomers.start, newcomers.stop), refused)
        numbers = table.rows[admitted]
        self._blocking.add(self._load.work_s[numbers], self._load.submit_s[numbers])
        if refused:
            self.outcome.refused[table.rows[refused]] = True
            self._tenants.left(table.rows[refused].tolist())
            jobs.remove(np.array(refused) + jobs.begin)
        return True

    def _admits(self, job: int) -> bool:
        """Return whether an arriving job is admitted."""
        if self._tenants.refusal(job):
            return False
        if self._admission is ADMIT_ALL:
            return True
        user, user_jobs = self._tenants.user(job)
        waiting = len(self._jobs) - len(self._jobs.run)
        situation = AdmissionState(gpus=self._gpus, waiting_jobs=waiting, user_jobs=user_jobs)
        return not self._admission.refusal(Newcomer(int(self._load.min_gpus[job]), user), situation)

    def _end(self) -> int:
        over = self._progress.over()
        if not len(over):
            return 0
        jobs = self._jobs
        numbers = jobs.numbers[over]
        self.outcome.end_s[numbers] = self._now
        self._used -= int(jobs.columns.share[over].sum())
        self._tenants.left(numbers.tolist())
        for job in numbers.tolist():
            (self._typed or self._placements).leave(job)
        jobs.finish(over)
        self._progress.refresh()
        return len(numbers)

    def _fail(self) -> bool:
        """Take in failures and repairs; return whether there were any."""
        if self._outages is None or self._typed is None or not self._outages.advance(self._now):
            return False
        moves = self._typed.fail(self._outages.down)
        self.outcome.failures = self._outages.count
        self.outcome.interrupted += len(moves)
        self._rescale(self._typed, moves)
        if moves:
            self._change(moves)
        return True

    def _reserve(self) -> bool:
        """Take GPUs that are reserved from now on, and return others; return whether there were any. Jobs leave these GPUs
        with the next decision, which cannot give them to any job.
        """
        if self._reserved is None or self._typed is None:
            return False
        typed, reserved = self._typed, self._reserved
        changed = reserved.advance(self._now, union(typed.gpus.values()), union(typed.kept.values()), typed.down)
        typed.reserved = reserved.gpus
        return changed

    def _rescale(self, typed: Typed, moves: Mapping[int, tuple[Gpus, Gpus]]) -> None:
        """Let jobs scale as on the GPUs that they get."""
        for job, (_, after) in moves.items():
            if after:
                self._progress.scale(job, typed.curve(job, after, self._progress.add_curve))

    # -- decisions

    def _sees(self) -> JobTable:
        table = self._knowledge.sees()
        table.schedules = self._schedules
        return table

    def _decide(self) -> None:
        if self._typed is not None:
            self._decide_typed(self._typed)
            return
        table = self._sees()
        view = self._view(table, {} if self._watch is None else self._by_row())
        began = time.perf_counter()
        decided = divide(view, self._policy, self._rng, self._packing, self._deadlines, self._tenants.of(table.rows))
        rows = _changed(table, decided)
        shares, stays = decided.shares[rows], decided.sharing.stay
        stay = table.rows[list(stays)].tolist() if stays else ()
        moves = self._placements.change(dict(zip(table.rows[rows].tolist(), shares.tolist(), strict=True)), stay=stay)
        self.outcome.decision_s.append(time.perf_counter() - began)
        self.outcome.decisions += 1
        if decided.schedules is not None:
            self._schedules = decided.schedules
        if self._watch is not None:
            self._watch(view, decided.placed(self._by_row()))
        self._review_s = decided.review_s if decided.review_s > self._now else math.inf
        if moves:
            self._change(moves)
        if self._knowledge.explores:
            self._explore()

    def _decide_typed(self, typed: Typed) -> None:
        table = self._sees()
        view = self._view(table, self._by_row())
        began = time.perf_counter()
        deadlines = self._deadlines
        if deadlines is not None and self._reserved is not None:
            deadlines = replace(deadlines, busy=self._reserved.busy(self._now))
        decided = decide(
            view,
            self._policy,
            self._rng,
            self._packing,
            placement=self._placement,
            deadlines=deadlines,
            tenancy=self._tenants.of(table.rows),
        )
        self.outcome.decision_s.append(time.perf_counter() - began)
        self.outcome.decisions += 1
        moves = typed.change({int(table.rows[row]): gpus for row, gpus in decided.placements.items() if gpus})
        self._rescale(typed, moves)
        if decided.kept is not None:
            self._schedules = decided.kept.schedules
        if self._watch is not None:
            self._watch(view, decided)
        self._review_s = decided.review_s if decided.review_s > self._now else math.inf
        if moves:
            self._change(moves)

    def _view(self, table: JobTable, present: Mapping[int, Gpus]) -> ClusterView:
        limits, limit_of = ((), None) if self._typed is None else self._typed.limits(table)
        by_hand = self._shares_by_hand(table) if self._begun is not None else {}
        view = ClusterView(self._now, table, self._cluster, present, by_hand, limits=limits, limit_of=limit_of)
        vars(view)["total_gpus"] = self._gpus  # avoids a count at each decision
        return view

    def _shares_by_hand(self, table: JobTable) -> dict[int, int]:
        """Return the shares that no policy decides about, by row: also those of fixed jobs with GPUs."""
        assert self._begun is not None
        numbers, share = table.rows, table.share
        by_hand = self._begun.by_hand[numbers]
        given = np.where((self._begun.fixed[numbers] > 0) & (share > 0), share, by_hand)
        rows = given.nonzero()[0]
        return dict(zip(rows.tolist(), given[rows].tolist(), strict=True))

    def _by_row(self) -> dict[int, Gpus]:
        """Return the placements by row, as policies know them."""
        begin = self._jobs.begin
        held = (self._typed or self._placements).gpus
        if self._typed is not None and self._typed.reserved:
            away = self._typed.reserved
            held = {job: left for job, gpus in held.items() if (left := gpus & ~away)}
        numbers = sorted(held)
        places = self._jobs.places(numbers).tolist()
        return {place - begin: held[job] for place, job in zip(places, numbers, strict=True)}

    def _change(self, moves: Mapping[int, tuple[Gpus, Gpus]]) -> None:
        """Change from one placement to another: first the jobs that stop, then those that start, then the others.

        `moves`: the GPUs before and after, by number.
        """
        by_number = sorted(moves.items())
        stops = [one for one in by_number if not one[1][1]]
        starts = [one for one in by_number if not one[1][0]]
        first_start, first_other = len(stops), len(stops) + len(starts)
        order = stops + starts
        if first_other < len(by_number):
            order += [one for one in by_number if all(one[1])]
        held = [gpus for _, gpus in order]
        counts = [has.bit_count() for _, has in held]
        self._used += sum(counts) - sum([had.bit_count() for had, _ in held])
        numbers, shares = np.array([job for job, _ in order]), np.array(counts)
        jobs, progress = self._jobs, self._progress
        places = jobs.places(numbers)
        progress.works_with[numbers] = shares
        jobs.give(places, shares, places[first_start:first_other], stops=first_start > 0)
        self._knowledge.given(numbers, shares)
        free_s = progress.free_s(numbers, held)
        if stops:
            self._stop(numbers[:first_start], places[:first_start])
        if starts:
            new = slice(first_start, first_other)
            self._start(numbers[new], places[new], free_s[new])
        if first_other < len(order):
            others = slice(first_other, None)
            self._resize(numbers[others], places[others], held[others], free_s[others])
        progress.refresh()

    def _count_blocked(self, places: Ints, count: Callable[..., None]) -> None:
        columns = self._jobs.columns
        count(columns.left_s[places], columns.submitted_s[places] + columns.executed_s[places])

    def _start(self, numbers: Ints, places: Ints, free_s: Floats) -> None:
        self._count_blocked(places, self._blocking.remove)
        self._jobs.columns.waiting_since_s[places] = math.nan
        start_s = self.outcome.start_s
        start_s[numbers[np.isnan(start_s[numbers])]] = self._now
        self._progress.start(numbers, places, free_s)

    def _stop(self, numbers: Ints, places: Ints) -> None:
        self._progress.fall_back(numbers, places)
        self._count_blocked(places, self._blocking.add)
        self._jobs.columns.waiting_since_s[places] = self._now
        self._progress.stop(numbers)
        self._jobs.columns.changes[places] += 1
        self.outcome.preemptions += len(numbers)

    def _resize(self, numbers: Ints, places: Ints, held: list[tuple[Gpus, Gpus]], free_s: Floats) -> None:
        """Resize running jobs.

        `held`: the GPUs before and after, of each. `free_s`: seconds until its new ones are free.
        """
        rest = self._progress.goes_on(numbers, places)
        if rest is not None:  # the last step of some is done: these keep their end times
            numbers, held, free_s = numbers[rest], [held[at] for at in rest.tolist()], free_s[rest]
            places = places[rest]
        keep_some = sum([before & after > 0 for before, after in held])
        self.outcome.resizes += keep_some
        self.outcome.migrations += len(held) - keep_some
        self._jobs.columns.changes[places] += 1
        self._progress.resize(numbers, places, held, free_s)

    def _explore(self) -> None:
        """Let jobs work with the part of their GPUs with which they are to be measured."""
        wanted = self._knowledge.wants(self._progress.resting())
        if wanted:
            numbers = np.array(list(wanted))
            self.outcome.resizes += len(numbers)
            self.outcome.changes[numbers] += 1
            self._progress.explore(numbers, self._jobs.places(numbers), np.array(list(wanted.values())))
            self._progress.refresh()

    def _note(self) -> None:
        line, jobs = self.outcome.timeline, self._jobs
        line.time_s.append(self._now)
        line.queue.append(len(jobs) - len(jobs.run))
        line.efficiency.append(self._progress.at_work() / self._gpus)
        line.blocking.append(self._blocking.index(self._now))
        line.used_gpus.append(self._used)


def _changed(jobs: JobTable, decided: Division) -> Ints:
    """Return the rows with changed shares."""
    share, given = jobs.share, decided.shares
    if decided.rows is None:
        others: Ints = (given != share).nonzero()[0]
        return others
    rows, running = decided.rows, jobs.running
    rows = rows[given[rows] != share[rows]]
    stops = running[np.logical_not(given[running])]
    return np.concatenate((rows, stops)) if len(stops) else rows


def _kept_beside(policy: Policy, admission: Admission, typed: bool) -> Deadlines | None:
    """Return deadlines to keep beside the policy: those that `elasticflow` admits, under each policy that may change
    shares at any time, as on a real cluster. `typed`: the policy `elasticflow`, too, plans each GPU type by itself."""
    if typed and type(policy) is Elasticflow:
        return Deadlines(policy.parameters)
    if policy.name not in ELASTIC or not isinstance(admission, ElasticflowAdmission):
        return None
    return Deadlines(admission.parameters)
