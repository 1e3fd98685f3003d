"""What peers have said and a daemon has not handled yet: a bounded room, in which each principal has its turn. Pure.

Theory of operation
-------------------
ZeroMQ's own queues for what comes in cannot have a limit (`transport` says why), and ZeroMQ's thread takes in a message in a
hundredth of the time that a daemon needs to handle one. So the daemon's loop empties those queues first, in each turn, into this
room (`door`): that costs microseconds a message, and the limits of rates are measured there, when a message arrives and not when
the daemon comes to it.

All messages together have a limit of number and one of bytes. Beyond it the longest queue pays (longest queue drop): the
principal with most, and of its connections the one with most. Messages that the peer repeats anyway go first, all but the
newest. Where there are none, the connection loses all that waits, and is to be cut: its peer says on and on without waiting for
answers.

Messages are taken in turn: one of each principal, of its connections one after the other. So a principal that floods waits for
itself, and others do not wait for it. What one connection says stays in its order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

OVERHEAD_BYTES = 600  # of a message that waits, beside the bytes of its frames

Who = TypeVar("Who", bound=Hashable)
Line = TypeVar("Line", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Room:
    """How much may wait."""

    messages: int
    bytes_: int = 16 << 20  # one message may wait however large it is


@dataclass
class _Queue(Generic[Item]):
    """What one connection has said."""

    items: OrderedDict[int, tuple[Item, int]] = field(default_factory=OrderedDict)  # and its bytes, by number
    repeated: deque[int] = field(default_factory=deque)  # the numbers of those that the peer repeats anyway
    bytes_: int = 0


@dataclass
class _Share(Generic[Line, Item]):
    """What one principal has said, by connection. The connection whose turn is next stands first."""

    queues: OrderedDict[Line, _Queue[Item]] = field(default_factory=OrderedDict)
    messages: int = 0
    bytes_: int = 0


@dataclass(frozen=True)
class Shed(Generic[Who, Line]):
    """What had to go."""

    who: Who
    messages: int
    cut: Line | None = None  # the connection that has lost all that waited; None: only what its peer repeats is gone


class Inbox(Generic[Who, Line, Item]):
    """Messages that wait, by principal and connection."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._shares: OrderedDict[Who, _Share[Line, Item]] = (
            OrderedDict()
        )  # the principal whose turn is next stands first
        self._number = 0
        self.messages = 0
        self.bytes_ = 0

    def put(self, who: Who, line: Line, item: Item, size: int, repeated: bool) -> list[Shed[Who, Line]]:
        """One more waits. size: bytes of its frames. repeated: its peer says it again if it is lost. Returns what had to go."""
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
        """The next message, and who said it on which connection. Raises LookupError if none waits."""
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
        """Forget all that a connection has said. Returns how many messages that were."""
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
