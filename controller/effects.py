"""The effects of the event at hand: what is to be recorded of it, and what is to be done then."""

from __future__ import annotations

import msgspec

from .events import Action, Record


class Effects:
    """Gathers them."""

    def __init__(self) -> None:
        self._puts: dict[str, bytes] = {}
        self._deletes: list[str] = []
        self._actions: list[Action] = []

    def put(self, key: str, record: msgspec.Struct) -> None:
        """This is recorded under `key` from now on."""
        self._puts[key] = msgspec.msgpack.encode(record)

    def put_encoded(self, puts: dict[str, bytes]) -> None:
        """The same, of several records."""
        self._puts.update(puts)

    def delete(self, *keys: str) -> None:
        """Nothing is recorded there any more."""
        for key in keys:
            self._puts.pop(key, None)
            self._deletes.append(key)

    def act(self, action: Action) -> None:
        """Do that when all is recorded."""
        self._actions.append(action)

    def take(self) -> list[Action]:
        """All since the last call, the record first."""
        actions, self._actions = self._actions, []
        if self._puts or self._deletes:
            actions.insert(0, Record(tuple(self._puts.items()), tuple(self._deletes)))
            self._puts, self._deletes = {}, []
        return actions
