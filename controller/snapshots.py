"""The snapshots of working directories that the store keeps for jobs (`protocol.snapshots`). Pure.

Theory of operation
-------------------
A client offers a snapshot, sends the parts that are missing, and submits a job with it. Each part is a record of its own, below
``/archive/`` (`jobs.archive`): of what is there a controller reads the keys when it starts, and a value when an agent wants it.
So snapshots cost memory neither here nor in a controller that stands by. The key of a part says all that has to be known of it::

    /archive/snapshots/OWNER/DIGEST/BYTES/PART

OWNER is a digest of the principal's name: a snapshot is its owner's alone. Who submits a job with the digest of another's has to
send the files himself. Agents get the parts of jobs that have a worker on their server.

A snapshot goes when no unfinished job has it any more, some minutes later. Their number and bytes are bounded, of each owner's
and of all.
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
KEPT_UNUSED_S = 600.0  # longer than it takes to send one and to submit a job with it
LOOK_INTERVAL_S = 60.0
MOST_OF_ONE_BYTES = 512 << 20  # of one owner's
MOST_BYTES = 2 << 30  # of all; what etcd holds by default
MOST_OF_ONE = 64

Id = tuple[str, str, int]  # owner, as its keys call him, digest, bytes


def id_of(owner: str, snapshot: Snapshot) -> Id:
    return hashlib.blake2b(owner.encode(), digest_size=12).hexdigest(), snapshot.digest, snapshot.bytes


def key_of(snapshot: Id, part: int) -> str:
    owner, digest, size = snapshot
    return f"{PREFIX}{owner}/{digest}/{size}/{part:04d}"


@dataclass
class _Kept:
    parts: set[int] = field(default_factory=set)
    used_s: float = 0.0  # when it was last of use (Unix time)


class Snapshots:
    """Which parts of which snapshots are in the store."""

    def __init__(self) -> None:
        self._kept: dict[Id, _Kept] = {}
        self._look_s = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def recover(self, key: str, now: float) -> None:
        """The store holds this part."""
        owner, digest, size, part = key.removeprefix(PREFIX).split("/")
        self._kept.setdefault((owner, digest, int(size)), _Kept(used_s=now)).parts.add(int(part))

    def offer(self, now: float, owner: str, snapshot: Snapshot) -> tuple[int, ...]:
        """It is about to be sent: the parts that are missing. Raises RequestRefused if there is no room for it."""
        name = id_of(owner, snapshot)
        kept = self._kept.get(name)
        if kept is None:
            self._check_room(name)
            kept = self._kept[name] = _Kept()
        kept.used_s = now
        return tuple(part for part in range(parts_of(snapshot)) if part not in kept.parts)

    def put(self, now: float, owner: str, snapshot: Snapshot, part: int) -> str:
        """This part is stored now. Returns its key. Raises RequestRefused if the snapshot was not offered."""
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
        """Is it time to look for those that nobody uses?"""
        return bool(self._kept) and abs(now - self._look_s) >= LOOK_INTERVAL_S

    def forget_unused(self, now: float, used: Iterable[Id]) -> list[str]:
        """The keys to remove, of those that have been of no use for a while. used: those of unfinished jobs."""
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
