"""Deposed controllers that do not know it: each was stopped, a successor began, and the old one continues.

Its last messages are delivered late, again and again, and it continues to decide: it hears the agents' messages, and its commits
are dropped. All its messages carry the term of its own reign. An agent that has heard a higher term ignores them.

An agent that has not heard of the successor yet gets nothing: a controller checks its lease before it sends, and its successor
begins after the lease is over. An earlier message is an ordinary late message.

Seeds with two of the remainders have such controllers, besides their other entries, and agents that die meanwhile. Their random
numbers come from a separate stream.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from elasticd.controller.events import Action, AgentMessage, ControllerTick, SendAgent
from elasticd.protocol.messages import AgentHello, ToAgentFromController, ToControllerFromAgent
from elasticd.protocol.model import ServerId

from .plan import Fault, Kind, Plan
from .process import Process, State
from .testbed import Testbed

EVERY, SEEDS = 20, (10, 13)  # seeds with these remainders modulo EVERY: one of each weather
ZOMBIES = 4
SHORTEST_S, LONGEST_S = 5.0, 40.0
BEGINS_S = 0.5  # until its successor begins
TURNS_EVERY_S = 0.25
REPEATED = 3  # of its last messages, in each turn


def with_zombies(plan: Plan) -> Plan:
    """`plan` with such controllers if its seed has one of the remainders, else `plan` unchanged."""
    if plan.seed % EVERY not in SEEDS or not plan.faults:
        return plan
    chance = random.Random(f"{plan.seed}/zombies")
    faults = []
    for _ in range(ZOMBIES):
        at, for_s = chance.uniform(5, plan.storm_s), chance.uniform(SHORTEST_S, LONGEST_S)
        faults.append(Fault(round(at, 3), Kind.ZOMBIE, chance.randrange(1000), round(for_s, 1)))
        killed_at = at + chance.uniform(0, for_s)
        faults.append(Fault(round(killed_at, 3), Kind.KILL_AGENT, chance.randrange(1000), round(chance.random(), 1)))
    return replace(plan, faults=tuple(sorted((*plan.faults, *faults), key=lambda fault: fault.at)))


class Zombie(Process):
    """A copy of the controller that has just run; its successor begins soon."""

    def __init__(self, world: Testbed, number: int, for_s: float) -> None:
        super().__init__(world, f"zombie{number}", "zombie")
        controller = world.controller
        self._world = world
        self._machine, self.term = controller.machine, controller.machine.term
        self._said = list(controller.said)
        self._goes_on = self.repeats_at_its_period = False
        self._until = world.timeline.now + BEGINS_S + for_s
        self.clock_ahead_s = controller.clock_ahead_s
        self.born()
        controller.die()
        world.after(BEGINS_S, controller.boot)
        world.after(2 * BEGINS_S, self._go_on)

    def deadline(self) -> float | None:
        return None  # its turns are in `_go_on`

    def heard(self, peer: ServerId, message: ToControllerFromAgent, identity: str) -> None:
        """Receive a copy of the agents' messages, without hellos, which would reveal the successor."""
        if self._goes_on and not isinstance(message, AgentHello):
            self._carry_out(self._machine.handle(self.now, AgentMessage(peer, message, identity)))

    def _go_on(self) -> None:
        if self.timeline.now >= self._until:
            self.die()
        self._goes_on = self.state is State.RUNNING and self._world.controller.machine is not self._machine
        if not self._goes_on:
            if self.alive:  # its successor has not begun yet
                self._world.after(TURNS_EVERY_S, self._go_on)
            return
        for _ in range(REPEATED if self._said else 0):
            self._say(*self.chance.choice(self._said))
        self._carry_out(self._machine.handle(self.now, ControllerTick()))
        self._world.after(TURNS_EVERY_S, self._go_on)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, SendAgent):
                self._say(action.server, action.message, action.agent)

    def _say(self, peer: ServerId, message: ToAgentFromController, identity: str) -> None:
        for agent in self._world.agents:
            if (agent.server.server, agent.identity) == (peer, identity) and agent.highest_term > self.term:
                self._world.network.send(self, agent, agent.from_controller, message, self.term)
