"""Interface of the controller's durable stores: keys with revisions, atomic conditional commits (design: survival).

Keys are text, values are bytes. Every commit that changes a record makes one new revision.

A `Store` suffices for a single controller. A `SharedStore` serves several processes at the same time. It adds the means
by which they agree on one writer: leases, a condition that guards each commit, and watches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...protocol.errors import OperatorError

AFTER_ALL = "\U0010ffff"  # sorts after all keys: no key begins with this character


class StoreUnavailable(OperatorError):
    """The store cannot be read or written at present: the disk is full, the database is locked, no member answers.

    `outcome_unknown`: the commit may have taken place; only reading the store after `probe` shows whether it has.
    """

    def __init__(self, reason: str, outcome_unknown: bool = False) -> None:
        super().__init__(reason)
        self.outcome_unknown = outcome_unknown


class Deposed(OperatorError):
    """Another controller writes to the store now. No part of this commit was written, and no later commit can be."""


class Compacted(Exception):
    """The requested history is no longer kept: list again, then watch from the listing's revision."""


@dataclass(frozen=True)
class Record:
    """A key's value, and the revision that last changed it."""

    key: str
    value: bytes
    mod_revision: int
    lease: int = 0  # the lease that the key is bound to; 0: none


@dataclass(frozen=True)
class If:
    """Condition that the key has this `mod_revision`; 0: that the key does not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True)
class Put:
    """Set a key, and unbind the key from its lease if it has one."""

    key: str
    value: bytes


@dataclass(frozen=True)
class PutLeased:
    """Set a key that is removed when this lease ends. Only a `SharedStore` has leases."""

    key: str
    value: bytes
    lease: int


@dataclass(frozen=True)
class Delete:
    """Remove a key if it exists."""

    key: str


@dataclass(frozen=True)
class Listing:
    """Records in the order of their keys, as of one revision."""

    records: tuple[Record, ...]
    revision: int


@dataclass(frozen=True)
class Limits:
    """Limits of a commit that the store makes durable in one transaction. None: unlimited.

    Larger commits are atomic as well, and take longer. A single value larger than `bytes` cannot be stored.
    """

    operations: int | None = None
    bytes: int | None = None  # bytes of all keys and values, with the overhead of each write
    overhead_bytes: int = 0  # overhead of each write

    @property
    def is_none(self) -> bool:
        """Whether every commit is one transaction."""
        return self.operations is None and self.bytes is None

    def size(self, write: Put | PutLeased | Delete) -> int:
        """Return the bytes that `write` counts for."""
        value = 0 if isinstance(write, Delete) else len(write.value)
        return len(write.key.encode()) + value + self.overhead_bytes

    def allow(self, operations: int, size: int) -> bool:
        """Return whether `operations` writes of `size` bytes in total fit into one transaction."""
        return (self.operations is None or operations <= self.operations) and (self.bytes is None or size <= self.bytes)


@dataclass(frozen=True)
class Changes:
    """Changes of one revision.

    Without writes: no watched key changed, and all revisions up to this one were reported.
    """

    revision: int
    writes: tuple[Put | Delete, ...]


@dataclass(frozen=True)
class Lease:
    """A lease that ends `ttl_s` seconds after its grant or last renewal. Its keys are removed with it."""

    id: int
    ttl_s: float


class Store(Protocol):
    """Key-value store that is durable at each commit: once `commit` has returned, its writes survive any later crash.

    All methods but `close` raise StoreUnavailable. A store serves one thread.
    """

    @property
    def limits(self) -> Limits:
        """Limits of one transaction."""

    def get(self, key: str) -> Record | None:
        """Return the record of `key`, or None."""

    def list(self, prefix: str) -> Listing:
        """Return the records of all keys that begin with `prefix`."""

    def between(self, first: str, end: str) -> Listing:
        """Return the records of all keys k with first <= k < end."""

    def keys(self, prefix: str) -> tuple[str, ...]:
        """Return the keys that begin with `prefix`, in order, without reading their values."""

    def pages(self, first: str, end: str) -> Iterator[Listing]:
        """Yield the records of `between` in portions, at least one, all as of the revision of the first portion.

        Raises Compacted if that revision is compacted meanwhile.
        """

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        """Make all writes or none. Returns their revision, or None if a condition fails and nothing was written.

        Raises ValueError if a key is written twice, and Deposed.
        """

    def probe(self, size: int) -> None:
        """Make sure, after a StoreUnavailable, that a commit of about `size` bytes can be made again.

        Results of `get` and `list` are final afterwards: no earlier commit of unknown outcome can still appear. Raises
        Deposed.
        """

    def close(self) -> None:
        """Release the store. It must not be used afterwards."""


class Sealing(Protocol):
    """Seal by which records of controllers are recognized (`controller.seal`). Safe for several threads."""

    overhead_bytes: int  # bytes that sealing adds to a value

    def written(self, writes: Sequence[Any]) -> Sequence[Any]:
        """Return the writes with sealed values, as they are stored."""

    def opened(self, key: str, stored: bytes) -> bytes | None:
        """Return the value of a record; None: the seal is invalid, and the record does not count."""


class Watch(Protocol):
    """Stream of the changes of a store, revision by revision, each exactly once, also across lost connections."""

    def next(self, timeout_s: float) -> Changes | None:
        """Return the next revision's changes; None after `timeout_s` without any.

        Raises Compacted if those changes are no longer kept; the watch has ended then.
        """

    def close(self) -> None:
        """End the watch."""


class SharedStore(Store, Protocol):
    """A store that several processes share. Leases and watches may be used from other threads than the rest.

    A process calls `begin` before its first commit; a process that only reads and watches does not.
    """

    def begin(self, guard: If | None = None) -> int:
        """Become the store's writer, and depose the previous one: none of its commits can appear any more.

        `guard` is a condition of this call and of each later commit; Deposed is raised if it fails. If the previous
        writer has left a large commit unfinished, the call completes the commit, or removes it if it had not taken
        place. Returns a revision: a reader that has received all changes up to it knows all earlier writes.
        """

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | PutLeased | Delete]) -> int | None:
        """Commit as `Store.commit` does. A large commit returns its last revision."""

    def claim(self, conditions: Sequence[If], writes: Sequence[Put | PutLeased | Delete]) -> int | None:
        """Make a small commit without `begin`, deposing no writer.

        Such a commit sets the keys by which processes agree on the next writer. Returns its revision, or None if a
        condition fails. Raises ValueError if the commit is larger than one transaction.
        """

    def grant(self, ttl_s: float) -> Lease:
        """Grant a new lease; the store may give it more time than `ttl_s` seconds."""

    def renew(self, lease: int) -> float:
        """Renew a lease. Returns its lifetime in seconds, counted from the call; 0: the lease has ended."""

    def revoke(self, lease: int) -> None:
        """End a lease if it has not ended."""

    def watch(self, prefix: str, revision: int) -> Watch:
        """Watch all changes of keys that begin with `prefix`, from `revision` on.

        With the prefix "" each `begin` appears as well, as a revision without writes.
        """

    def compact(self, revision: int) -> None:
        """Delete the history before `revision`."""
