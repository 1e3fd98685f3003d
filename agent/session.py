"""The agent's session with the controller: who has missed what, and when to say hello again. Pure.

Theory of operation
-------------------
The line between agent and controller loses messages when a connection breaks or a process dies, but keeps their order. What
the agent tells is repeated by its machine. What the *controller* tells is counted by both: a hello makes the controller
answer ``Acknowledged(sent=0)`` and then send everything anew; each heartbeat is answered with the number it has sent since.
An agent that has received fewer has lost something and says hello again. (If it has received more, the start of a session was
lost, and the count is worth nothing: the same cure.)

An acknowledgement with ``sent == 0`` therefore is the start of a session, wherever it appears: since order is kept, whatever was
counted before it belongs to an earlier session. That makes repeated, late and doubled hellos harmless: the last such
acknowledgement on the line starts the count that the last hello's messages add up to. While the agent waits for the one
that answers its hello, other acknowledgements are of an earlier session and say nothing about this one.
"""

from __future__ import annotations

from ..protocol.messages import Acknowledged

SILENT_INTERVALS = 3  # without an acknowledgement, after which the session is taken for lost
FIRST_RETRY_S = 0.05


class Session:
    """Counts what came, and says when the next hello or heartbeat is due (Unix time, s)."""

    def __init__(self, heartbeat_interval_s: float) -> None:
        self._interval_s = heartbeat_interval_s
        self._waiting = True  # for the answer to a hello
        self._hello_gone = False  # a hello has been handed to a standing connection since `_waiting` began
        self._retry_s = min(FIRST_RETRY_S, heartbeat_interval_s)
        self._received = 0
        self._due_at = 0.0
        self._silent_at = 0.0
        self._incarnation = ""

    @property
    def incarnation(self) -> str:
        """Of the controller; "" until it has answered for the first time."""
        return self._incarnation

    def deadline(self) -> float:
        """When `due` has to be asked again."""
        return self._due_at if self._waiting else min(self._due_at, self._silent_at)

    def message_received(self) -> None:
        """A message other than Acknowledged came."""
        self._received += 1

    def acknowledged(self, now: float, message: Acknowledged) -> None:
        """An acknowledgement came."""
        self._silent_at = now + SILENT_INTERVALS * self._interval_s
        if message.sent == 0:
            self._received = 0
        if self._waiting:
            if message.sent == 0 and self._hello_gone:
                self._waiting = False
                self._incarnation = message.incarnation
                self._due_at = now + self._interval_s
        elif message.incarnation != self._incarnation or self._received != message.sent:
            self._lose(now)

    def hello_not_sent(self) -> None:
        """The hello that was due found no connection."""
        self._hello_gone = False

    def due(self, now: float) -> str:
        """What to say now: "hello", "heartbeat" or nothing. Counts it as said."""
        if not self._waiting and now >= self._silent_at:
            self._lose(now)
        if now < self._due_at:
            return ""
        if not self._waiting:
            self._due_at = now + self._interval_s
            return "heartbeat"
        self._due_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._interval_s)
        self._hello_gone = True
        return "hello"

    def _lose(self, now: float) -> None:
        self._waiting, self._hello_gone = True, False
        self._retry_s = min(FIRST_RETRY_S, self._interval_s)
        self._due_at = now
