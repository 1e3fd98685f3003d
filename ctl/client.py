"""Client of the controllers: one request, one answer. The client repeats a request with the same id until the answer
comes or the time is up; of several controllers it finds the leading one.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import zmq

from ..protocol.codec import MAX_REQUEST_BYTES, Codec
from ..protocol.errors import (
    ClusterUnreachable,
    ElasticError,
    NotAllowed,
    OperatorError,
    PeerError,
    RequestRefused,
    UserError,
)
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
from ..protocol.texts import span
from ..protocol.times import ENDPOINT_SILENCE_S
from ..runtime import transport
from ..runtime.directories import check_way
from ..runtime.endpoints import endpoints
from .endpoints import Memory

if TYPE_CHECKING:
    from ..runtime.keys import KeyFile

FIRST_PAUSE_S = 0.05  # pause if no controller leads; doubled each time

Diagnosis: TypeAlias = Callable[[str, bool], str | None]


class StandsBy(ClusterUnreachable):
    """The only controller asked does not lead."""


@dataclass
class _Line:
    """A socket to one controller, and the outcome of the requests there."""

    address: str
    socket: transport.Socket
    refusals: transport.Socket
    unheard: bool = False  # a handshake has failed, and the controller has given no reason
    refused: str = ""  # why the controller refuses this client
    standby: str = ""  # a standby's statement that names the leader

    @property
    def outcome(self) -> str:
        """Return the outcome as text for people."""
        if self.refused or self.standby:
            return self.refused or self.standby
        return "the connection ends before keys are exchanged" if self.unheard else "no answer"


class Client:
    """Connections to the controllers of one cluster, one of which leads."""

    def __init__(
        self,
        address: str,
        key: KeyFile | None = None,
        diagnosis: Diagnosis | None = None,
        memory: Path | None = None,
    ) -> None:
        """`address`: the controller's address, or several addresses with commas between them. Raises UserError if one
        is malformed, or needs a key that is missing. A missing listener shows only at a request.

        `diagnosis`: returns the reason why no controller answers at an address, or None; called at the start and when
        the time is up. `memory`: a directory that records which controller answered last.
        """
        self._key = key
        self._diagnosis = diagnosis or (lambda address, late: None)
        self._answered = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._codec: Codec[Reply] = Codec(Reply)
        self._poller = zmq.Poller()
        self._lines: list[_Line] = []
        self._noted = False
        self.patience_s = 0.0  # for a controller that has answered before, if longer than a request's own limit
        self._impatient = False  # the user knows that this takes longer
        self._doubt = ""  # why the controller does not know whether the present request is recorded
        try:
            for each in self._addresses(address):
                self._lines.append(self._connected(each))
        except UserError:
            self.close()  # a context that is collected with open sockets waits for them for ever
            raise
        for line in self._lines:
            self._poller.register(line.socket, zmq.POLLIN)
            self._poller.register(line.refusals, zmq.POLLIN)
        self._memory = Memory([line.address for line in self._lines], memory) if memory is not None else None
        self._present = self._memory.first if self._memory is not None else 0

    @staticmethod
    def _addresses(address: str) -> tuple[str, ...]:
        try:
            return endpoints(address)
        except OperatorError as error:
            raise UserError(f"the controller's address: {error}") from None

    def _connected(self, address: str) -> _Line:
        try:
            if not address.startswith("tcp://"):
                check_way(Path(address.removeprefix("ipc://")))
                return _Line(address, *transport.watched_dealer(self._context, address, transport.REFUSALS))
            if self._key is None:
                raise UserError(
                    f"the controller at {address} wants a key: an operator makes one with "
                    "`elasticctl keys add user:NAME`, and `elasticctl login FILE` puts it in its place"
                )
            keys = self._key.pair, self._key.controller_public
            return _Line(address, *transport.watched_dealer(self._context, address, transport.REFUSALS, *keys))
        except OperatorError as error:
            raise UserError(f"the controller's address: {error}") from None

    def ask(self, request: Request, timeout_s: float = 10.0) -> Answer:
        """Return the answer to `request`. Raises UserError, RequestRefused or NotAllowed with the controller's reason,
        and ClusterUnreachable. While the controller cannot tell whether it has recorded the request, its reason is
        printed on stderr.

        The controller that answered last is asked first. After a second of silence, or if that controller stands by,
        the next one gets the same request, which is carried out once.
        """
        envelope = Envelope(id=secrets.token_hex(16), request=request, speaks=PROTOCOL_VERSION)
        data = self._encode(envelope)
        begun = time.monotonic()
        deadline = begun + (max(timeout_s, self.patience_s) if self._answered else timeout_s)
        if not self._answered and len(self._lines) == 1 and (why := self._diagnosis(self._lines[0].address, False)):
            raise ClusterUnreachable(
                why
            )  # checked at the start only: a controller that dies during the wait may be restarted, which takes a while
        for line in self._lines:
            line.refused = line.standby = ""
        self._doubt = ""
        referred = 0  # consecutive controllers that stand by or refuse this client
        while (left_s := deadline - time.monotonic()) > 0:
            transport.send(self._lines[self._present].socket, data)
            reply = self._receive(envelope.id, min(ENDPOINT_SILENCE_S, left_s))
            if reply is not None:
                return self._taken(reply)
            if deadline > time.monotonic() > begun + timeout_s and not self._impatient:
                self._impatient = True
                print(
                    f"elasticctl: the controller does not answer; waits for it, at most {span(self.patience_s)}",
                    file=sys.stderr,
                )
            line = self._lines[self._present]
            if line.refused and all(each.refused for each in self._lines):
                break
            referred = referred + 1 if line.refused or line.standby else 0
            self._present = (self._present + 1) % len(self._lines)
            if referred and referred % len(self._lines) == 0:  # no controller leads: an election takes a moment
                pause_s = min(ENDPOINT_SILENCE_S, FIRST_PAUSE_S * 2 ** min(referred, 10))
                reply = self._receive(envelope.id, min(pause_s, max(0.0, deadline - time.monotonic())), nobody=True)
                if reply is not None:
                    return self._taken(reply)
        raise self._failure(deadline - begun)

    def _taken(self, reply: Reply) -> Answer:
        """Return the answer. Its note for people is printed once, on stderr. Raises NotAllowed, UserError,
        RequestRefused.
        """
        if reply.note and not self._noted:
            self._noted = True
            print(f"elasticctl: {reply.note}", file=sys.stderr)
        return accepted(reply.answer)

    def _failure(self, timeout_s: float) -> ElasticError:
        """Return the error for a request without an answer."""
        if self._doubt:
            return ClusterUnreachable(f"{self._doubt} (asked for {timeout_s:g} s)")
        if all(line.refused for line in self._lines):
            return NotAllowed("; ".join(f"the controller at {line.address} {line.refused}" for line in self._lines))
        if len(self._lines) > 1:
            each = ", ".join(f"{line.address} ({line.outcome})" for line in self._lines)
            return ClusterUnreachable(
                f"no controller that leads answers within {timeout_s:g} s; asked were {each}; `elasticctl doctor` looks for the "
                "cause"
            )
        line = self._lines[0]
        if line.standby:
            return StandsBy(f"the controller at {line.address} {line.standby} (asked for {timeout_s:g} s)")
        if why := self._diagnosis(line.address, True):
            return ClusterUnreachable(why)
        ends = "the connection ends before keys are exchanged; the controller may have another key now"
        why = f": {ends}" if line.unheard else f" within {timeout_s:g} s"
        return ClusterUnreachable(
            f"no controller answers at {line.address}{why}; `elasticctl doctor` looks for the cause"
        )

    def jobs(self, request: GetJobs | GetEnded, most: int | None = None) -> Jobs:
        """Return all pages from `request` on as one page.

        `most`: the page has at most so many jobs, and its `next` points at the rest.
        """
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

    def ended(self, request: GetEnded, most: int | None = None) -> Iterator[JobView]:
        """Yield finished jobs from `request` on; pages are requested as needed. most: number of jobs that the
        caller probably needs."""
        limit = request.limit if most is None else min(request.limit, most + 1)
        while True:
            page = self.ask(msgspec.structs.replace(request, limit=limit))
            if not isinstance(page, Jobs):
                raise PeerError(f"the controller answered a {type(request).__name__} with a {type(page).__name__}")
            yield from page.jobs
            if not page.next:
                return
            request = msgspec.structs.replace(request, after=page.next)

    def servers(self) -> Servers:
        """Return all servers."""
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
        for line in self._lines:
            line.socket.disable_monitor()
            line.refusals.close()
            line.socket.close()
        self._context.term()

    def _encode(self, envelope: Envelope) -> bytes:
        try:
            data = self._codec.encode(envelope)
        except (UnicodeEncodeError, OverflowError) as error:  # a file name that is not text, a number beyond 64 bits
            raise UserError(f"this {type(envelope.request).__name__} cannot be sent: {error}") from None
        if len(data) > MAX_REQUEST_BYTES:
            what = type(envelope.request).__name__
            raise UserError(f"this {what} is too large: {len(data)} bytes, at most {MAX_REQUEST_BYTES}")
        return data

    def _receive(self, request: str, wait_s: float, nobody: bool = False) -> Reply | None:
        """Return an answer of any controller. None: no answer came, or the controller that was asked stands by or
        refuses this client; `nobody`: the wait follows no request.
        """
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0:
            for ready, _ in self._poller.poll(int(left_s * 1000) + 1):
                number, line = next(
                    (number, line) for number, line in enumerate(self._lines) if ready in (line.socket, line.refusals)
                )
                if ready is line.refusals:
                    self._refused(line)
                elif (reply := self._codec.decode(line.socket.recv())).id == request:
                    if not isinstance(reply.answer, Refused) or not (reply.answer.standby or reply.answer.in_doubt):
                        self._note(number)
                        return reply
                    if reply.answer.in_doubt:
                        self._say_doubt(reply.answer.reason)
                    else:
                        line.standby = reply.answer.reason
                if (line.refused or line.standby) and number == self._present and not nobody:
                    return None
        return None

    def _say_doubt(self, reason: str) -> None:
        if not self._doubt:
            print(f"elasticctl: {reason}", file=sys.stderr)
        self._doubt = reason

    def _note(self, endpoint: int) -> None:
        self._answered, self._present, self._impatient = True, endpoint, False
        if self._memory is not None:
            self._memory.answered(endpoint)

    def _refused(self, line: _Line) -> None:
        """Record a failed handshake."""
        if not transport.is_final(line.refusals.recv_multipart()):
            line.unheard = True
            return
        transport.connect_again(line.socket, line.address)  # so that later requests of this client can succeed
        who = f"{self._key.role.value}:{self._key.name}" if self._key is not None else "nobody"
        line.refused = f"does not let {who} in: the key is unknown there, or revoked"


def accepted(answer: Answer) -> Answer:
    """Return `answer` if it grants the request. Raises NotAllowed, UserError, RequestRefused."""
    if isinstance(answer, Refused):
        kind = NotAllowed if answer.not_allowed else UserError if answer.bad_input else RequestRefused
        raise kind(answer.reason)
    return answer
