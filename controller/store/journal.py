"""Journal of a commit larger than one transaction: written completely before any of its writes is applied. Pure.

Theory of operation
-------------------
The writes are encoded together, and stored in pieces under a random number. One small transaction then puts a marker
that names the pieces: from then on the commit has taken place. After that the writes are applied, as many at a time as
one transaction may hold, and the last of these transactions removes the marker. The writes may be applied twice without
harm, since no write depends on an earlier value. So any process that finds a marker, perhaps another one after a crash,
applies the commit of that marker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from .interface import Delete, Limits, Put, PutLeased, StoreUnavailable

WRITE = Put | PutLeased | Delete


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One write of the commit. `value` None: the key is removed."""

    key: str
    value: bytes | None


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Marker of a commit that has taken place; names its pieces."""

    number: str  # random hexadecimal number, which is part of the keys of the pieces
    pieces: int
    digest: bytes  # SHA-256 of all pieces together

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Marker:
        """Return the marker encoded in `data`. Raises StoreUnavailable if it cannot be decoded."""
        try:
            return msgspec.msgpack.decode(data, type=Marker)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"what a writer before left unfinished cannot be read: {error}") from None


def written(number: str, writes: Sequence[WRITE], most_bytes: int) -> tuple[Marker, tuple[bytes, ...]]:
    """Return the marker of a commit, and its pieces, of up to `most_bytes` bytes each."""
    entries = [Entry(write.key, None if isinstance(write, Delete) else write.value) for write in writes]
    data = msgspec.msgpack.encode(entries)
    pieces = tuple(data[begin : begin + most_bytes] for begin in range(0, len(data), most_bytes))
    return Marker(number=number, pieces=len(pieces), digest=hashlib.sha256(data).digest()), pieces


def read(marker: Marker, pieces: Sequence[bytes]) -> tuple[WRITE, ...]:
    """Return the writes of a commit. Raises StoreUnavailable if the pieces are not those of the marker."""
    data = b"".join(pieces)
    if len(pieces) != marker.pieces or hashlib.sha256(data).digest() != marker.digest:
        raise StoreUnavailable(
            f"of what a writer before left unfinished, {len(pieces)} of {marker.pieces} parts are there"
        )
    entries = msgspec.msgpack.decode(data, type=list[Entry])
    return tuple(Delete(entry.key) if entry.value is None else Put(entry.key, entry.value) for entry in entries)


def portions(limits: Limits, writes: Iterable[WRITE], spare: int) -> Iterator[tuple[WRITE, ...]]:
    """Yield the writes in order, as many at a time as one transaction may hold beside `spare` other operations."""
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
