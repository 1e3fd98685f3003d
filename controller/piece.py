"""What is recorded of a turn, in pieces: the changes of whole events, as many as the store takes in one transaction. Pure.

An event's changes are never parted. So what the store holds after each piece is what it would hold had the turn ended there. An
event that is larger by itself is a piece of its own, and the store makes it durable as a whole (`store.journal`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .events import Action, Record
from .store.interface import Delete, Limits, Put

Writes = Mapping[str, Put | Delete]


def changes_of(actions: Iterable[Action]) -> dict[str, Put | Delete]:
    """What these actions of one event record; of several values for one key the last."""
    found: dict[str, Put | Delete] = {}
    for action in actions:
        if isinstance(action, Record):
            found.update({key: Put(key, value) for key, value in action.puts})
            found.update({key: Delete(key) for key in action.deletes})
    return found


class Piece:
    """The changes that are to be committed next."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._writes: dict[str, Put | Delete] = {}
        self._size = 0  # bytes; not counted where the store has no limits

    def __bool__(self) -> bool:
        return bool(self._writes)

    @property
    def writes(self) -> Writes:
        return self._writes

    def takes(self, more: Writes) -> bool:
        """Is the piece still one transaction with the changes of this event?"""
        if self._limits.is_none or not self._writes or not more:
            return True
        return self._limits.allow(len(self._writes.keys() | more.keys()), self._size + self._added(more))

    def add(self, more: Writes) -> None:
        """The changes of another event."""
        if not self._limits.is_none:
            self._size += self._added(more)
        self._writes.update(more)

    def taken(self) -> tuple[Put | Delete, ...]:
        """All of it; a new piece begins."""
        writes, self._writes, self._size = tuple(self._writes.values()), {}, 0
        return writes

    def _added(self, more: Writes) -> int:
        """By so many bytes it grows: a later value for a key takes the place of an earlier one."""
        before = sum(self._limits.size(self._writes[key]) for key in more if key in self._writes)
        return sum(map(self._limits.size, more.values())) - before
