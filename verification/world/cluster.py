"""A simulated cluster with everybody around it: users, intruders, forgers, and controllers that do not know they are deposed."""

from __future__ import annotations

from collections.abc import Mapping

from elasticd.protocol.messages import AgentHello, Reply, StartWorker, ToControllerFromAgent
from elasticd.protocol.model import ServerId

from .agent import Agent
from .cordons import Cordons
from .forger import Forger
from .intruders import Intruders
from .operations import How
from .plan import Plan
from .process import Process
from .testbed import Testbed
from .users import Users
from .zombies import Zombie

OPERATOR_EVERY_S, OPERATOR_LOOKS = 60.0, 5  # interval and number of an operator's checks after the store was lost


class Cluster(Testbed):
    """The controller, the servers, and everybody around them."""

    def __init__(self, plan: Plan, tell: bool, strikes: Mapping[int, How] | None, shared: bool) -> None:
        super().__init__(plan, tell, strikes, shared)
        self.cordons = Cordons(self)
        self.intruders = Intruders(self)
        self.users = Users(self, self.cordons, self.intruders)
        self.zombies: list[Zombie] = []  # deposed controllers that still run
        self.taken_over: dict[str, Forger] = {}  # by the identity of the agent
        self.next_black_hole_at = 0.0

    def depose(self, for_s: float) -> None:
        """Let the controller go on for `for_s` beside its successor."""
        self.zombies.append(Zombie(self, len(self.zombies), for_s))

    def take_over(self, agent: Agent, for_s: float) -> None:
        """Let an attacker speak for the server of `agent`."""
        earlier = self.taken_over.get(agent.identity)
        self.taken_over[agent.identity] = Forger(self, agent, self.timeline.now + for_s, earlier)

    def operator_is_called(self) -> None:
        """After the store was lost or restored, an operator repeatedly checks for foreign workers."""
        for round_ in range(1, OPERATOR_LOOKS + 1):
            self.after(round_ * OPERATOR_EVERY_S, self.users.adopt)

    # -- messages that pass by

    def to_controller(self, agent: Process, server: ServerId, message: ToControllerFromAgent, identity: str) -> bool:
        for zombie in self.zombies:
            self.network.send(agent, zombie, zombie.heard, server, message, identity)
        return super().to_controller(agent, server, message, identity)

    def answered(self, client: bytes, reply: Reply) -> None:
        self.users.answered(client, reply)

    def starting(self, server: ServerId, start: StartWorker) -> None:
        self.cordons.starting(server, start)

    def as_heard(self, hello: AgentHello, identity: str, first: bool) -> AgentHello:
        forger = self.taken_over.get(identity)
        return hello if forger is None else forger.hello(hello, first)
