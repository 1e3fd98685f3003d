"""A candidacy before it has reached the store: what it tells of itself, and whom it believes. With a store: `tests/store`."""

from __future__ import annotations

from elasticd.controller.election.candidacy import Candidacy
from elasticd.controller.election.machine import State
from elasticd.controller.election.reachability import Reachability
from elasticd.controller.election.records import PresenceRecord
from elasticd.controller.store.etcd import EtcdStore
from elasticd.controller.store.etcd_connection import Access
from elasticd.protocol.model import ServerId
from elasticd.protocol.times import leadership

A, B = ServerId("a"), ServerId("b")


def candidacy() -> Candidacy:
    """Not started: its stores connect when they are first used."""
    access = Access(("127.0.0.1:1",))
    presence = PresenceRecord(name="me", version="0", since_s=0.0)
    stores = [EtcdStore(access, "/elasticctl/x") for _ in range(2)]
    return Candidacy(*stores, presence, leadership(5), Reachability(60.0, 2.0), lambda: None)


def test_the_other_controllers_are_told_how_many_agents_are_heard() -> None:
    found = candidacy()
    for server in (A, B, A):
        found.heard_from(server)
    assert found.turn() is None
    assert found._requests.presence.agents_heard == 2


def test_a_candidacy_that_knows_of_no_reign_has_term_0_and_refuses_clients_without_an_address() -> None:
    found = candidacy()
    assert (found.name, found.term, found.state, found.leads()) == ("me", 0, State.FOLLOWING, False)
    refused = found.refusal()
    assert (refused.standby, refused.leader) == (True, "")
    assert refused.reason == "stands by; no controller leads at present"
    assert found.standby().leader == ""
    assert found.next_deadline() is None


def test_an_agent_that_tells_of_a_later_reign_is_believed_once_at_a_time() -> None:
    found = candidacy()
    assert [found.believes(server) for server in (A, A, B)] == [True, False, True]
