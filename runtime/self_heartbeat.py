"""Self-test of a local socket: whether the daemon still receives messages that arrive there.

Theory of operation
-------------------
ZeroMQ receives in an I/O thread. Before Linux 6.16 any local peer can block that thread for hours
(`transport.take_no_descriptors`): the loop still turns, but receives nothing. So the daemon sends messages to itself over each
such socket, along the same path as other peers' messages. If they do not arrive, the service manager's watchdog is no longer fed
(`loop`), and the service manager restarts the daemon.

A loop that was busy for long still has its own messages waiting: it gets some turns to receive them.
"""

from __future__ import annotations

import logging
import os

import zmq

from . import transport

log = logging.getLogger(__name__)

PATIENCE_S = 10.0  # without a received message
FEWEST_SENT = 5  # messages sent in that time before the socket counts as blocked
MOST_WAITING = 8  # messages of its own in the send queue


class SelfHeartbeat:
    """Self-test of one socket."""

    def __init__(self, address: str) -> None:
        """address: of the socket, as peers connect to it."""
        self._address = address
        self._context: zmq.Context[transport.Socket] = zmq.Context()
        self._socket = transport.dealer(self._context, address)
        self._socket.sndhwm = MOST_WAITING
        self._payload = os.urandom(16)
        self._unreceived_s: float | None = None  # time of the first message not yet received (monotonic, s)
        self._sent = 0  # messages sent since then
        self._warned = False  # the failure was logged

    def send(self, now: float) -> None:
        """Send a message to this daemon's own socket; called about once a second."""
        if self._unreceived_s is None:
            self._unreceived_s, self._sent = now, 0
        self._sent += 1
        transport.send(self._socket, self._payload)

    def receive(self, data: bytes) -> bool:
        """Return whether a message received on the socket is the self-test's own."""
        if data != self._payload:
            return False
        self._unreceived_s = None
        if self._warned:
            self._warned = False
            log.warning("messages sent to %s arrive again", self._address)
        return True

    def is_alive(self, now: float) -> bool:
        """Return whether the socket still receives."""
        if self._unreceived_s is None or now - self._unreceived_s < PATIENCE_S or self._sent < FEWEST_SENT:
            return True
        if not self._warned:
            self._warned = True
            log.error(
                "no message sent to %s has arrived for %.0f s: a peer may block the thread that receives. The service "
                "manager, if there is one, restarts this daemon",
                self._address,
                now - self._unreceived_s,
            )
        return False

    def close(self) -> None:
        self._socket.close()
        self._context.term()
