"""What a controller keeps, behind one interface (design: cluster 3): revisioned keys and atomic, conditional commits.

Keys are text, values bytes. Every commit that changes something makes one new revision. Leases and watches come with a store
that several controllers share; nothing here needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...protocol.errors import OperatorError

AFTER_ALL = "\U0010ffff"  # no key begins with it: it stands after all of them


class StoreUnavailable(OperatorError):
    """The store cannot be read or written at present: the disk is full, the database is locked, the device fails.

    `outcome_unknown`: whether a commit has taken place shows only when the store is read again after a later commit.
    """

    def __init__(self, reason: str, outcome_unknown: bool = False) -> None:
        super().__init__(reason)
        self.outcome_unknown = outcome_unknown


@dataclass(frozen=True)
class Record:
    """A key's value, and the revision that last changed it."""

    key: str
    value: bytes
    mod_revision: int


@dataclass(frozen=True)
class If:
    """Holds when the key's `mod_revision` is this; 0: when there is no such key."""

    key: str
    mod_revision: int


@dataclass(frozen=True)
class Put:
    """Set a key."""

    key: str
    value: bytes


@dataclass(frozen=True)
class Delete:
    """Remove a key, if it is there."""

    key: str


@dataclass(frozen=True)
class Listing:
    """All records under a prefix, by key, as of one revision."""

    records: tuple[Record, ...]
    revision: int


class Store(Protocol):
    """Durable at each commit: what `commit` has returned for survives a crash at any later instruction.

    All methods but `close` raise StoreUnavailable.
    """

    def get(self, key: str) -> Record | None:
        """The record of `key`, or None."""

    def list(self, prefix: str) -> Listing:
        """The records whose keys begin with `prefix`."""

    def between(self, first: str, end: str) -> Listing:
        """The records whose keys are `first` or greater, and less than `end`."""

    def keys(self, prefix: str) -> tuple[str, ...]:
        """The keys that begin with `prefix`, in their order, without reading what stands there."""

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        """All writes in one transaction: the revision they made, or None if a condition fails (nothing is written then).

        Raises ValueError if a key is written twice.
        """

    def probe(self, size: int) -> None:
        """After a StoreUnavailable: make sure that a commit of about `size` bytes can be made again.

        What `get` and `list` tell afterwards is settled: no earlier commit whose outcome was unknown can still appear.
        """

    def close(self) -> None:
        """Release the store. It must not be used afterwards."""
