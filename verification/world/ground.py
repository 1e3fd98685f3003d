"""What all processes of a history share: time, network, storage, the oracle, and faults that wait for their moment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticd.protocol.messages import AgentHello, Reply, StartWorker, ToAgentFromController, ToControllerFromAgent
from elasticd.protocol.model import JobId, ServerId
from elasticd.worker.lineages import Name

from .bookkeeper import Bookkeeper
from .disk import Disk, Trouble
from .network import Network
from .operations import How, Operation, Operations
from .oracle import Oracle
from .people import People
from .plan import Fault, JobPlan, Moment, Plan, Script
from .plane import Plane
from .process import Process
from .story import Story
from .timeline import START_S, Timeline

SPARED_S = 1.0  # least time between two faults that wait for the same moment
ARMED_S = 60.0  # after which a fault that waits for a moment strikes anyway


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on storage that all servers share."""

    step: int
    state: int
    epoch: int
    generation: int
    agreed: int = -1

    @property
    def name(self) -> Name:
        """The name that the product's rules use."""
        return Name.of(self.generation, self.step)


class Ground(ABC):
    """What the processes of a history share. The abstract methods reach the other processes."""

    def __init__(self, plan: Plan, tell: bool, strikes: Mapping[int, How] | None, shared: bool) -> None:
        """`tell`: write the story down. `strikes`: count operations, and fail these (by number). `shared`: two controllers
        share a store, one leads and one stands by.
        """
        self.plan, self.seed = plan, plan.seed
        self.timeline = Timeline()
        self.story = Story(self.timeline, tell)
        self.network = Network(self.timeline, plan.seed, plan.weather, plan.peer_loss)
        self.people = People(plan.seed, plan.users)
        self.oracle = Oracle(self.timeline, self.story, plan.jobs, self.people, plan.cores)
        self.books = Bookkeeper(self.timeline)
        self.plane = Plane(self.timeline, self.network, plan.seed, self.oracle.judge, plan.connect_s)
        self.operations = Operations(strikes, self.struck) if strikes is not None else None
        self.disk = Disk(self.timeline)
        if shared:
            from .etcd import SharedDisk  # needs the package of etcd's messages, which other histories do without

            assert self.operations is not None, "what a shared store is asked for is counted"
            self.disk = SharedDisk(self.timeline, self.operations)
        self.disk.operations = self.operations
        self.scripts: dict[str, Script] = {job.spec.name: job.script for job in plan.jobs}
        self.checkpoints: dict[str, list[Checkpoint]] = {}  # by directory, on storage that all servers share
        # by address: a worker, and its method that hears its followers
        self.addresses: dict[str, tuple[Process, Callable[..., None]]] = {}
        self.pids = 100
        self._armed: dict[Moment, list[tuple[int, Fault]]] = {}
        self._spared_until: dict[Moment, float] = {}

    def add_job(self, plan: JobPlan) -> None:
        """Add a job that was not in the plan."""
        self.scripts[plan.spec.name] = plan.script
        self.oracle.add_plan(plan)

    def next_pid(self) -> int:
        self.pids += 1
        return self.pids

    def mend_store(self) -> None:
        self.disk.trouble = Trouble.NONE

    # -- the other processes

    @abstractmethod
    def to_agent(self, peer: ServerId, message: ToAgentFromController, identity: str, term: int) -> None:
        """Send to the agents of this name and identity."""

    @abstractmethod
    def to_controller(self, agent: Process, server: ServerId, message: ToControllerFromAgent, identity: str) -> bool:
        """Send to the controller. False: there is no connection."""

    @abstractmethod
    def answered(self, client: bytes, reply: Reply) -> None:
        """Take an answer of the controller to a request."""

    @abstractmethod
    def starting(self, server: ServerId, start: StartWorker) -> None:
        """Take note that the controller orders an agent to start a worker."""

    @abstractmethod
    def as_heard(self, hello: AgentHello, identity: str, first: bool) -> AgentHello:
        """Return a hello as it reaches the controller: with forgeries, if its server is compromised.

        `first`: it is the first to this controller."""

    # -- time

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call after `delay_s`. The order of two such calls at one instant does not matter."""
        self.timeline.at(self.timeline.now + delay_s, 0.5, call, *arguments)

    def run(self, seconds: float) -> None:
        self.timeline.run(self.timeline.now + seconds)

    @property
    def elapsed_s(self) -> float:
        return self.timeline.now - START_S

    # -- faults

    @abstractmethod
    def struck(self, operation: Operation, how: How) -> None:
        """Handle the failure of an operation in progress."""

    @abstractmethod
    def strike(self, number: int, fault: Fault, job: JobId | None = None) -> None:
        """Apply a fault now. `number`: its index in the plan. `job`: the job of the awaited moment, if any."""

    def due(self, number: int, fault: Fault) -> None:
        """Let a planned fault strike at its time, or wait for its moment."""
        if fault.moment is Moment.AT_ONCE:
            self.strike(number, fault)
            return
        armed = self._armed.setdefault(fault.moment, [])
        armed.append((number, fault))
        self.after(ARMED_S, self._strike_armed, number, fault)

    def moment(self, moment: Moment, job: JobId | None = None) -> None:
        """Trigger one of the faults that wait for this moment, right after the acting process has acted. It hits workers of
        `job`.

        The next waiting fault needs another such moment; otherwise one moment would take all faults, and most would take none.
        """
        armed = self._armed.get(moment)
        if armed and self.timeline.now >= self._spared_until.get(moment, 0.0):
            self._spared_until[moment] = self.timeline.now + SPARED_S
            self.after(0.0, self._strike_armed, *armed[0], job)

    def _strike_armed(self, number: int, fault: Fault, job: JobId | None = None) -> None:
        armed = self._armed.get(fault.moment, [])
        if (number, fault) in armed:
            armed.remove((number, fault))
            self.strike(number, fault, job)

    def disarm(self) -> None:
        """Drop all faults that wait for a moment."""
        self._armed.clear()
