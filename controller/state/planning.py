"""State of planning: the scheduler in use, the results of its last decision, and when the next one is due."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...protocol.messages import ShareForecast
from ...protocol.model import GpuAddress, JobId
from ...scheduler.placement.fewest_servers import addresses
from ...scheduler.policies import Policy
from ...scheduler.quotas.dividing import Tenancy
from ...scheduler.scheduler import Scheduler
from ...scheduler.view import NO_SCHEDULES, ClusterView, Gpus, Schedules
from ..jobs.job import Job
from ..records import POLICY_KEY, PolicyRecord
from .effects import Effects


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
        self.cramped: tuple[Job, ...] = ()  # jobs of which the last decision found the `room`
        self.cornered: dict[JobId, str] = {}  # jobs that the last decision left on GPUs that they should leave, and why
        self.unfinished = False  # part of the last plan waits for the rest to be carried out
        self.quiet_until_s = -math.inf  # the cluster is being stopped: no job gets GPUs before then (Unix time)
        self.reservations_s = -math.inf  # when reservations by time were last examined
        self.policy_trouble = ""  # the exception of the policy's last call; empty: the call succeeded
        self.policy_failures: set[str] = set()  # reported failures of the policy, one for each line that raises
        self.schedules: Schedules = NO_SCHEDULES  # the plan with which all promises held at the last decision
        self.review_s = math.inf  # the policy wants to be asked again then (Unix time)
        self._effects = effects

    def request(self) -> None:
        """Request a scheduling decision, since something has changed that can alter its result."""
        self.due = True

    def begin_decision(self, now: float) -> None:
        """Note that the scheduler is asked at `now`; all requests up to now are served by this decision."""
        self.due, self.decided_s = False, now
        self.decisions += 1

    @property
    def policy(self) -> Policy:
        """The policy in use."""
        return self.decider.scheduler.policy

    def use(self, decider: Decider) -> None:
        """Let another scheduler decide from now on."""
        self.decider = decider
        self.reservations_s = -math.inf
        self.request()

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
