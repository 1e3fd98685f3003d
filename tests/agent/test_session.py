"""The session between agent and controller: every loss is detected, and repeated hellos converge."""

from __future__ import annotations

import itertools
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.agent.events import AgentTick, ControllerMessage, SendController, Started
from elasticd.agent.machine import AgentMachine
from elasticd.agent.session import Due, Phase, Session
from elasticd.controller.state.servers import MORE_THAN_ANY_SESSION
from elasticd.protocol.messages import Acknowledged, AgentHeartbeat, AgentHello
from elasticd.protocol.model import Server, ServerId
from elasticd.protocol.times import SILENT_INTERVALS

INTERVAL_S = 1.0


def new_session(seed: int = 0) -> Session:
    return Session(INTERVAL_S, random.Random(seed))


def ready(now: float = 0.0) -> Session:
    session = new_session()
    assert session.due(now) is Due.HELLO
    session.acknowledged(now, Acknowledged(incarnation="c1", sent=0))
    return session


def test_a_connection_is_looked_for_with_growing_pauses() -> None:
    session, now, times = new_session(), 0.0, []
    for _ in range(8):
        now = session.deadline()
        assert session.due(now) is Due.HELLO
        session.hello_not_sent()
        times.append(now)
    pauses = [round(after - before, 6) for before, after in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(pauses)), "a controller is back soon"
    assert pauses[0] < 0.1
    assert pauses[-1] == pytest.approx(INTERVAL_S)


@pytest.mark.parametrize("took_s", [0.0, 0.5])
def test_a_controller_that_is_quick_again_is_missed_as_soon_as_before_it_was_slow(took_s: float) -> None:
    session = new_session()
    assert session.due(0.0) is Due.HELLO
    session.heard(10.0)
    session.say_again(10.0)
    assert session.due(10.0) is Due.HELLO
    session.acknowledged(10.0 + took_s, Acknowledged(incarnation="c1", sent=0))
    assert session.due(10.0 + took_s + SILENT_INTERVALS * INTERVAL_S) is Due.HELLO
    assert session.phase is Phase.ASKED, "the session was lost"


def test_the_next_endpoint_is_asked_at_once_when_the_connection_to_the_present_one_ends() -> None:
    session = Session(INTERVAL_S, random.Random(0), endpoints=2)
    assert session.due(0.0) is Due.HELLO
    session.disconnected(0.1, endpoint=0)
    assert session.endpoint == 1
    assert session.due(0.1) is Due.HELLO


def test_as_soon_as_a_connection_stands_the_agent_speaks() -> None:
    lost = new_session()
    assert lost.due(0.0) is Due.HELLO
    lost.hello_not_sent()
    assert lost.due(0.01) is Due.NOTHING
    lost.connected(0.01)
    assert lost.due(0.01) is Due.HELLO
    lost.connected(0.02)
    assert lost.due(0.02) is Due.NOTHING, "the hello is on its way"
    stands = ready()
    assert stands.due(0.1) is Due.NOTHING
    stands.connected(0.1)
    assert stands.due(0.1) is Due.HEARTBEAT
    assert stands.deadline() == pytest.approx(0.1 + INTERVAL_S)


def test_a_hello_on_its_way_is_repeated_seldom_and_not_by_all_agents_at_once() -> None:
    first: set[float] = set()
    for seed in range(20):
        session, now, times = new_session(seed), 0.0, []
        for _ in range(5):
            now = session.deadline()
            assert session.due(now) is Due.HELLO
            times.append(now)
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert all(
            0.75 * many <= pause / INTERVAL_S <= 1.25 * many for pause, many in zip(pauses, (1, 2, 4, 4), strict=True)
        )
        first.add(round(pauses[0], 3))
    assert len(first) > 10


def test_answers_that_a_broken_connection_has_held_back_do_not_make_the_controller_slow() -> None:
    session = new_session()
    assert session.due(0.0) is Due.HELLO
    for _ in range(3):  # the controller is stopped for 12 s
        assert session.due(session.deadline()) is Due.HELLO
        session.hello_not_sent()
    assert session.due(12.0) is Due.HELLO
    session.heard(12.1, 4)  # the answer to the first hello
    session.due(session.deadline())
    assert session.deadline() < 12.1 + 5 * INTERVAL_S


