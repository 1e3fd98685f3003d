"""Snapshots of working directories that the store keeps for jobs (`protocol.snapshots`). Pure.

Theory of operation
-------------------
A client offers a snapshot, sends the missing parts, and submits a job with it. Each part is a record of its own, below
``/archive/`` (`jobs.archive`): a controller reads only its key at the start, and its value when an agent asks for it. So the
contents of snapshots take no memory in the leader or in a standby. The key of a part holds all that the controller needs::

    /archive/snapshots/OWNER/DIGEST/BYTES/PART

OWNER is a digest of the principal's name: only the owner can use a snapshot. A user who submits a job with the digest of another
user's snapshot has to send the files as well. An agent gets the parts only for jobs that have a worker on its server.

A snapshot is deleted some minutes after the last unfinished job that uses it. The number of snapshots of each owner is bounded,
and so are the bytes of each owner and of all together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..protocol.errors import RequestRefused
from ..protocol.model import Snapshot
from ..protocol.snapshots import parts_of
from .jobs.archive import PREFIX as ARCHIVE

PREFIX = f"{ARCHIVE}snapshots/"
KEPT_UNUSED_S = 600.0  # longer than a client needs to send a snapshot and to submit a job with it
LOOK_INTERVAL_S = 60.0
MOST_OF_ONE_BYTES = 512 << 20  # limit for one owner
MOST_BYTES = 2 << 30  # limit for all owners; etcd's default limit of a store
MOST_OF_ONE = 64

Id = tuple[str, str, int]  # the owner's digest in the keys, the snapshot's digest, bytes


def id_of(owner: str, snapshot: Snapshot) -> Id:
    return hashlib.blake2b(owner.encode(), digest_size=12).hexdigest(), snapshot.digest, snapshot.bytes


def key_of(snapshot: Id, part: int) -> str:
    owner, digest, size = snapshot
    return f"{PREFIX}{owner}/{digest}/{size}/{part:04d}"


@dataclass
class _Kept:
    parts: set[int] = field(default_factory=set)
    used_s: float = 0.0  # time of the last use (Unix time)


class Snapshots:
    """Index of the snapshots in the store and of their parts."""

    def __init__(self) -> None:
        self._kept: dict[Id, _Kept] = {}
        self._look_s = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def recover(self, key: str, now: float) -> None:
        """Add the part under `key`, which the store holds."""
        owner, digest, size, part = key.removeprefix(PREFIX).split("/")
        self._kept.setdefault((owner, digest, int(size)), _Kept(used_s=now)).parts.add(int(part))

    def offer(self, now: float, owner: str, snapshot: Snapshot) -> tuple[int, ...]:
        """Expect a snapshot that a client is about to send, and return the numbers of the missing parts.

        Raises RequestRefused if there is no room for the snapshot.
        """
        name = id_of(owner, snapshot)
        kept = self._kept.get(name)
        if kept is None:
            self._check_room(name)
            kept = self._kept[name] = _Kept()
        kept.used_s = now
        return tuple(part for part in range(parts_of(snapshot)) if part not in kept.parts)

    def put(self, now: float, owner: str, snapshot: Snapshot, part: int) -> str:
        """Note that a part is stored now, and return its key. Raises RequestRefused if the snapshot was not offered."""
        name = id_of(owner, snapshot)
        kept = self._kept.get(name)
        if kept is None or not 0 <= part < parts_of(snapshot):
            raise RequestRefused("that snapshot is not expected: submit again")
        kept.used_s = now
        kept.parts.add(part)
        return key_of(name, part)

    def is_whole(self, owner: str, snapshot: Snapshot) -> bool:
        kept = self._kept.get(id_of(owner, snapshot))
        return kept is not None and len(kept.parts) == parts_of(snapshot)

    def due(self, now: float) -> bool:
        """Return whether it is time to look for unused snapshots."""
        return bool(self._kept) and abs(now - self._look_s) >= LOOK_INTERVAL_S

    def forget_unused(self, now: float, used: Iterable[Id]) -> list[str]:
        """Forget the snapshots that have been unused for KEPT_UNUSED_S, and return the keys to delete.

        `used`: the snapshots of unfinished jobs.
        """
        self._look_s = now
        for name in used:
            if name in self._kept:
                self._kept[name].used_s = now
        gone = [name for name, kept in self._kept.items() if abs(now - kept.used_s) > KEPT_UNUSED_S]
        return [key_of(name, part) for name in gone for part in sorted(self._kept.pop(name).parts)]

    def _check_room(self, new: Id) -> None:
        owned = [name for name in self._kept if name[0] == new[0]]
        size, all_size = (sum(name[2] for name in names) + new[2] for names in (owned, self._kept))
        if len(owned) >= MOST_OF_ONE or size > MOST_OF_ONE_BYTES:
            most = f"{MOST_OF_ONE} snapshots and {MOST_OF_ONE_BYTES >> 20} MiB"
            raise RequestRefused(
                f"no room for one more snapshot: your unfinished jobs may have {most}; submit without one"
            )
        if all_size > MOST_BYTES:
            raise RequestRefused(f"no room for one more snapshot: all together may have {MOST_BYTES >> 30} GiB")
