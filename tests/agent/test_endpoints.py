"""With several controllers, an agent finds the leader without waiting for the others."""

from __future__ import annotations

import random

from elasticd.agent.endpoints import Endpoints
from elasticd.agent.events import (
    Action,
    AgentTick,
    Connected,
    ControllerMessage,
    Disconnected,
    HelloNotSent,
    SendController,
    Started,
)
from elasticd.agent.machine import AgentMachine
from elasticd.agent.session import LONGEST_WAIT_INTERVALS, SCATTER
from elasticd.protocol.messages import Acknowledged, AgentHeartbeat, AgentHello, HelloRefused, Standby
from elasticd.protocol.times import REFUSED_RETRY_S, SILENT_INTERVALS

from .agent_stories import SERVER

INTERVAL_S = 1.0


def test_a_round_asks_each_of_the_others_at_once_and_then_waits():
    endpoints = Endpoints(3)
    assert [endpoints.go_on() for _ in range(7)] == [True, True, False, True, True, False, True]
    assert endpoints.present == 7 % 3
    endpoints.begin_round()
    assert [endpoints.go_on() for _ in range(3)] == [True, True, False]


def test_one_alone_is_asked_again_after_a_wait():
    endpoints = Endpoints(1)
    assert [endpoints.go_on() for _ in range(3)] == [False] * 3
    assert endpoints.present == 0
    assert not endpoints.several


class Agent:
    """An agent with several controllers. Each answers a hello as given: "leads", "stands by", "silent", "away", "refuses"."""

    def __init__(self, *behaviours: str) -> None:
        self.behaviours = list(behaviours)
        self.now, self.term = 0.0, 5
        self.machine = AgentMachine(SERVER, "agent-1", INTERVAL_S, endpoints=len(behaviours))
        self.hellos: list[tuple[float, int]] = []
        self.heartbeats: list[tuple[float, int]] = []
        self.take(self.machine.handle(0.0, Started()))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendController) and isinstance(action.message, AgentHello | AgentHeartbeat):
                self.heard(action.endpoint, action.message)

    def heard(self, endpoint: int, message: AgentHello | AgentHeartbeat) -> None:
        is_hello = isinstance(message, AgentHello)
        (self.hellos if is_hello else self.heartbeats).append((round(self.now, 3), endpoint))
        match self.behaviours[endpoint]:
            case "leads":
                session = message.session if isinstance(message, AgentHello) else ""
                self.says(endpoint, Acknowledged(incarnation=f"c{endpoint}", sent=0, session=session))
            case "stands by":
                self.says(endpoint, Standby())
            case "refuses":
                self.says(endpoint, HelloRefused(reason="no"))
            case "away" if is_hello:
                self.take(self.machine.handle(self.now, HelloNotSent()))

    def says(self, endpoint: int, message: Acknowledged | Standby | HelloRefused) -> None:
        self.take(self.machine.handle(self.now, ControllerMessage(message, self.term, endpoint)))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.take(self.machine.handle(self.now, AgentTick()))
        self.now = end

    @property
    def asked(self) -> list[int]:
        return [endpoint for _, endpoint in self.hellos]

    @property
    def leader(self) -> int | None:
        """The controller that gets its heartbeats."""
        begun = len(self.heartbeats)
        self.pass_time(1.5 * INTERVAL_S)
        return self.heartbeats[-1][1] if len(self.heartbeats) > begun else None


def test_who_stands_by_or_is_away_costs_no_time():
    agent = Agent("stands by", "away", "leads")
    agent.pass_time(0.01)
    assert agent.asked == [0, 1, 2]
    assert agent.leader == 2


def test_who_is_silent_costs_one_interval():
    agent = Agent("silent", "stands by", "leads")
    agent.pass_time(INTERVAL_S * (1 + SCATTER))
    assert agent.asked == [0, 1, 2]
    assert agent.leader == 2


def test_what_others_than_the_present_one_say_is_not_heard():
    agent = Agent("leads", "stands by")
    before = agent.hellos[:]
    agent.says(1, Standby())
    agent.says(1, HelloRefused(reason="no"))
    agent.says(1, Acknowledged(incarnation="c1", sent=99))
    assert agent.leader == 0
    assert agent.hellos == before
    assert agent.machine.refused == 0


