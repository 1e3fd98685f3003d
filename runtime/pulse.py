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
LEAST_BEATS = 5  # messages sent in that time before the socket counts as deaf
MOST_WAITING = 8  # messages of its own in the send queue


class Pulse:
    """Self-test of one socket."""

    def __init__(self, address: str) -> None:
        """address: of the socket, as peers connect to it."""
        self._address = address
        self._context: zmq.Context[transport.Socket] = zmq.Context()
        self._line = transport.dealer(self._context, address)
        self._line.sndhwm = MOST_WAITING
        self._word = os.urandom(16)
        self._unheard_s: float | None = None  # time of the first message not yet received (monotonic, s)
        self._beats = 0  # messages sent since then
        self._told = False  # the failure was logged

    def beat(self, now: float) -> None:
        """Send a message to this daemon's own socket; called about once a second."""
        if self._unheard_s is None:
            self._unheard_s, self._beats = now, 0
        self._beats += 1
        transport.send(self._line, self._word)

    def heard(self, data: bytes) -> bool:
        """Return whether a message received on the socket is the self-test's own."""
        if data != self._word:
            return False
        self._unheard_s = None
        if self._told:
            self._told = False
            log.warning("what is said at %s is heard again", self._address)
        return True

    def stands(self, now: float) -> bool:
        """Return whether the socket still receives."""
        if self._unheard_s is None or now - self._unheard_s < PATIENCE_S or self._beats < LEAST_BEATS:
            return True
        if not self._told:
            self._told = True
            log.error(
                "nothing that is said at %s has been heard for %.0f s: a peer may hold up the thread that receives. The service "
                "manager, if there is one, starts this daemon anew",
                self._address,
                now - self._unheard_s,
            )
        return False

    def close(self) -> None:
        self._line.close()
        self._context.term()
