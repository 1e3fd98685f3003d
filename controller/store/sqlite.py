"""The embedded store: SQLite in WAL mode, synced to disk at each commit, for one process at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from ...protocol.errors import OperatorError
from ...runtime import locks
from .interface import Delete, If, Limits, Listing, Put, Record, StoreUnavailable

SCHEMA_VERSION = 1
# How long to wait for another process, such as a backup, to unlock the database; the controller is blocked meanwhile.
LOCKED_TIMEOUT_S = 0.5
BALLAST_KEY = "/probe"
LEAST_BALLAST_BYTES = 4096
PAGE_RECORDS = 1000
RANGE = "select key, value, mod_revision from records where key >= ? and key < cast(? as text) order by key"
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
    """Implementation of `interface.Store` in one file. For one thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the database.

        Raises OperatorError if the file is in use, is no store, or is of a newer version.
        """
        self._path = path
        with ExitStack() as opened:
            opened.callback(os.close, _lock(path))
            opened.callback(self._disconnect)
            self._db: sqlite3.Connection | None = None
            try:
                self._db = _connect(path)
                _check_schema(self._db, path)
                _make_durable(self._db)
            except sqlite3.Error as error:
                raise OperatorError(f"{path} cannot be used as the store: {error}") from None
            self._opened = opened.pop_all()  # closed in reverse: the database, then the lock

    @property
    def limits(self) -> Limits:
        return Limits()

    def get(self, key: str) -> Record | None:
        rows = self._read("select key, value, mod_revision from records where key = ?", (key,))
        return Record(*rows[0]) if rows else None

    def list(self, prefix: str) -> Listing:
        # Keys are compared as UTF-8, in which no byte is 0xff.
        return self._range(prefix, prefix.encode() + b"\xff")

    def between(self, first: str, end: str) -> Listing:
        return self._range(first, end.encode())

    def keys(self, prefix: str) -> tuple[str, ...]:
        query = "select key from records where key >= ? and key < cast(? as text) order by key"
        return tuple(key for (key,) in self._read(query, (prefix, prefix.encode() + b"\xff")))

    def pages(self, first: str, end: str) -> Iterator[Listing]:
        return pages_of(self._path, first, end)

    def _range(self, first: str, end: bytes) -> Listing:
        rows = self._read(RANGE, (first, end))
        return Listing(tuple(Record(*row) for row in rows), self._revision())

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        if len({write.key for write in writes}) != len(writes):
            raise ValueError("a key is written twice in one commit")
        revision = None
        with self._usable() as db, _rolled_back_on_error(db):
            db.execute("begin immediate")
            if all(self._holds(condition) for condition in conditions):
                revision = self._write(db, writes)
            self._end(db, "commit" if revision is not None else "rollback")
        return revision

    def probe(self, size: int) -> None:
        self._reconnect()
        self.commit((), (Put(BALLAST_KEY, bytes(max(size, LEAST_BALLAST_BYTES))),))
        self.commit((), (Delete(BALLAST_KEY),))

    def close(self) -> None:
        self._opened.close()

    @contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection.

        Errors of SQLite become StoreUnavailable, as they may pass: a full disk may have room again.
        """
        if self._db is None:
            raise StoreUnavailable(f"{self._path} is not open")
        try:
            yield self._db
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {error}") from None

    def _end(self, db: sqlite3.Connection, how: str) -> None:
        """End the transaction. Raises StoreUnavailable.

        After most errors the last page may be in the WAL already, and then the commit counts after a crash. A full disk is
        different: a write to the WAL was cut short. The last page, which alone makes the others count, is written last, so it
        is not whole, and recovery ignores the pages before it ("The WAL file format" in SQLite's documentation).

        Other errors leave the outcome unknown. SQLite reports an exceeded quota (EDQUOT) as any failed write; a network file
        system may report a failed write that its server has carried out, and a full disk only at fsync, after all pages.
        """
        try:
            db.execute(how)
        except sqlite3.Error as error:
            unknown = getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL
            raise StoreUnavailable(f"{self._path}: {error}", outcome_unknown=unknown) from None

    def _reconnect(self) -> None:
        """Open the database again, because a connection that met a device error may report it for ever.

        A missing file is not created again. Raises StoreUnavailable.
        """
        self._disconnect()
        try:
            db = _connect(self._path, create=False)
            self._db = db
            _make_durable(db)
        except (sqlite3.Error, OperatorError) as error:
            self._disconnect()
            raise StoreUnavailable(f"{self._path} cannot be opened again: {error}") from None

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _read(self, query: str, arguments: tuple[str | bytes, ...] = ()) -> Sequence[tuple[Any, ...]]:
        with self._usable() as db:
            try:
                return db.execute(query, arguments).fetchall()
            except sqlite3.Error as error:
                raise StoreUnavailable(f"{self._path} cannot be read: {error}") from None

    def _revision(self) -> int:
        ((revision,),) = self._read("select value from meta where name = 'revision'")
        return int(revision)

    def _holds(self, condition: If) -> bool:
        record = self.get(condition.key)
        return (record.mod_revision if record else 0) == condition.mod_revision

    def _write(self, db: sqlite3.Connection, writes: Sequence[Put | Delete]) -> int:
        """Execute the writes and return the revision, which stays the same if they change nothing."""
        revision = self._revision() + 1
        puts = [(write.key, write.value, revision) for write in writes if isinstance(write, Put)]
        deletes = [(write.key,) for write in writes if isinstance(write, Delete)]
        upsert = "insert into records values (?, ?, ?) on conflict (key) do update set "
        db.executemany(upsert + "value = excluded.value, mod_revision = excluded.mod_revision", puts)
        changed = len(puts)
        if deletes:
            changed += db.executemany("delete from records where key = ?", deletes).rowcount
        if not changed:
            return revision - 1
        db.execute("update meta set value = ? where name = 'revision'", (revision,))
        return revision


