"""Whether a daemon still hears what is said on a socket that others may connect to.

Theory of operation
-------------------
ZeroMQ receives in a thread of its own. Before Linux 6.16 any local peer can hold that thread up for hours
(`transport.take_no_descriptors`): the loop turns on, and hears nobody. So a daemon speaks to itself over each such socket, all
the way that the words of others take. If they do not arrive, the service manager's watchdog is not fed any more (`loop`), and
it starts the daemon anew.

A loop that was busy for long has not been deaf: it is given some turns to hear what waits.
"""

from __future__ import annotations

import logging
import os

import zmq

from . import transport

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
LEAST_BEATS = 5  # in that time
MOST_WAITING = 8  # of our own words


class Pulse:
    """One socket's."""

    def __init__(self, address: str) -> None:
        """address: of the socket, as others connect to it."""
        self._address = address
        self._context: zmq.Context[transport.Socket] = zmq.Context()
        self._line = transport.dealer(self._context, address)
        self._line.sndhwm = MOST_WAITING
        self._word = os.urandom(16)
        self._unheard_s: float | None = None  # since when (monotonic)
        self._beats = 0  # since then
        self._told = False

    def beat(self, now: float) -> None:
        """Say something; about once a second."""
        if self._unheard_s is None:
            self._unheard_s, self._beats = now, 0
        self._beats += 1
        transport.send(self._line, self._word)

    def heard(self, data: bytes) -> bool:
        """Something has been heard on the socket. Was it this?"""
        if data != self._word:
            return False
        self._unheard_s = None
        if self._told:
            self._told = False
            log.warning("what is said at %s is heard again", self._address)
        return True

    def stands(self, now: float) -> bool:
        """Is what is said heard?"""
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
