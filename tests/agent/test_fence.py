"""Fencing: an agent obeys no deposed controller, also for late and duplicated messages, and after its own restart."""

from __future__ import annotations

from elasticd.agent.events import (
    Action,
    ControllerMessage,
    IdentityWritten,
    KeepIdentity,
    SendWorker,
    SignalProcess,
    Started,
    StartProcess,
    Warn,
)
from elasticd.agent.fence import REFUSAL_INTERVAL_S, Fence, TermCheck
from elasticd.agent.identity import Identity
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHello,
    ForgetWorkers,
    HelloRefused,
    Message,
    Standby,
    StopWorker,
)
from elasticd.protocol.terms import NO_TERM
from elasticd.protocol.times import SILENT_INTERVALS

from .agent_stories import FIRST, SECOND, SERVER, Driven, local, order, sent, start, status


class Reigned(Driven):
    """An agent with a worker, in a session with a controller of term 7."""

    def __init__(self) -> None:
        super().__init__(identity=Identity(agent="a", cluster="c"))
        for _ in range(2):  # a second hello, to another incarnation
            self.in_term(7, Acknowledged(incarnation="c7", sent=0))
        self.in_term(7, start(FIRST))
        self.status(status())

    def in_term(self, term: int, message: Message) -> list[Action]:
        return self.machine.handle(self.now, ControllerMessage(message, term))  # type: ignore[arg-type]


def kept(actions: list[Action]) -> list[int]:
    return [action.identity.term for action in actions if isinstance(action, KeepIdentity)]


def acts(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Warn)]


EVERYTHING: list[Message] = [
    start(SECOND),
    order(9),
    StopWorker(job=start().job, worker=FIRST, grace_s=1.0),
    ForgetWorkers(workers=(FIRST,)),
    HelloRefused(reason="no"),
    Acknowledged(incarnation="c6", sent=0),
    Acknowledged(incarnation="c6", sent=10),
]


def test_whatever_a_controller_of_a_lower_term_says_changes_nothing():
    driven = Reigned()
    before = driven.machine.sizes
    for times, message in enumerate(EVERYTHING * 2, start=1):
        assert acts(driven.in_term(6, message)) == [], message
        assert driven.machine.refused == times
    assert driven.machine.sizes == before
    assert driven.machine.generation_of(order(9).job) is None


def test_a_reign_that_is_over_does_not_keep_the_session_alive():
    driven = Reigned()
    hellos: list[AgentHello] = []
    for _ in range(4 * SILENT_INTERVALS):
        hellos += sent(driven.pass_time(1.0), AgentHello)
        driven.in_term(6, Acknowledged(incarnation="c6", sent=0))
    assert hellos, "who answers in a term that is over counts as silent"
    assert {hello.term for hello in hellos} == {7}


def test_messages_of_a_reign_that_is_over_do_not_count_among_those_of_the_session():
    driven = Reigned()
    driven.in_term(6, order(9))
    assert sent(driven.in_term(7, Acknowledged(incarnation="c7", sent=1)), AgentHello) == []
    assert sent(driven.in_term(7, Acknowledged(incarnation="c7", sent=2)), AgentHello) != []


def test_a_higher_term_is_written_down_before_anything_else_is_done():
    driven = Reigned()
    actions = driven.in_term(8, start(SECOND))
    assert kept(actions[:1]) == [8]
    assert any(isinstance(action, StartProcess) for action in actions[1:])
    assert kept(driven.in_term(8, order(2))) == [], "once is enough"
    assert acts(driven.in_term(7, order(3))) == [], "the term before is over"


def test_a_restarted_agent_refuses_what_its_predecessor_would_have_refused():
    driven = Reigned()
    (identity,) = [action.identity for action in driven.in_term(8, order(2)) if isinstance(action, KeepIdentity)]
    again = AgentMachine(SERVER, "agent-2", 1.0, identity=identity)
    (hello,) = sent(again.handle(2000.0, Started((local(),))), AgentHello)
    assert hello.term == 8
    for message in EVERYTHING:
        assert acts(again.handle(2000.0, ControllerMessage(message, 7))) == []  # type: ignore[arg-type]
    begun = again.handle(2000.0, ControllerMessage(Acknowledged(incarnation="c8", sent=0, session=hello.session), 8))
    assert kept(begun) == []
    assert again.refused == len(EVERYTHING)


def test_a_term_that_could_not_be_written_down_is_obeyed_and_written_later():
    driven = Reigned()
    driven.in_term(8, order(2))
    driven.hear(IdentityWritten("identity.json cannot be written: No space left on device"))
    assert acts(driven.in_term(7, order(3))) == []
    actions = [action for _ in range(60) for action in driven.pass_time(1.0)]
    assert 8 in kept(actions)


def test_no_order_of_a_reign_that_is_over_reaches_a_worker():
    driven = Reigned()
    assert any(isinstance(action, SendWorker) for action in driven.in_term(7, order(2)))
    actions = driven.in_term(6, order(9))
    for sequence in range(2, 30):
        actions += driven.status(status(sequence=sequence))
        actions += driven.pass_time(1.0)
    told = [action.message for action in actions if isinstance(action, SendWorker)]
    assert order(9) not in told
    assert not any(isinstance(action, SignalProcess) for action in actions)


def test_a_controller_without_terms_is_obeyed_as_after_a_downgrade_and_the_log_says_so():
    driven = Reigned()
    actions = driven.in_term(0, order(2))
    assert any(isinstance(action, Warn) and "after a downgrade" in action.text for action in actions)
    assert any(isinstance(action, SendWorker) for action in actions)
    assert not any(isinstance(action, Warn) for action in driven.in_term(0, order(3))), "once"
    assert driven.machine.refused == 0
    assert driven.machine.term == 7, "an upgrade goes on from there"


def test_an_agent_that_has_never_received_a_term_has_nothing_to_report_of_a_controller_without_terms():
    fence = Fence(NO_TERM)
    assert fence.check(NO_TERM) is TermCheck.OBEYED
    assert fence.news(0.0, NO_TERM) == ""


def test_a_restarted_agent_reports_a_downgrade_at_the_first_message():
    fence = Fence(7)
    assert fence.check(NO_TERM) is TermCheck.OBEYED
    assert "after a downgrade" in fence.news(0.0, NO_TERM)


def test_a_standby_that_lags_behind_is_heard_and_one_that_is_ahead_raises_the_term():
    driven = Reigned()
    for term in (0, 6):
        assert not any(isinstance(action, Warn) for action in driven.in_term(term, Standby()))
    assert driven.machine.refused == 0
    assert kept(driven.in_term(9, Standby())) == [9]
    assert acts(driven.in_term(7, order(3))) == []


def test_refusals_are_told_once_in_a_while():
    driven = Reigned()
    told = [action for _ in range(100) for action in driven.in_term(6, order(9)) if isinstance(action, Warn)]
    assert len(told) == 1
    assert "speaks in term 6, and term 7 has begun" in told[0].text
    driven.now += REFUSAL_INTERVAL_S
    (later,) = [action for action in driven.in_term(6, order(9)) if isinstance(action, Warn)]
    assert "101 such messages" in later.text
