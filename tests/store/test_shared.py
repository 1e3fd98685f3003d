"""Guarantees for several processes with one store: fences, guards, leases, watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from elasticd.controller.store import (
    Changes,
    Compacted,
    Delete,
    Deposed,
    If,
    Put,
    PutLeased,
    Record,
    SharedStore,
    StoreUnavailable,
    Watch,
    journal,
)

PATIENCE_S = 120.0
Open = Callable[..., Any]


def told(watch: Watch, revision: int) -> list[Changes]:
    """All changes that the watch reports up to `revision`."""
    found: list[Changes] = []
    until_s = time.monotonic() + PATIENCE_S
    while not found or found[-1].revision < revision:
        assert time.monotonic() < until_s, f"told up to {found[-1:]}, not to {revision}"
        if (changes := watch.next(1.0)) is not None:
            found.append(changes)
    return found


# ----------------------------------------------------------------------------------------------------------- writers


def test_who_has_not_begun_or_was_replaced_cannot_write(shared: Open) -> None:
    first, second = shared(), shared()
    with pytest.raises(Deposed):
        first.commit([], [Put("/a", b"")])
    first.begin()
    first.commit([], [Put("/a", b"1")])
    second.begin()
    for _ in range(2):
        with pytest.raises(Deposed, match="another controller writes"):
            first.commit([], [Put("/a", b"2")])
    with pytest.raises(Deposed):
        first.probe(100)
    assert second.get("/a").value == b"1"
    second.commit([], [Put("/a", b"3")])
    assert first.get("/a").value == b"3", "it may read"


def test_a_commit_holds_only_while_its_guard_does(shared: Open) -> None:
    leader, other = shared(), shared()
    term = leader.claim([If("/leader", 0)], [Put("/leader", b"1")])
    assert other.claim([If("/leader", 0)], [Put("/leader", b"2")]) is None
    leader.begin(If("/leader", term))
    assert leader.commit([If("/x", 7)], [Put("/a", b"1")]) is None, "a condition is not the guard"
    assert leader.commit([], [Put("/a", b"1")]) is not None
    other.claim([If("/leader", term)], [Put("/leader", b"2")])
    with pytest.raises(Deposed):
        leader.commit([], [Put("/a", b"2")])
    assert leader.get("/a").value == b"1"


def test_who_is_not_the_leader_cannot_begin_and_deposes_nobody(shared: Open) -> None:
    leader, late = shared(), shared()
    term = leader.claim([If("/leader", 0)], [Put("/leader", b"1")])
    leader.begin(If("/leader", term))
    with pytest.raises(Deposed):
        late.begin(If("/leader", term - 1))
    assert leader.commit([], [Put("/a", b"")]) is not None


def test_a_large_commit_of_a_deposed_writer_leaves_nothing(shared: Open) -> None:
    first, second = shared(), shared()
    first.begin()
    second.begin()
    with pytest.raises(Deposed):
        first.commit([], [Put(f"/{number}", b"") for number in range(1000)])
    assert second.list("").records == ()


class Dies(Exception):
    """The process ends here."""


def test_a_large_commit_is_made_whole_or_not_at_all_wherever_its_writer_dies(
    shared: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Death after each call in turn; the next writer finds all of the commit, or nothing."""
    writes = [Put(f"/new/{number:03}", bytes(9000)) for number in range(300)]
    whole = [write.key for write in writes]
    outcomes = []
    calls, made = 0, None
    while made is None:
        writer = shared()
        writer.begin()
        writer.commit([], [Delete(key) for key in writer.keys("/new/")])
        left = calls = calls + 1
        real = writer._connection.write

        def counted(method: Any, request: Any, real: Any = real) -> Any:
            nonlocal left
            if left == 0:
                raise Dies
            left -= 1
            return real(method, request)

        monkeypatch.setattr(writer._connection, "write", counted)
        try:
            made = writer.commit([], writes)
        except Dies:
            pass
        after = shared()
        after.begin()
        found = list(after.keys("/new/"))
        assert found in ([], whole), f"after {calls} calls: {len(found)} of {len(whole)}"
        outcomes.append(bool(found))
        assert after.keys("") == after.keys("/new/")
    assert outcomes == sorted(outcomes), "once it is made it stays"
    assert outcomes.count(False) >= 2
    assert outcomes.count(True) >= 3


