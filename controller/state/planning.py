"""State of planning: the scheduler in use, the results of its last decision, and when the next one is due."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...protocol.messages import ShareForecast
from ...protocol.model import GpuAddress, JobId
from ...protocol.times import POLICY_RETRY_S
from ...scheduler.placement.fewest_servers import addresses
from ...scheduler.policies import Policy
from ...scheduler.quotas.dividing import Tenancy
from ...scheduler.scheduler import Scheduler
from ...scheduler.view import NO_SCHEDULES, ClusterView, Gpus, Schedules
from ..jobs.job import Job
from ..records import POLICY_KEY, PolicyRecord
from .effects import Effects

KEPT_POLICY_FAILURES = 64


@dataclass(frozen=True)
class Snapshot:
    """Scheduler's view of the cluster, with the jobs of its rows and the GPUs of its bits."""

    view: ClusterView
    jobs: tuple[Job, ...]
    first: Mapping[int, Gpus]  # by row: the GPU of the job's first worker
    running: Mapping[int, Gpus]  # by row: GPUs with processes of the job; only jobs with GPUs or processes
    # By row: GPUs of workers that are not stopping, those to be started included; only jobs with processes.
    held: Mapping[int, Gpus]
    fixed: tuple[Job, ...] = ()  # jobs that keep their GPUs, which are not in the view
    tenancy: Tenancy | None = None  # tenants of the jobs and their quotas; None without quotas
    review_s: float = math.inf  # when a job may next get a reservation (Unix time, s)
    away: Mapping[int, Gpus] = field(
        default_factory=dict
    )  # by row: GPUs that a job does without (`reconcile.slow_gpus`)

    @cached_property
    def rows(self) -> Mapping[JobId, int]:
        """Row of each job in the view."""
        return {job.id: row for row, job in enumerate(self.jobs)}

    @cached_property
    def gpus(self) -> tuple[GpuAddress, ...]:
        """GPU of each bit in the view's GPU sets."""
        return addresses(self.view.servers)


@dataclass(frozen=True)
class Decider:
    """The scheduler in use, and since when."""

    scheduler: Scheduler
    since_s: float
    record: PolicyRecord | None = None  # the policy set at run time; None: the configuration's policy decides


