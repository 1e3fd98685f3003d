"""What the oracle knows: of each job what it has seen, and of workers, servers and the controller when a fault has hit them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from elasticd.controller.jobs.records import JobRecord, Submission
from elasticd.controller.jobs.stored import States
from elasticd.protocol.model import JobId, JobPhase, ServerId, WorkerId

from .people import People
from .plan import JobPlan
from .story import Story
from .timeline import Timeline

LONG_STEP_S = 60.0  # longer than a slow spell of a server; a step this long keeps the factor `SLOWER` to its end
LASTS_S = 60.0  # duration of faults without an end
MISFITS_WITHIN_S, MOST_MISFITS = (
    120.0,
    60,
)  # newcomers of a job, within the window, that end while they receive the state


@dataclass(frozen=True)
class Preempted:
    """A job has given back all its GPUs."""

    at: float
    step: int  # the last applied step
    # workers that had the state of that step or of the one before, with their servers
    holders: tuple[tuple[WorkerId, ServerId], ...]


@dataclass
class Known:
    """The oracle's state of one job."""

    plan: JobPlan
    submission: Submission | None = None
    record: JobRecord | None = None
    states: dict[int, int] = field(default_factory=lambda: {-1: 0})  # hash chain: state after each step
    decided: dict[int, int] = field(default_factory=dict)  # by generation: the step that decided on its successor
    follows: dict[int, int] = field(default_factory=dict)  # by generation: the successor that was decided on
    rosters: dict[int, tuple[WorkerId, ...]] = field(default_factory=dict)  # by generation: workers in its order
    epochs: set[int] = field(default_factory=set)  # epochs of which the last line of the script has run
    frontier: dict[int, int] = field(default_factory=lambda: {0: -1})  # last applied step, by lineage
    generation: int = 0  # the newest that has applied a step
    lineage: int = 0  # the newest; each start from a checkpoint begins another one
    checkpoint_of: int = 0  # the newest generation that has continued from a checkpoint
    disturbed_at: float = float("-inf")  # end of the last fault
    applied_at: float = 0.0  # time of the last applied step
    cancelled: bool = False  # a user has requested it
    uncertain: bool = False  # the store was lost or restored after the submission
    odd_since: float | None = None  # since when the share is one that the job cannot use
    answered: list[int | None] = field(default_factory=list)  # fixed shares that were acknowledged in this turn
    saver: WorkerId | None = None  # the worker that must save the state, since the job is preempted
    # last applied lineage and step of each worker
    newest_of: dict[WorkerId, tuple[int, int]] = field(default_factory=dict)
    preempted: Preempted | None = None  # the last preemption, if the job has not started since
    told_at: float = 0.0  # time of the newest order
    over_at: float | None = None  # time at which its end was recorded
    stopped: dict[WorkerId, float] = field(
        default_factory=dict
    )  # workers that were ordered to stop without saving, and when
    began_on: str = ""  # model of the GPUs that it first applied a step on
    wrote: bool = False  # a worker has written a checkpoint
    agnostic: bool = False  # a worker has found that its operators have one algorithm on all GPU types
    repeated: int = 0  # number of repeated steps
    unlike: int = 0  # differing newcomers since the last event that allows new attempts
    misfits: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_MISFITS))  # ends during the transfer
    joined: bool = False  # a worker has called `elastic.join()`
    runs: dict[int, dict[WorkerId, int | None]] = field(
        default_factory=dict
    )  # by generation: its processes and, once they have ended, their exit codes; until `elastic.join()`
    # running processes, and their generations; until `elastic.join()`
    living: dict[WorkerId, int] = field(default_factory=dict)


