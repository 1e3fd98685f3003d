"""Messages that a daemon has received and not handled yet: a bounded queue with a fair turn for each principal. Pure.

Theory of operation
-------------------
ZeroMQ's receive queues cannot have a limit (`transport` explains why), and its I/O thread
receives a message in a hundredth of the time that a daemon needs to handle one. So in each turn the daemon's loop first moves all
received messages into this inbox (`listener`), which takes microseconds per message. Rates are measured there, when a message
arrives rather than when it is handled.

All messages together have a limit on their number and one on their bytes. Above a limit the longest queue pays (longest queue
drop): the principal with most, and of its connections the one with most. Messages that the peer repeats anyway are dropped first,
all but the newest. If there are none, the connection loses all its waiting messages and is to be cut: its peer sends on without
waiting for answers.

Messages are handled round-robin: one of each principal, of its connections in rotation. So a flooding principal delays only
itself. Messages of one connection keep their order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

OVERHEAD_BYTES = 600  # of a waiting message, beside the bytes of its frames

Who = TypeVar("Who", bound=Hashable)
Line = TypeVar("Line", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Room:
    """Limits on all waiting messages together."""

    messages: int
    bytes_: int = 16 << 20  # a single message may wait whatever its size


@dataclass
class _Queue(Generic[Item]):
    """Waiting messages of one connection."""

    items: OrderedDict[int, tuple[Item, int]] = field(default_factory=OrderedDict)  # a message and its bytes, by number
    repeated: deque[int] = field(default_factory=deque)  # the numbers of messages that the peer repeats anyway
    bytes_: int = 0


@dataclass
class _Share(Generic[Line, Item]):
    """Waiting messages of one principal, by connection; the connection with the next turn stands first."""

    queues: OrderedDict[Line, _Queue[Item]] = field(default_factory=OrderedDict)
    messages: int = 0
    bytes_: int = 0


@dataclass(frozen=True)
class Shed(Generic[Who, Line]):
    """Messages of one principal that were dropped for lack of room."""

    who: Who
    messages: int
    cut: Line | None = None  # the connection that lost all its messages; None: only repeated messages were dropped


class Inbox(Generic[Who, Line, Item]):
    """Waiting messages, by principal and connection."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._shares: OrderedDict[Who, _Share[Line, Item]] = (
            OrderedDict()
        )  # the principal with the next turn stands first
        self._number = 0
        self.messages = 0
        self.bytes_ = 0

    def put(self, who: Who, line: Line, item: Item, size: int, repeated: bool) -> list[Shed[Who, Line]]:
        """Add a message. size: bytes of its frames. repeated: its peer resends it if it is lost. Returns what was dropped."""
        share = self._shares.setdefault(who, _Share())
        queue = share.queues.setdefault(line, _Queue())
        self._number += 1
        queue.items[self._number] = item, size + OVERHEAD_BYTES
        if repeated:
            queue.repeated.append(self._number)
        self._count(share, queue, 1, size + OVERHEAD_BYTES)
        shed = []
        while self.messages > self._room.messages:
            most = max(self._shares, key=lambda each: self._shares[each].messages)
            queues = self._shares[most].queues
            shed.append(self._shed(most, max(queues, key=lambda each: len(queues[each].items))))
        while self.bytes_ > self._room.bytes_ and self.messages > 1:
            most = max(self._shares, key=lambda each: self._shares[each].bytes_)
            queues = self._shares[most].queues
            shed.append(self._shed(most, max(queues, key=lambda each: queues[each].bytes_)))
        return shed

    def take(self) -> tuple[Who, Line, Item]:
        """Remove and return the next message, with its principal and connection. Raises LookupError if none waits."""
        if not self._shares:
            raise LookupError("nothing waits")
        who, share = next(iter(self._shares.items()))
        line, queue = next(iter(share.queues.items()))
        number, (item, cost) = queue.items.popitem(last=False)
        if queue.repeated and queue.repeated[0] == number:
            queue.repeated.popleft()
        self._shares.move_to_end(who)
        share.queues.move_to_end(line)
        self._count(share, queue, -1, -cost)
        self._tidy(who, line)
        return who, line, item

    def drop(self, who: Who, line: Line) -> int:
        """Drop all waiting messages of a connection. Returns their number."""
        share = self._shares.get(who)
        queue = share.queues.get(line) if share is not None else None
        if share is None or queue is None:
            return 0
        much = len(queue.items)
        queue.items.clear()
        self._count(share, queue, -much, -queue.bytes_)
        self._tidy(who, line)
        return much

    def _shed(self, who: Who, line: Line) -> Shed[Who, Line]:
        share = self._shares[who]
        queue = share.queues[line]
        newest = 0 if len(queue.items) == 1 else 1
        much = len(queue.repeated) - newest
        if much <= 0:
            return Shed(who, self.drop(who, line), line)
        for _ in range(much):
            _, cost = queue.items.pop(queue.repeated.popleft())
            self._count(share, queue, -1, -cost)
        self._tidy(who, line)
        return Shed(who, much)

    def _count(self, share: _Share[Line, Item], queue: _Queue[Item], messages: int, bytes_: int) -> None:
        queue.bytes_ += bytes_
        share.messages += messages
        share.bytes_ += bytes_
        self.messages += messages
        self.bytes_ += bytes_

    def _tidy(self, who: Who, line: Line) -> None:
        queues = self._shares[who].queues
        if not queues[line].items:
            del queues[line]
        if not queues:
            del self._shares[who]
