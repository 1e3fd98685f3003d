"""Asking the controller: one request, one answer, repeated with the same id until it comes or the time is up."""

from __future__ import annotations

import re
import secrets
import time

import msgspec
import zmq

from ..protocol.codec import Codec
from ..protocol.errors import ClusterUnreachable, NotAllowed, PeerError, RequestRefused, UserError
from ..protocol.messages import (
    Answer,
    Envelope,
    GetEnded,
    GetJobs,
    GetServers,
    Jobs,
    JobView,
    Refused,
    Reply,
    Request,
    Servers,
    ServerView,
)
from ..runtime import transport

REPEAT_INTERVAL_S = 1.0
ADDRESS = re.compile(r"tcp://[^\s/]+:(\d{1,5})|ipc://.+")


class Client:
    """A connection to one controller."""

    def __init__(self, address: str, keys: transport.Keys | None = None) -> None:
        """Raises UserError if `address` is none; that nobody listens there shows when something is asked."""
        self._address = _checked(address)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = transport.dealer(self._context, address, keys=keys)
        self._codec: Codec[Reply] = Codec(Reply)

    def ask(self, request: Request, timeout_s: float = 10.0) -> Answer:
        """The answer to `request`. Raises UserError, RequestRefused or NotAllowed with the controller's reason, and
        ClusterUnreachable."""
        envelope = Envelope(id=secrets.token_hex(16), request=request)
        data = self._encode(envelope)
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            transport.send(self._socket, data)
            reply = self._receive(envelope.id, min(REPEAT_INTERVAL_S, left_s))
            if reply is not None:
                return _accepted(reply.answer)
        raise ClusterUnreachable(f"no controller answers at {self._address}")

    def jobs(self, request: GetJobs | GetEnded, most: int | None = None) -> Jobs:
        """All pages from `request` on, as one; or so many jobs, and `next` tells where the others begin."""
        found: list[JobView] = []
        while True:
            limit = request.limit if most is None else min(request.limit, most - len(found))
            page = self.ask(msgspec.structs.replace(request, limit=limit))
            if not isinstance(page, Jobs):
                raise PeerError(f"the controller answered a {type(request).__name__} with a {type(page).__name__}")
            found += page.jobs
            if not page.next or (most is not None and len(found) >= most):
                return msgspec.structs.replace(page, jobs=tuple(found))
            request = msgspec.structs.replace(request, after=page.next)

    def servers(self) -> Servers:
        """All servers."""
        found: list[ServerView] = []
        request = GetServers()
        while True:
            page = self.ask(request)
            if not isinstance(page, Servers):
                raise PeerError(f"the controller answered a GetServers with a {type(page).__name__}")
            found += page.servers
            if not page.next:
                return msgspec.structs.replace(page, servers=tuple(found))
            request = msgspec.structs.replace(request, after=page.next)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _encode(self, envelope: Envelope) -> bytes:
        try:
            return self._codec.encode(envelope)
        except (UnicodeEncodeError, OverflowError) as error:  # a file name that is no text, a number beyond 64 bits
            raise UserError(f"this {type(envelope.request).__name__} cannot be sent: {error}") from None

    def _receive(self, request: str, wait_s: float) -> Reply | None:
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0:
            if self._socket.poll(int(left_s * 1000) + 1):
                reply = self._codec.decode(self._socket.recv())
                if reply.id == request:
                    return reply
        return None


def _checked(address: str) -> str:
    match = ADDRESS.fullmatch(address)
    if match is None or (match[1] is not None and not 0 < int(match[1]) < 65536):
        raise UserError(f"the controller's address {address!r} is not tcp://HOST:PORT, such as tcp://127.0.0.1:7700")
    return address


def _accepted(answer: Answer) -> Answer:
    if isinstance(answer, Refused):
        kind = NotAllowed if answer.not_allowed else UserError if answer.bad_input else RequestRefused
        raise kind(answer.reason)
    return answer
