"""How the members of a new communicator find each other: a key-value store at the leader, one scope for each attempt.

`Rendezvous` is the leader's half, pure: messages in, answers out. `RendezvousStore` is a member's half, a
`torch.distributed.Store` over ZeroMQ whose waits can be cancelled from both sides; the library's own stores block in their waits
until a timeout, and CoDDL 4.3 asks for an order that is out of date to be given up at once.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

import zmq
from torch._C._distributed_c10d import Store  # torch.distributed.Store; its stubs are here only

from ..protocol.codec import Codec
from ..protocol.errors import ElasticError, PeerError
from ..protocol.messages import StoreAdd, StoreGet, StoreSet, StoreValue
from ..runtime import transport

MAX_SCOPES = 16  # attempts that are under way at a time are few; the least recently used one gives way
MAX_KEYS = 1 << 16  # in a scope: a few for each member
MAX_VALUE_BYTES = 1 << 20
POLL_INTERVAL_MS = 20


class RendezvousCancelled(ElasticError):
    """The attempt at this communicator was given up, here or at the leader."""


@dataclass
class _Scope:
    values: dict[str, bytes] = field(default_factory=dict)
    waiting: dict[str, list[bytes]] = field(default_factory=dict)  # peers by key, in order of arrival
    cancelled: bool = False


class Rendezvous:
    """The leader's half. Everything is bounded: a scope that overflows is cancelled, as is the oldest when there are too many."""

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}  # least recently used first

    def handle(self, peer: bytes, message: StoreSet | StoreGet | StoreAdd) -> list[tuple[bytes, StoreValue]]:
        """Take a message of `peer`. Returns the answers that it brings about, and for whom they are."""
        answers = self._make_room(message.scope)
        scope = self._scopes[message.scope] = self._scopes.pop(message.scope, _Scope())
        match message:
            case StoreGet(key=key):
                if scope.cancelled or key in scope.values:
                    answers.append((peer, _answer(scope, key)))
                elif len(scope.waiting) >= MAX_KEYS:
                    answers += [*self.cancel(message.scope), (peer, _answer(scope, key))]
                elif peer not in (waiting := scope.waiting.setdefault(key, [])):
                    waiting.append(peer)
            case StoreSet(key=key, value=value):
                answers += self._set(message.scope, key, value)
            case StoreAdd(key=key, amount=amount):
                answers += self._add(message.scope, key, amount)
                answers.append((peer, _answer(scope, key)))
        return answers

    def cancel(self, scope: str) -> list[tuple[bytes, StoreValue]]:
        """Give an attempt up: all that wait in it, now or later, are told so."""
        given_up = self._scopes.setdefault(scope, _Scope())
        answers = _cancelled(given_up)
        given_up.cancelled = True
        given_up.values.clear()
        given_up.waiting.clear()
        return answers

    def drop(self, scope: str) -> list[tuple[bytes, StoreValue]]:
        """Forget an attempt. Whoever still waits in it is told that it is over."""
        dropped = self._scopes.pop(scope, None)
        return _cancelled(dropped) if dropped is not None else []

    def _make_room(self, scope: str) -> list[tuple[bytes, StoreValue]]:
        if scope in self._scopes or len(self._scopes) < MAX_SCOPES:
            return []
        return self.drop(next(iter(self._scopes)))

    def _set(self, name: str, key: str, value: bytes) -> list[tuple[bytes, StoreValue]]:
        scope = self._scopes[name]
        if scope.cancelled:
            return []
        if len(value) > MAX_VALUE_BYTES or len(scope.values) >= MAX_KEYS:
            return self.cancel(name)
        scope.values[key] = value
        return [(peer, _answer(scope, key)) for peer in scope.waiting.pop(key, ())]

    def _add(self, name: str, key: str, amount: int) -> list[tuple[bytes, StoreValue]]:
        try:
            total = int(self._scopes[name].values.get(key, b"0")) + amount
        except ValueError:  # it is no counter: some member is not what it should be
            return self.cancel(name)
        return self._set(name, key, b"%d" % total)


def _answer(scope: _Scope, key: str) -> StoreValue:
    return StoreValue(key=key, value=scope.values.get(key, b""), cancelled=scope.cancelled)


def _cancelled(scope: _Scope) -> list[tuple[bytes, StoreValue]]:
    return [
        (peer, StoreValue(key=key, value=b"", cancelled=True)) for key, peers in scope.waiting.items() for peer in peers
    ]


class RendezvousStore(Store):
    """A member's half. Made in one thread, then used by the one that builds the communicator; `cancel` is for any thread.

    Keep a Python reference for as long as a communicator uses it: without one the overridden methods are lost.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        leader_address: str,
        identity: bytes,
        scope: str,
        timeout_s: float,
    ) -> None:
        """leader_address: of the leader's control socket. identity: not that of any other socket that talks to it."""
        super().__init__()
        self._scope = scope
        self._timeout_s = timeout_s
        self._cancelled = threading.Event()
        self._codec: Codec[StoreValue] = Codec(StoreValue)
        self._socket = transport.dealer(context, leader_address, identity)

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Make the wait in progress, and all later ones, raise RendezvousCancelled."""
        self._cancelled.set()

    def close(self) -> None:
        """Close the socket. The store is of no more use; a communicator that stands does not need it."""
        self._socket.close(linger=0)

    # -- torch.distributed.Store. Parameter names are those of the C++ callers, which pass them by position.

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._socket.send(self._codec.encode(StoreSet(scope=self._scope, key=key, value=data)))

    def get(self, key: str) -> bytes:
        return self._ask(StoreGet(scope=self._scope, key=key), self._timeout_s)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(StoreAdd(scope=self._scope, key=key, amount=amount), self._timeout_s))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all `keys` are there: no longer than `timeout`, nor than this store's own."""
        limit_s = min(self._timeout_s, timeout.total_seconds()) if timeout is not None else self._timeout_s
        deadline = time.monotonic() + limit_s
        for key in keys:
            self._ask(StoreGet(scope=self._scope, key=key), deadline - time.monotonic())

    def has_extended_api(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def _ask(self, request: StoreGet | StoreAdd, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        self._raise_if_cancelled()
        self._socket.send(self._codec.encode(request))
        while True:
            if self._socket.poll(POLL_INTERVAL_MS):
                answer = self._receive()
                if answer is not None and answer.cancelled:
                    self._cancelled.set()
                elif answer is not None and answer.key == request.key:
                    return answer.value
            self._raise_if_cancelled()
            if time.monotonic() > deadline:
                raise TimeoutError(f"rendezvous {self._scope}: nobody has set {request.key} within {timeout_s:.1f} s")

    def _receive(self) -> StoreValue | None:
        try:
            return self._codec.decode(self._socket.recv_multipart()[-1])
        except PeerError:
            return None  # not for us; the deadline still holds

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise RendezvousCancelled(f"rendezvous {self._scope} was cancelled")
