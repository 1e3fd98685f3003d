"""The store against its contract: a model of it, other processes, and a crash at any instruction or with any prefix of its log.

Worked examples and refusals at opening are in `test_sqlite.py`.
"""

from __future__ import annotations

import errno
import fcntl
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticd.controller.store import Delete, If, Put, Record, SqliteStore
from elasticd.protocol.errors import OperatorError

KEYS_IN_A_BATCH = 4

APPENDER = """
import sys
from pathlib import Path
from elasticd.controller.store import Delete, Put, SqliteStore
store, number, size = SqliteStore(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
while True:
    batch = [Put(f"/batch/{number:06}/{key}", str(number).encode() * 50) for key in range(size)]
    store.commit([], [*batch, Delete(f"/newest/{number - 1}"), Put(f"/newest/{number}", b"")])
    print(number, flush=True)
    number += 1
"""

OPENER = """
import sys
from pathlib import Path
from elasticd.controller.store import SqliteStore
from elasticd.protocol.errors import OperatorError
try:
    SqliteStore(Path(sys.argv[1])).close()
except OperatorError as error:
    sys.exit(str(error))
"""


def opened(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "db")


def batch(number: int) -> list[Put]:
    return [Put(f"/batch/{number:06}/{key}", str(number).encode() * 50) for key in range(KEYS_IN_A_BATCH)]


def whole_batches(store: SqliteStore) -> int:
    """Number of batches. Fails if one is torn, or missing before the last."""
    found: dict[int, list[Put]] = {}
    for record in store.list("/batch/").records:
        found.setdefault(int(record.key.split("/")[2]), []).append(Put(record.key, record.value))
    assert found == {number: batch(number) for number in range(1, len(found) + 1)}
    return len(found)


# ------------------------------------------------------------------------------------------------------------- contract


