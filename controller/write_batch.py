"""Write batches: the changed records of a turn, divided into transactions of the store. Pure.

An event's changes are never split. So after each batch the store holds the same records as if the turn had ended there.
An event that exceeds a transaction is a batch of its own, and the store makes it durable as a whole (`store.journal`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .events import Action, Record
from .store.interface import Delete, Limits, Put

Writes = Mapping[str, Put | Delete]


def changes_of(actions: Iterable[Action]) -> dict[str, Put | Delete]:
    """Return the changes of records in one event's actions, by key; of several changes of one key the last counts."""
    found: dict[str, Put | Delete] = {}
    for action in actions:
        if isinstance(action, Record):
            found.update({key: Put(key, value) for key, value in action.puts})
            found.update({key: Delete(key) for key in action.deletes})
    return found


class WriteBatch:
    """Changes of records for the next commit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._writes: dict[str, Put | Delete] = {}
        self._size = 0  # bytes; not counted where the store has no limits

    def __bool__(self) -> bool:
        return bool(self._writes)

    @property
    def writes(self) -> Writes:
        return self._writes

    def fits(self, more: Writes) -> bool:
        """Return whether the batch still fits into one transaction together with the changes `more` of an event."""
        if self._limits.is_none or not self._writes or not more:
            return True
        return self._limits.allow(len(self._writes.keys() | more.keys()), self._size + self._added(more))

    def add(self, more: Writes) -> None:
        """Add the changes of another event."""
        if not self._limits.is_none:
            self._size += self._added(more)
        self._writes.update(more)

    def take_all(self) -> tuple[Put | Delete, ...]:
        """Return all changes, and begin a new batch."""
        writes, self._writes, self._size = tuple(self._writes.values()), {}, 0
        return writes

    def _added(self, more: Writes) -> int:
        """Return by how many bytes the batch grows; a later change of a key replaces the earlier one."""
        before = sum(self._limits.size(self._writes[key]) for key in more if key in self._writes)
        return sum(map(self._limits.size, more.values())) - before
