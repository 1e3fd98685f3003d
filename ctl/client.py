"""Asking the controller: one request, one answer, repeated with the same id until it comes or the time is up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import zmq

from ..protocol.codec import MAX_REQUEST_BYTES, Codec
from ..protocol.errors import ClusterUnreachable, NotAllowed, OperatorError, PeerError, RequestRefused, UserError
from ..protocol.messages import (
    PROTOCOL_VERSION,
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
from ..runtime.directories import check_way

if TYPE_CHECKING:
    from ..runtime.keys import KeyFile

REPEAT_INTERVAL_S = 1.0

Diagnosis: TypeAlias = Callable[[str, bool], str | None]


class Client:
    """A connection to one controller."""

    def __init__(self, address: str, key: KeyFile | None = None, diagnosis: Diagnosis | None = None) -> None:
        """Raises UserError if `address` is none, or needs a key; that nobody listens there shows when something is asked.

        `diagnosis`: tells why nobody answers at an address, if it can; asked at the start and when the time is up.
        """
        self._address = address
        self._key = key
        self._diagnosis = diagnosis or (lambda address, late: None)
        self._answered = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._connected()
        self._refusals = transport.refusals(self._context, self._socket)
        self._unheard = False  # a handshake has failed, and nobody has said why
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._refusals, zmq.POLLIN)
        self._codec: Codec[Reply] = Codec(Reply)

    def _connected(self) -> transport.Socket:
        try:
            transport.check_form(self._address)
            if not self._address.startswith("tcp://"):
                check_way(Path(self._address.removeprefix("ipc://")))
                return transport.dealer(self._context, self._address)
            if self._key is None:
                raise UserError(
                    f"the controller at {self._address} wants a key: an operator makes one with "
                    "`elasticctl keys add user:NAME`, and `elasticctl login FILE` puts it in its place"
                )
            return transport.dealer(self._context, self._address, b"", self._key.pair, self._key.controller_public)
        except OperatorError as error:
            raise UserError(f"the controller's address: {error}") from None

    def ask(self, request: Request, timeout_s: float = 10.0) -> Answer:
        """The answer to `request`. Raises UserError, RequestRefused or NotAllowed with the controller's reason, and
        ClusterUnreachable."""
        envelope = Envelope(id=secrets.token_hex(16), request=request, speaks=PROTOCOL_VERSION)
        data = self._encode(envelope)
        deadline = time.monotonic() + timeout_s
        if not self._answered and (why := self._diagnosis(self._address, False)):
            raise ClusterUnreachable(
                why
            )  # one that has died while somebody waits may be started again: that takes a while
        while (left_s := deadline - time.monotonic()) > 0:
            transport.send(self._socket, data)
            reply = self._receive(envelope.id, min(REPEAT_INTERVAL_S, left_s))
            if reply is not None:
                self._answered = True
                return accepted(reply.answer)
        if why := self._diagnosis(self._address, True):
            raise ClusterUnreachable(why)
        ends = "the connection ends before keys are exchanged; the controller may have another key now"
        why = f": {ends}" if self._unheard else f" within {timeout_s:g} s"
        raise ClusterUnreachable(
            f"no controller answers at {self._address}{why}; `elasticctl doctor` looks for the cause"
        )

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
        self._socket.disable_monitor()
        self._refusals.close()
        self._socket.close()
        self._context.term()

    def _encode(self, envelope: Envelope) -> bytes:
        try:
            data = self._codec.encode(envelope)
        except (UnicodeEncodeError, OverflowError) as error:  # a file name that is no text, a number beyond 64 bits
            raise UserError(f"this {type(envelope.request).__name__} cannot be sent: {error}") from None
        if len(data) > MAX_REQUEST_BYTES:
            what = type(envelope.request).__name__
            raise UserError(f"this {what} is too large: {len(data)} bytes, at most {MAX_REQUEST_BYTES}")
        return data

    def _receive(self, request: str, wait_s: float) -> Reply | None:
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0:
            for ready, _ in self._poller.poll(int(left_s * 1000) + 1):
                if ready is self._refusals:
                    self._refused(self._refusals.recv_multipart())
                    continue
                reply = self._codec.decode(self._socket.recv())
                if reply.id == request:
                    return reply
        return None

    def _refused(self, told: list[bytes]) -> None:
        """A handshake has failed. Raises NotAllowed if the controller does not want our key."""
        if not transport.is_final(told):
            self._unheard = True
            return
        transport.connect_again(self._socket, self._address)  # should anything else be asked later
        who = f"{self._key.role.value}:{self._key.name}" if self._key is not None else "nobody"
        raise NotAllowed(
            f"the controller at {self._address} does not let {who} in: the key is unknown there, or revoked"
        )


def accepted(answer: Answer) -> Answer:
    """`answer`, if it grants what was asked. Raises NotAllowed, UserError, RequestRefused."""
    if isinstance(answer, Refused):
        kind = NotAllowed if answer.not_allowed else UserError if answer.bad_input else RequestRefused
        raise kind(answer.reason)
    return answer