def test_a_lost_message_leads_to_a_hello() -> None:
    session = ready()
    session.message_received()
    session.acknowledged(0.5, Acknowledged(incarnation="c1", sent=1))
    assert session.due(0.5) is Due.NOTHING
    session.acknowledged(0.6, Acknowledged(incarnation="c1", sent=2))
    assert session.due(0.6) is Due.HELLO


def test_another_incarnation_of_the_controller_leads_to_a_hello() -> None:
    session = ready()
    session.acknowledged(0.5, Acknowledged(incarnation="c2", sent=0))
    assert session.due(0.5) is Due.HELLO
    session.acknowledged(0.6, Acknowledged(incarnation="c2", sent=0))
    assert session.incarnation == "c2"
    assert session.due(0.7) is Due.NOTHING


def test_silence_of_three_intervals_leads_to_a_hello() -> None:
    session = ready()
    said = [session.due(now / 10) for now in range(1, 31)]
    assert said.count(Due.HEARTBEAT) == 2
    assert said[-1] is Due.HELLO


def test_an_answer_of_the_earlier_session_does_not_start_the_new_one() -> None:
    session = ready()
    session.acknowledged(0.5, Acknowledged(incarnation="c1", sent=3))
    assert session.due(0.5) is Due.HELLO
    session.acknowledged(0.51, Acknowledged(incarnation="c1", sent=4))
    assert session.due(2.0) is Due.HELLO


def test_what_was_in_flight_before_the_hello_is_not_counted() -> None:
    session = ready()
    session.acknowledged(0.5, Acknowledged(incarnation="c1", sent=3))
    assert session.due(0.5) is Due.HELLO
    for _ in range(5):
        session.message_received()
    session.acknowledged(0.51, Acknowledged(incarnation="c1", sent=0))
    session.message_received()
    session.acknowledged(0.52, Acknowledged(incarnation="c1", sent=2))
    assert session.due(0.52) is Due.HELLO


def test_an_acknowledgement_does_not_answer_a_hello_that_was_never_sent() -> None:
    session = new_session()
    assert session.due(0.0) is Due.HELLO
    session.hello_not_sent()
    session.acknowledged(0.01, Acknowledged(incarnation="c1", sent=0))
    assert session.incarnation is None
    assert session.due(session.deadline()) is Due.HELLO


def test_a_count_that_is_too_high_leads_to_a_hello_since_it_would_hide_a_loss() -> None:
    session = ready()
    for _ in range(2):  # all messages arrived twice, after two hellos; the acknowledgement in between was lost
        session.message_received()
    session.acknowledged(0.5, Acknowledged(incarnation="c1", sent=1))
    assert session.due(0.5) is Due.HELLO


def test_a_refused_agent_asks_again_every_few_seconds_and_joins_when_it_may() -> None:
    session = new_session()
    assert session.due(0.0) is Due.HELLO
    assert session.refused(0.1)
    assert session.phase is Phase.REFUSED
    said = [now / 10 for now in range(1, 200) if session.due(now / 10) is Due.HELLO and not session.refused(now / 10)]
    assert said == pytest.approx([5.1, 10.1, 15.1])
    assert session.acknowledged(20.0, Acknowledged(incarnation="c1", sent=0))
    assert session.phase is Phase.STANDS
    assert session.due(21.0) is Due.HEARTBEAT


class Line:
    """A controller and an agent, with a connection that keeps the order and loses the messages that `lost` selects.

    The controller has facts 1..n for the agent. It sends each once, and all of them again after a hello.
    """

    def __init__(self) -> None:
        self.session = new_session()
        self.now = 0.0
        self.incarnation = 0
        self.facts = 0
        self.sent = 0
        self.known: set[int] = set()
        self.to_agent: deque[Acknowledged | int] = deque()
        self.to_controller: deque[Due] = deque()

    def add_fact(self) -> None:
        self.facts += 1
        self.to_agent.append(self.facts)
        self.sent += 1

    def restart_controller(self) -> None:
        self.incarnation += 1
        self.sent = 0

    def controller_hears(self) -> None:
        if not self.to_controller:
            return
        hello = self.to_controller.popleft() is Due.HELLO
        self.sent = 0 if hello else self.sent
        self.to_agent.append(Acknowledged(incarnation=str(self.incarnation), sent=self.sent))
        if hello:
            self.to_agent.extend(range(1, self.facts + 1))
            self.sent = self.facts

    def agent_hears(self) -> None:
        if not self.to_agent:
            return
        message = self.to_agent.popleft()
        if isinstance(message, Acknowledged):
            self.session.acknowledged(self.now, message)
        else:
            self.session.message_received()
            self.known.add(message)

    def pass_time(self, seconds: float) -> Due:
        self.now += seconds
        said = self.session.due(self.now)
        if said is not Due.NOTHING:
            self.to_controller.append(said)
        return said

    def break_connection(self) -> None:
        self.to_agent.clear()
        self.to_controller.clear()


