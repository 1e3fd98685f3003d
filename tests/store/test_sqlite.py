"""The embedded store: its contract, and that a crash at any instruction loses no acknowledged commit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from elasticd.controller.store import Delete, If, Put, Record, SqliteStore, StoreUnavailable
from elasticd.controller.store.interface import AFTER_ALL
from elasticd.controller.store.sqlite import RANGE, pages_of
from elasticd.protocol.errors import OperatorError

WRITER = """
import sys
from pathlib import Path
from typing import Any
from elasticd.controller.store import Put, SqliteStore
store = SqliteStore(Path(sys.argv[1]))
batch = int(sys.argv[2])
while True:
    store.commit((), tuple(Put(f"/b/{key}", str(batch).encode()) for key in range(5)))
    print(batch, flush=True)
    batch += 1
"""
# Prints a line for each commit that met the full disk: the reason, whether its outcome is unknown, and whether a crash would
# reveal it. The free space differs by a page each time, so that another write of the commit fails.
FILLED = """
import os, shutil, sys
from pathlib import Path
from elasticd.controller.store import Put, SqliteStore, StoreUnavailable
here, elsewhere = Path(sys.argv[1]), Path(sys.argv[2])
store = SqliteStore(here / "db")
for page in range(12):
    store.commit((), (Put("/a", b"1"),))
    (here / "spare").write_bytes(bytes(4096 * page))
    with (here / "rest").open("wb", buffering=0) as rest:
        try:
            while rest.write(bytes(512)):
                pass
        except OSError:
            os.unlink(here / "spare")
    try:
        store.commit((), (Put("/new", bytes(20_000)),))
    except StoreUnavailable as error:
        for name in ("db", "db-wal"):
            shutil.copy(here / name, elsewhere / name)
        crashed = SqliteStore(elsewhere / "db")
        print(error.outcome_unknown, crashed.get("/new") is not None, store.get("/a").value, error, sep="|")
        crashed.close()
        for file in elsewhere.iterdir():
            file.unlink()
    os.unlink(here / "rest")
    store.probe(20_000)
"""
# A write beyond the process's own limit of a file's size (EFBIG) fails as one beyond a quota does (EDQUOT).
LIMITED = """
import resource, sys
from pathlib import Path
from elasticd.controller.store import Put, SqliteStore, StoreUnavailable
store = SqliteStore(Path(sys.argv[1]))
store.commit((), (Put("/a", b"1"),))
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, unlimited[1]))
try:
    store.commit((), (Put("/new", bytes(200_000)),))
