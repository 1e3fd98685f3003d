"""A reign ends for good when its lease may be over, its writes are rejected, or an agent reports a later reign."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from elasticd.controller.events import AgentMessage, ClientRequest
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.records import LEADER_KEY, LeaderRecord
from elasticd.controller.reign import LEASE_OVER, Reign
from elasticd.controller.settings import Settings
from elasticd.controller.store import Delete, Deposed, If, Put, SqliteStore
from elasticd.controller.turn import Turn
from elasticd.protocol.messages import AgentHello, Envelope, Ping, Submit
from elasticd.protocol.model import Gpu, GpuKind, GpuRange, JobSpec, Server, ServerId
from elasticd.runtime.clock import StepMeter
from elasticd.runtime.keys import JobKeys
from elasticd.scheduler.scheduler import load_scheduler

S1 = ServerId("s1")
TERM = 3
SPEC = JobSpec(name="digits", command=("true",), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/")


class GuardedStore(SqliteStore):
    """A store with a replaceable writer."""

    replaced = False

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        if self.replaced:
            raise Deposed("another controller writes to the store now")
        return super().commit(conditions, writes)


class Driven:
    """A reign won in an election, with its lease."""

    def __init__(self, path: Any) -> None:
        self.leads = True
        self.store = GuardedStore(path / "db")
        record = msgspec.msgpack.encode(LeaderRecord(term=TERM, name="me"))
        self.wall_s = 1000.0
        steps = StepMeter(lambda: self.wall_s, lambda: 0.0)
        turn = Turn(self.store, self.build, 1000.0, records=[(LEADER_KEY, record)])
        self.reign = Reign(turn, JobKeys(bytes(32)), steps, lambda: self.leads)
        self.reign.finish(1000.0)

    @staticmethod
    def build(now: float, records: Any) -> ControllerMachine:
        settings = Settings(cluster="test", incarnation="a", version="0", pid=1, term=TERM)
        return ControllerMachine(settings, load_scheduler({"policy": "max-min"}, "t"), random.Random(0), now, records)

    def hello(self, term: int) -> None:
        server = Server(server=S1, address="127.0.0.1", gpus=(Gpu(index=0, kind=GpuKind.CPU, name="CPU slot"),))
        message = AgentHello(server=server, incarnation="a", workers=(), starting=(), exited=(), term=term)
        self.reign.take(1000.0, AgentMessage(S1, message))

    def ask(self, request: Any) -> None:
        self.reign.take(1000.0, ClientRequest(b"client", Envelope(id="1", request=request)))


def test_a_reign_has_the_term_that_its_election_has_recorded(tmp_path: Any) -> None:
    assert Driven(tmp_path).reign.term == TERM


def test_nothing_is_said_once_the_lease_may_be_over_even_if_it_is_renewed_later(tmp_path: Any) -> None:
    driven = Driven(tmp_path)
    assert driven.reign.speaks()
    driven.leads = False
    assert not driven.reign.speaks()
    driven.leads = True
    assert not driven.reign.speaks()
    assert driven.reign.over == LEASE_OVER
    driven.ask(Ping())
    assert driven.reign.told() == []


def test_a_write_that_is_refused_ends_the_reign_and_nothing_of_the_turn_is_said(tmp_path: Any) -> None:
    driven = Driven(tmp_path)
    driven.store.replaced = True
    driven.ask(Submit(spec=SPEC))
    assert driven.reign.finish(1000.0) == []
    assert "another controller writes" in driven.reign.over
    assert driven.reign.finish(1001.0) == []


def test_an_agent_that_knows_a_later_reign_ends_this_one(tmp_path: Any) -> None:
    driven = Driven(tmp_path)
    driven.hello(TERM + 4)
    assert driven.reign.over
    assert driven.reign.heard == TERM + 4
    assert driven.reign.finish(1000.0) == []


def test_an_agent_that_knows_this_reign_does_not(tmp_path: Any) -> None:
    driven = Driven(tmp_path)
    driven.hello(TERM)
    assert driven.reign.finish(1000.0) != []
    assert not driven.reign.over


def test_a_reign_takes_in_once_that_the_clock_was_set_since_it_began(tmp_path: Any) -> None:
    driven = Driven(tmp_path)
    driven.reign.look_at_clock(1000.0)
    assert driven.reign.turn.clock_recorded, "what was set before it began is not its own"
    driven.wall_s = 4600.0
    driven.reign.look_at_clock(4600.0)
    assert not driven.reign.turn.clock_recorded
    driven.hello(TERM)
    driven.reign.finish(4600.0)
    driven.reign.look_at_clock(4600.0)
    assert driven.reign.turn.clock_recorded
