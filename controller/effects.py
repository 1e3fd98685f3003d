"""The effects of the event at hand: what is to be recorded of it, and what is to be done then."""

from __future__ import annotations

from typing import Any

import msgspec

from .events import Action, Record


class Effects:
    """Gathers them."""

    def __init__(self) -> None:
        # By key, the last change of each; None: nothing is recorded there any more.
        self._changes: dict[str, bytes | None] = {}
        self._actions: list[Action] = []

    def put(self, key: str, record: Any) -> None:
        """This is recorded under `key` from now on."""
        self._changes[key] = msgspec.msgpack.encode(record)

    def put_encoded(self, puts: dict[str, bytes]) -> None:
        """The same, of several records."""
        self._changes.update(puts)

    def delete(self, *keys: str) -> None:
        """Nothing is recorded there any more."""
        self._changes.update(dict.fromkeys(keys))

    def act(self, action: Action) -> None:
        """Do that when all is recorded."""
        self._actions.append(action)

    def take(self) -> list[Action]:
        """All since the last call, the record first."""
        actions, self._actions = self._actions, []
        changes, self._changes = self._changes, {}
        if changes:
            puts = tuple((key, value) for key, value in changes.items() if value is not None)
            deletes = tuple(key for key, value in changes.items() if value is None)
            actions.insert(0, Record(puts, deletes))
        return actions
