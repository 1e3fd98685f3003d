"""The rendezvous: the leader's side as a pure object, the member's side over real sockets."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from elasticd.protocol.messages import StoreAdd, StoreGet, StoreSet, StoreValue
from elasticd.worker.communication import rendezvous as r

from .communicator_world import RendezvousServer


def value(key: str, data: bytes) -> StoreValue:
    return StoreValue(key=key, value=data)


def cancelled(key: str) -> StoreValue:
    return StoreValue(key=key, value=b"", cancelled=True)


def test_whoever_asks_before_a_value_is_there_is_answered_when_it_comes() -> None:
    server = r.Rendezvous()
    assert server.handle(b"a", StoreGet(scope="1", key="k")) == []
    assert server.handle(b"b", StoreGet(scope="1", key="k")) == []
    assert server.handle(b"c", StoreSet(scope="1", key="k", value=b"v")) == [
        (b"a", value("k", b"v")),
        (b"b", value("k", b"v")),
    ]
    assert server.handle(b"d", StoreGet(scope="1", key="k")) == [(b"d", value("k", b"v"))]


def test_asking_twice_is_answered_once() -> None:
    server = r.Rendezvous()
    server.handle(b"a", StoreGet(scope="1", key="k"))
    server.handle(b"a", StoreGet(scope="1", key="k"))
    assert len(server.handle(b"b", StoreSet(scope="1", key="k", value=b""))) == 1


def test_a_counter_counts_and_wakes_those_who_wait_for_it() -> None:
    server = r.Rendezvous()
    server.handle(b"a", StoreGet(scope="1", key="n"))
    assert server.handle(b"b", StoreAdd(scope="1", key="n", amount=2)) == [
        (b"a", value("n", b"2")),
        (b"b", value("n", b"2")),
    ]
    assert server.handle(b"b", StoreAdd(scope="1", key="n", amount=-1)) == [(b"b", value("n", b"1"))]


def test_adding_to_what_is_no_counter_gives_the_attempt_up() -> None:
    server = r.Rendezvous()
    server.handle(b"a", StoreSet(scope="1", key="n", value=b"text"))
    assert server.handle(b"b", StoreAdd(scope="1", key="n", amount=1)) == [(b"b", cancelled("n"))]


def test_attempts_do_not_see_each_other() -> None:
    server = r.Rendezvous()
    server.handle(b"a", StoreSet(scope="1/1", key="k", value=b"v"))
    assert server.handle(b"b", StoreGet(scope="1/2", key="k")) == []


def test_cancelling_tells_those_who_wait_and_those_who_come_later() -> None:
    server = r.Rendezvous()
    server.handle(b"a", StoreGet(scope="1", key="k"))
    assert server.cancel("1") == [(b"a", cancelled("k"))]
    assert server.handle(b"b", StoreSet(scope="1", key="k", value=b"v")) == []
    assert server.handle(b"b", StoreGet(scope="1", key="k")) == [(b"b", cancelled("k"))]
    assert server.handle(b"b", StoreAdd(scope="1", key="n", amount=1)) == [(b"b", cancelled("n"))]


def test_a_dropped_attempt_is_forgotten() -> None:
    server = r.Rendezvous()
    server.handle(b"a", StoreSet(scope="1", key="k", value=b"v"))
    server.handle(b"a", StoreGet(scope="1", key="other"))
    assert server.drop("1") == [(b"a", cancelled("other"))]
    assert server.drop("1") == []
    assert server.handle(b"b", StoreGet(scope="1", key="k")) == []


def test_too_many_attempts_push_out_the_one_that_nobody_uses() -> None:
    server = r.Rendezvous()
    for number in range(r.MAX_SCOPES):
        server.handle(b"a", StoreGet(scope=str(number), key="k"))
    server.handle(b"b", StoreGet(scope="0", key="k"))  # still in use
    assert server.handle(b"a", StoreGet(scope="new", key="k")) == [(b"a", cancelled("k"))]
    assert len(server.handle(b"c", StoreSet(scope="0", key="k", value=b""))) == 2
    assert server.handle(b"c", StoreSet(scope="1", key="k", value=b"")) == [(b"a", cancelled("k"))]  # pushes out "2"


def test_a_value_that_is_too_large_gives_the_attempt_up() -> None:
    server = r.Rendezvous()
    server.handle(b"a", StoreGet(scope="1", key="k"))
    large = StoreSet(scope="1", key="k", value=bytes(r.MAX_VALUE_BYTES + 1))
    assert server.handle(b"b", large) == [(b"a", cancelled("k"))]


def test_values_that_are_too_large_together_give_the_attempt_up() -> None:
    rendezvous = r.Rendezvous()
    part = bytes(r.MAX_VALUE_BYTES)
    for number in range(r.MAX_SCOPE_BYTES // r.MAX_VALUE_BYTES):
        rendezvous.handle(b"a", StoreSet(scope="1", key=f"k{number}", value=part))
        rendezvous.handle(b"a", StoreSet(scope="1", key=f"k{number}", value=part))  # in the same place
    assert not rendezvous.handle(b"b", StoreGet(scope="1", key="k0"))[0][1].cancelled
    rendezvous.handle(b"a", StoreSet(scope="1", key="one more", value=b"x"))
    assert rendezvous.handle(b"b", StoreGet(scope="1", key="k0"))[0][1].cancelled


def test_too_many_that_wait_give_the_attempt_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r, "MAX_WAITING", 2)
    rendezvous = r.Rendezvous()
    for peer in (b"a", b"b"):
        assert rendezvous.handle(peer, StoreGet(scope="1", key="k")) == []
    told = rendezvous.handle(b"c", StoreGet(scope="1", key="k"))
    assert {peer: answer.cancelled for peer, answer in told} == {b"a": True, b"b": True, b"c": True}
    rendezvous.drop("1")
    rendezvous.handle(b"a", StoreGet(scope="1", key="k"))
    assert not rendezvous.handle(b"b", StoreSet(scope="1", key="k", value=b"v"))[0][1].cancelled


def test_a_store_over_sockets_sets_gets_adds_and_waits() -> None:
    with RendezvousServer() as server:
        one, other = server.store("one"), server.store("other")
        one.set("k", b"v")
        one.set("text", "t")
        other.wait(["k", "text"], timedelta(seconds=10))
        assert (other.get("k"), other.get("text")) == (b"v", b"t")
        assert (one.add("n", 2), other.add("n", 3)) == (2, 5)
        one.close()
        other.close()


def test_a_wait_ends_with_its_timeout() -> None:
    with RendezvousServer() as server:
        store = server.store("w", timeout_s=0.05)
        with pytest.raises(TimeoutError, match=r"rendezvous 1/1: nobody has set k within 0\.1 s"):
            store.get("k")
        store.close()


@pytest.mark.parametrize("side", ["member", "leader"])
def test_a_wait_can_be_cancelled_from_both_sides(side: str) -> None:
    with RendezvousServer() as server:
        store = server.store("w", timeout_s=60.0)
        cancel = store.cancel if side == "member" else lambda: server.cancel("1/1")
        timer = threading.Timer(0.05, cancel)
        timer.start()
        with pytest.raises(r.RendezvousCancelled, match="rendezvous 1/1 was cancelled"):
            store.get("k")
        with pytest.raises(r.RendezvousCancelled):
            store.get("other")
        timer.join()
        store.close()


def test_a_store_asks_for_what_it_expects_before_it_waits_and_keeps_what_it_has_read() -> None:
    with RendezvousServer() as server:
        one, other = server.store("one"), server.store("other")
        other.expect(["early", "late"])
        one.set("early", b"1")
        other.wait(["early"], timedelta(seconds=10))
        one.set("late", b"2")
        assert [other.get(key) for key in ("early", "late", "early")] == [b"1", b"2", b"1"]
        one.close()
        other.close()


def test_closing_a_store_ends_a_wait_in_another_thread() -> None:
    with RendezvousServer() as server:
        store = server.store("w", timeout_s=60.0)
        timer = threading.Timer(0.05, store.close)
        timer.start()
        with pytest.raises(r.RendezvousCancelled):
            store.get("k")
        timer.join()
        store.close()
