"""Thread that keeps a `Mirror` of the store in a standby, and hands the records over when the standby is elected.

The follower lists the store once, and then watches its changes. If the store has compacted changes that the watch has
not reported, the follower lists the store again.

When a reign begins at some revision, the follower hands over the mirror as soon as it has reached that revision. If the
watch does not reach it within `PATIENCE_S`, the follower hands over a new listing instead. That listing is final,
because from the beginning of the reign on no other controller writes.
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
from .events import Holder, LeaderObserved
from .mirror import Mirror
from .records import LEADING_KEY
from .store_requests import since_boot

log = logging.getLogger(__name__)

POLL_S = 0.1
RETRY_S = 1.0
PATIENCE_S = 2.0  # time for the watch to reach the reign's first revision; then the store is listed instead
CLOSED_WITHIN_S = 2.0


@dataclass(frozen=True)
class Followed:
    """All records of the store as of the beginning of a reign; archived records have empty values."""

    records: Sequence[tuple[str, bytes]]
    listed: bool  # the records were read from the store, because the mirror was not up to date in time


class Follower:
    """Follower of one store, from its construction until `close` or the handover."""

    def __init__(self, store: SharedStore, seen: Callable[[LeaderObserved], None], wake: Callable[[], None]) -> None:
        """Start the thread.

        The thread calls `seen` whenever the leader changes, and `wake` when `followed` is set or the thread fails.
        """
        self._store = store
        self._seen = seen
        self._wake = wake
        self.last: LeaderRecord | None = None  # record of the last reign in the store
        self.followed: Followed | None = None
        self.revision = 0
        self._wanted: int | None = None
        self._wanted_s = 0.0
        self._closed = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def hand_over(self, revision: int) -> None:
        """Request the handover of all records written up to `revision`, from which on only this controller writes.

        The thread sets `followed` and calls `wake` once the records are available.
        """
        self._wanted_s = since_boot()
        self._wanted = revision

    def check(self) -> None:
        """Raise the exception that has ended the thread, if any. For the controller's loop, at each turn."""
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """End the thread, and wait for its end for up to `CLOSED_WITHIN_S`."""
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
                    self._closed.wait(RETRY_S)  # the elector logs the reason
        except BaseException as error:  # raised again in the controller's loop, by `check`
            self._failed = error
            self._wake()

    def _follow(self) -> None:
        """List the store, then follow its changes until `close` or the handover. Raises Compacted, StoreUnavailable."""
        beginning = self._store.list(LEADING_KEY)
        watch = self._store.watch("", beginning.revision + 1)
        try:
            mirror, listed = self._listed(beginning.revision)
            self._tell(mirror.value(LEADER_KEY))
            held = [Holder(record.value.decode(), record.mod_revision) for record in beginning.records]
            self._seen(LeaderObserved(held[0] if held else None, beginning.revision))
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
        """Return a mirror that takes changes after `since`, and the newest of the revisions at which it was listed."""
        archived = self._store.keys(ARCHIVE)
        first = self._store.between("", ARCHIVE)
        second = self._store.between(ARCHIVE + AFTER_ALL, AFTER_ALL)
        return Mirror(archived, (*first.records, *second.records), since), second.revision

    def _handed_over(self, mirror: Mirror, wanted: int, listed: int) -> bool:
        """Set `followed` if the records up to the revision `wanted` are available, and return whether it was set.

        A mirror with a listing newer than `wanted` would be consistent only after all changes up to that listing. The
        watch may never report that revision, as it may have changed no watched key. So the store is listed again in
        this case.
        """
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
                self._seen(LeaderObserved(holder, changes.revision))
            elif write.key == LEADER_KEY and not isinstance(write, Delete):
                self._tell(write.value)

    def _tell(self, value: bytes | None) -> None:
        if value is not None:
            self.last = msgspec.msgpack.decode(value, type=LeaderRecord)


def _end(watch: Watch) -> None:
    """Close the watch in a separate thread, because closing may take seconds if the store does not answer."""
    threading.Thread(target=watch.close, name="watch-end", daemon=True).start()