class Knowledge:
    """What the oracle knows of all jobs, workers and servers, and which faults have hit them."""

    def __init__(self, timeline: Timeline, story: Story, plans: Iterable[JobPlan], people: People, cores: int) -> None:
        """`cores`: of each server, with as many GiB of memory; 0: these are not counted."""
        self._cores = cores
        self._noticed: set[tuple[JobId, str]] = set()  # jobs and events of which notices were delivered
        self._timeline = timeline
        self._people = people
        self._story = story
        self._plans = {plan.spec.name: plan for plan in plans}
        self._jobs: dict[JobId, Known] = {}
        self._requests: dict[str, JobId] = {}
        self._made_by: dict[str, JobId] = {}  # the job that a request has made, in the present store
        self._numbers: dict[int, JobId] = {}  # numbers that jobs have had, in any store
        self._started: dict[ServerId, int] = {}  # the greatest job number that a server was ordered to start
        self._present: frozenset[ServerId] = frozenset()
        self._store_replaced = False
        self._rescaled: set[JobId] = set()  # jobs rescaled in this turn
        self._on_gpu: dict[str, list[WorkerId]] = {}
        self._starts: dict[str, deque[float]] = {}
        self._states = States()
        self.commits = 0
        # a commit has ended a job, or changed whether its growth is held back: timers follow from both
        self.turning = False
        self._well_since: dict[str, float] = {}  # by worker
        self._startable_since: dict[JobId, float] = {}
        self._hit_until: dict[str, float] = {}  # by worker or server: end of the last fault that hit it
        self._name_of: dict[WorkerId, str] = {}  # model of the GPU where each worker was started last
        self._ended_at: dict[WorkerId, float] = {}  # of processes
        self._controller_hit_until = float("-inf")
        self._apart_since: dict[str, float] = {}  # by server
        self._reigns: dict[
            int, str
        ] = {}  # by term: the controller's state machine that has sent messages in it, in the present store

    def add_plan(self, plan: JobPlan) -> None:
        """Allow users to submit this job from now on."""
        self._plans[plan.spec.name] = plan

    def job(self, job: JobId) -> Known:
        """Return the state of a submitted job."""
        known = self._jobs.get(job)
        if known is None:
            known = self._jobs[job] = Known(self._plans[job.rpartition("-")[0]])
        return known

    def disturbed(self, job: JobId, for_s: float = 0.0) -> None:
        """Note that a fault hits workers of this job, or their resources, for `for_s`."""
        known = self.job(job)
        known.disturbed_at = max(known.disturbed_at, self._timeline.now + for_s)

    def hit(self, who: str, for_s: float = 0.0) -> None:
        """Note that a fault hits this server or worker for `for_s`."""
        until = self._timeline.now + for_s
        self._hit_until[who] = max(until, self._hit_until.get(who, until))

    def controller_hit(self, for_s: float = 0.0) -> None:
        """Note that a fault hits the controller or its store, for `for_s`."""
        self._controller_hit_until = max(self._controller_hit_until, self._timeline.now + for_s)

    def _hit(self, who: str) -> float:
        """End of the last fault that hit this worker or server."""
        return self._hit_until.get(who, float("-inf"))

    def calm_since(self, *who: str) -> float:
        """End of the last fault that hit any of these workers or servers, or the controller."""
        return max(self._controller_hit_until, *map(self._hit, who))

    def all_disturbed(self) -> None:
        for known in self._jobs.values():
            known.disturbed_at = self._timeline.now + LASTS_S

    def store_changed(self, contents: Iterable[tuple[str, bytes]]) -> None:
        """Note that the store was lost or restored: only acknowledgements newer than `contents` may be forgotten."""
        self._states = States(contents)
        self._made_by.clear()
        self._reigns.clear()
        self._store_replaced = True
        for known in self._jobs.values():
            known.uncertain, known.record, known.unlike = True, None, 0
            known.disturbed_at = self._timeline.now + LASTS_S

    # -- queries

    def is_over(self, job: JobId) -> bool:
        """Return whether the job's end is recorded."""
        record = self.job(job).record
        return record is not None and record.phase.final

    def can_be_gone_on_from(self, job: JobId) -> bool:
        """Return whether another job may resume from this job: it was cancelled with a known checkpoint, and has no long steps.

        (Under some policies, several jobs with long steps never end.)"""
        known = self.job(job)
        record, is_long = known.record, known.plan.script.step_s > LONG_STEP_S
        over = record is not None and record.phase is JobPhase.CANCELLED and record.saved_step is not None
        return over and not is_long

    def asked_to_cancel(self, job: JobId) -> None:
        self.job(job).cancelled = True

    def submitted(self) -> dict[str, JobId]:
        """Acknowledged requests, and their jobs."""
        return dict(self._requests)

    @property
    def repeated_steps(self) -> int:
        """Number of steps repeated after starts from checkpoints, in all jobs."""
        return sum(known.repeated for known in self._jobs.values())

    def is_to_save(self, job: JobId, worker: str) -> bool:
        """Return whether this worker was named as the saver of its job's state."""
        return self.job(job).saver == worker

    def is_to_leave(self, job: JobId, worker: str) -> bool:
        """Return whether the controller's newest order leaves this worker out."""
        rosters = self.job(job).rosters
        return bool(rosters) and worker not in rosters[max(rosters)]