except StoreUnavailable as error:
    print(error, error.outcome_unknown, sep="|")
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
store.probe(200_000)
print(store.get("/a").value, store.get("/new"), sep="|")
"""


def test_a_commit_is_atomic_conditional_and_revisioned(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    first = store.commit([If("/a", 0)], [Put("/a", b"1"), Put("/b", b"x")])
    assert first is not None
    assert store.commit([If("/a", 0)], [Put("/a", b"2")]) is None
    assert store.commit([If("/a", first)], [Put("/a", b"2"), Delete("/b")]) == first + 1
    assert [(r.key, r.value, r.mod_revision) for r in store.list("/").records] == [("/a", b"2", first + 1)]
    assert store.get("/b") is None
    with pytest.raises(ValueError, match="twice"):
        store.commit([], [Put("/a", b"3"), Delete("/a")])
    assert store.commit([], [Delete("/none")]) == first + 1, "a commit that changes nothing makes no revision"
    store.close()


def test_a_prefix_lists_its_own_keys_only(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.commit([], [Put(key, b"") for key in ("/jobs/a", "/jobs/\u00e9%_", "/jobs", "/jobsx", "/k")])
    assert [r.key for r in store.list("/jobs/").records] == ["/jobs/a", "/jobs/\u00e9%_"]
    store.close()


def test_a_second_controller_is_kept_out(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    with pytest.raises(OperatorError, match="in use"):
        SqliteStore(tmp_path / "db")
    store.close()
    SqliteStore(tmp_path / "db").close()


def test_what_is_no_store_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"this is not a database, and long enough to be sure of it" * 40)
    with pytest.raises(OperatorError, match="junk"):
        SqliteStore(tmp_path / "junk")
    with pytest.raises(OperatorError, match="nowhere"):
        SqliteStore(tmp_path / "nowhere" / "db")


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "db").close()
    database = sqlite3.connect(tmp_path / "db")
    database.execute("pragma user_version = 99")
    database.close()
    with pytest.raises(OperatorError, match="newer version"):
        SqliteStore(tmp_path / "db")


def test_a_database_of_another_program_is_refused_and_not_written_to(tmp_path: Path) -> None:
    foreign = sqlite3.connect(tmp_path / "theirs")
    foreign.execute("create table records (a integer)")
    foreign.close()
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(OperatorError, match="theirs is a database, but not a store"):
        SqliteStore(tmp_path / "theirs")
    assert (tmp_path / "theirs").read_bytes() == before


def test_a_database_of_another_program_with_the_same_version_number_is_refused(tmp_path: Path) -> None:
    foreign = sqlite3.connect(tmp_path / "theirs")
    foreign.execute("create table records (a integer)")
    foreign.execute("pragma user_version = 1")
    foreign.close()
    with pytest.raises(OperatorError, match="theirs is a database, but not a store"):
        SqliteStore(tmp_path / "theirs")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user for a while")
def test_a_database_that_may_only_be_read_is_refused_as_what_it_is() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "db"
        SqliteStore(path).close()
        Path(directory).chmod(0o777)
        path.chmod(0o444)
        Path(f"{path}.lock").chmod(0o666)
        os.seteuid(65534)
        try:
            with pytest.raises(OperatorError, match="db cannot be used as the store: Permission denied"):
                SqliteStore(path)
        finally:
            os.seteuid(0)


def test_records_are_read_as_of_the_revision_that_is_told_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "db")
    revision = store.commit([], [Put("/a", b"1")])
    connect: Any = sqlite3.connect

    class Interrupted(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql == RANGE:
                store.commit([], [Put("/b", b"2")])
            return super().execute(sql, *arguments)

    monkeypatch.setattr(sqlite3, "connect", lambda *names, **options: connect(*names, **options, factory=Interrupted))
    (page,) = pages_of(tmp_path / "db", "", AFTER_ALL)
    assert (page.revision, [record.key for record in page.records]) == (revision, ["/a"])
    store.close()


def test_a_store_with_damaged_pages_is_refused_with_its_name(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.commit([], [Put(f"/jobs/{number}", bytes(300)) for number in range(200)])
    store.close()
    data = bytearray((tmp_path / "db").read_bytes())
    for page in range(3 * 4096, len(data), 4096):
        data[page : page + 64] = b"\xff" * 64
    (tmp_path / "db").write_bytes(bytes(data))
    store = SqliteStore(tmp_path / "db")
    with pytest.raises(OperatorError, match="db cannot be read"):
        store.list("/")
    store.close()


def test_a_store_that_could_not_be_opened_is_not_left_locked(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"junk" * 1000)
    for _ in range(2):
        with pytest.raises(OperatorError, match="not a database"):
            SqliteStore(tmp_path / "db")
    (tmp_path / "db").unlink()
    SqliteStore(tmp_path / "db").close()


def test_only_its_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.commit([], [Put("/a", b"1")])
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("db", "db-wal", "db-shm", "db.lock"), 0o600)
    store.close()


def test_every_acknowledged_commit_outlives_a_kill_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(7)
    acknowledged = 0
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "db"), str(acknowledged + 1)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged = int(line)
            if rng.random() < 0.05:
                break
        time.sleep(rng.random() * 0.01)
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.wait()
        store = SqliteStore(tmp_path / "db")  # a killed process does not leave it locked
        values = {int(record.value) for record in store.list("/b/").records}
        store.close()
        assert len(values) == 1, f"a torn batch: {values}"
        assert acknowledged <= values.pop() <= acknowledged + 1


# ---------------------------------------------------------------------------------------------- a store that cannot be written


def test_a_database_that_another_process_has_locked_is_told_apart_from_a_broken_one(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.commit([], [Put("/a", b"1")])
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="database is locked") as caught:
        store.commit([], [Put("/a", b"2")])
    assert not caught.value.outcome_unknown
    assert store.get("/a") == Record("/a", b"1", 1), "it can be read all the same"
    with pytest.raises(StoreUnavailable, match="locked"):
        store.probe(1)
    other.execute("rollback")
    store.probe(1)
    assert store.commit([], [Put("/a", b"3")]) is not None
    assert [record.key for record in store.list("/").records] == ["/a"], "the probe leaves nothing behind"
    other.close()
    store.close()


def test_a_commit_that_raises_in_its_midst_leaves_nothing_and_the_store_usable(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    with pytest.raises(UnicodeEncodeError):
        store.commit([], [Put("/a", b"1"), Put("/\ud800", b"a key that is no text")])
    assert store.commit([], [Put("/b", b"2")]) == 1
    assert store.keys("") == ("/b",)
    store.close()


def test_a_full_disk_loses_the_commit_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = 8

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        db = real(*arguments, **options)
        db.execute(f"pragma max_page_count = {pages}")
        return db

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    store = SqliteStore(tmp_path / "db")
    store.commit([], [Put("/a", b"1")])
    with pytest.raises(StoreUnavailable, match="full") as caught:
        store.commit([], [Put("/a", b"2"), Put("/b", bytes(100_000))])
    assert not caught.value.outcome_unknown
    assert store.get("/a") == Record("/a", b"1", 1)
    with pytest.raises(StoreUnavailable, match="full"):
        store.probe(100_000)
    pages = 1000
    store.probe(100_000)
    assert store.commit([], [Put("/b", bytes(100_000))]) is not None
    store.close()


def test_a_commit_that_a_full_disk_ended_is_known_to_have_failed_wherever_it_was(tmp_path: Path) -> None:
    """The request is then refused at once; with an unknown outcome its client would wait in vain."""
    mounts = ["unshare", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*mounts, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("a small file system cannot be mounted here: root is needed")
    full, elsewhere = tmp_path / "full", tmp_path / "elsewhere"
    full.mkdir()
    elsewhere.mkdir()
    mounted = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
    line = [*mounts, "sh", "-c", mounted, full, sys.executable, "-c", FILLED, full, elsewhere]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    met = [line.split("|") for line in done.stdout.splitlines()]
    assert len(met) >= 5, done.stdout
    for unknown, after_a_crash, before, reason in met:
        assert (unknown, after_a_crash, before) == ("False", "False", "b'1'")
        assert reason.endswith("database or disk is full")


def test_the_outcome_of_a_commit_is_unknown_where_a_write_fails_for_another_reason_than_a_full_disk(
    tmp_path: Path,
) -> None:
    """SQLite tells an exceeded quota from no other failed write, and a network file system may have carried out that."""
    line = [sys.executable, "-c", LIMITED, tmp_path / "db"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{tmp_path / 'db'}: disk I/O error|True", "b'1'|None"]


def test_a_database_that_has_gone_is_not_made_anew_while_the_controller_runs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.commit([], [Put("/a", b"1")])
    for file in tmp_path.glob("db*"):
        file.unlink()
    with pytest.raises(StoreUnavailable, match="cannot be opened again"):
        store.probe(1)
    assert not (tmp_path / "db").exists()
    (tmp_path / "db").touch()
    with pytest.raises(StoreUnavailable):
        store.probe(1)
    store.close()


def test_ranges_and_keys_leave_out_what_is_not_asked_for(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.commit([], [Put(key, key.encode()) for key in ("/a", "/b/1", "/b/\u00e92", "/b/\U0001f600", "/c")])
    assert [r.key for r in store.between("", "/b/").records] == ["/a"]
    assert [r.key for r in store.between("/b/" + AFTER_ALL, AFTER_ALL).records] == ["/c"]
    assert store.keys("/b/") == ("/b/1", "/b/\u00e92", "/b/\U0001f600")
    store.close()
