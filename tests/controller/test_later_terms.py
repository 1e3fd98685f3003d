"""The term of a controller's reign: recorded before any message, unique, and above every term that an agent has heard."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from elasticd.controller.events import AgentMessage, ClientRequest, Record, ReplyClient, SendAgent, Warn
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.records import LEADER_KEY, LeaderRecord
from elasticd.controller.settings import Settings
from elasticd.controller.store import StoreUnavailable
from elasticd.controller.turn import Turn
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import (
    PROTOCOL_VERSION,
    AgentHello,
    Envelope,
    HelloRefused,
    Ping,
    Pong,
    Refused,
    Request,
    Submit,
)
from elasticd.protocol.model import Gpu, GpuKind, Server, ServerId
from elasticd.protocol.terms import MOST_AHEAD
from elasticd.scheduler.scheduler import load_scheduler

from .world import FaultyStore, job_spec

S1 = ServerId("s1")
FULL = StoreUnavailable("cluster.db: database or disk is full")
UNKNOWN = StoreUnavailable("cluster.db: disk I/O error", outcome_unknown=True)


class Reign:
    """A controller's turn over a store, from its start on. `term`: won in an election; 0: the store is not shared."""

    def __init__(self, store: Any, term: int = 0) -> None:
        self.store, self.now = store, 1000.0
        self.sent: list[tuple[int, Any]] = []  # with their terms
        self.answers: dict[str, Any] = {}
        self.warnings: list[str] = []

        def build(now: float, records: Any) -> ControllerMachine:
            settings = Settings(cluster="test", incarnation=f"c{random.random()}", version="0", pid=1, term=term)
            configured = load_scheduler({"policy": "max-min"}, "test")
            return ControllerMachine(settings, configured, random.Random(0), now, records)

        self.turn = Turn(store, build, self.now)

    @property
    def term(self) -> int:
        return self.turn.machine.term

    @property
    def recorded(self) -> int:
        return msgspec.msgpack.decode(self.store.records[LEADER_KEY], type=LeaderRecord).term

    def finish(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.carry_out(self.turn.finish(self.now))

    def carry_out(self, actions: list[Any]) -> None:
        for action in actions:
            assert not isinstance(action, Record)
            if isinstance(action, SendAgent):
                assert self.recorded >= self.term, "something is sent in a term that is not recorded"
                self.sent.append((self.term, action.message))
            elif isinstance(action, ReplyClient):
                self.answers[action.reply.id] = action.reply.answer
            elif isinstance(action, Warn):
                self.warnings.append(action.text)

    def hello(self, term: int = 0, cluster: str | None = None, speaks: int = PROTOCOL_VERSION, number: int = 1) -> None:
        server = Server(server=S1, address="127.0.0.1", gpus=(Gpu(index=0, kind=GpuKind.CPU, name="CPU slot"),))
        hello = AgentHello(
            server=server,
            incarnation="a",
            workers=(),
            starting=(),
            exited=(),
            number=number,
            cluster=self.turn.machine.cluster.id if cluster is None else cluster,
            term=term,
            speaks=speaks,
        )
        self.turn.take(self.now, AgentMessage(S1, hello))
        self.finish()

    def ask(self, request: Request, name: str, speaks: int = PROTOCOL_VERSION) -> Any:
        self.turn.take(self.now, ClientRequest(b"client", Envelope(id=name, request=request, speaks=speaks)))
        self.carry_out(self.turn.told())
        self.finish()
        return self.answers.get(name)


def test_each_start_has_the_next_term_and_it_is_recorded_before_anything_is_sent():
    store = FaultyStore()
    for term in range(1, 6):
        reign = Reign(store)
        reign.hello(term=term - 1)
        assert (reign.term, reign.recorded) == (term, term)
        assert {told for told, _ in reign.sent} == {term}


def test_a_term_that_could_not_be_recorded_is_not_sent():
    store = FaultyStore()
    reign = Reign(store)
    store.fail = FULL
    reign.hello()
    assert reign.sent == []
    store.fail = None
    reign.finish(after_s=2.0)
    reign.hello(number=2)
    assert {told for told, _ in reign.sent} == {1}


def test_a_term_whose_recording_is_in_doubt_is_not_given_to_two():
    store = FaultyStore()
    reign = Reign(store)
    store.fail, store.commits_anyway = UNKNOWN, True
    reign.hello()
    assert reign.sent == []
    store.fail = None
    reign.finish(after_s=2.0)
    reign.hello(number=2)
    assert {told for told, _ in reign.sent} == {2}


def test_a_controller_whose_store_is_old_goes_on_above_what_agents_have_heard():
    reign = Reign(FaultyStore())
    reign.hello(term=41)
    assert (reign.term, reign.recorded) == (42, 42)
    assert {told for told, _ in reign.sent} == {42}
    assert any("has heard of term 41" in text for text in reign.warnings)
    again = Reign(reign.store)
    again.hello(term=42)
    assert again.term == 43


def test_an_agent_of_another_cluster_is_answered_in_a_term_that_it_obeys():
    reign = Reign(FaultyStore())
    reign.hello(term=500, cluster="another")
    assert reign.sent
    assert {told for told, _ in reign.sent} == {501}


def test_a_higher_term_that_cannot_be_recorded_is_not_used():
    store = FaultyStore()
    reign = Reign(store)
    reign.hello()
    before = len(reign.sent)
    store.fail = FULL
    reign.hello(term=41, number=2)
    assert len(reign.sent) == before
    assert reign.recorded == 1


def test_a_term_that_nobody_can_have_heard_is_not_believed():
    reign = Reign(FaultyStore())
    reign.hello(term=1 + MOST_AHEAD + 1)
    assert reign.term == 1
    assert reign.sent == []
    assert any("claims to have heard" in text for text in reign.warnings)


def elected(term: int) -> Reign:
    store = FaultyStore()
    store.records[LEADER_KEY] = msgspec.msgpack.encode(LeaderRecord(term=term, name="one", agents_at=("tcp://one:1",)))
    return Reign(store, term)


def test_an_elected_controller_has_the_term_of_its_election():
    reign = elected(7)
    reign.hello(term=6)
    assert {told for told, _ in reign.sent} == {7}
    assert reign.turn.machine.cluster.leader.name == "one"
    assert reign.recorded == 7


def test_a_controller_whose_election_is_not_in_the_store_does_not_begin():
    with pytest.raises(OperatorError, match="term 8 reigns"):
        Reign(elected(8).store, 7)


def test_an_elected_controller_that_hears_of_a_higher_term_says_and_records_nothing_more():
    reign = elected(7)
    reign.hello()
    before, written = len(reign.sent), dict(reign.store.records)
    change = ClientRequest(b"client", Envelope(id="r1", request=Submit(spec=job_spec())))
    reign.turn.take(reign.now, change)
    reign.hello(term=9, number=2)
    assert reign.turn.stands_down is not None
    assert reign.turn.stands_down.term == 9
    assert isinstance(reign.answers["r1"], Refused)
    assert reign.answers["r1"].standby, "the client may ask another one"
    assert isinstance(reign.ask(Ping(), "r2"), Refused)
    reign.hello(number=3)
    reign.finish(after_s=100.0)
    assert len(reign.sent) == before
    assert reign.store.records == written
    assert reign.turn.next_deadline() is None


def test_who_speaks_a_version_that_is_not_known_here_is_refused_with_a_reason():
    reign = Reign(FaultyStore())
    reign.hello(speaks=PROTOCOL_VERSION + 2)
    ((_, refused),) = reign.sent
    assert isinstance(refused, HelloRefused)
    assert "upgrade the controller" in refused.reason
    answer = reign.ask(Ping(), "r1", speaks=PROTOCOL_VERSION + 2)
    assert isinstance(answer, Refused)
    assert "this client speaks version" in answer.reason
    assert isinstance(reign.ask(Ping(), "r2", speaks=PROTOCOL_VERSION + 1), Pong)
    assert isinstance(reign.ask(Ping(), "r3", speaks=0), Pong)
