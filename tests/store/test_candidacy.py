"""Controllers in an election on a real etcd, in one process: one leads, the next takes over the records."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from elasticd.controller.election.candidacy import Begin, Candidacy, End
from elasticd.controller.election.machine import State
from elasticd.controller.election.reachability import Reachability
from elasticd.controller.election.records import LEADING_KEY, PresenceRecord
from elasticd.controller.store import Delete, Deposed, Put
from elasticd.protocol.model import ServerId
from elasticd.protocol.times import Leadership, leadership

PATIENCE_S = 120.0


class Standing:
    """One candidacy, with the loop around it."""

    def __init__(self, etcd: Any, root: str, name: str, times: Leadership) -> None:
        self.name = name
        self.store = etcd.store(root)
        presence = PresenceRecord(name=name, version="0", since_s=0.0, clients_at=(f"ipc:///{name}",))
        self.candidacy = Candidacy(
            self.store, etcd.store(root, timeout_s=1.0), presence, times, Reachability(5.0, 2.0), lambda: None
        )
        self.begun: Begin | None = None
        self.ended = ""
        self.candidacy.start()

    def turn(self) -> None:
        match self.candidacy.turn():
            case Begin() as begin:
                self.begun = begin
                self.candidacy.state_loaded(begin.term)
            case End(reason):
                self.begun, self.ended = None, reason
            case None:
                pass

    @property
    def leads(self) -> bool:
        return self.begun is not None and self.candidacy.leads() and self.candidacy.state is State.LEADING

    def close(self) -> None:
        self.candidacy.close()
        self.store.close()


class Several:
    def __init__(self, etcd: Any) -> None:
        self.etcd, self.root = etcd, f"/elasticctl/{secrets.token_hex(4)}"
        self.stack = ExitStack()
        self.standing: list[Standing] = []

    def stand(self, name: str, **times: float) -> Standing:
        """No lease runs out, however busy the machine is. `times`: of the election, other than those that its lease implies."""
        standing = Standing(self.etcd, self.root, name, replace(leadership(60), **times))
        self.stack.callback(standing.close)
        self.standing.append(standing)
        return standing

    def until(self, what: str, probe: Any) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not probe():
            for each in self.standing:
                each.turn()
            assert time.monotonic() < until_s, f"not within {PATIENCE_S} s: {what}"
            time.sleep(0.01)


@pytest.fixture
def several(etcds: Any) -> Iterator[Several]:
    several = Several(etcds.of("etcd"))
    yield several
    several.stack.close()


def test_the_next_leader_has_what_was_recorded_and_the_one_before_cannot_write(several: Several) -> None:
    first = several.stand("a")
    several.until("a leads", lambda: first.leads)
    second = several.stand("b")
    several.until("b knows who leads", lambda: "the leader is a" in second.candidacy.refusal().reason)
    several.until("b knows where", lambda: second.candidacy.refusal().leader == "ipc:///a")
    first.store.commit((), [Put("/jobs/1/spec", b"one"), Put("/archive/1", b"long"), Put("/gone", b"")])
    first.store.commit((), [Delete("/gone")])
    first.candidacy.close()  # revokes its lease
    several.standing.remove(first)
    several.until("b leads", lambda: second.leads)
    assert second.begun is not None
    assert second.begun.term == 2
    records = dict(second.begun.records)
    assert records["/jobs/1/spec"] == b"one"
    assert "/gone" not in records
    with pytest.raises(Deposed):
        first.store.commit((), [Put("/jobs/1/spec", b"two")])
    second.store.commit((), [Put("/jobs/1/spec", b"three")])


@pytest.mark.cluster
def test_whoever_loses_the_key_stands_by_and_may_lead_again(several: Several) -> None:
    first = several.stand("a", rest_s=1.0)
    several.until("a leads", lambda: first.leads)
    first.store.claim((), [Delete(LEADING_KEY)])  # by hand
    several.until("a stands by", lambda: first.ended)
    several.until("a leads again", lambda: first.leads)
    assert first.begun is not None
    assert first.begun.term == 2


@pytest.mark.cluster
def test_a_leader_that_hears_fewer_agents_lets_the_standby_lead(several: Several) -> None:
    first = several.stand("a")
    several.until("a leads", lambda: first.leads)
    second = several.stand("b")

    def b_leads() -> bool:
        second.candidacy.heard_from(ServerId("s1"))
        return second.leads

    several.until("b leads", b_leads)
    assert "b hears 1" in first.ended
    assert [(one.name) for one in second.candidacy.present] == ["a", "b"]
