"""A shared store when members of etcd die, stop, lose data or are full."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from elasticd.controller.store import Changes, Delete, If, Put, StoreUnavailable

pytestmark = pytest.mark.campaign
PATIENCE_S = 120.0
Start = Callable[..., Any]


def settled(store: Any) -> None:
    """Wait until the store can be written again."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            store.probe(100)
            return
        except StoreUnavailable as error:
            if time.monotonic() > until_s:
                raise AssertionError(str(error)) from None
        time.sleep(0.05)


def committed(store: Any, writes: list[Any]) -> None:
    """Commit, and retry until the writes are there: unknown outcomes are looked up, so that nothing is written twice."""
    while True:
        try:
            assert store.commit([], writes) is not None
            return
        except StoreUnavailable as error:
            settled(store)
            if error.outcome_unknown and store.get(writes[0].key) is not None:
                return


def counted(watch: Any, last: str) -> list[str]:
    """The keys that a watch reports, in their order, up to `last`."""
    found: list[str] = []
    until_s = time.monotonic() + PATIENCE_S
    while last not in found:
        assert time.monotonic() < until_s, found
        changes = watch.next(1.0)
        found += [write.key for write in changes.writes] if isinstance(changes, Changes) else []
    return found


def test_nothing_is_lost_written_twice_or_told_twice_while_members_die_in_turn(etcd: Start) -> None:
    cluster = etcd(size=3)
    store, reader = cluster.store("/elasticctl/a", timeout_s=3.0), cluster.store("/elasticctl/a", timeout_s=3.0)
    store.begin()
    watch = reader.watch("/n/", 1)
    for number in range(60):
        if number % 20 == 5:
            cluster.leader().kill()
        if number % 20 == 15:
            for member in cluster.members:
                if member.process is None:
                    member.start()
        committed(store, [Put(f"/n/{number:03}", b"")])
    wanted = [f"/n/{number:03}" for number in range(60)]
    assert [record.key for record in store.list("/n/").records] == wanted
    assert counted(watch, wanted[-1]) == wanted
    watch.close()
    store.close()
    reader.close()


def test_a_member_that_is_stopped_holds_a_call_up_for_its_time_at_most_and_reading_goes_on(etcd: Start) -> None:
    cluster = etcd(size=3)
    store = cluster.store("/elasticctl/a", timeout_s=4.0)
    store.begin()
    store.commit([], [Put("/a", b"1")])
    first = next(m for m in cluster.members if m.endpoint == store._connection.endpoint.address)
    first.signal(signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match="no answer within 4 s") as caught:
        store.commit([If("/a", 0)], [Put("/a", b"2")])
    assert time.monotonic() - began_s >= 3.9
    assert caught.value.outcome_unknown
    settled(store)
    assert store.get("/a").value == b"1"
    first.signal(signal.SIGCONT)
    store.close()


def test_a_commit_that_was_on_its_way_cannot_appear_after_a_probe(etcd: Start) -> None:
    """The member that has the request is stopped, and continues long after another commit has been made elsewhere."""
    cluster = etcd(size=3)
    leader = cluster.leader()
    follower = next(member for member in cluster.members if member is not leader)
    others = tuple(member.endpoint for member in cluster.members if member is not follower)
    store = cluster.store("/elasticctl/a", timeout_s=2.0, endpoints=(follower.endpoint, *others))
    store.begin()
    assert store._connection.endpoint.address == follower.endpoint
    follower.signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable) as caught:
        store.commit([], [Put("/late", b"")])
    assert caught.value.outcome_unknown
    settled(store)
    assert store.get("/late") is None, "so it is settled: it has not been made"
    store.commit([], [Put("/a", b"")])
    follower.signal(signal.SIGCONT)
    alone = cluster.store("/elasticctl/a", endpoints=(follower.endpoint,))
    assert alone.get("/a") is not None, "it has caught up"
    assert alone.get("/late") is None
    alone.close()
    store.close()


def test_without_a_majority_everything_is_refused_and_it_comes_back(etcd: Start) -> None:
    cluster = etcd(size=3)
    store = cluster.store("/elasticctl/a", timeout_s=3.0)
    store.begin()
    store.commit([], [Put("/a", b"1")])
    for member in cluster.members[1:]:
        member.kill()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="etcd at 127"):
            store.get("/a")
        with pytest.raises(StoreUnavailable):
            store.probe(10)
    for member in cluster.members[1:]:
        member.start()
    settled(store)
    assert store.get("/a").value == b"1"
    store.close()


def test_a_full_etcd_says_so_and_what_is_there_stays(etcd: Start) -> None:
    cluster = etcd(options=("--quota-backend-bytes", str(16 << 20)))
    store = cluster.store("/elasticctl/a")
    store.begin()
    written = 0

    def fill() -> None:
        nonlocal written
        while True:
            store.commit([], [Put(f"/a/{written:02}", bytes(1_000_000))])
            written += 1

    with pytest.raises(StoreUnavailable, match="its space is used up") as caught:
        fill()
    assert caught.value.outcome_unknown, "etcd says the same before and after it has made the change"
    with pytest.raises(StoreUnavailable, match="etcdctl alarm disarm"):
        store.probe(100)
    assert written <= len(store.keys("/a/")) <= written + 1
    store.close()


def test_a_token_that_is_forgotten_or_has_run_out_is_renewed(etcd: Start) -> None:
    cluster = etcd(tls=True, options=("--auth-token-ttl", "1"))
    store = cluster.store("/elasticctl/a")
    begun = store.begin()
    watch = store.watch("", begun + 1)
    store.commit([], [Put("/n/0", b"")])
    time.sleep(3.0)  # etcd's own clock expires tokens
    store.commit([], [Put("/n/1", b"")])
    cluster.members[0].kill()
    cluster.members[0].start()
    cluster.wait()
    committed(store, [Put("/n/2", b"")])
    assert counted(watch, "/n/2") == ["/n/0", "/n/1", "/n/2"]
    store.close()


def test_a_wrong_password_another_certificate_and_another_users_keys_are_refused_in_words(
    etcd: Start, tmp_path: Any
) -> None:
    cluster = etcd(tls=True)
    for changes, words in (
        ({"password": "wrong"}, "authentication failed"),
        ({"user": "", "password": ""}, "asks for a user and a password"),
        ({"ca": None, "user": "", "password": ""}, "etcd at 127"),
    ):
        store = cluster.store("/elasticctl/a", timeout_s=3.0, **changes)
        with pytest.raises(StoreUnavailable, match=words):
            store.begin()
        store.close()
    elsewhere = cluster.store("/another/a")
    with pytest.raises(StoreUnavailable, match="the user elasticctl may not do this"):
        elsewhere.begin()
    elsewhere.close()


def test_a_large_commit_is_finished_after_all_of_etcd_was_away(etcd: Start) -> None:
    cluster = etcd(size=3)
    store = cluster.store("/elasticctl/a", timeout_s=3.0)
    store.begin()
    store.commit([], [Put("/old", b"")])
    for member in cluster.members:
        member.signal(signal.SIGKILL)
        member.kill()
    with pytest.raises(StoreUnavailable):
        store.commit([], [Delete("/old"), *(Put(f"/{number}", bytes(6000)) for number in range(500))])
    for member in cluster.members:
        member.start()
    settled(store)
    assert store.keys("") == ("/old",)
    store.commit([], [Delete("/old"), *(Put(f"/{number}", bytes(6000)) for number in range(500))])
    assert len(store.keys("")) == 500
    store.close()
