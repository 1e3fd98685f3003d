"""Copies of all records of a store: into another store, into a backup file, and from that file into a store.

A copy is atomic: the target is empty at first, and all records form one commit. Records that are bound to a lease are
left out, because they only list the running controllers.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ... import __version__
from ...protocol.errors import OperatorError
from ...runtime.directories import write_secret
from ..jobs.archive import PREFIX as ARCHIVE
from ..records import CLUSTER_KEY, JOBS, STATE, ClusterRecord
from .etcd import EtcdStore
from .interface import AFTER_ALL, Compacted, Listing, Put, Store, StoreUnavailable
from .sqlite import pages_of

FORMAT = "elasticctl store 1"
READ_TRIED = 20
READ_AGAIN_S = 0.25


@dataclass(frozen=True)
class Contents:
    """All records of a store as of one moment, without those bound to leases."""

    records: tuple[tuple[str, bytes], ...]
    read_s: float  # Unix time

    def cluster(self) -> str:
        """Return the id of the cluster.

        Raises OperatorError if there is none: then no controller has ever used the store.
        """
        for key, value in self.records:
            if key == CLUSTER_KEY:
                return msgspec.msgpack.decode(value, type=ClusterRecord).id
        raise OperatorError("there is nothing of a cluster in it")

    @property
    def jobs(self) -> tuple[int, int]:
        """Number of all jobs, and of the archived ones among them."""
        archived = sum(key.startswith(ARCHIVE) for key, _ in self.records)
        return archived + sum(key.startswith(JOBS) and key.endswith(STATE) for key, _ in self.records), archived

    def __str__(self) -> str:
        jobs, archived = self.jobs
        return f"cluster {self.cluster()}: {len(self.records)} records, {jobs} jobs, {archived} of them in the archive"


def contents(store: Store) -> Contents:
    """Return all records of a store as of one revision.

    The reading is repeated while a large commit is only partly applied, or the history is compacted during the reading.
    Raises StoreUnavailable after `READ_TRIED` attempts.
    """
    for _ in range(READ_TRIED):
        try:
            pages = list(store.pages("", AFTER_ALL))
            if not isinstance(store, EtcdStore) or store.is_whole(pages[0].revision):
                return _of(pages)
        except Compacted:
            pass  # the history was compacted during the reading
        time.sleep(READ_AGAIN_S)
    raise StoreUnavailable(
        "it does not come to rest: a large commit there is unfinished, or its history is kept too briefly"
    )


def contents_of_file(path: Path) -> Contents:
    """Return all records of the SQLite database in `path`, which a controller may be using. Raises StoreUnavailable."""
    return _of(pages_of(path, "", AFTER_ALL))


def _of(pages: Iterable[Listing]) -> Contents:
    records = tuple((record.key, record.value) for page in pages for record in page.records if not record.lease)
    return Contents(records, time.time())


def check_empty(store: Store) -> None:
    """Raise OperatorError if the store has any record."""
    if found := store.keys(""):
        raise OperatorError(f"it is not empty: it has {len(found)} records, such as {found[0]}; nothing was changed")


def check_unused(store: Store) -> None:
    """Raise OperatorError if a controller uses the store: each running controller keeps a lease there."""
    leased = [record.key for record in store.list("").records if record.lease]
    if leased:
        raise OperatorError(f"controllers use it ({', '.join(leased[:5])}): stop all of them first")


def fill(store: Store, found: Contents) -> None:
    """Write all records into an empty store in one commit, and read them back.

    Raises StoreUnavailable, and OperatorError if the store is not empty or the records read differ from those written.
    """
    check_empty(store)
    store.commit((), [Put(key, value) for key, value in found.records])
    if contents(store).records != found.records:
        raise OperatorError("it does not hold what was written to it; do not use it")


# ------------------------------------------------------------------------------------------------------------- files


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line of a backup file, as JSON. The records follow in MessagePack."""

    format: str
    cluster: str
    read_s: float  # Unix time of the reading
    version: str  # version of the program that wrote the file
    records: int
    sha256: str  # digest of the rest of the file


def write_backup(path: Path, found: Contents) -> None:
    """Write a new backup file, which only its owner may read, because it contains the environments of jobs.

    Raises OperatorError if the file exists or cannot be written.
    """
    body = msgspec.msgpack.encode(found.records)
    head = Head(
        format=FORMAT,
        cluster=found.cluster(),
        read_s=found.read_s,
        version=__version__,
        records=len(found.records),
        sha256=hashlib.sha256(body).hexdigest(),
    )
    write_secret(path.absolute(), msgspec.json.encode(head) + b"\n" + body, replace=False)


def read_backup(path: Path) -> Contents:
    """Return the records of a backup file.

    Raises OperatorError if the file is no backup, or is incomplete or damaged.
    """
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from None
    try:
        if json.loads(line)["format"] != FORMAT:
            raise OperatorError(f"{path} is a backup of another version, {json.loads(line)['format']}")
        head = msgspec.json.decode(line, type=Head)
        if hashlib.sha256(body).hexdigest() != head.sha256:
            raise OperatorError(f"{path} is damaged: it is not what was written")
        records: Sequence[tuple[str, bytes]] = msgspec.msgpack.decode(body, type=tuple[tuple[str, bytes], ...])
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError):
        raise OperatorError(f"{path} is not a backup of a store") from None
    return Contents(tuple(records), head.read_s)
