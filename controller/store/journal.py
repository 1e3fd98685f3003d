"""A commit that is larger than one transaction of its store: written down whole before any of it is carried out. Pure.

Theory of operation
-------------------
The writes are encoded together, and stored in pieces under a number of their own. One small transaction then puts a marker that
names the pieces: with it the commit has taken place. After that the writes are carried out, as many at a time as one transaction
may hold, and the last of these transactions removes the marker. To carry them out twice does no harm, since no write depends on
what was there before. So whoever finds a marker carries out what it names: that may be another process, after a crash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from .interface import Delete, Limits, Put, PutLeased, StoreUnavailable

WRITE = Put | PutLeased | Delete


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One write. `value` None: the key is removed."""

    key: str
    value: bytes | None


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Names the pieces of a commit that has taken place."""

    number: str  # random
    pieces: int
    digest: bytes  # of all pieces together

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Marker:
        """Raises StoreUnavailable."""
        try:
            return msgspec.msgpack.decode(data, type=Marker)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"what a writer before left unfinished cannot be read: {error}") from None


def written(number: str, writes: Sequence[WRITE], most_bytes: int) -> tuple[Marker, tuple[bytes, ...]]:
    """The marker of a commit, and its pieces, of up to `most_bytes` each."""
    entries = [Entry(write.key, None if isinstance(write, Delete) else write.value) for write in writes]
    data = msgspec.msgpack.encode(entries)
    pieces = tuple(data[begin : begin + most_bytes] for begin in range(0, len(data), most_bytes))
    return Marker(number=number, pieces=len(pieces), digest=hashlib.sha256(data).digest()), pieces


def read(marker: Marker, pieces: Sequence[bytes]) -> tuple[WRITE, ...]:
    """What a commit writes. Raises StoreUnavailable if the pieces are not those of the marker."""
    data = b"".join(pieces)
    if len(pieces) != marker.pieces or hashlib.sha256(data).digest() != marker.digest:
        raise StoreUnavailable(
            f"of what a writer before left unfinished, {len(pieces)} of {marker.pieces} parts are there"
        )
    entries = msgspec.msgpack.decode(data, type=list[Entry])
    return tuple(Delete(entry.key) if entry.value is None else Put(entry.key, entry.value) for entry in entries)


def portions(limits: Limits, writes: Iterable[WRITE], spare: int) -> Iterator[tuple[WRITE, ...]]:
    """The writes in their order, as many at a time as one transaction may hold beside `spare` other operations."""
    portion: list[WRITE] = []
    size = 0
    for write in writes:
        more = limits.size(write)
        if portion and not limits.allow(len(portion) + spare + 1, size + more):
            yield tuple(portion)
            portion, size = [], 0
        portion.append(write)
        size += more
    if portion:
        yield tuple(portion)
