"""Settings of a controller's machine: those that do not change while it runs, and the retention of ended jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..protocol.limits import MAX_PRIORITY, PRIORITIES
from ..protocol.model import NEVER_IDLE, Idle
from ..protocol.times import DEATHS_IN_VAIN, SERVER_LEASE_S
from ..scheduler.measuring import OFF, Measuring
from .jobs import stored
from .jobs.throughput import Profiles


@dataclass(frozen=True)
class Keeping:
    """Retention of ended jobs (numbers and days) and of usage (days)."""

    recent: int = 1000  # ended jobs in memory; earlier ones are in the archive
    ended: int = 100_000  # jobs in the archive
    days: float = 365.0  # age of the oldest archived job, counted from its end
    usage_days: float = 1830.0  # months that ended longer ago leave the record of users' usage


@dataclass(frozen=True)
class Settings:
    """Settings that do not change while the controller runs."""

    cluster: str
    incarnation: str  # new for each start
    version: str
    pid: int
    # Term of this controller's reign, won and recorded in an election; 0: a private store counts the starts.
    term: int = 0
    server_lease_s: float = SERVER_LEASE_S
    max_restarts: int = DEATHS_IN_VAIN
    measuring: Measuring = OFF
    profiles: Profiles = field(default_factory=dict)
    keeping: Keeping = Keeping()
    open_jobs_per_user: int = 10_000
    user_priority: int = PRIORITIES["high"]  # the highest priority that a user may give a job
    operator_priority: int = MAX_PRIORITY  # the highest priority that an operator may give a job
    notifies: bool = False  # the operator has configured a channel for notices
    reserve_after_s: float = 600.0  # a job that has waited this long gets a reservation
    idle: Idle = NEVER_IDLE  # rules for jobs with idle GPUs
    whole_workers: int = stored.WHOLE  # in a job with more workers than this, each worker has a record of its own

    @property
    def elected(self) -> bool:
        """Whether this controller is one of several and was elected; otherwise it has a store of its own."""
        return self.term > 0
