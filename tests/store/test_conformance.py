"""The contract of every store, tested on each: SQLite, and etcd with one member, with three, and with TLS and a password."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticd.controller.store import Delete, If, Put, Record, Store, StoreUnavailable
from elasticd.controller.store.interface import AFTER_ALL


def revision(store: Store) -> int:
    return store.list("").revision


def test_a_commit_is_atomic_conditional_and_revisioned(store: Store) -> None:
    first = store.commit([If("/a", 0)], [Put("/a", b"1"), Put("/b", b"x")])
    assert first is not None
    assert store.commit([If("/a", 0)], [Put("/a", b"2")]) is None
    assert store.commit([If("/a", first)], [Put("/a", b"2"), Delete("/b")]) == first + 1
    assert store.list("/").records == (Record("/a", b"2", first + 1),)
    assert store.get("/b") is None
    assert store.commit([], [Delete("/none")]) == first + 1, "a commit that changes nothing makes no revision"


def test_a_commit_of_nothing_still_answers_its_conditions(store: Store) -> None:
    assert store.commit([], []) == revision(store)
    made = store.commit([], [Put("/a", b"")])
    assert made is not None
    assert store.commit([If("/a", made)], []) == made
    assert store.commit([If("/a", made + 1)], []) is None


def test_one_condition_that_fails_holds_back_every_write(store: Store) -> None:
    made = store.commit([], [Put("/a", b"1"), Put("/b", b"1")])
    assert made is not None
    before = store.list("")
    assert store.commit([If("/a", made), If("/c", 1)], [Put("/a", b"2"), Delete("/b"), Put("/c", b"2")]) is None
    assert store.list("") == before


def test_a_key_that_was_deleted_counts_as_absent_and_may_come_back(store: Store) -> None:
    made = store.commit([], [Put("/a", b"1")])
    assert made is not None
    assert store.commit([If("/a", made)], [Delete("/a")]) == made + 1
    assert store.commit([If("/a", made)], [Put("/a", b"2")]) is None
    assert store.commit([If("/a", 0)], [Put("/a", b"2")]) == made + 2
    assert store.get("/a") == Record("/a", b"2", made + 2)


@pytest.mark.parametrize(
    "writes", [[Put("/a", b""), Put("/a", b"")], [Put("/a", b""), Delete("/a")], [Delete("/a")] * 2]
)
def test_a_key_written_twice_is_a_mistake_of_the_caller_and_changes_nothing(
    store: Store, writes: list[Put | Delete]
) -> None:
    with pytest.raises(ValueError, match="twice"):
        store.commit([], [Put("/b", b""), *writes])
    assert store.list("").records == ()
    assert store.commit([], [Put("/a", b"")]) is not None, "the store must be usable afterwards"


def test_ranges_and_keys_leave_out_what_is_not_asked_for(store: Store) -> None:
    keys = ("/a", "/b/1", "/b/\u00e92", "/b/\U0001f600", "/bx", "/c")
    store.commit([], [Put(key, key.encode()) for key in keys])
    assert [record.key for record in store.list("/b/").records] == ["/b/1", "/b/\u00e92", "/b/\U0001f600"]
    assert [record.key for record in store.between("", "/b/").records] == ["/a"]
    assert [record.key for record in store.between("/b/" + AFTER_ALL, AFTER_ALL).records] == ["/bx", "/c"]
    assert store.between("/c", "/a").records == store.between("/a", "/a").records == ()
    assert store.keys("/b/") == ("/b/1", "/b/\u00e92", "/b/\U0001f600")


def test_a_range_of_many_records_comes_in_pages_of_one_revision(store: Store) -> None:
    for begin in range(0, 3000, 100):
        store.commit([], [Put(f"/many/{number:04}", bytes(700)) for number in range(begin, begin + 100)])
    before = revision(store)
    found: list[str] = []
    pages = store.pages("/many/", "/many0")
    for number, page in enumerate(pages):
        if number == 0:
            store.commit([], [Put("/many/00005", b""), Delete("/many/2999")])
        assert page.revision == before
        found += [record.key for record in page.records]
    assert number >= 2, "of several pages"
    assert found == [f"/many/{number:04}" for number in range(3000)]
    assert len(store.list("/many/").records) == len(store.keys("/many/")) == 3000
    assert [page.records for page in store.pages("/none/", "/none0")] == [()]


# Neighbours in the order of keys, NUL, a pair that sorts differently in UTF-16, and the last Unicode character.
ODD = st.text(st.sampled_from("/a%_\x00\xe9\uffff\U0001f600\U0010ffff"), max_size=3)
WRITES = st.lists(
    st.one_of(st.builds(Put, ODD, st.binary(max_size=3)), st.builds(Delete, ODD)), max_size=4, unique_by=lambda w: w.key
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commits=st.lists(st.tuples(ODD, st.sampled_from([0, -1]), WRITES), max_size=5), prefix=ODD)
def test_a_store_does_what_a_dictionary_with_revisions_does(
    store: Store, commits: list[tuple[str, int, list[Put | Delete]]], prefix: str
) -> None:
    store.commit([], [Delete(key) for key in store.keys("")])
    model: dict[str, Record] = {}
    now = revision(store)
    for key, expected, writes in commits:
        absent = Record("", b"", 0)
        wanted = model.get(key, absent).mod_revision if expected else 0
        if model.get(key, absent).mod_revision != wanted:
            assert store.commit([If(key, wanted)], writes) is None
            continue
        now += any(isinstance(write, Put) or write.key in model for write in writes)
        for write in writes:
            if isinstance(write, Put):
                model[write.key] = Record(write.key, write.value, now)
            else:
                model.pop(write.key, None)
        assert store.commit([If(key, wanted)], writes) == now
    assert list(store.list(prefix).records) == [model[key] for key in sorted(model) if key.startswith(prefix)]
    assert all(store.get(key) == record for key, record in model.items())


def test_a_commit_larger_than_one_transaction_is_made_whole(store: Store) -> None:
    count, size = 1000, 5000
    assert store.limits.operations is None or not store.limits.allow(count, 0)
    store.commit([], [Put("/old", b"")])
    made = store.commit([If("/old", revision(store))], [Delete("/old"), *large(count, size)])
    assert made == revision(store)
    assert [(r.key, r.value) for r in store.list("/").records] == [(p.key, p.value) for p in large(count, size)]


def test_a_large_commit_whose_condition_fails_leaves_nothing(store: Store) -> None:
    assert store.commit([If("/none", 7)], large(400, 5000)) is None
    assert store.list("").records == ()


def large(count: int, size: int) -> list[Put]:
    return [Put(f"/large/{number:05}", number.to_bytes(4, "big") * (size // 4)) for number in range(count)]


def test_a_value_that_no_transaction_can_hold_is_refused_and_nothing_is_lost(store: Store) -> None:
    most = store.limits.bytes
    if most is None:
        pytest.skip("this store takes a value of any size")
    store.commit([], [Put("/largest", bytes(most - 200))])
    with pytest.raises(StoreUnavailable, match=r"the record /larger has .* bytes, and etcd takes") as refused:
        store.commit([], [Put("/a", b""), Put("/larger", bytes(most))])
    assert not refused.value.outcome_unknown
    assert [record.key for record in store.list("").records] == ["/largest"]


def test_a_probe_leaves_nothing_behind(store: Store) -> None:
    store.commit([], [Put("/a", b"")])
    store.probe(10_000_000)
    assert store.keys("") == ("/a",)
    assert store.commit([], [Put("/b", b"")]) is not None
