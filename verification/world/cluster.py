"""The simulated cluster: all processes, the network between them, and the planned events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from elasticd.agent.machine import MAX_FORGOTTEN, MAX_ORDERS
from elasticd.controller.jobs.archive import PREFIX, job_of
from elasticd.controller.records import submission_key
from elasticd.protocol.messages import Reply, Submitted, ToAgentFromController, ToControllerFromAgent
from elasticd.protocol.model import JobId, ServerId
from elasticd.protocol.times import START_PATIENCE_S
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.worker.membership.machine import MAX_EARLY

from . import doubles, words
from .agent import Agent
from .bookkeeper import Bookkeeper
from .controller import Controller
from .cordons import Cordons
from .disk import Disk, Trouble
from .faults import strike
from .forger import Forger
from .intruders import Intruders
from .network import Network
from .operations import How, Operation, Operations
from .oracle import LASTS_S, Oracle
from .people import People
from .plan import Fault, JobPlan, Moment, Plan, Script, Weather
from .plane import Plane
from .process import State
from .story import Story
from .timeline import START_S, Timeline
from .users import Users
from .violation import Violation
from .worker import Checkpoint, Worker
from .zombies import Zombie

# Virtual time within which everything ends once the weather has cleared: the longest time limit of a job, and its other steps.
QUIET_S = 2400.0
LOOK_EVERY_S = 10.0
WELL_EVERY_S = 10.0
EXPLAINED_EVERY_S = 60.0
HANGING_S = START_PATIENCE_S + 10.0  # after which a hanging start is given up
SIZES_EVERY_S = 60.0
OPERATOR_EVERY_S, OPERATOR_LOOKS = 60.0, 5  # interval and number of an operator's checks after the store was lost
# other tables: MOST
MOST_OF_AN_AGENT = {"orders": MAX_ORDERS, "ends that are forgotten": MAX_FORGOTTEN, "processes": 64}
MOST_OF_A_WORKER = {"early words": MAX_EARLY}
SPARED_S = 1.0  # least time between two faults that wait for the same moment
WEIGHED = 16  # one message of so many has its size checked
STRUCK_S = 5.0  # that a process is away, or without its store, after one of its operations has failed
ELECTED_S = 7.0  # until another controller is elected, where there is a second one
ARMED_S = 60.0  # after which a fault that waits for a moment strikes anyway


class World:
    """One history's cluster. `run` advances time."""

    def __init__(
        self, plan: Plan, tell: bool = False, strikes: Mapping[int, How] | None = None, shared: bool = False
    ) -> None:
        """`tell`: write the story down. `strikes`: count operations, and fail these (by number). `shared`: two controllers
        share a store, one leads and one stands by.
        """
        self.plan, self.seed = plan, plan.seed
        self.timeline = Timeline()
        self.story = Story(self.timeline, tell)
        self.network = Network(self.timeline, plan.seed, plan.weather, plan.peer_loss)
        self.people = People(plan.seed, plan.users)
        self.oracle = Oracle(self.timeline, self.story, plan.jobs, plan.servers, self.people, plan.cores)
        self.books = Bookkeeper(self.timeline)
        self.cordons = Cordons(self)
        self.removed: set[str] = set()  # servers that are admitted again only after a restart of their agents
        self.plane = Plane(self.timeline, self.network, plan.seed, self.oracle.judge, plan.connect_s)
        self.operations = Operations(strikes, self._struck) if strikes is not None else None
        self.disk = Disk(self.timeline)
        if shared:
            from .etcd import SharedDisk  # needs the package of etcd's messages, which other histories do without

            assert self.operations is not None, "what a shared store is asked for is counted"
            self.disk = SharedDisk(self.timeline, self.operations)
        self.disk.operations = self.operations
        self.disk.on_commit = self._committed
        self.scripts: dict[str, Script] = {job.spec.name: job.script for job in plan.jobs}
        self.checkpoints: dict[str, list[Checkpoint]] = {}  # by directory, on storage that all servers share
        self.addresses: dict[str, Worker] = {}
        self.pids = 100
        self._messages = 0
        self.next_black_hole_at = 0.0
        self._armed: dict[Moment, list[tuple[int, Fault]]] = {}
        self._spared_until: dict[Moment, float] = {}
        self._explained_at = 0.0
        self.users, self.intruders = Users(self), Intruders(self)
        self.controller = Controller(self, self.disk, load_scheduler({"policy": plan.policy}, "world"))
        kinds = plan.types or [""] * plan.servers
        self.agents = [
            Agent(self, f"s{i}", f"s{i}", plan.gpus, f"id{i}", kind, plan.cores) for i, kind in enumerate(kinds)
        ]
        for agent, ahead_s in zip(self.agents, plan.clocks_ahead_s, strict=False):
            agent.clock_of_new_s = ahead_s
        self.twins: list[Agent] = []
        self.zombies: list[Zombie] = []  # deposed controllers that still run
        self.taken_over: dict[str, Forger] = {}  # by the identity of the agent
        self.forgers: set[ServerId] = set()  # servers whose agents have lied
        self.network.doubled = partial(doubles.doubled, self)
        self.after(0.0, self.controller.boot)
        for agent in self.agents:
            self.after(0.1, agent.boot)
        for job in plan.jobs:
            self.after(job.at, self.users.submit, job)
        self.after(SIZES_EVERY_S, self._look_at_sizes)
        self.after(WELL_EVERY_S, self._look_who_is_well)
        for number, fault in enumerate(plan.faults):
            self.after(fault.at, self._due, number, fault)

    def add_job(self, plan: JobPlan) -> None:
        """A job that was not in the plan."""
        self.scripts[plan.spec.name] = plan.script
        self.oracle.add_plan(plan)

    def _look_at_sizes(self) -> None:
        if self.controller.state is State.RUNNING:
            self.oracle.sizes(self.controller.machine.cluster)
            self.oracle.forgeries(self.controller.machine.cluster, self.forgers)
        for agent in self.agents:
            if agent.state is State.RUNNING:
                self.oracle.bounded(f"agent {agent.name}", agent.sizes, MOST_OF_AN_AGENT)
        for worker in self.workers():
            self.oracle.bounded(worker.name, worker.sizes, MOST_OF_A_WORKER)
        self.after(SIZES_EVERY_S, self._look_at_sizes)

    def _look_who_is_well(self) -> None:
        self.after(WELL_EVERY_S, self._look_who_is_well)
        if not self.controller.has_reigned:
            return
        self.cordons.look()
        self.oracle.well({worker.name for worker in self.workers() if worker.well})
        running = self.controller.state is State.RUNNING and not self.controller.trouble
        cluster = self.controller.machine.cluster
        if running and not cluster.servers.awaited:
            self.oracle.deadlines(self.controller.now, cluster.jobs.values())
            words.look(cluster, self.controller.now)
            if self.timeline.now >= self._explained_at + EXPLAINED_EVERY_S:
                self._explained_at = self.timeline.now
                words.explain(cluster, self.controller.now)
        for agent in self.agents:
            if agent.state is State.RUNNING:
                self.oracle.start_hangs(agent.name, agent.hanging(HANGING_S), agent.sizes["starts that hang"])
            hosts = frozenset({agent.host, self.controller.host})
            session = cluster.servers.sessions.get(agent.server.server)
            away = not running or agent.state is not State.RUNNING or self.network.cut_among(hosts)
            away = (
                away or bool(self.twins) or agent.server.server in cluster.servers.guests or agent.name in self.removed
            )
            stands = session is not None and session.alive and session.name == agent.session
            self.oracle.session(agent.name, away or stands)
            if not away and stands:
                self.oracle.in_session(agent.name, agent.workers)

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

    def _struck(self, operation: Operation, how: How) -> None:
        """Apply a failure at an operation that is being carried out."""
        self.story.say(f"* {operation.who} {operation.what}: {how.value}")
        if any(operation.who == agent.name for agent in self.agents):
            self.oracle.hit(operation.who, STRUCK_S)
        else:
            self.oracle.controller_hit(STRUCK_S + (ELECTED_S if self.disk.leases else 0.0))

    def _due(self, number: int, fault: Fault) -> None:
        if fault.moment is Moment.AT_ONCE:
            strike(self, number, fault)
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
            strike(self, number, fault, job)

    def clear(self) -> None:
        """End all faults: everything broken is repaired, and nothing breaks any more."""
        self.story.say("the weather clears")
        self._armed.clear()
        self.network.weather, self.network.peer_loss = Weather(contract=self.network.weather.contract), 0.0
        self.network.heal_all()
        self.mend_store()
        self.disk.crash_next = self.disk.tear_next = None
        for agent in self.agents:
            agent.empty_disk()
            agent.close_black_hole()
            agent.show_storage()
            agent.free_storage()
            agent.slow_down(1.0)
            agent.power_on()
            agent.go_on(agent.life)
        for twin in self.twins:
            twin.power_off()
        for zombie in self.zombies:
            zombie.die()
        for worker in self.workers():
            worker.go_on(worker.life)
        self.controller.boot()
        self.controller.go_on(self.controller.life)
        self.oracle.all_disturbed()
        self.operator_is_called()

    def mend_store(self) -> None:
        self.disk.trouble = Trouble.NONE

    def start_twin(self, agent: Agent, for_s: float) -> None:
        """Start a second machine whose agent uses the same name."""
        name = f"{agent.name}twin{len(self.twins)}"
        kind = agent.gpu_name if self.plan.types else ""
        twin = Agent(self, name, agent.server.server, len(agent.server.gpus), name, kind, self.plan.cores)
        self.twins.append(twin)
        twin.boot()
        self.after(for_s, self._end_twin, twin)

    def _end_twin(self, twin: Agent) -> None:
        twin.trouble(LASTS_S)  # jobs placed on the twin lose their workers
        twin.power_off()

    def operator_is_called(self) -> None:
        """After the store was lost or restored, an operator repeatedly checks for foreign workers."""
        for round_ in range(1, OPERATOR_LOOKS + 1):
            self.after(round_ * OPERATOR_EVERY_S, self.users.adopt)

    # -- processes

    def workers(self) -> list[Worker]:
        """All running worker processes, in a stated order."""
        return [worker for agent in (*self.agents, *self.twins) for worker in agent.workers.values()]

    def next_pid(self) -> int:
        self.pids += 1
        return self.pids

    # -- connections between the processes

    def to_agent(self, peer: ServerId, message: ToAgentFromController, identity: str, term: int) -> None:
        self._weigh(message)
        for agent in (*self.agents, *self.twins):
            if (agent.server.server, agent.identity) == (peer, identity):
                self.network.send(self.controller, agent, agent.from_controller, message, term)

    def to_controller(self, agent: Agent, message: ToControllerFromAgent) -> bool:
        """Send to the controller. False: there is no connection."""
        self._weigh(message)
        for zombie in self.zombies:
            self.network.send(agent, zombie, zombie.heard, agent.server.server, message, agent.identity)
        controller = self.controller
        if not controller.answers or not self.network.connected(agent.host, controller.host):
            return False
        self.network.send(agent, controller, controller.from_agent, agent.server.server, message, agent.identity)
        return True

    def _weigh(self, message: ToAgentFromController | ToControllerFromAgent) -> None:
        self._messages += 1
        if self._messages % WEIGHED == 0:
            self.oracle.weighed(message)

    def stored(self, reply: Reply) -> bool:
        """Does the store hold all that this reply promises?"""
        answer = reply.answer
        if not isinstance(answer, Submitted):
            return True
        archived = [job_of(key).job for key in self.disk.keys(PREFIX)]
        return self.disk.get(submission_key(answer.job)) is not None or answer.job in archived

    def _committed(self, writes: Any) -> None:
        cluster = self.controller.machine.cluster
        present = [name for name, session in cluster.servers.sessions.items() if session.alive]
        self.books.committed(writes, self.controller.clock_ahead_s)
        for job in self.oracle.recorded(writes, cluster.servers.awaited, present):
            self.moment(Moment.END, job)

    # -- the end

    def left_to_do(self) -> list[str]:
        """Descriptions of all that has not ended as it should."""
        if self.controller.state is not State.RUNNING:
            return ["the controller does not run"]
        gpus = sum(len(agent.server.gpus) for agent in self.agents)
        left = []
        known = self.controller.machine.cluster.jobs
        for job in self.oracle.submitted().values():
            reason = known[job].waiting_reason if job in known else ""
            if wrong := self.oracle.wrong_end(job, gpus, reason):
                left.append(wrong)
        left += [f"{worker.name} runs on {worker.host}" for worker in self.workers()]
        sessions = self.controller.machine.cluster.servers.sessions
        for agent in self.agents:
            session = sessions.get(agent.server.server)
            if session is None or not session.alive:
                left.append(f"server {agent.name} is not back")
        left += [f"{name} is not answered" for name in self.users.waiting]
        return left

    def run_until_quiet(self) -> None:
        """Advance time until all jobs are done. Raises Violation after a limit."""
        until = self.timeline.now + QUIET_S
        while left := self.left_to_do():
            if self.timeline.now >= until:
                raise Violation("everything ends once the weather has cleared", "; ".join(left[:6]))
            self.run(LOOK_EVERY_S)
