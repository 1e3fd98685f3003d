"""The effects of one event: the records to write, and the actions to carry out after the commit."""

from __future__ import annotations

from typing import Any

import msgspec

from ..events import Action, Record


class Effects:
    """Collector of the changes of records and the actions of one event."""

    def __init__(self) -> None:
        # The last change of each key; None: the record is deleted.
        self._changes: dict[str, bytes | None] = {}
        self._actions: list[Action] = []

    def put(self, key: str, record: Any) -> None:
        """Write `record` under `key`."""
        self._changes[key] = msgspec.msgpack.encode(record)

    def put_encoded(self, puts: dict[str, bytes]) -> None:
        """Write several encoded records, by key."""
        self._changes.update(puts)

    def delete(self, *keys: str) -> None:
        """Delete the records under these keys."""
        self._changes.update(dict.fromkeys(keys))

    def act(self, action: Action) -> None:
        """Carry out `action` after the commit."""
        self._actions.append(action)

    def take(self) -> list[Action]:
        """Return all actions since the last call.

        If records have changed, one `Record` with all changes comes first.
        """
        actions, self._actions = self._actions, []
        changes, self._changes = self._changes, {}
        if changes:
            puts = tuple((key, value) for key, value in changes.items() if value is not None)
            deletes = tuple(key for key, value in changes.items() if value is None)
            actions.insert(0, Record(puts, deletes))
        return actions
