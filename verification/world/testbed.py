"""The controller and the servers of a simulated cluster, and the connections between them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from elasticd.controller.jobs.archive import PREFIX, job_of
from elasticd.controller.records import submission_key
from elasticd.protocol.messages import Reply, Submitted, ToAgentFromController, ToControllerFromAgent
from elasticd.protocol.model import ServerId
from elasticd.scheduler.scheduler import load_scheduler

from . import bounds, doubles
from .agent import Agent
from .controller import Controller
from .ground import Ground
from .known import LASTS_S
from .operations import How, Operation
from .plan import Moment, Plan
from .process import Process
from .worker import Worker

WEIGHED = 16  # one message of so many has its size checked
STRUCK_S = 5.0  # that a process is away, or without its store, after one of its operations has failed
ELECTED_S = 7.0  # until another controller is elected, where there is a second one


class Testbed(Ground):
    """The controller and the servers of one history."""

    def __init__(self, plan: Plan, tell: bool, strikes: Mapping[int, How] | None, shared: bool) -> None:
        super().__init__(plan, tell, strikes, shared)
        self.disk.on_commit = self._committed
        self.removed: set[str] = set()  # servers that are admitted again only after a restart of their agents
        self.forgers: set[ServerId] = set()  # servers whose agents have lied
        self._messages = 0
        self.controller = Controller(self, self.disk, load_scheduler({"policy": plan.policy}, "world"))
        kinds = plan.types or [""] * plan.servers
        self.agents = [
            Agent(self, f"s{i}", f"s{i}", plan.gpus, f"id{i}", kind, plan.cores) for i, kind in enumerate(kinds)
        ]
        for agent, ahead_s in zip(self.agents, plan.clocks_ahead_s, strict=False):
            agent.clock_of_new_s = ahead_s
        self.twins: list[Agent] = []
        self.network.doubled = partial(doubles.doubled, self.controller)

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

    def workers(self) -> list[Worker]:
        """Return all running worker processes, in a stated order."""
        return [worker for agent in (*self.agents, *self.twins) for worker in agent.workers.values()]

    def struck(self, operation: Operation, how: How) -> None:
        self.story.say(f"* {operation.who} {operation.what}: {how.value}")
        if any(operation.who == agent.name for agent in self.agents):
            self.oracle.hit(operation.who, STRUCK_S)
        else:
            self.oracle.controller_hit(STRUCK_S + (ELECTED_S if self.disk.leases else 0.0))

    # -- connections between the processes

    def to_agent(self, peer: ServerId, message: ToAgentFromController, identity: str, term: int) -> None:
        self._weigh(message)
        for agent in (*self.agents, *self.twins):
            if (agent.server.server, agent.identity) == (peer, identity):
                self.network.send(self.controller, agent, agent.from_controller, message, term)

    def to_controller(self, agent: Process, server: ServerId, message: ToControllerFromAgent, identity: str) -> bool:
        self._weigh(message)
        controller = self.controller
        if not controller.answers or not self.network.connected(agent.host, controller.host):
            return False
        self.network.send(agent, controller, controller.from_agent, server, message, identity)
        return True

    def _weigh(self, message: ToAgentFromController | ToControllerFromAgent) -> None:
        self._messages += 1
        if self._messages % WEIGHED == 0:
            bounds.weighed(message)

    # -- the store

    def stored(self, reply: Reply) -> bool:
        """Return whether the store holds everything that this reply promises."""
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
