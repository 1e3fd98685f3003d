"""The agent's sockets to its cluster's controllers: one for each endpoint, all of them always connected.

So the next controller can be asked at once (`endpoints`), and the end of a connection is noticed. No message is queued
for an unreachable controller (ZMQ_IMMEDIATE, of the context): the state machine repeats important messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import zmq

from ..protocol.rate_limit import SubjectRateLimiter
from ..protocol.times import REFUSED_RETRY_S
from ..runtime import transport
from ..runtime.clock import SteadyClock
from ..runtime.loop import Loop
from .events import Connected, Disconnected, Event

if TYPE_CHECKING:
    from ..runtime.keys import KeyFile

log = logging.getLogger(__name__)


@dataclass
class _Line:
    """A socket, with the events of its connection."""

    address: str
    socket: transport.Socket
    handshakes: transport.Socket
    again_at: float | None = None  # the controller rejected the agent's key: time of the next attempt


class Controllers:
    """The endpoints, numbered from 0 in the order of the configuration."""

    def __init__(
        self,
        context: zmq.Context[transport.Socket],
        loop: Loop,
        clock: SteadyClock,
        addresses: Sequence[str],
        key: KeyFile | None,
        on_message: Callable[[int, list[bytes]], None],
        on_change: Callable[[Event], None],
    ) -> None:
        """`on_message` gets an endpoint's number and the parts of a message, `on_change` gets `Connected` and
        `Disconnected`. Raises OperatorError.
        """
        self.addresses = tuple(addresses)
        self._clock = clock
        self._on_change = on_change
        self._rate_limiter = SubjectRateLimiter()
        self._lines: list[_Line] = []
        pair, public = (None, b"") if key is None else (key.pair, key.controller_public)
        for number, address in enumerate(addresses):
            line = _Line(address, *transport.to_controller(context, address, pair, public))
            self._lines.append(line)
            loop.add_socket(line.socket, partial(on_message, number))
            loop.add_socket(line.handshakes, partial(self._on_handshake, number))

    def send(self, endpoint: int, *parts: bytes) -> bool:
        """Send a message. False: there is no connection, or it does not accept more."""
        return transport.send(self._lines[endpoint].socket, *parts)

    def pass_time(self) -> None:
        """Connect again to controllers that have rejected the agent's key."""
        now = self._clock.now()
        for line in self._lines:
            if line.again_at is not None and now >= line.again_at:
                line.again_at = None
                transport.connect_again(line.socket, line.address)

    def next_deadline(self) -> float | None:
        """Return when `pass_time` is due (Unix time, s)."""
        return min((line.again_at for line in self._lines if line.again_at is not None), default=None)

    def close(self) -> None:
        for line in self._lines:
            line.socket.disable_monitor()
            line.handshakes.close()
            line.socket.close()

    def _on_handshake(self, endpoint: int, frames: list[bytes]) -> None:
        """Handle a connection that stands, has ended, or was rejected. ZeroMQ reconnects by itself, except after a
        rejected key.
        """
        line = self._lines[endpoint]
        if transport.stands(frames):
            self._on_change(Connected(endpoint))
            return
        if transport.has_ended(frames):
            self._on_change(Disconnected(endpoint))
            return
        if transport.is_final(frames):
            line.again_at = self._clock.now() + REFUSED_RETRY_S
            text = "does not know this server's key, or has revoked it"
        else:
            text = "ends the connection: its key may be another one than the key file says"
        if self._rate_limiter.admit(f"{line.address} {text}", self._clock.now()) is not None:
            log.warning("the controller at %s %s", line.address, text)
