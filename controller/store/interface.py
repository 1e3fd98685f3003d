"""What a controller keeps, behind one interface (design: survival): revisioned keys and atomic, conditional commits.

Keys are text, values bytes. Every commit that changes something makes one new revision.

A `Store` is all that a controller needs which is alone. A `SharedStore` is one that several processes use at the same time. It
has what they need to agree on who writes: leases, comparisons that each commit bears, and watches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...protocol.errors import OperatorError

AFTER_ALL = "\U0010ffff"  # no key begins with it: it stands after all of them


class StoreUnavailable(OperatorError):
    """The store cannot be read or written at present: the disk is full, the database is locked, no member answers.

    `outcome_unknown`: whether a commit has taken place shows only when the store is read again after `probe`.
    """

    def __init__(self, reason: str, outcome_unknown: bool = False) -> None:
        super().__init__(reason)
        self.outcome_unknown = outcome_unknown


class Deposed(OperatorError):
    """Another controller writes to the store now. Nothing of this commit was written, and nothing more will be."""


class Compacted(Exception):
    """The history that was asked for is no longer kept: list again, then watch from there."""


@dataclass(frozen=True)
class Record:
    """A key's value, and the revision that last changed it."""

    key: str
    value: bytes
    mod_revision: int
    lease: int = 0  # that it is bound to; 0: none


@dataclass(frozen=True)
class If:
    """Holds when the key's `mod_revision` is this; 0: when there is no such key."""

    key: str
    mod_revision: int


@dataclass(frozen=True)
class Put:
    """Set a key. It is bound to no lease any more."""

    key: str
    value: bytes


@dataclass(frozen=True)
class PutLeased:
    """Set a key that goes when this lease ends. Only a `SharedStore` has leases."""

    key: str
    value: bytes
    lease: int


@dataclass(frozen=True)
class Delete:
    """Remove a key, if it is there."""

    key: str


@dataclass(frozen=True)
class Listing:
    """Records by key, as of one revision."""

    records: tuple[Record, ...]
    revision: int


@dataclass(frozen=True)
class Limits:
    """What one commit of a store may hold and still be one transaction of it. None: any number.

    Larger commits are atomic as well, and take longer; of a value that is over `bytes` by itself there can be none.
    """

    operations: int | None = None
    bytes: int | None = None  # of all keys and values, each write with its overhead
    overhead_bytes: int = 0  # for each write

    @property
    def is_none(self) -> bool:
        """Is everything one transaction?"""
        return self.operations is None and self.bytes is None

    def size(self, write: Put | PutLeased | Delete) -> int:
        """So many bytes count for `write`."""
        value = 0 if isinstance(write, Delete) else len(write.value)
        return len(write.key.encode()) + value + self.overhead_bytes

    def allow(self, operations: int, size: int) -> bool:
        """Are so many writes of so many bytes together one transaction?"""
        return (self.operations is None or operations <= self.operations) and (self.bytes is None or size <= self.bytes)


@dataclass(frozen=True)
class Changes:
    """What one revision has changed. Without writes: nothing of what is watched, but all up to here has been told."""

    revision: int
    writes: tuple[Put | Delete, ...]


@dataclass(frozen=True)
class Lease:
    """Ends so many seconds after it was granted or last renewed, unless it is renewed before. Its keys go with it."""

    id: int
    ttl_s: float


class Store(Protocol):
    """Durable at each commit: what `commit` has returned for survives a crash at any later instruction.

    All methods but `close` raise StoreUnavailable. For one thread.
    """

    @property
    def limits(self) -> Limits:
        """Of one transaction."""

    def get(self, key: str) -> Record | None:
        """The record of `key`, or None."""

    def list(self, prefix: str) -> Listing:
        """The records whose keys begin with `prefix`."""

    def between(self, first: str, end: str) -> Listing:
        """The records whose keys are `first` or greater, and less than `end`."""

    def keys(self, prefix: str) -> tuple[str, ...]:
        """The keys that begin with `prefix`, in their order, without reading what stands there."""

    def pages(self, first: str, end: str) -> Iterator[Listing]:
        """The same as `between` in portions, all as of the revision of the first, of which there is at least one.

        Raises Compacted if that revision is forgotten meanwhile.
        """

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        """All writes, or none: the revision they made, or None if a condition fails (nothing is written then).

        Raises ValueError if a key is written twice, and Deposed.
        """

    def probe(self, size: int) -> None:
        """After a StoreUnavailable: make sure that a commit of about `size` bytes can be made again.

        What `get` and `list` tell afterwards is settled: no earlier commit whose outcome was unknown can still appear.
        Raises Deposed.
        """

    def close(self) -> None:
        """Release the store. It must not be used afterwards."""


class Sealing(Protocol):
    """Shows which records were written by controllers (`controller.seal`). For several threads."""

    overhead_bytes: int  # of a sealed value

    def written(self, writes: Sequence[Any]) -> Sequence[Any]:
        """What is stored for these writes."""

    def opened(self, key: str, stored: bytes) -> bytes | None:
        """The value of a record; None: the record does not count."""


class Watch(Protocol):
    """Tells what happens in a store, revision by revision; none is missed or told twice, whatever happens to connections."""

    def next(self, timeout_s: float) -> Changes | None:
        """The next revision's; None: there was none for so long. Raises Compacted: then this watch has ended."""

    def close(self) -> None:
        """End it."""


class SharedStore(Store, Protocol):
    """A store that several processes use. Leases and watches may be used from other threads than the rest.

    Whoever writes first calls `begin`. Who only reads and watches does not.
    """

    def begin(self, guard: If | None = None) -> int:
        """From now on this store writes, and who wrote before is deposed: none of its commits can appear any more.

        `guard` is part of the conditions of each commit from now on: where it fails, Deposed is raised. So is it here.
        What an earlier writer has begun to write, and had to finish, is finished. Returns a revision: whoever has been told of
        all up to there knows all that was written before.
        """

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | PutLeased | Delete]) -> int | None:
        """As a `Store` does it. Of a large commit, the revision is its last one's."""

    def claim(self, conditions: Sequence[If], writes: Sequence[Put | PutLeased | Delete]) -> int | None:
        """A small commit that needs no `begin`, and deposes nobody: for keys by which processes agree on who is to begin."""

    def grant(self, ttl_s: float) -> Lease:
        """A new lease; the store may give it more time than was asked for."""

    def renew(self, lease: int) -> float:
        """Renew a lease: how long it lasts from when this was called (s); 0: it has ended."""

    def revoke(self, lease: int) -> None:
        """End a lease, if it has not ended."""

    def watch(self, prefix: str, revision: int) -> Watch:
        """All changes of keys that begin with `prefix`, from `revision` on. With "" each `begin` shows too, without writes."""

    def compact(self, revision: int) -> None:
        """Forget the history before `revision`."""
