"""All that a store holds: brought into another one, kept in a file, brought back from there.

A copy is made whole or not at all: the target is empty at first, and all records are one commit of it. What belongs to a lease is
left out, as it says who is there at the moment.
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
    """Everything that a store held at one moment."""

    records: tuple[tuple[str, bytes], ...]
    read_s: float  # Unix time

    def cluster(self) -> str:
        """The id of the cluster. Raises OperatorError if there is none: then no controller has ever used the store."""
        for key, value in self.records:
            if key == CLUSTER_KEY:
                return msgspec.msgpack.decode(value, type=ClusterRecord).id
        raise OperatorError("there is nothing of a cluster in it")

    @property
    def jobs(self) -> tuple[int, int]:
        """How many jobs there are, and how many of them are in the archive."""
        archived = sum(key.startswith(ARCHIVE) for key, _ in self.records)
        return archived + sum(key.startswith(JOBS) and key.endswith(STATE) for key, _ in self.records), archived

    def __str__(self) -> str:
        jobs, archived = self.jobs
        return f"cluster {self.cluster()}: {len(self.records)} records, {jobs} jobs, {archived} of them in the archive"


def contents(store: Store) -> Contents:
    """What a store holds, as of one revision. Raises StoreUnavailable."""
    for _ in range(READ_TRIED):
        try:
            pages = list(store.pages("", AFTER_ALL))
            if not isinstance(store, EtcdStore) or store.is_whole(pages[0].revision):
                return _of(pages)
        except Compacted:
            pass  # a long reading, and a short history
        time.sleep(READ_AGAIN_S)
    raise StoreUnavailable(
        "it does not come to rest: a large commit there is unfinished, or its history is kept too briefly"
    )


def contents_of_file(path: Path) -> Contents:
    """What the SQLite database in `path` holds, though a controller may be using it. Raises StoreUnavailable."""
    return _of(pages_of(path, "", AFTER_ALL))


def _of(pages: Iterable[Listing]) -> Contents:
    records = tuple((record.key, record.value) for page in pages for record in page.records if not record.lease)
    return Contents(records, time.time())


def check_empty(store: Store) -> None:
    """Raises OperatorError if anything is in the store."""
    if found := store.keys(""):
        raise OperatorError(f"it is not empty: it has {len(found)} records, such as {found[0]}; nothing was changed")


def check_unused(store: Store) -> None:
    """Raises OperatorError if a controller uses the store: it keeps a lease there for as long as it runs."""
    leased = [record.key for record in store.list("").records if record.lease]
    if leased:
        raise OperatorError(f"controllers use it ({', '.join(leased[:5])}): stop all of them first")


def fill(store: Store, found: Contents) -> None:
    """Put everything into a store that is empty and may be written to. Raises OperatorError, StoreUnavailable."""
    check_empty(store)
    store.commit((), [Put(key, value) for key, value in found.records])
    if contents(store).records != found.records:
        raise OperatorError("it does not hold what was written to it; do not use it")


# ------------------------------------------------------------------------------------------------------------- files


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a backup, for people and programs."""

    format: str
    cluster: str
    read_s: float
    version: str  # of the program that wrote it
    records: int
    sha256: str  # of all that follows


def write_backup(path: Path, found: Contents) -> None:
    """Write a file that only its owner may read: there are environments of jobs in it. Raises OperatorError."""
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
    """Raises OperatorError if the file is no backup, or not all of one."""
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
