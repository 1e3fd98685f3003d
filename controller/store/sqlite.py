"""The embedded store: SQLite in WAL mode, synced at each commit, one process at a time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...protocol.errors import OperatorError
from .interface import Delete, If, Listing, Put, Record

SCHEMA_VERSION = 1
# One transaction: a crash leaves either no schema or a whole one with its version, never tables of an unknown version.
SCHEMA = f"""
begin immediate;
create table records (key text primary key, value blob not null, mod_revision integer not null) without rowid;
create table meta (name text primary key, value integer not null) without rowid;
insert into meta values ('revision', 0);
pragma user_version = {SCHEMA_VERSION};
commit;
"""


class SqliteStore:
    """`interface.Store` in one file. For one thread.

    What cannot be read raises OperatorError, for somebody has to look at the file. A commit that fails raises sqlite3.Error, as a
    full disk may have room again: starting anew is the remedy.
    """

    def __init__(self, path: Path) -> None:
        """Open or create. Raises OperatorError if the file is in use, is no store, or is of a newer version."""
        self._path = path
        with ExitStack() as opened:
            lock = _lock(path)
            opened.callback(os.close, lock)
            try:
                self._db = _connect(path)
                opened.callback(self._db.close)
                _check_schema(self._db, path)
                self._db.execute("pragma journal_mode = wal")
                self._db.execute("pragma synchronous = full")
            except sqlite3.Error as error:
                raise OperatorError(f"{path} cannot be used as the store: {error}") from None
            self._opened = opened.pop_all()  # closed in reverse: the database, then the lock

    def get(self, key: str) -> Record | None:
        rows = self._read("select key, value, mod_revision from records where key = ?", (key,))
        return Record(*rows[0]) if rows else None

    def list(self, prefix: str) -> Listing:
        # Keys are compared as UTF-8, in which no byte is 0xff.
        query = "select key, value, mod_revision from records where key >= ? and key < cast(? as text) order by key"
        rows = self._read(query, (prefix, prefix.encode() + b"\xff"))
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
        self._opened.close()

    def _read(self, query: str, arguments: tuple[str | bytes, ...] = ()) -> Sequence[tuple[Any, ...]]:
        try:
            return self._db.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            raise OperatorError(f"{self._path} cannot be read: {error}") from None

    def _revision(self) -> int:
        ((revision,),) = self._read("select value from meta where name = 'revision'")
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


def _connect(path: Path) -> sqlite3.Connection:
    """The database, made for its owner alone: what it holds includes the environments of jobs."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise OperatorError(f"{path} cannot be used as the store: {error.strerror}") from None
    return sqlite3.connect(path, isolation_level=None)


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Make the schema in an empty database. Raises OperatorError, changing nothing, if it is no store that this version knows."""
    (version,) = db.execute("pragma user_version").fetchone()
    tables = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
    if version > SCHEMA_VERSION:
        raise OperatorError(f"{path} was written by a newer version (schema {version}, known {SCHEMA_VERSION})")
    if version == 0 and not tables:
        db.executescript(SCHEMA)
    elif version != SCHEMA_VERSION or tables != {"records", "meta"}:
        raise OperatorError(f"{path} is a database, but not a store of this program")


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
    except OSError as error:  # not every network file system has locks
        os.close(descriptor)
        raise OperatorError(f"{path} cannot be locked: {error.strerror}") from None
    return descriptor
