"""The secret of seals in its file, the records that were refused, and the one time that a store of an earlier version is sealed.

Theory of operation
-------------------
The file `store.seal` decides how records without a seal are taken. Where it is there, no record counts without a seal, whatever
the store says: so removing seals, or the marker under `SEAL_KEY`, gains nothing. Where it is missing, a controller that comes to
lead makes it, and seals all that is there: the store is new, or of an earlier version. It does not do so, and ends, if any record
has a seal already: then another controller has the file, and it has to be copied.

The secret lies in `store.seal.new` until all records are sealed, so a controller that dies meanwhile goes on where it was.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from ..protocol.errors import OperatorError
from ..runtime.directories import read_secret, write_secret
from ..runtime.keys import SEAL_FILE, SECRET_BYTES
from .jobs.archive import PREFIX as ARCHIVE
from .records import JOBS, POLICY_KEY
from .seal import HEAD_BYTES, MARK, MISSING, SEAL_KEY, BrokenSeal, Seal, is_sealed
from .store.etcd import EtcdStore
from .store.interface import AFTER_ALL, Put, StoreUnavailable

log = logging.getLogger(__name__)

MOST_TOLD = 10_000  # records whose refusal is remembered
NO_SECRET = "it has a seal, and this controller has no secret of seals"
SEALED_RANGES = ((JOBS, JOBS + AFTER_ALL), (ARCHIVE, ARCHIVE + AFTER_ALL), (POLICY_KEY, POLICY_KEY + "\0"))

Write = TypeVar("Write")


class Seals:
    """Seals what a store is given, and opens what it holds. `written` and `opened` are for several threads."""

    overhead_bytes = HEAD_BYTES

    def __init__(self, *directories: Path) -> None:
        """Where the secret is looked for; it is made in the first of them that can be written. Raises OperatorError if it is
        there, and cannot be used."""
        self._directories = directories
        self._lock = threading.Lock()
        self._fresh()
        self._seal: Seal | None = None
        self._load()

    def _fresh(self) -> None:
        self.broken: dict[str, str] = {}  # why a record was refused, by its key
        self._untold: list[str] = []
        self._opened = self._marked = False  # has any record been opened; has the marker?

    def _load(self) -> bool:
        for directory in self._directories:
            path = directory / SEAL_FILE
            if path.exists():
                owner = directory.stat().st_uid  # root's tools read the service's file
                self._seal = Seal(read_secret(path, owner), str(path))
                return True
        return False

    # -- records

    def written(self, writes: Sequence[Write]) -> Sequence[Write | Put]:
        """What is stored for these writes."""
        seal = self._seal
        if seal is None:
            return writes
        return [
            Put(write.key, seal.close(write.key, write.value))
            if isinstance(write, Put) and is_sealed(write.key)
            else write
            for write in writes
        ]

    def opened(self, key: str, stored: bytes) -> bytes | None:
        """The value of a record; None: it does not count. The marker counts for nobody else."""
        if not is_sealed(key):
            return stored
        seal = self._seal
        try:
            if seal is not None:
                value = seal.open(key, stored)
                self._opened = True
                self._marked = self._marked or key == SEAL_KEY
                return None if key == SEAL_KEY else value
            if stored.startswith(MARK):
                raise BrokenSeal(NO_SECRET)
            return stored
        except BrokenSeal as error:
            self._refuse(key, str(error))
            return None

    def _refuse(self, key: str, reason: str) -> None:
        with self._lock:
            if self.broken.get(key) == reason or len(self.broken) >= MOST_TOLD:
                return
            self.broken[key] = reason
            if self._seal is not None:
                self._untold.append(key)

    def news(self) -> str:
        """A sentence on the records that were refused since the last call; empty: there are none."""
        if not self._untold:
            return ""
        with self._lock:
            keys, self._untold = self._untold, []
        few = ", ".join(f"{key[:200]!r} ({self.broken[key]})" for key in keys[:5])
        more = f", and {len(keys) - 5} more" if len(keys) > 5 else ""
        return f"refused records of the store that no controller has written: {few}{more}. Somebody else writes to the store"

    # -- whether to lead

    def check(self) -> None:
        """Raises OperatorError if what has been read shows that this controller must not lead, or that a tool must not copy."""
        if not self.broken or self._opened:
            return
        key, reason = next(iter(self.broken.items()))
        count = len(self.broken)
        if reason == MISSING and self._seal is not None:
            raise OperatorError(
                f"{count} records of the store have no seal, such as {key}, and none has one. If the store is of a version "
                f"without seals, and nobody else could write to it: move {self._seal.where} away from all controllers, and "
                "start one; it seals the store, and makes the file anew"
            )
        where = self._seal.where if self._seal is not None else str(self._directories[0] / SEAL_FILE)
        raise OperatorError(
            f"{count} records of the store bear seals, such as {key}, and {reason}: copy the file {SEAL_FILE} from a controller "
            f"that has led to {where} (mode 0600)"
        )

    def check_whole(self) -> None:
        """Raises OperatorError if any record that was read does not count: a copy would lack it."""
        self.check()
        if self.broken:
            raise OperatorError(f"{self.news()}. Remove them there (`etcdctl del`), and try again; nothing was copied")

    def look(self, store: EtcdStore) -> None:
        """At the start: raises OperatorError if another secret has sealed the store. A store that is away is looked at later."""
        try:
            store.get(SEAL_KEY)
        except StoreUnavailable:
            return
        self.check()

    def settle(self, store: EtcdStore) -> bool:
        """A reign begins in `store`, which has been read. True: it has to be read anew, as records count otherwise now.

        Seals all of a store that has not been sealed yet. Raises OperatorError if this controller must not lead; also
        StoreUnavailable, Deposed, Compacted.
        """
        if self._seal is None and self._load():  # copied here meanwhile, or made by one that shares the directory
            self._fresh()
            store.get(SEAL_KEY)
            store.list(JOBS)
            self.check()
            return True
        if self._seal is None:
            self._seal_all(store)
            return True
        self.check()
        if not self._marked:
            store.commit((), (Put(SEAL_KEY, b"sealed"),))
            self._marked = True
        return False

    def _seal_all(self, store: EtcdStore) -> None:
        path = self._pending()
        seal = Seal(read_secret(path), str(path.with_name(SEAL_FILE)))
        count = 0
        for first, end in SEALED_RANGES:
            for page in store.pages_as_stored(first, end):
                writes = []
                for record in page.records:
                    if record.value.startswith(MARK):
                        self._check_own(seal, record.key, record.value)
                    elif is_sealed(record.key):
                        writes.append(Put(record.key, seal.close(record.key, record.value)))
                if writes:
                    store.commit((), writes)
                    count += len(writes)
        path.rename(path.with_name(SEAL_FILE))
        self._seal = seal
        self._fresh()
        store.commit((), (Put(SEAL_KEY, b"sealed"),))
        self._marked = True
        log.warning(
            "sealed %d records of the store with the new secret %s: copy it to all controllers", count, seal.where
        )

    def _check_own(self, seal: Seal, key: str, stored: bytes) -> None:
        try:
            seal.open(key, stored)
        except BrokenSeal:
            self._refuse(key, NO_SECRET)
            self.check()

    def _pending(self) -> Path:
        for directory in self._directories:
            if (path := directory / f"{SEAL_FILE}.new").exists():
                return path
        failed: OperatorError | None = None
        for directory in self._directories:
            path = directory / f"{SEAL_FILE}.new"
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_secret(path, secrets.token_bytes(SECRET_BYTES), replace=False)
            except OSError as error:
                failed = OperatorError(f"{directory}: cannot be made: {error.strerror}")
            except OperatorError as error:
                failed = error
            else:
                return path
        assert failed is not None, "there is a directory"
        raise failed
