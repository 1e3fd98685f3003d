"""Recent events of the cluster, and counts of all events since the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from ...protocol.messages import EventKind, EventView
from ...protocol.model import JobId
from ..records import event_key
from ..tallies import Tallies
from .effects import Effects

KEPT_EVENTS = 10_000


class EventHistory:
    """The last KEPT_EVENTS events, numbered without gaps; each is a record of its own."""

    def __init__(self, effects: Effects) -> None:
        self.events: deque[EventView] = deque(maxlen=KEPT_EVENTS)
        self.next_number = 1
        self.tallies = Tallies()
        self._fresh: list[EventView] = []
        self._effects = effects

    def recover(self, events: Iterable[EventView]) -> None:
        """Take in the events that the store holds, in any order."""
        self.events.extend(sorted(events, key=lambda event: event.number)[-KEPT_EVENTS:])
        self.next_number = self.events[-1].number + 1 if self.events else 1

    def skip_to(self, number: int) -> None:
        """Give no new event a number below `number`."""
        self.next_number = max(self.next_number, number)

    def drop(self, keys: Collection[str]) -> None:
        """Remove the events with these keys, as their commit has failed."""
        for event in [event for event in self.events if event_key(event.number) in keys]:
            self.events.remove(event)

    def add(self, now: float, kind: EventKind, job: JobId | None, text: str) -> None:
        """Append an event; the oldest beyond KEPT_EVENTS is deleted."""
        event = EventView(number=self.next_number, time_s=now, kind=kind, job=job, text=text)
        self.next_number += 1
        self.tallies.happened(kind)
        if len(self.events) == self.events.maxlen:
            self._effects.delete(event_key(self.events[0].number))
        self.events.append(event)
        self._effects.put(event_key(event.number), event)
        if job is not None:
            self._fresh.append(event)

    def take_fresh(self) -> list[EventView]:
        """Return the events of jobs since the last call."""
        found, self._fresh = self._fresh, []
        return found
