"""The controller's store in memory, and its faults. It keeps the promises of `controller.store`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence

from elasticd.controller.store import Delete, If, Limits, Listing, Put, Record, StoreUnavailable
from elasticd.controller.turn import Build, Turn

from .operations import STORE, Crashed, Operations
from .timeline import Timeline

BACKUP_EVERY_S = 45.0


class Trouble(enum.Enum):
    """The present failure of the disk."""

    NONE = ""
    FULL = "database or disk is full"
    LOCKED = "database is locked"


class Disk:
    """The controller's durable storage."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._records: dict[str, Record] = {}
        self._revision = 0
        self._backup: tuple[float, dict[str, Record]] = (0.0, {})
        self.trouble = Trouble.NONE
        self.replaced = 0  # number of replacements: the store was lost, or restored from a backup
        self.tear_next: bool | None = None  # the next commit fails with unknown outcome; True: it was applied
        self.crash_next: bool | None = None  # the controller dies at its next commit; True: after it, False: before
        self.on_commit: Callable[[Sequence[Put | Delete]], None] = lambda writes: None
        self.operations: Operations | None = None  # counts operations; None: not counted

    # -- leadership

    leases = False  # must the leading controller renew a lease?

    def vacant(self) -> bool:
        """Return whether a controller may become leader. True: a store that is not shared has no other leader."""
        return True

    def begin(self, life: int, build: Callable[[int], Build], now: float) -> Turn:
        """Recover, as the controller's start number `life`. `build`: makes the state machines of a term; 0: the store's next
        term. Raises StoreUnavailable.
        """
        return Turn(self, build(0), now)

    def follow(self) -> None:
        """Let a restarted controller stand by."""

    def renew(self) -> bool:
        """Renew the leader's lease, if there is one. False: the leadership is over."""
        return True

    # -- the store's interface

    @property
    def limits(self) -> Limits:
        return Limits()

    def get(self, key: str) -> Record | None:
        self._refuse_if_locked()
        return self._records.get(key)

    def list(self, prefix: str) -> Listing:
        self._refuse_if_locked()
        found = tuple(self._records[key] for key in sorted(self._records) if key.startswith(prefix))
        return Listing(found, self._revision)

    def between(self, first: str, end: str) -> Listing:
        self._refuse_if_locked()
        found = tuple(self._records[key] for key in sorted(self._records) if first <= key < end)
        return Listing(found, self._revision)

    def pages(self, first: str, end: str) -> Iterator[Listing]:
        yield self.between(first, end)

    def keys(self, prefix: str) -> tuple[str, ...]:
        self._refuse_if_locked()
        return tuple(key for key in sorted(self._records) if key.startswith(prefix))

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        for condition in conditions:
            known = self._records.get(condition.key)
            if (known.mod_revision if known is not None else 0) != condition.mod_revision:
                return None
        if self.trouble is not Trouble.NONE:
            raise unavailable(self.trouble)
        crash, self.crash_next = self.crash_next, None
        if crash is False:
            raise Crashed
        torn, self.tear_next = self.tear_next, None
        if torn is False:
            raise StoreUnavailable("disk I/O error", outcome_unknown=True)
        self._counted(f"commits {len(writes)} records", lambda: self._write(writes))
        if crash:
            raise Crashed
        if torn:
            raise StoreUnavailable("disk I/O error", outcome_unknown=True)
        if self._timeline.now - self._backup[0] >= BACKUP_EVERY_S:
            self._backup = (self._timeline.now, dict(self._records))
        return self._revision

    def probe(self, size: int) -> None:
        if self.trouble is not Trouble.NONE:
            raise unavailable(self.trouble)
        self._counted("probes its store", lambda: None)

    def _counted(self, what: str, act: Callable[[], None]) -> None:
        if self.operations is None:
            act()
        else:
            self.operations.run("controller", what, STORE, act)

    def _write(self, writes: Sequence[Put | Delete]) -> None:
        self._revision += 1
        for write in writes:
            if isinstance(write, Put):
                self._records[write.key] = Record(write.key, write.value, self._revision)
            else:
                self._records.pop(write.key, None)
        self.on_commit(writes)

    def close(self) -> None:
        pass

    def contents(self) -> Sequence[tuple[str, bytes]]:
        """Contents, readable also while the disk fails."""
        return [(key, self._records[key].value) for key in sorted(self._records)]

    # -- faults

    def lose(self) -> None:
        """Replace the disk by an empty one."""
        self.replaced += 1
        self._records, self._backup = {}, (self._timeline.now, {})

    def restore(self) -> None:
        """Replace the contents by the last backup."""
        self.replaced += 1
        self._records = dict(self._backup[1])

    def _refuse_if_locked(self) -> None:
        if self.trouble is Trouble.LOCKED:
            raise unavailable(self.trouble)


def unavailable(trouble: Trouble) -> StoreUnavailable:
    """Return the error that a failing store raises."""
    return StoreUnavailable(trouble.value)