STEPS = st.lists(
    st.sampled_from(
        [
            "add",
            "add",
            "controller",
            "controller",
            "agent",
            "agent",
            "agent",
            "time",
            "time",
            "restart",
            "lose",
            "break",
        ]
    ),
    max_size=120,
)


@given(STEPS)
def test_whatever_was_lost_the_agent_knows_everything_soon_after_the_line_has_healed(steps: list[str]) -> None:
    line = Line()
    for step in steps:
        match step:
            case "add":
                line.add_fact()
            case "controller":
                line.controller_hears()
            case "agent":
                line.agent_hears()
            case "time":
                line.pass_time(0.4)
            case "restart":
                line.restart_controller()
            case "lose":
                if line.to_agent:
                    line.to_agent.popleft()
            case "break":
                line.break_connection()
    said = []
    for _ in range(150):  # fifteen seconds
        said.append(line.pass_time(0.1))
        while line.to_controller or line.to_agent:
            line.controller_hears()
            line.agent_hears()
    assert line.known == set(range(1, line.facts + 1)), f"after {steps}"
    assert Due.HELLO not in said[100:], f"hellos did not settle after {steps}"


@pytest.mark.parametrize("answer_s", [0.01, 1.9, 3.0, 5.0, 20.0])
def test_an_agent_of_a_controller_that_always_answers_late_comes_into_a_session_and_stays_there(
    answer_s: float,
) -> None:
    server = Server(server=ServerId("s1"), address="127.0.0.1", gpus=())
    machine, now = AgentMachine(server, "agent-1", INTERVAL_S), 0.0
    answers: list[tuple[float, Acknowledged]] = []  # in flight
    session, hellos = "", []
    actions = machine.handle(now, Started(()))
    while now < 300.0:
        for action in actions:
            if isinstance(action, SendController) and isinstance(action.message, AgentHello):
                session = action.message.session
                hellos.append(now)
            if isinstance(action, SendController) and isinstance(action.message, AgentHello | AgentHeartbeat):
                answers.append((now + answer_s, Acknowledged(incarnation="c1", sent=0, session=session)))
        deadline = machine.next_deadline()
        assert deadline is not None
        if answers and answers[0][0] <= deadline:
            now, answer = answers.pop(0)
            actions = machine.handle(now, ControllerMessage(answer))
        else:
            now = max(now, deadline)
            actions = machine.handle(now, AgentTick())
    assert len(hellos) <= 12
    assert hellos[-1] < 60.0


def test_an_agent_that_its_controller_has_given_up_says_hello_however_many_messages_it_has_had() -> None:
    for received in range(4):
        session = ready()
        for _ in range(received):
            session.message_received()
        session.acknowledged(0.5, Acknowledged(incarnation="c1", sent=MORE_THAN_ANY_SESSION))
        assert session.due(0.5) is Due.HELLO


def test_a_controller_of_many_servers_asks_for_fewer_heartbeats_and_gets_them() -> None:
    session = ready()
    now = session.deadline()
    assert session.due(now) is Due.HEARTBEAT
    session.acknowledged(now, Acknowledged(incarnation="c1", sent=0, heartbeat_interval_s=2.5))
    times = []
    for _ in range(4):
        now = session.deadline()
        assert session.due(now) is Due.HEARTBEAT
        session.acknowledged(now, Acknowledged(incarnation="c1", sent=0, heartbeat_interval_s=2.5))
        times.append(now)
    assert [after - before for before, after in itertools.pairwise(times)] == pytest.approx([2.5] * 3)
    for _ in range(3):
        before, now = now, session.deadline()
        assert session.due(now) is Due.HEARTBEAT
        session.acknowledged(now, Acknowledged(incarnation="c1", sent=0, heartbeat_interval_s=0.1))
    assert now - before == pytest.approx(INTERVAL_S), "never more of them than the agent's file says"