def test_a_commit_of_nothing_makes_no_revision_but_still_answers_its_conditions(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.commit([], []) == 0
    revision = store.commit([], [Put("/a", b"")])
    assert store.commit([If("/a", 1)], []) == revision
    assert store.commit([If("/a", 2)], []) is None
    store.close()


def test_one_condition_that_fails_holds_back_every_write(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit([], [Put("/a", b"1"), Put("/b", b"1")])
    before = store.list("")
    assert store.commit([If("/a", 1), If("/c", 1)], [Put("/a", b"2"), Delete("/b"), Put("/c", b"2")]) is None
    assert store.list("") == before
    store.close()


def test_a_key_that_was_deleted_counts_as_absent_and_may_come_back(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit([], [Put("/a", b"1")])
    assert store.commit([If("/a", 1)], [Delete("/a")]) == 2
    assert store.commit([If("/a", 1)], [Put("/a", b"2")]) is None
    assert store.commit([If("/a", 0)], [Put("/a", b"2")]) == 3
    assert store.get("/a") == Record("/a", b"2", 3)
    store.close()


@pytest.mark.parametrize(
    "writes", [[Put("/a", b""), Put("/a", b"")], [Put("/a", b""), Delete("/a")], [Delete("/a")] * 2]
)
def test_a_key_written_twice_is_a_mistake_of_the_caller_and_changes_nothing(
    tmp_path: Path, writes: list[Put | Delete]
) -> None:
    store = opened(tmp_path)
    with pytest.raises(ValueError, match="twice"):
        store.commit([], [Put("/b", b""), *writes])
    assert store.list("").records == ()
    assert store.commit([], [Put("/a", b"")]) == 1, "the store must be usable afterwards"
    store.close()


def test_revisions_go_on_where_they_were_when_the_store_is_opened_again(tmp_path: Path) -> None:
    for expected in range(1, 4):
        store = opened(tmp_path)
        assert store.commit([], [Put(f"/{expected}", b"")]) == expected
        store.close()


# Neighbours in the order of keys, wildcards of SQL, NUL, a pair that sorts differently in UTF-16, the last Unicode character.
ODD = st.text(st.sampled_from("/a%_*?'\x00\xe9\uffff\U0001f600\U0010ffff"), max_size=3)
WRITES = st.lists(
    st.one_of(st.builds(Put, ODD, st.binary(max_size=3)), st.builds(Delete, ODD)), max_size=4, unique_by=lambda w: w.key
)
CONDITIONS = st.lists(st.builds(If, ODD, st.integers(0, 3)), max_size=1)


@settings(max_examples=60)
@given(st.lists(st.tuples(CONDITIONS, WRITES), max_size=6), ODD)
@example([([], [Put("/a\U0010ffff", b""), Put("/a\U0010ffff/", b""), Put("/b", b"")])], "/a")
def test_the_store_does_what_a_dictionary_with_revisions_does(
    commits: list[tuple[list[If], list[Put | Delete]]], prefix: str
) -> None:
    model: dict[str, Record] = {}
    revision = 0
    with tempfile.TemporaryDirectory() as directory:
        store = opened(Path(directory))
        for conditions, writes in commits:
            absent = Record("", b"", 0)
            if any(model.get(c.key, absent).mod_revision != c.mod_revision for c in conditions):
                assert store.commit(conditions, writes) is None
                continue
            revision += any(isinstance(write, Put) or write.key in model for write in writes)
            for write in writes:
                if isinstance(write, Put):
                    model[write.key] = Record(write.key, write.value, revision)
                else:
                    model.pop(write.key, None)
            assert store.commit(conditions, writes) == revision
        listing = store.list(prefix)
        assert listing.revision == revision
        assert list(listing.records) == [model[key] for key in sorted(model) if key.startswith(prefix)]
        assert all(store.get(key) == record for key, record in model.items())
        store.close()


# ---------------------------------------------------------------------------------------------------------- exclusivity


def test_a_second_process_is_kept_out_as_long_as_the_first_has_the_store_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENER, str(tmp_path / "db")]
    store = opened(tmp_path)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert refused.returncode == 1
    assert "is in use by another controller" in refused.stderr
    assert "Traceback" not in refused.stderr
    store.close()
    assert subprocess.run(command, timeout=300, check=False).returncode == 0


def test_a_file_system_without_locks_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OperatorError, match="No locks available"):
        opened(tmp_path)


# -------------------------------------------------------------------------------------------------------------- crashes


def test_after_kills_at_random_instants_every_acknowledged_batch_is_there_and_none_is_torn(tmp_path: Path) -> None:
    rng = random.Random(20)
    present = 0
    for _ in range(8):
        command = [sys.executable, "-c", APPENDER, str(tmp_path / "db"), str(present + 1), str(KEYS_IN_A_BATCH)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(rng.randint(1, 30))]
            time.sleep(rng.random() * 0.01)  # any instant, not only that after an acknowledgement
            child.kill()
            lines += child.stdout.readlines()
        acknowledged = max(int(line) for line in lines if line.endswith("\n"))
        store = opened(tmp_path)  # the kernel has released the dead process's lock
        present = whole_batches(store)
        assert acknowledged <= present <= acknowledged + 1
        assert [record.key for record in store.list("/newest/").records] == [f"/newest/{present}"]
        assert store.list("").revision == present
        store.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_log_that_was_written_in_part_or_ends_in_garbage_holds_whole_batches(tmp_path: Path, seed: int) -> None:
    """After a power failure: the log up to some byte, then nothing or old contents of the disk."""
    rng = random.Random(seed)
    store = opened(tmp_path)
    sizes = [(tmp_path / "db-wal").stat().st_size if (tmp_path / "db-wal").exists() else 0]
    for number in range(1, 11):
        store.commit([], batch(number))
        sizes.append((tmp_path / "db-wal").stat().st_size)
    (tmp_path / "crashed").mkdir()
    shutil.copy(tmp_path / "db", tmp_path / "crashed" / "db")
    log = (tmp_path / "db-wal").read_bytes()
    store.close()
    written = rng.randrange(len(log))
    rest = b"" if seed % 2 else rng.randbytes(len(log) - written)
    (tmp_path / "crashed" / "db-wal").write_bytes(log[:written] + rest)
    store = opened(tmp_path / "crashed")
    assert whole_batches(store) == sum(size <= written for size in sizes[1:])
    store.close()