def pages_of(path: Path, first: str, end: str) -> Iterator[Listing]:
    """Yield the pages of `Store.pages` from the database in `path`, which another process may be writing to.

    A separate connection reads all pages from one snapshot of the database. Raises StoreUnavailable.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOCKED_TIMEOUT_S)) as db:
            db.execute("begin")
            ((revision,),) = db.execute("select value from meta where name = 'revision'").fetchall()
            cursor = db.execute(RANGE, (first, end.encode()))
            rows = cursor.fetchmany(PAGE_RECORDS)
            yield Listing(tuple(Record(*row) for row in rows), revision)
            while rows := cursor.fetchmany(PAGE_RECORDS):
                yield Listing(tuple(Record(*row) for row in rows), revision)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from None


@contextmanager
def _rolled_back_on_error(db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):  # the first error is the one to report, and may have ended the transaction
            db.execute("rollback")
        raise


def _connect(path: Path, create: bool = True) -> sqlite3.Connection:
    """Return a connection to the database. Only the owner may read a new file, as it contains the environments of jobs.

    Raises OperatorError if the file cannot be opened.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600))
    except OSError as error:
        raise OperatorError(f"{path} cannot be used as the store: {error.strerror}") from None
    return sqlite3.connect(path, timeout=LOCKED_TIMEOUT_S, isolation_level=None)


def _make_durable(db: sqlite3.Connection) -> None:
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Create the schema in an empty database. Raises OperatorError, changing nothing, if the schema is unknown."""
    (version,) = db.execute("pragma user_version").fetchone()
    tables = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
    if version > SCHEMA_VERSION:
        raise OperatorError(f"{path} was written by a newer version (schema {version}, known {SCHEMA_VERSION})")
    if version == 0 and not tables:
        db.executescript(SCHEMA)
    elif version != SCHEMA_VERSION or tables != {"records", "meta"}:
        raise OperatorError(f"{path} is a database, but not a store of this program")


def _lock(path: Path) -> int:
    """Lock a file beside the database, and return its descriptor.

    Raises OperatorError if another controller holds the lock.
    """
    try:
        return locks.hold(path.with_name(path.name + ".lock"), f"{path} is in use by another controller")
    except OperatorError as error:
        raise OperatorError(f"the store cannot be used: {error}") from None