def test_a_large_commit_that_was_interrupted_has_an_unknown_outcome_until_the_store_is_probed(
    shared: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared()
    store.begin()
    real, left = store._connection.write, 3  # a piece, the marker, one portion

    def fails(method: Any, request: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailable("no answer")
        return real(method, request)

    with monkeypatch.context() as patched:
        patched.setattr(store._connection, "write", fails)
        with pytest.raises(StoreUnavailable) as caught:
            store.commit([], [Put(f"/{number}", b"") for number in range(300)])
    assert caught.value.outcome_unknown
    store.probe(100)
    assert len(store.keys("/")) == 300


def test_what_is_written_down_first_is_read_back_and_damage_is_noticed() -> None:
    writes = (Put("/a", b"1" * 5000), Delete("/b"), Put("/c", b""))
    marker, pieces = journal.written("n", writes, 1000)
    assert len(pieces) == marker.pieces == 6
    assert journal.read(journal.Marker.decode(marker.encode()), pieces) == writes
    for wrong in (pieces[:-1], pieces[::-1]):
        with pytest.raises(StoreUnavailable, match="left unfinished"):
            journal.read(marker, wrong)


# ---------------------------------------------------------------------------------------------------------- leases


@pytest.mark.parametrize("shared", ["etcd-three"], indirect=True)
def test_keys_go_with_their_lease_and_that_is_told(shared: Open) -> None:
    store = shared()
    revision = store.begin()
    lease = store.grant(2.0)
    assert lease.ttl_s >= 2.0
    made = store.commit([], [PutLeased("/leased", b"x", lease.id), Put("/kept", b"")])
    assert store.get("/leased") == Record("/leased", b"x", made, lease.id)
    with store_watch(store, "/leased", revision + 1) as watch:
        assert watch.next(PATIENCE_S) == Changes(made, (Put("/leased", b"x"),))
        gone = watch.next(PATIENCE_S)
    assert gone is not None
    assert gone.writes == (Delete("/leased"),)
    assert store.renew(lease.id) == 0
    assert store.keys("") == ("/kept",)
    store.revoke(lease.id)  # it has ended already


def test_a_lease_that_is_renewed_outlasts_its_time_and_ends_when_it_is_revoked(shared: Open) -> None:
    store = shared()
    lease = store.grant(2.0)
    store.claim([], [PutLeased("/leased", b"", lease.id)])
    until_s = time.monotonic() + 1.5 * lease.ttl_s
    while time.monotonic() < until_s:
        assert store.renew(lease.id) == lease.ttl_s
        assert store.get("/leased") is not None
    store.revoke(lease.id)
    assert store.get("/leased") is None


def test_a_key_cannot_be_bound_to_a_lease_that_has_ended(shared: Open) -> None:
    store = shared()
    lease = store.grant(2.0)
    store.revoke(lease.id)
    with pytest.raises(StoreUnavailable, match="lease not found") as refused:
        store.claim([], [PutLeased("/leased", b"", lease.id)])
    assert not refused.value.outcome_unknown


# --------------------------------------------------------------------------------------------------------- watches


class store_watch:
    """A watch, closed at the end of a block."""

    def __init__(self, store: SharedStore, prefix: str, revision: int) -> None:
        self._watch = store.watch(prefix, revision)

    def __enter__(self) -> Watch:
        return self._watch

    def __exit__(self, *_: object) -> None:
        self._watch.close()


def test_a_listing_and_a_watch_from_there_miss_nothing_and_tell_nothing_twice(shared: Open) -> None:
    writer, reader = shared(), shared()
    writer.begin()
    writer.commit([], [Put("/jobs/1", b"1"), Put("/other", b"")])
    listing = reader.list("/jobs/")
    second = writer.commit([], [Put("/jobs/2", b"2"), Delete("/jobs/1")])
    writer.commit([], [Put("/other", b"2")])
    with store_watch(reader, "/jobs/", listing.revision + 1) as watch:
        third = writer.commit([], [Put("/jobs/3", b"3")])
        found = told(watch, third)
        assert watch.next(0) is None
    assert [(changes.revision, sorted(w.key for w in changes.writes)) for changes in found] == [
        (second, ["/jobs/1", "/jobs/2"]),
        (third, ["/jobs/3"]),
    ]
    assert Delete("/jobs/1") in found[0].writes


def test_who_has_been_told_of_the_revision_of_a_begin_knows_all_that_was_written_before(shared: Open) -> None:
    leader, standby = shared(), shared()
    begun = leader.begin()
    with store_watch(standby, "", begun + 1) as watch:
        for number in range(300):
            leader.commit([], [Put(f"/{number % 7}", str(number).encode())])
        leader.commit([], [Put(f"/large/{number}", bytes(100)) for number in range(500)])
        revision = standby.begin()
        mirror: dict[str, bytes] = {}
        for changes in told(watch, revision):
            for write in changes.writes:
                if isinstance(write, Put):
                    mirror[write.key] = write.value
                else:
                    mirror.pop(write.key, None)
    assert mirror == {record.key: record.value for record in standby.list("").records}


def test_history_that_is_forgotten_is_reported_and_a_listing_helps(shared: Open) -> None:
    store = shared()
    begun = store.begin()
    for number in range(5):
        store.commit([], [Put("/a", str(number).encode())])
    listing = store.list("")
    store.compact(listing.revision)
    store.compact(listing.revision)
    with store_watch(store, "", begun) as watch:
        with pytest.raises(Compacted, match="not kept any more"):
            watch.next(PATIENCE_S)
        with pytest.raises(Compacted):
            watch.next(0)
    made = store.commit([], [Put("/b", b"")])
    with store_watch(store, "", listing.revision + 1) as watch:
        assert told(watch, made) == [Changes(made, (Put("/b", b""),))]


def test_pages_of_a_revision_that_is_forgotten_end_with_an_error_and_a_listing_begins_again(
    shared: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared()
    store.begin()
    store.commit([], [Put(f"/{number:04}", bytes(2000)) for number in range(1500)])
    pages = store.pages("/", "0")
    next(pages)
    store.compact(store.commit([], [Put("/new", b"")]))
    with pytest.raises(Compacted):
        list(pages)
    real, calls = store._range, 0

    def compacts_once(asked: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            store.compact(store.commit([], [Put("/newer", b"")]))
        return real(asked)

    monkeypatch.setattr(store, "_range", compacts_once)
    assert len(store.list("/").records) == 1502
