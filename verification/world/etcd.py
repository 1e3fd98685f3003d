"""etcd in memory, as far as the product's `EtcdStore` uses it: transactions of bounded size, leases that expire, nothing else.

`EtcdStore` is the product's, and so are the election's requests (`ElectionRequests`): each of their calls is an operation that
can fail (`operations`). The model's limit on transactions is small, so that most commits need several, and are first written to
the journal (`controller.store.journal`).

Two controllers share the store. When the leader dies, its lease expires; then the standby is elected, and starts from the mirror
that it has kept. After each transaction the store's atomicity is checked: a large commit is visible in full as soon as its marker
stands, and without a marker the store holds the last commit and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from elasticd.controller.election.events import Campaign, CampaignWon, Grant, LeaseGranted, RequestFailed
from elasticd.controller.election.mirror import Mirror
from elasticd.controller.election.records import LEADING_KEY, PresenceRecord
from elasticd.controller.election.store_requests import ElectionRequests
from elasticd.controller.jobs.archive import PREFIX as ARCHIVE
from elasticd.controller.store import Changes, Delete, If, Put, Record, StoreUnavailable, journal
from elasticd.controller.store.etcd import Bounds, EtcdStore
from elasticd.controller.store.etcd_connection import Access, Connection, Method
from elasticd.controller.turn import Build, Turn

from .disk import Disk
from .operations import SHARED, Operations
from .timeline import Timeline
from .violation import Violation

ROOT = "/elasticctl/world"
BOUNDS = Bounds(operations=3, request_bytes=96 << 10, piece_bytes=2 << 10)
LEASE_S = 5
BEGINNINGS = 3  # attempts to become leader, as `Candidacy` makes them
NAMES = ("c1", "c2")
WHOLE = "a commit is made whole, or not at all"


@dataclass(frozen=True)
class _Value:
    """Value and metadata of a key."""

    value: bytes
    revision: int
    lease: int


class Members:
    """All members of an etcd cluster, modelled as one. Calls return etcd's own messages."""

    def __init__(self, timeline: Timeline, rpc: Any, on_change: Callable[[int, Sequence[bytes], bool], None]) -> None:
        """`on_change` is called after each transaction with its revision, the changed keys, and whether it compared a fence."""
        self._timeline, self._rpc, self._on_change = timeline, rpc, on_change
        self.values: dict[bytes, _Value] = {}
        self.revision = 1
        self._leases: dict[int, tuple[float, float]] = {}  # duration (s) and expiry of each
        self._granted = 0
        self.kv = SimpleNamespace(Range=self.range, Txn=self.transact)
        self.lease = SimpleNamespace(LeaseGrant=self._grant, LeaseRevoke=self._revoke)

    def range(self, asked: Any) -> Any:
        """RangeRequest. A store never asks for past revisions."""
        self._end_leases()
        return self._found(asked)

    def transact(self, asked: Any) -> Any:
        """TxnRequest. Raises StoreUnavailable if it is too large, as etcd does."""
        self._end_leases()
        rpc = self._rpc
        if len(asked.success) > BOUNDS.operations or asked.ByteSize() > BOUNDS.request_bytes:
            raise StoreUnavailable("too many operations in txn request")
        holds = all(self._revision_of(compared.key) == compared.mod_revision for compared in asked.compare)
        answers, changed = [], []
        for operation in asked.success if holds else asked.failure:
            match operation.WhichOneof("request"):
                case "request_range":
                    answers.append(rpc.ResponseOp(response_range=self._found(operation.request_range)))
                case "request_put":
                    changed += self._put(operation.request_put)
                    answers.append(rpc.ResponseOp(response_put=rpc.PutResponse()))
                case _:
                    changed += self._delete(operation.request_delete_range)
                    answers.append(rpc.ResponseOp(response_delete_range=rpc.DeleteRangeResponse()))
        self._made(changed, fenced=bool(asked.compare))
        return rpc.TxnResponse(header=self._header(), succeeded=holds, responses=answers)

    def _grant(self, asked: Any) -> Any:
        self._granted += 1
        self._leases[self._granted] = float(asked.TTL), self._timeline.now + asked.TTL
        return self._rpc.LeaseGrantResponse(ID=self._granted, TTL=asked.TTL)

    def _revoke(self, asked: Any) -> Any:
        self._end_leases()
        if self._leases.pop(asked.ID, None) is None:
            raise StoreUnavailable("requested lease not found")
        self._unbind({asked.ID})
        return self._rpc.LeaseRevokeResponse()

    def keep_alive(self, asked: Any) -> Any:
        self._end_leases()
        lasts_s, _ = self._leases.get(asked.ID, (0.0, 0.0))
        if lasts_s:
            self._leases[asked.ID] = lasts_s, self._timeline.now + lasts_s
        return self._rpc.LeaseKeepAliveResponse(ID=asked.ID, TTL=int(lasts_s))

    def _header(self) -> Any:
        return self._rpc.ResponseHeader(revision=self.revision)

    def _revision_of(self, key: bytes) -> int:
        found = self.values.get(key)
        return found.revision if found is not None else 0

    def _keys(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            return [key] if key in self.values else []
        return sorted(known for known in self.values if key <= known < end)

    def _found(self, asked: Any) -> Any:
        keys = self._keys(asked.key, asked.range_end)
        shown = [] if asked.count_only else keys[: asked.limit or None]
        kvs = [self._shown(key, asked.keys_only) for key in shown]
        more = bool(asked.limit) and not asked.count_only and len(keys) > asked.limit
        return self._rpc.RangeResponse(header=self._header(), kvs=kvs, more=more, count=len(keys))

    def _shown(self, key: bytes, key_only: bool) -> dict[str, Any]:
        known = self.values[key]
        value = b"" if key_only else known.value
        return {"key": key, "value": value, "mod_revision": known.revision, "lease": known.lease}

    def _put(self, asked: Any) -> list[bytes]:
        if asked.lease and asked.lease not in self._leases:
            raise StoreUnavailable("requested lease not found")
        self.values[asked.key] = _Value(asked.value, self.revision + 1, asked.lease)
        return [asked.key]

    def _delete(self, asked: Any) -> list[bytes]:
        keys = self._keys(asked.key, asked.range_end)
        for key in keys:
            del self.values[key]
        return keys

    def _end_leases(self) -> None:
        over = {lease for lease, (_, until_s) in self._leases.items() if until_s <= self._timeline.now}
        if over:
            for lease in over:
                del self._leases[lease]
            self._unbind(over)

    def _unbind(self, leases: set[int]) -> None:
        gone = sorted(key for key, known in self.values.items() if known.lease in leases)
        for key in gone:
            del self.values[key]
        self._made(gone, fenced=False)

    def _made(self, changed: Sequence[bytes], fenced: bool) -> None:
        if changed:
            self.revision += 1
            self._on_change(self.revision, changed, fenced)


class Line(Connection):
    """Connection of one controller to the members. Each write is an operation that can fail."""

    def __init__(self, members: Members, rpc: Any, operations: Operations, who: str) -> None:
        self.rpc, self.access = rpc, Access(("etcd:2379",))
        self._members, self._operations, self._who = members, operations, who

    def _call(self, method: Method, request: Any, repeat: bool) -> Any:
        answer: Callable[[Any], Any] = method(self._members)  # type: ignore[arg-type]
        what = _words(self.rpc, request)
        if not what:
            return answer(request)
        return self._operations.run(self._who, what, SHARED, lambda: answer(request))

    def close(self) -> None:
        pass


def _words(rpc: Any, request: Any) -> str:
    """Describes the writes of a request; empty: it is a read."""
    if isinstance(request, rpc.LeaseGrantRequest):
        return "is granted a lease"
    if isinstance(request, rpc.LeaseRevokeRequest):
        return "gives its lease back"
    if not isinstance(request, rpc.TxnRequest):
        return ""
    keys = []
    for operation in request.success:
        if operation.HasField("request_put"):
            keys.append(operation.request_put.key.decode())
        elif operation.HasField("request_delete_range"):
            keys.append(f"-{operation.request_delete_range.key.decode()}")
    short = [key.replace(f"{ROOT}/", "").replace("data/", "/") for key in keys]
    short = ["a piece" if key.startswith("pieces/") else key for key in short]
    return f"writes {', '.join(short[:3])}" + (f" and {len(short) - 3} more" if len(short) > 3 else "")


class SharedDisk(Disk):
    """A store that two controllers share. The contents that `Disk` shows are the committed ones."""

    def __init__(self, timeline: Timeline, operations: Operations) -> None:
        """Raises OperatorError if the package of etcd's messages is not installed."""
        from elasticd.controller.store import etcd_api

        super().__init__(timeline)
        self._counting = operations
        self._rpc: Any = etcd_api.load().etcdrpc
        self.members = Members(timeline, self._rpc, self._changed)
        self._data, self._marker = f"{ROOT}/data".encode(), f"{ROOT}/marker".encode()
        self._store: EtcdStore | None = None  # of the leading controller, as the lease
        self._lease = 0
        self._mirrors: dict[str, Mirror] = {name: Mirror((), (), 0) for name in NAMES}  # of the standbys

    # -- leadership

    leases = True

    def vacant(self) -> bool:
        return self._present(LEADING_KEY) is None

    def _present(self, key: str) -> bytes | None:
        self.members.range(self._rpc.RangeRequest(key=b"\0"))  # expires leases that are over
        found = self.members.values.get(self._data + key.encode())
        return found.value if found is not None else None

    def begin(self, life: int, build: Callable[[int], Build], now: float) -> Turn:
        """Elect the next controller, which recovers. Raises StoreUnavailable if that fails: then another one tries."""
        name = NAMES[life % len(NAMES)]
        store = EtcdStore(Line(self.members, self._rpc, self._counting, name), ROOT, BOUNDS)
        asking = ElectionRequests(store, PresenceRecord(name=name, version="0", since_s=now), LEASE_S)
        granted, *_ = asking.carry_out(Grant())
        if not isinstance(granted, LeaseGranted):
            raise StoreUnavailable(f"{name} gets no lease: {_reason(granted)}")
        (won, *_) = asking.carry_out(Campaign(granted.lease, 0))
        if not isinstance(won, CampaignWon):
            asking.revoke(granted.lease)
            raise StoreUnavailable(f"{name} is not elected: {_reason(won)}")
        self._store, self._lease = store, granted.lease
        for left in reversed(range(BEGINNINGS)):
            try:
                store.begin(If(LEADING_KEY, won.reign.revision))
                break
            except StoreUnavailable:
                if not left:
                    asking.revoke(granted.lease)
                    raise
        mirror = self._mirrors.pop(name, None)
        if mirror is None:
            return Turn(store, build(won.reign.term), now)
        if [*mirror.records()] != [*self._as_a_mirror(self._physical())]:
            raise Violation("a mirror is what the store is", f"that of {name}, which has won term {won.reign.term}")
        return Turn(store, build(won.reign.term), now, records=mirror.records())

    def follow(self) -> None:
        """Let a restarted controller stand by again: it lists the store, and follows its changes."""
        records = [record for record in self._physical() if not record.key.startswith(ARCHIVE)]
        archived = [record.key for record in self._physical() if record.key.startswith(ARCHIVE)]
        for name in NAMES:
            if name not in self._mirrors:
                self._mirrors[name] = Mirror(archived, records, self.members.revision)

    def renew(self) -> bool:
        """Renew the leader's lease. False: it has expired."""
        assert self._store is not None, "nobody has begun to reign"
        return self._store.renew(self._lease) > 0

    @staticmethod
    def _as_a_mirror(records: Iterable[Record]) -> Iterable[tuple[str, bytes]]:
        kept = [(record.key, record.value) for record in records if not record.key.startswith(ARCHIVE)]
        return [*kept, *((record.key, b"") for record in records if record.key.startswith(ARCHIVE))]

    # -- contents

    def _physical(self) -> list[Record]:
        found = []
        for key in sorted(self.members.values):
            if key.startswith(self._data):
                known = self.members.values[key]
                found.append(Record(key[len(self._data) :].decode(), known.value, known.revision, known.lease))
        return found

    def _changed(self, revision: int, keys: Sequence[bytes], fenced: bool) -> None:
        """After a transaction: determine the committed contents, and check that the store equals them."""
        writes = [self._change(key) for key in keys if key.startswith(self._data)]
        for mirror in self._mirrors.values():
            mirror.take(Changes(revision, tuple(writes)))
        marker = self.members.values.get(self._marker)
        if marker is not None and self._marker in keys:
            self._commit(revision, self._written_down(marker.value), tell=True)
        elif self._of_elections(writes):
            self._commit(revision, writes, tell=False)
        elif marker is None and self._marker not in keys:  # else it is a part of an earlier commit
            self._commit(revision, writes, tell=fenced and bool(writes))
        if marker is None and (odd := self._odd()):
            raise Violation(WHOLE, f"{odd} after revision {revision}, though no commit is under way")

    def _of_elections(self, writes: Sequence[Put | Delete]) -> bool:
        return any(write.key == LEADING_KEY or write.key.startswith("/controllers/") for write in writes)

    def _change(self, key: bytes) -> Put | Delete:
        found, name = self.members.values.get(key), key[len(self._data) :].decode()
        return Put(name, found.value) if found is not None else Delete(name)

    def _written_down(self, marker: bytes) -> Sequence[Put | Delete]:
        named = journal.Marker.decode(marker)
        pieces = sorted(key for key in self.members.values if key.startswith(f"{ROOT}/pieces/{named.number}/".encode()))
        try:
            found = journal.read(named, [self.members.values[key].value for key in pieces])
        except StoreUnavailable as error:
            raise Violation(WHOLE, f"a marker is written, and {error}") from None
        return [write for write in found if isinstance(write, Put | Delete)]

    def _commit(self, revision: int, writes: Sequence[Put | Delete], tell: bool) -> None:
        for write in writes:
            if isinstance(write, Put):
                self._records[write.key] = Record(write.key, write.value, revision)
            else:
                self._records.pop(write.key, None)
        if tell:
            self.on_commit(writes)

    def _odd(self) -> str:
        """Return the difference between the store and the committed contents, in words."""
        there = {record.key: record.value for record in self._physical()}
        committed = {key: record.value for key, record in self._records.items()}
        odd = [key for key in sorted({*there, *committed}) if there.get(key) != committed.get(key)]
        return f"{', '.join(odd[:3])} ({len(odd)} keys) differ" if odd else ""


def _reason(event: object) -> str:
    return event.reason if isinstance(event, RequestFailed) else type(event).__name__
