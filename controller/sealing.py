"""The seals of records: the file of their secret, the refused records, and the first sealing of a store of an earlier version.

Theory of operation
-------------------
The file `store.seal` decides how records without a seal are treated. If the file exists, no record counts without a seal,
whatever the store says: so an attacker gains nothing by removing seals, or the marker under `SEAL_KEY`. If the file is missing,
the store is new, or of an earlier version: a controller that becomes leader makes the file, and seals all records. If any record
has a seal already, the controller exits instead: another controller has the file, and the operator has to copy it.

The secret is kept in `store.seal.new` until all records are sealed, so that after a crash the sealing continues.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from ..protocol.errors import OperatorError
from ..protocol.messages import RefusedJob
from ..runtime.directories import read_secret, write_secret
from ..runtime.keys import SEAL_FILE, SECRET_BYTES
from .jobs.archive import PREFIX as ARCHIVE
from .records import JOBS, POLICY_KEY, job_of_submission, submission_key
from .seal import HEAD_BYTES, MARK, MISSING, SEAL_KEY, BrokenSeal, Seal, is_hidden, is_sealed
from .store.etcd import EtcdStore
from .store.interface import AFTER_ALL, Put, StoreUnavailable

log = logging.getLogger(__name__)

MOST_TOLD = 10_000  # records whose refusal is remembered
MOST_SHOWN = 100  # refused jobs that are shown to clients
FOREIGN = "its record in the store was written by another process than a controller"
NO_SECRET = "it has a seal, and this controller has no secret of seals"
SEALED_RANGES = ((JOBS, JOBS + AFTER_ALL), (ARCHIVE, ARCHIVE + AFTER_ALL), (POLICY_KEY, POLICY_KEY + "\0"))

Write = TypeVar("Write")


class Seals:
    """Sealer of the records that are written to a store, and opener of those read from it.

    `written` and `opened` may be called from several threads.
    """

    overhead_bytes = HEAD_BYTES

    def __init__(self, *directories: Path) -> None:
        """Load the secret from the first of the `directories` that has it. A new one is made in the first writable directory.

        Raises OperatorError if the secret's file exists and cannot be used.
        """
        self._directories = directories
        self._lock = threading.Lock()
        self._fresh()
        self._seal: Seal | None = None
        self._load()

    def _fresh(self) -> None:
        self.broken: dict[str, str] = {}  # why a record was refused, by its key
        self.refused_jobs: tuple[RefusedJob, ...] = ()  # jobs of refused submissions
        self._untold: list[str] = []
        self._opened = self._marked = False  # whether any record, and whether the marker, has been opened

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
        """Return `writes` with sealed or hidden values, for the keys that need it."""
        seal = self._seal
        return writes if seal is None else [_written(seal, write) for write in writes]

    def opened(self, key: str, stored: bytes) -> bytes | None:
        """Return the value of a stored record; None: the record does not count.

        The marker under `SEAL_KEY` is also returned as None, as only this class uses it.
        """
        hidden = is_hidden(key)
        if not (hidden or is_sealed(key)):
            return stored
        seal = self._seal
        try:
            if hidden and not stored.startswith(MARK):
                return stored  # stored by an earlier version (`shared_store.shared_job_keys`)
            if hidden and seal is not None:
                return seal.reveal(key, stored)
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
            if (job := job_of_submission(key)) is not None and len(self.refused_jobs) < MOST_SHOWN:
                others = tuple(each for each in self.refused_jobs if each.job != job)
                self.refused_jobs = (*others, RefusedJob(job=job, reason=f"{FOREIGN}: {reason}"))
            if self._seal is not None:
                self._untold.append(key)

    def look_again(self, store: EtcdStore) -> None:
        """Forget one refused job if its record has been removed from the store. Blocks for one read.

        Successive calls examine the refused jobs in turn.
        """
        first = next(iter(self.refused_jobs), None)
        if first is None:
            return
        key = submission_key(first.job)
        try:
            there = key in store.keys(key)
        except StoreUnavailable:
            return
        with self._lock:
            others = tuple(each for each in self.refused_jobs if each.job != first.job)
            self.refused_jobs = (*others, first) if there else others
            if not there:
                self.broken.pop(key, None)

    def news(self) -> str:
        """Return a sentence about the records that were refused since the last call; "" if there are none."""
        if not self._untold:
            return ""
        with self._lock:
            keys, self._untold = self._untold, []
        few = ", ".join(f"{key[:200]!r} ({self.broken[key]})" for key in keys[:5])
        more = f", and {len(keys) - 5} more" if len(keys) > 5 else ""
        return f"refused records of the store that no controller has written: {few}{more}. Somebody else writes to the store"

    # -- whether to lead

    def check(self) -> None:
        """Raise OperatorError if none of the records read so far could be opened, and some were refused.

        Then this controller must not lead, and a tool must not copy the store: the secret is missing, or is another one.
        """
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
        """Raise OperatorError if any record that was read does not count: a copy of the store would lack it."""
        self.check()
        if self.broken:
            raise OperatorError(f"{self.news()}. Remove them there (`etcdctl del`), and try again; nothing was copied")

    def look(self, store: EtcdStore) -> None:
        """Check at the controller's start that no other secret has sealed the store; otherwise raise OperatorError.

        A store that is unavailable is checked later, by `settle`.
        """
        try:
            store.get(SEAL_KEY)
        except StoreUnavailable:
            return
        self.check()

    def settle(self, store: EtcdStore) -> bool:
        """Prepare `store`, the records of which have been read, for the reign that begins; seal it if it has no seals yet.

        Returns whether the records have to be read again, as other records count now. Raises OperatorError if this controller
        must not lead; also StoreUnavailable, Deposed, Compacted.
        """
        if (
            self._seal is None and self._load()
        ):  # copied since the start, or made by a controller that shares the directory
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


def _written(seal: Seal, write: Write) -> Write | Put:
    if isinstance(write, Put) and is_sealed(write.key):
        return Put(write.key, seal.close(write.key, write.value))
    if isinstance(write, Put) and is_hidden(write.key):
        return Put(write.key, seal.hide(write.key, write.value))
    return write