class Planning:
    """The scheduler, its last decision, and whether and when the next one is made."""

    def __init__(self, configured: Scheduler, now: float, effects: Effects) -> None:
        self.configured = configured  # the scheduler that the configuration names
        self.decider = Decider(configured, now)
        self.due = False  # a change since the last decision may alter the next one
        self.decided_s = -math.inf  # when the scheduler was last asked
        self.decisions = 0  # how often the scheduler has been asked
        self.last_seen: Snapshot | None = None  # the last decision's input
        # For each of the last decisions with manual shares: its number, and the jobs that lose GPUs by it.
        self.pushes: deque[tuple[int, Callable[[], Iterator[ShareForecast]]]] = deque(maxlen=2)
        self.cramped: tuple[Job, ...] = ()  # jobs whose `Job.room` the last decision has set
        self.cornered: dict[
            JobId, str
        ] = {}  # jobs that the last decision left on GPUs which they should leave, with reasons
        self.unfinished = False  # a part of the last plan has to wait until the rest is carried out
        self.quiet_until_s = -math.inf  # the cluster is being stopped: no job gets GPUs before then (Unix time)
        self.reservations_s = -math.inf  # when reservations by time were last examined
        self.policy_trouble = ""  # the exception of the policy's last call; empty: the call succeeded
        self.policy_failures: set[str] = set()  # reported failures of the policy, one for each line that raises
        self.schedules: Schedules = NO_SCHEDULES  # the plan with which all promises held at the last decision
        self.review_s = math.inf  # when the policy asked to decide again without an event (Unix time)
        self._effects = effects

    def request(self) -> None:
        """Request a scheduling decision, since something has changed that can alter its result."""
        self.due = True

    def begin_decision(self, now: float) -> None:
        """Note that the scheduler is asked at `now`; all requests up to now are served by this decision."""
        self.due, self.decided_s = False, now
        self.decisions += 1

    # -- the last decision

    def note_cramped(self, job: Job) -> None:
        """Note that the present decision has set `Job.room` of `job`."""
        self.cramped = (*self.cramped, job)

    def take_cramped(self) -> tuple[Job, ...]:
        """Return the jobs whose `Job.room` the last decision has set; the next decision determines it again."""
        found, self.cramped = self.cramped, ()
        return found

    def policy_decided(self, now: float, review_s: float, cornered: dict[JobId, str]) -> None:
        """Note that the policy has decided. `review_s`: when it has to decide again without an event."""
        self.policy_trouble, self.cornered = "", cornered
        self.review_s = review_s if review_s > now else math.inf

    def policy_failed(self, now: float, trouble: str, where: str) -> bool:
        """Note the exception `trouble` of the policy's line `where`; the policy is asked again after POLICY_RETRY_S seconds.

        Returns whether the failure has to be reported: it is the first one of that line.
        """
        self.policy_trouble, self.review_s, self.unfinished = trouble, now + POLICY_RETRY_S, False
        if where in self.policy_failures or len(self.policy_failures) >= KEPT_POLICY_FAILURES:
            return False
        self.policy_failures.add(where)
        return True

    def note_push(self, losers: Callable[[], Iterator[ShareForecast]]) -> None:
        """Note the jobs that lose GPUs by this decision, which has manual shares."""
        self.pushes.append((self.decisions, losers))

    def note_plan(self, seen: Snapshot, unfinished: bool) -> Snapshot | None:
        """Note the decision's input, and whether part of its plan has to wait; return the input of the decision before."""
        before, self.last_seen = self.last_seen, seen
        self.unfinished = unfinished
        return before

    def note_schedules(self, schedules: Schedules) -> None:
        """Note the plan with which all promises hold."""
        self.schedules = schedules

    # -- when the next one is due

    def review_by(self, *times_s: float) -> None:
        """Have a decision made by the earliest of these times (Unix time, s)."""
        self.review_s = min(self.review_s, *times_s)

    def pass_time(self, now: float) -> None:
        """Request a decision if the policy's review is due."""
        if now >= self.review_s:
            self.review_s = math.inf
            self.request()

    def leave_out(self, gap_s: float) -> None:
        """Postpone the review by `gap_s` seconds, in which the controller was absent."""
        self.review_s += gap_s

    def give_nothing_until(self, until_s: float) -> None:
        """Give no job GPUs before `until_s` (Unix time), as the cluster is being stopped."""
        self.quiet_until_s = until_s

    # -- the scheduler in use

    @property
    def policy(self) -> Policy:
        """The policy in use."""
        return self.decider.scheduler.policy

    def configure(self, configured: Scheduler) -> None:
        """Take in the scheduler of a configuration that was read again; `use` makes it decide."""
        self.configured = configured

    def recover(self, decider: Decider) -> None:
        """Let the scheduler of the store's policy record decide."""
        self.decider = decider

    def suppose(self, scheduler: Scheduler) -> None:
        """Let another scheduler decide in a copy for a trial decision."""
        self.decider = replace(self.decider, scheduler=scheduler)

    def use(self, decider: Decider) -> None:
        """Let another scheduler decide from now on."""
        self.decider = decider
        self.reservations_s = -math.inf
        self.request()

    def examined_reservations(self, now: float) -> None:
        """Note that reservations by time were examined at `now`."""
        self.reservations_s = now

    def record_policy(self, record: PolicyRecord | None) -> None:
        """Record the policy set at run time. None: the configuration's policy decides again."""
        if record is not None:
            self._effects.put(POLICY_KEY, record)
        else:
            self._effects.delete(POLICY_KEY)

    def due_s(self, pause_s: float) -> float:
        """Return the earliest time of the next decision (Unix time), at least `pause_s` seconds after the last one.

        While the cluster is being stopped, none is made.
        """
        return max(self.decided_s + pause_s, self.quiet_until_s)

    def may_decide(self, now: float, pause_s: float) -> bool:
        """Return whether a decision may be made at `now`, with `pause_s` seconds between two of them."""
        return now >= self.due_s(pause_s) or now < self.decided_s
