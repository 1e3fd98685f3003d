"""Snapshots: the files of a job's working directory at submission, packed into one sequence of bytes. Pure.

A snapshot is a compressed list of [path, executable, content]. It contains plain files alone: no links, no devices, no
owners, and no permissions except whether a file is executable. Digest and size identify a snapshot, so that a receiver
can verify that it is complete. It travels in parts, each of which fits into a message and into a record of the store.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable

import msgspec

from .errors import PeerError
from .limits import MAX_SNAPSHOT_BYTES, MAX_SNAPSHOT_FILES, SNAPSHOT_PART_BYTES
from .model import Snapshot

LONGEST_PATH = 1000  # characters
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FRAME_BYTES = 2000  # most bytes of a file in the packed list, beside its content


class File(msgspec.Struct, frozen=True, array_like=True):
    """One file. `path`: relative to the working directory, with `/` between its components."""

    path: str
    executable: bool
    content: bytes


_LIST = msgspec.msgpack.Decoder(list[File])


def pack(files: Iterable[File]) -> tuple[Snapshot, bytes]:
    """Return the identity and the bytes of these files. The order of `files` does not affect the bytes."""
    data = zlib.compress(msgspec.msgpack.encode(sorted(files, key=lambda file: file.path)), 6)
    return Snapshot(digest=digest_of(data), bytes=len(data)), data


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def unpack(snapshot: Snapshot, data: bytes) -> list[File]:
    """Return the files. Raises PeerError if `data` does not match `snapshot`, exceeds a limit, or names a file outside
    the directory.
    """
    if len(data) != snapshot.bytes or digest_of(data) != snapshot.digest:
        raise PeerError("the snapshot is not whole: its digest is another one")
    most = MAX_SNAPSHOT_BYTES + MAX_SNAPSHOT_FILES * _FRAME_BYTES
    inflate = zlib.decompressobj()
    try:
        packed = inflate.decompress(data, most + 1)
        files = _LIST.decode(packed) if inflate.eof else []
    except (zlib.error, msgspec.MsgspecError) as error:
        raise PeerError(f"the snapshot cannot be unpacked: {error}") from None
    total = sum(len(file.content) for file in files)
    if not inflate.eof or len(packed) > most or total > MAX_SNAPSHOT_BYTES or len(files) > MAX_SNAPSHOT_FILES:
        raise PeerError(f"the snapshot has more than {MAX_SNAPSHOT_FILES} files or {MAX_SNAPSHOT_BYTES >> 20} MiB")
    for file in files:
        check_path(file.path)
    if len({file.path for file in files}) < len(files):
        raise PeerError("the snapshot has a file twice")
    return files


def check_path(path: str) -> None:
    """Raise PeerError unless `path` names a file below the directory to which it is relative."""
    parts = path.split("/")
    if len(path) > LONGEST_PATH or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise PeerError(f"{path[:200]!r} is not the path of a file in a snapshot")


def fault_of(snapshot: Snapshot) -> str:
    """Return the fault in a snapshot's declared identity, or "" if there is none."""
    if not _DIGEST.fullmatch(snapshot.digest):
        return "snapshot: its digest is not 64 hexadecimal digits"
    if not 0 < snapshot.bytes <= MAX_SNAPSHOT_BYTES + MAX_SNAPSHOT_FILES * _FRAME_BYTES:
        return f"snapshot: {snapshot.bytes} bytes are not allowed: at most {MAX_SNAPSHOT_BYTES >> 20} MiB"
    return ""


def parts_of(snapshot: Snapshot) -> int:
    """Return the number of parts into which the snapshot is cut."""
    return -(-snapshot.bytes // SNAPSHOT_PART_BYTES)


def part_bytes(snapshot: Snapshot, part: int) -> int:
    """Return the size of a part in bytes."""
    return min(SNAPSHOT_PART_BYTES, snapshot.bytes - part * SNAPSHOT_PART_BYTES)


def part_of(data: bytes, part: int) -> bytes:
    return data[part * SNAPSHOT_PART_BYTES : (part + 1) * SNAPSHOT_PART_BYTES]
