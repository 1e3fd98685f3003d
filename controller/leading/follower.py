"""The thread that keeps a `Mirror` of the store while a controller stands by, and hands it over when it comes to lead.

It begins with a listing and goes on with a watch. Where the store has forgotten what the watch would have told, it begins anew.
Handed over is a mirror that has reached the revision at which the new reign has begun to write; or, if the watch does not get
there soon, what a listing says: from the beginning of the reign on nobody else writes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ..jobs.archive import PREFIX as ARCHIVE
from ..records import LEADER_KEY, LeaderRecord
from ..store.interface import AFTER_ALL, Changes, Compacted, Delete, SharedStore, StoreUnavailable, Watch
from .asking import since_boot
from .mirror import Mirror
from .records import LEADING_KEY
from .words import Holder, Seen

log = logging.getLogger(__name__)

POLL_S = 0.1
RETRY_S = 1.0
PATIENCE_S = 2.0  # for a watch to get to where the reign begins, before the store is listed
CLOSED_WITHIN_S = 2.0


@dataclass(frozen=True)
class Followed:
    """All that the store holds, as of the beginning of a reign."""

    records: Sequence[tuple[str, bytes]]
    listed: bool  # the store had to be read for it


class Follower:
    """Follows from its making on, until `close`."""

    def __init__(self, store: SharedStore, seen: Callable[[Seen], None], wake: Callable[[], None]) -> None:
        """`seen` is told, in this object's thread, who leads whenever that changes. `wake` is called when `followed` is there."""
        self._store = store
        self._seen = seen
        self._wake = wake
        self.last: LeaderRecord | None = None  # the last reign that the store knows of
        self.followed: Followed | None = None
        self.revision = 0
        self._wanted: int | None = None
        self._wanted_s = 0.0
        self._closed = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def hand_over(self, revision: int) -> None:
        """All that was written up to `revision` is wanted, at which a reign has begun that nobody else writes in."""
        self._wanted_s = since_boot()
        self._wanted = revision

    def check(self) -> None:
        """Raises what has ended the thread, if it was no order."""
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        self._closed.set()
        self._thread.join(CLOSED_WITHIN_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set() and self.followed is None:
                try:
                    self._follow()
                except Compacted:
                    log.info("the store has forgotten what was not followed yet: lists it anew")
                except StoreUnavailable:
                    self._closed.wait(RETRY_S)  # the elector tells of it
        except BaseException as error:  # the loop raises it
            self._failed = error
            self._wake()

    def _follow(self) -> None:
        """One listing, and all changes from there on. Raises Compacted, StoreUnavailable."""
        beginning = self._store.list(LEADING_KEY)
        watch = self._store.watch("", beginning.revision + 1)
        try:
            mirror, listed = self._listed(beginning.revision)
            self._tell(mirror.value(LEADER_KEY))
            held = [Holder(record.value.decode(), record.mod_revision) for record in beginning.records]
            self._seen(Seen(held[0] if held else None, beginning.revision))
            while not self._closed.is_set():
                changes = watch.next(POLL_S)
                if changes is not None:
                    mirror.take(changes)
                    self.revision = mirror.revision
                    self._look_at(changes)
                if self._wanted is not None and self._handed_over(mirror, self._wanted, listed):
                    return
        finally:
            _end(watch)

    def _listed(self, since: int) -> tuple[Mirror, int]:
        """A mirror, and the newest of the revisions that it was listed at."""
        archived = self._store.keys(ARCHIVE)
        first = self._store.between("", ARCHIVE)
        second = self._store.between(ARCHIVE + AFTER_ALL, AFTER_ALL)
        return Mirror(archived, (*first.records, *second.records), since), second.revision

    def _handed_over(self, mirror: Mirror, wanted: int, listed: int) -> bool:
        """Is it done? A mirror whose listings are newer than that is as good, once it has been told all up to them; but it may
        never be told of revisions in which nothing of ours was changed."""
        if listed < wanted <= mirror.revision:
            self.followed = Followed(mirror.records(), listed=False)
        elif listed >= wanted or since_boot() >= self._wanted_s + PATIENCE_S:
            again, _ = self._listed(0)
            self.followed = Followed(again.records(), listed=True)
        else:
            return False
        self._wake()
        return True

    def _look_at(self, changes: Changes) -> None:
        for write in changes.writes:
            if write.key == LEADING_KEY:
                holder = None if isinstance(write, Delete) else Holder(write.value.decode(), changes.revision)
                self._seen(Seen(holder, changes.revision))
            elif write.key == LEADER_KEY and not isinstance(write, Delete):
                self._tell(write.value)

    def _tell(self, value: bytes | None) -> None:
        if value is not None:
            self.last = msgspec.msgpack.decode(value, type=LeaderRecord)


def _end(watch: Watch) -> None:
    """In a thread of its own, as that may take seconds where the store does not answer."""
    threading.Thread(target=watch.close, name="watch-end", daemon=True).start()
