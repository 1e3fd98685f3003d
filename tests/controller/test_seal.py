"""Records in the store that no controller has written: nothing starts from them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from elasticd.controller.election.records import JOB_KEYS_KEY
from elasticd.controller.seal import HEAD_BYTES, SEAL_KEY, BrokenSeal, Seal, is_sealed
from elasticd.controller.sealing import Seals
from elasticd.controller.shared_store import shared_job_keys
from elasticd.controller.store.interface import AFTER_ALL, Delete, Put
from elasticd.protocol.errors import OperatorError
from elasticd.runtime.directories import write_secret
from elasticd.runtime.keys import SEAL_FILE

from ..etcds import Etcd, needed

A, B, STATE = "/jobs/a-1/spec", "/jobs/b-2/spec", "/jobs/a-1/state"
ARCHIVED = "/archive/2026-01-31/000000000000000003/c-3.0"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    needed()
    etcd = Etcd(tmp_path_factory.mktemp("etcd"))
    yield etcd
    etcd.close()


@pytest.fixture
def opened(etcd: Etcd) -> Iterator[Callable[[Seals | None], Any]]:
    """A function that opens the same store again, writable, with these seals."""
    root = f"/elasticctl/{secrets.token_hex(4)}"
    with ExitStack() as stack:

        def make(seals: Seals | None) -> Any:
            store = etcd.store(root, seals=seals)
            stack.callback(store.close)
            store.begin()
            return store

        yield make


def ready(directory: Path) -> Seals:
    """Seals of a controller that has its secret."""
    if not directory.exists():
        directory.mkdir(mode=0o700)
        write_secret(directory / SEAL_FILE, secrets.token_bytes(32))
    return Seals(directory)


def held(store: Any) -> dict[str, bytes]:
    return {record.key: record.value for record in store.between("", AFTER_ALL).records}


def test_a_seal_fits_one_key_one_value_and_one_secret() -> None:
    seal = Seal(bytes(32))
    stored = seal.close(A, b"alice")
    assert seal.open(A, stored) == b"alice"
    assert len(stored) == HEAD_BYTES + len(b"alice")
    for key, value in ((B, stored), (A, stored[:-5] + b"carol"), (A, b"alice"), (A, stored[:20]), (A, b"")):
        with pytest.raises(BrokenSeal):
            seal.open(key, value)
    with pytest.raises(BrokenSeal):
        Seal(bytes(31) + b"1").open(A, stored)
    assert [is_sealed(key) for key in (A, "/jobs/a-1", ARCHIVED, "/policy", STATE, "/servers/s1")] == [True] * 4 + [
        False
    ] * 2


def test_what_a_controller_has_written_is_read_and_what_somebody_else_has_written_is_not(
    opened: Any, tmp_path: Path
) -> None:
    seals = ready(tmp_path / "keys")
    store, outside = opened(seals), opened(None)
    store.begin()
    store.commit((), [Put(A, b"alice"), Put(B, b"bob"), Put(STATE, b"pending"), Put(ARCHIVED, b"over")])
    assert held(store) == {A: b"alice", B: b"bob", STATE: b"pending", ARCHIVED: b"over"}
    assert not seals.settle(store)
    sealed = held(outside)
    assert sealed[A].endswith(b"alice")
    assert sealed[STATE] == b"pending"

    outside.begin()
    forged = sealed[A].replace(b"alice", b"carol")
    outside.commit((), [Put(A, forged), Put("/jobs/d-4/spec", b"carol"), Put(ARCHIVED, sealed[B]), Delete(SEAL_KEY)])
    after = ready(tmp_path / "keys")
    store = opened(after)
    assert held(store) == {B: b"bob", STATE: b"pending"}
    assert store.get(A) is None
    told = after.news()
    assert all(key in told for key in (A, "/jobs/d-4/spec", ARCHIVED))
    assert B not in told
    assert after.news() == ""
    assert not after.settle(store)  # becomes leader all the same


def test_a_watch_takes_a_record_that_was_changed_outside_for_one_that_is_gone(opened: Any, tmp_path: Path) -> None:
    store = opened(ready(tmp_path / "keys"))
    revision = store.commit((), [Put(A, b"alice")])
    with closing(store.watch("/jobs/", revision)) as watch:
        assert watch.next(60.0).writes == (Put(A, b"alice"),)
        opened(None).commit((), [Put(A, b"carol")])
        assert watch.next(60.0).writes == (Delete(A),)


def test_a_store_of_an_earlier_version_is_sealed_once_and_removing_seals_gains_nothing(
    opened: Any, tmp_path: Path
) -> None:
    outside = opened(None)
    old = {A: b"alice", B: b"bob", STATE: b"pending", ARCHIVED: b"over", "/policy": b"fifo"}
    outside.commit((), [Put(key, value) for key, value in old.items()])
    seals = Seals(tmp_path / "keys")
    store = opened(seals)
    seals.look(store)
    assert held(store) == old
    assert seals.settle(store)
    assert held(store) == old
    assert (tmp_path / "keys" / SEAL_FILE).stat().st_mode & 0o777 == 0o600
    assert all(is_sealed(key) == (held(outside)[key] != value) for key, value in old.items())

    outside.begin()
    outside.commit((), [Put(key, value) for key, value in old.items()] + [Delete(SEAL_KEY)])
    again = ready(tmp_path / "keys")
    store = opened(again)
    assert held(store) == {STATE: b"pending"}
    with pytest.raises(OperatorError, match="have no seal"):
        again.settle(store)


def test_a_controller_without_the_secret_or_with_another_one_does_not_lead(opened: Any, tmp_path: Path) -> None:
    first = ready(tmp_path / "first")
    store = opened(first)
    store.commit((), [Put(A, b"alice")])
    first.settle(store)
    for seals in (Seals(tmp_path / "none"), ready(tmp_path / "other")):
        store = opened(seals)
        with pytest.raises(OperatorError, match=rf"copy the file {SEAL_FILE}"):
            seals.look(store)
        assert held(store) == {}
        with pytest.raises(OperatorError, match=rf"copy the file {SEAL_FILE}"):
            seals.settle(store)
    assert not (tmp_path / "none" / SEAL_FILE).exists()


def test_sealing_a_store_goes_on_where_a_controller_has_died(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    write_secret(tmp_path / "keys" / f"{SEAL_FILE}.new", secret := secrets.token_bytes(32))
    outside = opened(None)
    outside.commit((), [Put(A, Seal(secret).close(A, b"alice")), Put(B, b"bob")])
    seals = Seals(tmp_path / "keys")
    store = opened(seals)
    assert seals.settle(store)
    assert held(store) == {A: b"alice", B: b"bob"}


def test_a_reader_of_the_store_does_not_learn_the_secret_of_the_jobs_keys(opened: Any, tmp_path: Path) -> None:
    seals = ready(tmp_path / "keys")
    store = opened(seals)
    keys = shared_job_keys(store, seals, tmp_path)
    seen = held(opened(None))[JOB_KEYS_KEY]
    assert keys.secret not in seen
    again = ready(tmp_path / "keys")
    store = opened(again)
    assert shared_job_keys(store, again, tmp_path / "keys").secret == keys.secret  # another controller's
    store.commit((), (Put(JOB_KEYS_KEY, keys.secret),))
    assert held(opened(None))[JOB_KEYS_KEY] != seen, "the same secret is hidden otherwise each time"


def test_a_secret_that_an_earlier_version_has_stored_is_kept_and_hidden(opened: Any, tmp_path: Path) -> None:
    old = secrets.token_bytes(32)
    bare = opened(None)
    bare.commit((), (Put(JOB_KEYS_KEY, old),))
    seals = ready(tmp_path / "keys")
    store = opened(seals)
    assert shared_job_keys(store, seals, tmp_path).secret == old, "running jobs go on with their keys"
    assert old not in held(opened(None))[JOB_KEYS_KEY]
    assert shared_job_keys(store, seals, tmp_path).secret == old


@pytest.mark.parametrize("written", [b"k" * 32, Seal(bytes(32)).hide(JOB_KEYS_KEY, b"k" * 32)], ids=["bare", "hidden"])
def test_a_secret_of_the_jobs_keys_that_somebody_else_writes_is_refused(
    opened: Any, tmp_path: Path, written: bytes
) -> None:
    seals = ready(tmp_path / "keys")
    store = opened(seals)
    shared_job_keys(store, seals, tmp_path)
    opened(None).commit((), (Put(JOB_KEYS_KEY, written),))
    store = opened(seals)
    with pytest.raises(OperatorError, match="remove it there"):
        shared_job_keys(store, seals, tmp_path)
