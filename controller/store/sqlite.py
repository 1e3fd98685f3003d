"""The embedded store: SQLite in WAL mode, synced at each commit, one process at a time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ...protocol.errors import OperatorError
from .interface import Delete, If, Listing, Put, Record

SCHEMA_VERSION = 1
SCHEMA = """
create table if not exists records (key text primary key, value blob not null, mod_revision integer not null) without rowid;
create table if not exists meta (name text primary key, value integer not null) without rowid;
insert or ignore into meta values ('revision', 0);
"""


class SqliteStore:
    """`interface.Store` in one file. For one thread."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises OperatorError if the file is in use, is no store, or is of a newer version."""
        self._lock = _lock(path)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            (version,) = self._db.execute("pragma user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise OperatorError(f"{path} was written by a newer version (schema {version}, known {SCHEMA_VERSION})")
            self._db.executescript(SCHEMA)
            self._db.execute(f"pragma user_version = {SCHEMA_VERSION}")
        except sqlite3.Error as error:
            os.close(self._lock)
            raise OperatorError(f"{path} cannot be used as the store: {error}") from None
        except OperatorError:
            os.close(self._lock)
            raise

    def get(self, key: str) -> Record | None:
        row = self._db.execute("select key, value, mod_revision from records where key = ?", (key,)).fetchone()
        return Record(*row) if row else None

    def list(self, prefix: str) -> Listing:
        query = "select key, value, mod_revision from records where key >= ? and key < ? order by key"
        rows = self._db.execute(query, (prefix, prefix + "\U0010ffff")).fetchall()
        return Listing(tuple(Record(*row) for row in rows), self._revision())

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        if len({write.key for write in writes}) != len(writes):
            raise ValueError("a key is written twice in one commit")
        self._db.execute("begin immediate")
        try:
            if not all(self._holds(condition) for condition in conditions):
                self._db.execute("rollback")
                return None
            revision = self._write(writes)
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise
        return revision

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def _revision(self) -> int:
        (revision,) = self._db.execute("select value from meta where name = 'revision'").fetchone()
        return int(revision)

    def _holds(self, condition: If) -> bool:
        record = self.get(condition.key)
        return (record.mod_revision if record else 0) == condition.mod_revision

    def _write(self, writes: Sequence[Put | Delete]) -> int:
        """Carry the writes out; a commit that changes nothing makes no revision."""
        revision = self._revision() + 1
        changed = 0
        for write in writes:
            if isinstance(write, Put):
                upsert = "insert into records values (?, ?, ?) on conflict (key) do update set "
                self._db.execute(
                    upsert + "value = excluded.value, mod_revision = excluded.mod_revision",
                    (write.key, write.value, revision),
                )
                changed += 1
            else:
                changed += self._db.execute("delete from records where key = ?", (write.key,)).rowcount
        if not changed:
            return revision - 1
        self._db.execute("update meta set value = ? where name = 'revision'", (revision,))
        return revision


def _lock(path: Path) -> int:
    """Hold a lock file beside the database; the kernel lets go of it when the process ends, however it ends."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OperatorError(f"{path} cannot be used as the store: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OperatorError(f"{path} is in use by another controller") from None
    return descriptor