def test_a_leader_whose_connection_ends_is_left_at_once():
    agent = Agent("leads", "stands by", "leads")
    agent.behaviours[0] = "away"
    agent.take(agent.machine.handle(agent.now, Disconnected(0)))
    agent.pass_time(0.01)
    assert agent.leader == 2


def test_the_connection_of_another_one_may_end():
    agent = Agent("leads", "stands by")
    agent.take(agent.machine.handle(agent.now, Disconnected(1)))
    assert agent.leader == 0
    assert agent.asked == [0]


def test_the_only_controller_keeps_its_session_when_a_connection_is_made_anew():
    agent = Agent("leads")
    agent.take(agent.machine.handle(agent.now, Disconnected(0)))
    agent.take(agent.machine.handle(agent.now, Connected(0)))
    assert agent.asked == [0]
    assert agent.leader == 0


def test_a_leader_that_falls_silent_is_left_after_some_intervals():
    agent = Agent("leads", "leads")
    agent.behaviours[0] = "silent"
    agent.pass_time((SILENT_INTERVALS + 1) * INTERVAL_S)
    assert agent.asked == [0, 1]
    assert agent.leader == 1


def test_a_leader_that_comes_to_stand_by_is_left_at_once():
    agent = Agent("leads", "leads")
    agent.says(0, Standby(leader="tcp://c1:7701"))
    assert agent.leader == 1


def test_a_gap_in_what_was_received_is_the_present_controllers_business():
    agent = Agent("leads", "leads")
    agent.says(0, Acknowledged(incarnation="c0", sent=3))
    assert agent.leader == 0


def test_while_nobody_leads_rounds_come_less_and_less_often():
    agent = Agent("stands by", "stands by", "stands by")
    agent.pass_time(60.0)
    assert len(agent.hellos) < 3 * (60.0 / INTERVAL_S + 10)
    agent.behaviours[1] = "leads"
    agent.pass_time(INTERVAL_S)
    assert agent.leader == 1


def test_while_all_are_silent_hellos_come_less_and_less_often():
    agent = Agent("silent", "silent", "silent")
    agent.pass_time(600.0)
    assert len(agent.hellos) < 600.0 / (LONGEST_WAIT_INTERVALS * INTERVAL_S) * 1.5
    assert set(agent.asked) == {0, 1, 2}


def test_one_that_comes_between_two_rounds_is_asked_at_once():
    agent = Agent("away", "away", "away")
    agent.pass_time(10.0)
    agent.behaviours[1] = "leads"
    agent.take(agent.machine.handle(agent.now, Connected(1)))
    assert agent.hellos[-1] == (round(agent.now, 3), 1)
    assert agent.leader == 1


def test_a_controller_that_refuses_is_asked_again_and_left_when_it_is_silent():
    agent = Agent("refuses", "leads")
    agent.pass_time(2.5 * REFUSED_RETRY_S)
    assert agent.asked == [0, 0, 0]
    agent.behaviours[0] = "silent"
    agent.pass_time(2.5 * REFUSED_RETRY_S)
    assert agent.leader == 1


def test_it_finds_the_leader_whatever_has_happened_before():
    for seed in range(200):
        chance = random.Random(seed)
        agent = Agent(*chance.choices(["stands by", "silent", "away", "leads"], k=3))
        for _ in range(chance.randrange(1, 8)):
            agent.behaviours[chance.randrange(3)] = chance.choice(["stands by", "silent", "away", "refuses", "leads"])
            if chance.random() < 0.3:
                agent.take(agent.machine.handle(agent.now, Disconnected(chance.randrange(3))))
            agent.pass_time(chance.uniform(0, 12))
        leader = chance.randrange(3)
        agent.behaviours = ["stands by", "silent", "away"]
        chance.shuffle(agent.behaviours)
        agent.behaviours[leader] = "leads"
        agent.pass_time(60.0)
        assert agent.leader == leader, seed
