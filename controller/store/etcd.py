"""Shared store in etcd, for several controllers (Elan V-D keeps the state of its master in etcd).

Theory of operation
-------------------
All keys of a cluster lie under one root. Beside the records, there is the *fence*, a key that each writer sets in
`begin`. Each commit of a writer takes place only if the fence is unchanged since that writer set it. A commit that got
no answer has an unknown outcome; once `begin` or `probe` has set the fence again, such a commit can no longer take
place. The next commit of a replaced writer raises Deposed.

A commit of more than 128 writes, or of more than 1.5 MiB, does not fit into one transaction of etcd. Such a commit is
first written to a journal, and then applied in several transactions (`journal`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from . import journal
from .etcd_connection import Access, Connection
from .interface import (
    Compacted,
    Delete,
    Deposed,
    If,
    Lease,
    Limits,
    Listing,
    Put,
    PutLeased,
    Record,
    Sealing,
    StoreUnavailable,
)
from .watching import EtcdWatch

HEAD_BYTES = 32_768  # part of a request that is reserved for comparisons and etcd's overhead
WRITE_BYTES = 48  # overhead of each write, beside key and value
FIRST_PAGE = 64  # records of the first page
PAGE_BYTES = 1 << 20  # intended size of a page, from which the number of records of the next page follows
MOST_RECORDS = 1024  # most records of a page
KEYS_OF_A_PAGE = 8192
ATTEMPTS = 5
REPLACED = "another controller writes to the store now"
PREFIX_END = b"\xff"  # greater than any byte of UTF-8


@dataclass(frozen=True)
class Bounds:
    """Limits of a request to an etcd member; the defaults are those of etcd."""

    operations: int = 128  # limit of a transaction (--max-txn-ops)
    request_bytes: int = 1_572_864  # limit of a request (--max-request-bytes)
    piece_bytes: int = 1 << 20  # size of a journal piece of a large commit


class EtcdStore:
    """Implementation of `interface.SharedStore` in the keys of an etcd cluster that begin with `root` and a slash."""

    def __init__(
        self, access: Access | Connection, root: str, bounds: Bounds = Bounds(), seals: Sealing | None = None
    ) -> None:
        """Prepare a connection, which the first call establishes. `close` also closes a connection passed as `access`.

        Records that `seals` reject count as absent. Raises OperatorError if etcd3 is missing, or a file of `access`
        cannot be used.
        """
        self._seals = seals
        self._connection = access if isinstance(access, Connection) else Connection(access)
        self._rpc = self._connection.rpc
        self._root = root
        self._data = f"{root}/data".encode()
        self._fence_key = f"{root}/fence".encode()
        self._marker_key = f"{root}/marker".encode()
        self._pieces = f"{root}/pieces/".encode()
        self._ballast_key = f"{root}/ballast".encode()
        overhead = WRITE_BYTES + len(self._data) + (seals.overhead_bytes if seals is not None else 0)
        self._limits = Limits(bounds.operations, bounds.request_bytes - HEAD_BYTES, overhead)
        self._piece_bytes = bounds.piece_bytes
        self._writer = secrets.token_bytes(16)
        self._fence: int | None = None  # revision of the fence set by this writer; None: this writer may not write
        self._guard: If | None = None
        self._watches: list[EtcdWatch] = []

    @property
    def limits(self) -> Limits:
        return self._limits

    # -- reading

    def get(self, key: str) -> Record | None:
        answer = self._range(self._rpc.RangeRequest(key=self._key(key)))
        return next(iter(self._opened(answer.kvs)), None)

    def list(self, prefix: str) -> Listing:
        return self._listed(self._key(prefix), self._key(prefix) + PREFIX_END)

    def between(self, first: str, end: str) -> Listing:
        return self._listed(self._key(first), self._key(end))

    def keys(self, prefix: str) -> tuple[str, ...]:
        listing = self._listed(self._key(prefix), self._key(prefix) + PREFIX_END, keys_only=True)
        return tuple(record.key for record in listing.records)

    def pages(self, first: str, end: str) -> Iterator[Listing]:
        return self._paged(self._key(first), self._key(end))

    def pages_as_stored(self, first: str, end: str) -> Iterator[Listing]:
        """Yield the same records as `pages`, but with the values stored in etcd, without checking their seals."""
        return self._paged(self._key(first), self._key(end), as_stored=True)

    def is_whole(self, revision: int) -> bool:
        """Return whether no large commit was only partly applied as of `revision`."""
        asked = self._rpc.RangeRequest(key=self._marker_key, revision=revision, count_only=True)
        return int(self._range(asked).count) == 0

    def _listed(self, first: bytes, end: bytes, keys_only: bool = False) -> Listing:
        for _ in range(ATTEMPTS):
            records: list[Record] = []
            revision = 0
            with contextlib.suppress(Compacted):
                for page in self._paged(first, end, keys_only):
                    records += page.records
                    revision = page.revision
                return Listing(tuple(records), revision)
        raise StoreUnavailable(f"{self._root} in etcd: its history is forgotten faster than it can be read")

    def _paged(self, first: bytes, end: bytes, keys_only: bool = False, as_stored: bool = False) -> Iterator[Listing]:
        most = KEYS_OF_A_PAGE if keys_only else FIRST_PAGE
        revision = 0  # etcd reads its newest revision
        while True:
            asked = self._rpc.RangeRequest(
                key=first, range_end=end, limit=most, revision=revision, keys_only=keys_only,
                sort_order=self._rpc.RangeRequest.ASCEND, sort_target=self._rpc.RangeRequest.KEY,
            )  # fmt: skip
            if first >= end:  # etcd gives a range_end that is not after the key another meaning
                asked = self._rpc.RangeRequest(key=first, limit=1, count_only=True)
            answer = self._range(asked)
            revision = revision or answer.header.revision
            found = map(self._record, answer.kvs) if keys_only or as_stored else self._opened(answer.kvs)
            yield Listing(tuple(found), revision)
            if not answer.more:
                return
            first = answer.kvs[-1].key + b"\x00"
            if not keys_only:
                each = max(1, answer.ByteSize() // len(answer.kvs))
                most = min(MOST_RECORDS, 2 * most, max(1, PAGE_BYTES // each))

    def _range(self, asked: Any) -> Any:
        return self._connection.read(lambda at: at.kv.Range, asked)

    def _key(self, key: str) -> bytes:
        return self._data + key.encode()

    def _record(self, kv: Any) -> Record:
        return Record(kv.key[len(self._data) :].decode(), kv.value, kv.mod_revision, kv.lease)

    def _opened(self, kvs: Iterable[Any]) -> Iterator[Record]:
        """Yield the records that the seals accept, with their opened values."""
        for record in map(self._record, kvs):
            value = record.value if self._seals is None else self._seals.opened(record.key, record.value)
            if value is not None:
                yield record if value is record.value else replace(record, value=value)

    # -- writing

    def begin(self, guard: If | None = None) -> int:
        self._fence, self._guard = None, guard
        return self._set_fence(take_over=True)

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | PutLeased | Delete]) -> int | None:
        if self._fence is None:
            raise Deposed(REPLACED)
        if self._seals is not None:
            writes = self._seals.written(writes)
        own, compared = self._own(self._fence), list(map(self._comparison, conditions))
        if self._fit(writes):
            return self._transact(own, compared, list(map(self._operation, writes)))
        return self._commit_in_portions(own, compared, writes)

    def claim(self, conditions: Sequence[If], writes: Sequence[Put | PutLeased | Delete]) -> int | None:
        if not self._fit(writes):
            raise ValueError("a claim is larger than one transaction")
        return self._transact([], list(map(self._comparison, conditions)), list(map(self._operation, writes)))

    def probe(self, size: int) -> None:
        if self._fence is None:
            raise Deposed(REPLACED)
        self._set_fence(take_over=False)
        own = self._own(self._fence)
        self._transact(own, [], [self._putting(self._ballast_key, bytes(min(size, self._piece_bytes)))])
        self._transact(own, [], [self._deletion(self._ballast_key)])

    def _set_fence(self, take_over: bool) -> int:
        """Set the fence again, then complete or remove an unfinished commit of an earlier writer. Returns the revision.

        Without `take_over`, raises Deposed if another writer has set the fence. The transaction compares the fence with
        its revision just before, so an attempt that reaches etcd late has no effect.
        """
        rpc = self._rpc
        for _ in range(ATTEMPTS):
            found = self._range(rpc.RangeRequest(key=self._fence_key)).kvs
            if not take_over and not (found and found[0].value == self._writer):
                self._depose()
            own = self._own(found[0].mod_revision if found else 0)
            pieces = rpc.RangeRequest(key=self._pieces, range_end=self._pieces + PREFIX_END, count_only=True)
            operations = [self._putting(self._fence_key, self._writer), self._looking(self._marker_key)]
            request = self._transaction(own, [], [*operations, rpc.RequestOp(request_range=pieces)])
            answer = self._connection.read(lambda at: at.kv.Txn, request)
            if answer.succeeded:
                self._fence = int(answer.header.revision)
                return self._tidy(self._fence, answer.responses[1].response_range, answer.responses[2].response_range)
            if _differs(own[1:], answer.responses[1:]):
                self._depose()
        raise StoreUnavailable(f"{self._root} in etcd: others begin to write there all the time")

    def _tidy(self, fence: int, marker: Any, pieces: Any) -> int:
        """Apply a large commit if its marker was written; otherwise remove its pieces."""
        if marker.kvs:
            return self._finish(fence, marker.kvs[0].value)
        if pieces.count:
            self._transact(self._own(fence), [], [self._deletion(self._pieces, self._pieces + PREFIX_END)])
        return fence

    def _depose(self) -> NoReturn:
        self._fence = None
        raise Deposed(REPLACED)

    def _fit(self, writes: Sequence[Put | PutLeased | Delete]) -> bool:
        """Return whether the writes fit into one transaction.

        Raises ValueError if two of them have one key, and StoreUnavailable if one is larger than a request may be.
        """
        if len({write.key for write in writes}) != len(writes):
            raise ValueError("a key is written twice in one commit")
        total = 0
        for write in writes:
            total += (size := self._limits.size(write))
            if not self._limits.allow(1, size):
                most = self._limits.bytes
                raise StoreUnavailable(f"the record {write.key} has {size} bytes, and etcd takes {most} at most")
        return self._limits.allow(len(writes), total)

    def _commit_in_portions(
        self, own: Sequence[Any], compared: Sequence[Any], writes: Sequence[Put | PutLeased | Delete]
    ) -> int | None:
        if any(isinstance(write, PutLeased) for write in writes):
            raise ValueError("keys with leases in a commit that is larger than one transaction")
        marker, pieces = journal.written(secrets.token_hex(8), writes, self._piece_bytes)
        try:
            for number, piece in enumerate(pieces):
                self._transact(own, [], [self._putting(self._piece_key(marker, number), piece)])
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error)) from None  # without the marker the commit has not taken place
        if self._transact(own, compared, [self._putting(self._marker_key, marker.encode())]) is None:
            self._transact(own, [], [self._deletion(self._pieces, self._pieces + PREFIX_END)])
            return None
        try:
            return self._apply(own, writes)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), outcome_unknown=True) from None

    def _finish(self, fence: int, found: bytes) -> int:
        """Apply the commit of the marker `found`, from the journal pieces that are present."""
        marker = journal.Marker.decode(found)
        pieces = []
        for number in range(marker.pieces):
            answer = self._range(self._rpc.RangeRequest(key=self._piece_key(marker, number)))
            pieces += [kv.value for kv in answer.kvs]
        return self._apply(self._own(fence), journal.read(marker, pieces))

    def _apply(self, own: Sequence[Any], writes: Sequence[Put | PutLeased | Delete]) -> int:
        done = [self._deletion(self._marker_key), self._deletion(self._pieces, self._pieces + PREFIX_END)]
        portions = list(journal.portions(self._limits, writes, spare=len(done)))
        revision = None
        for number, portion in enumerate(portions):
            operations = list(map(self._operation, portion))
            revision = self._transact(own, [], [*operations, *done] if number == len(portions) - 1 else operations)
        assert revision is not None, "nothing but the fence and the guard was compared"
        return revision

    def _transact(self, own: Sequence[Any], compared: Sequence[Any], operations: Sequence[Any]) -> int | None:
        """Execute one transaction and return its revision, or None if a condition of `compared` does not hold.

        Raises Deposed if a condition of `own` does not hold.
        """
        answer = self._connection.write(lambda at: at.kv.Txn, self._transaction(own, compared, operations))
        if answer.succeeded:
            return int(answer.header.revision)
        if _differs(own, answer.responses):
            self._depose()
        return None

    def _transaction(self, own: Sequence[Any], compared: Sequence[Any], operations: Sequence[Any]) -> Any:
        looks = [self._looking(comparison.key) for comparison in own]
        return self._rpc.TxnRequest(compare=[*own, *compared], success=operations, failure=looks)

    def _own(self, fence: int) -> Sequence[Any]:
        """Return the conditions of every commit of this writer: its fence, and the guard if there is one."""
        own = [self._mod_is(self._fence_key, fence)]
        return own if self._guard is None else [*own, self._comparison(self._guard)]

    def _comparison(self, condition: If) -> Any:
        return self._mod_is(self._key(condition.key), condition.mod_revision)

    def _mod_is(self, key: bytes, revision: int) -> Any:
        compare = self._rpc.Compare
        return compare(key=key, target=compare.MOD, result=compare.EQUAL, mod_revision=revision)

    def _operation(self, write: Put | PutLeased | Delete) -> Any:
        key = self._key(write.key)
        if isinstance(write, Delete):
            return self._deletion(key)
        return self._putting(key, write.value, write.lease if isinstance(write, PutLeased) else 0)

    def _putting(self, key: bytes, value: bytes, lease: int = 0) -> Any:
        return self._rpc.RequestOp(request_put=self._rpc.PutRequest(key=key, value=value, lease=lease))

    def _looking(self, key: bytes) -> Any:
        return self._rpc.RequestOp(request_range=self._rpc.RangeRequest(key=key))

    def _deletion(self, key: bytes, end: bytes = b"") -> Any:
        return self._rpc.RequestOp(request_delete_range=self._rpc.DeleteRangeRequest(key=key, range_end=end))

    def _piece_key(self, marker: journal.Marker, number: int) -> bytes:
        return self._pieces + f"{marker.number}/{number:06d}".encode()

    # -- leases and watches

    def grant(self, ttl_s: float) -> Lease:
        asked = self._rpc.LeaseGrantRequest(TTL=max(1, -int(-ttl_s // 1)))
        answer = self._connection.read(
            lambda at: at.lease.LeaseGrant, asked
        )  # may be repeated: a lease without an answer expires by itself
        return Lease(answer.ID, float(answer.TTL))

    def renew(self, lease: int) -> float:
        answer = self._connection.read(lambda at: at.keep_alive, self._rpc.LeaseKeepAliveRequest(ID=lease))
        return float(max(0, answer.TTL))

    def revoke(self, lease: int) -> None:
        try:
            self._connection.write(lambda at: at.lease.LeaseRevoke, self._rpc.LeaseRevokeRequest(ID=lease))
        except StoreUnavailable as error:
            if "requested lease not found" not in str(error):
                raise

    def watch(self, prefix: str, revision: int) -> EtcdWatch:
        first = self._key(prefix) if prefix else f"{self._root}/".encode()
        watch = EtcdWatch(self._connection, first, first + PREFIX_END, self._data, revision, self._seals)
        self._watches.append(watch)
        return watch

    def compact(self, revision: int) -> None:
        try:
            self._connection.write(lambda at: at.kv.Compact, self._rpc.CompactionRequest(revision=revision))
        except Compacted:
            pass  # an earlier compaction has removed that history already

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._connection.close()


def _differs(comparisons: Sequence[Any], responses: Sequence[Any]) -> bool:
    """Return whether a comparison fails for the records found (`responses`)."""
    found = [kvs[0].mod_revision if (kvs := response.response_range.kvs) else 0 for response in responses]
    return any(comparison.mod_revision != revision for comparison, revision in zip(comparisons, found, strict=True))
