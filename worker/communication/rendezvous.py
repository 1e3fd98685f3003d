"""Rendezvous of a new communicator's members: a key-value store at the leader, with one scope per attempt.

`Rendezvous` is the leader's part, pure: messages in, answers out. `RendezvousStore` is a member's part, a
`torch.distributed.Store` over ZeroMQ with waits that both sides can cancel. The stores of torch block until a timeout, while
CoDDL 4.3 requires that an outdated order be abandoned at once.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

import zmq
from torch._C._distributed_c10d import Store  # torch.distributed.Store; only this module has its stubs

from ...protocol.codec import Codec
from ...protocol.errors import ElasticError, PeerError
from ...protocol.messages import StoreAdd, StoreGet, StoreSet, StoreValue
from ...runtime import transport
from ...runtime.keys import Pair

MAX_SCOPES = 16  # concurrent attempts are few; the least recently used scope is evicted
MAX_KEYS = 1 << 16  # in a scope: a few per member
MAX_VALUE_BYTES = 1 << 20
MAX_SCOPE_BYTES = 1 << 26  # of all values of a scope
MAX_WAITING = 1 << 16  # peers that wait for a key, in a scope
MAX_KEY = 1 << 10  # characters


class RendezvousCancelled(ElasticError):
    """The attempt at this communicator was cancelled, by this worker or by the leader."""


@dataclass
class _Scope:
    values: dict[str, bytes] = field(default_factory=dict)
    waiting: dict[str, list[bytes]] = field(default_factory=dict)  # peers by key, in the order of their requests
    cancelled: bool = False
    bytes: int = 0  # of all values
    waiters: int = 0  # for all keys


class Rendezvous:
    """The leader's part. All is bounded: a scope that exceeds a limit is cancelled, as is the oldest of too many scopes."""

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}  # least recently used first

    def handle(self, peer: bytes, message: StoreSet | StoreGet | StoreAdd) -> list[tuple[bytes, StoreValue]]:
        """Handle a message of `peer`. Returns the resulting answers with their recipients."""
        answers = self._make_room(message.scope)
        scope = self._scopes[message.scope] = self._scopes.pop(message.scope, _Scope())
        match message:
            case StoreGet(key=key):
                if scope.cancelled or key in scope.values:
                    answers.append((peer, _answer(scope, key)))
                elif scope.waiters >= MAX_WAITING or len(key) > MAX_KEY:
                    answers += [*self.cancel(message.scope), (peer, _answer(scope, key))]
                elif peer not in (waiting := scope.waiting.setdefault(key, [])):
                    waiting.append(peer)
                    scope.waiters += 1
            case StoreSet(key=key, value=value):
                answers += self._set(message.scope, key, value)
            case StoreAdd(key=key, amount=amount):
                answers += self._add(message.scope, key, amount)
                answers.append((peer, _answer(scope, key)))
        return answers

    def cancel(self, scope: str) -> list[tuple[bytes, StoreValue]]:
        """Cancel an attempt: all peers that wait in it, now or later, are notified."""
        given_up = self._scopes.setdefault(scope, _Scope())
        answers = _cancelled(given_up)
        given_up.cancelled = True
        given_up.values.clear()
        given_up.waiting.clear()
        given_up.bytes = given_up.waiters = 0
        return answers

    def drop(self, scope: str) -> list[tuple[bytes, StoreValue]]:
        """Forget an attempt. Peers that still wait in it are notified of its cancellation."""
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
        size = scope.bytes + len(value) - len(scope.values.get(key, b""))
        if len(value) > MAX_VALUE_BYTES or len(key) > MAX_KEY or size > MAX_SCOPE_BYTES:
            return self.cancel(name)
        if key not in scope.values and len(scope.values) >= MAX_KEYS:
            return self.cancel(name)
        scope.values[key], scope.bytes = value, size
        waiting = scope.waiting.pop(key, [])
        scope.waiters -= len(waiting)
        return [(peer, _answer(scope, key)) for peer in waiting]

    def _add(self, name: str, key: str, amount: int) -> list[tuple[bytes, StoreValue]]:
        try:
            total = int(self._scopes[name].values.get(key, b"0")) + amount
        except ValueError:  # the value is no counter: a member violates the protocol
            return self.cancel(name)
        return self._set(name, key, b"%d" % total)


def _answer(scope: _Scope, key: str) -> StoreValue:
    return StoreValue(key=key, value=scope.values.get(key, b""), cancelled=scope.cancelled)


def _cancelled(scope: _Scope) -> list[tuple[bytes, StoreValue]]:
    return [
        (peer, StoreValue(key=key, value=b"", cancelled=True)) for key, peers in scope.waiting.items() for peer in peers
    ]


class RendezvousStore(Store):
    """A member's part. One thread at a time uses it; `cancel` and `close` may be called from any thread.

    A value other than a counter is set once, so values read are cached. `expect` requests many keys at once, because libraries
    request the values of the members one after the other, and twice.
    Keep a Python reference as long as a communicator uses the store: without one the overridden methods are lost.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        leader_address: str,
        identity: bytes,
        scope: str,
        timeout_s: float,
        pair: Pair | None = None,
    ) -> None:
        """leader_address: of the leader's control socket. identity: unique among this worker's sockets to the leader. pair: the
        job's keys, without which only ipc addresses are allowed.

        Raises OSError or zmq.ZMQError if the process has no file descriptors left.
        """
        super().__init__()
        self._scope = scope
        self._timeout_s = timeout_s
        self._cancelled = threading.Event()
        self._codec: Codec[StoreValue] = Codec(StoreValue)
        self._values: dict[str, bytes] = {}
        self._asked: set[str] = set()  # for membership only
        self._in_use = threading.Lock()  # on the socket; a thread holds it while it waits for an answer
        self._waking = threading.Lock()  # of the descriptor
        self._socket = transport.fellow(context, leader_address, identity, pair)
        try:
            self._wake: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._socket.close(linger=0)
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Make the present wait, and all later ones, raise RendezvousCancelled."""
        with self._waking:
            self._cancelled.set()
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close the socket, which cancels waits in progress. An established communicator does not need the store any more."""
        with self._waking:
            wake, self._wake = self._wake, None
            if wake is None:
                return
            os.eventfd_write(wake, 1)
        with self._in_use:
            self._socket.close(linger=0)
            os.close(wake)

    def expect(self, keys: list[str]) -> None:
        """Request values that will be waited for. Does not wait."""
        with self._in_use:
            self._raise_if_over()
            self._request(keys)

    # -- torch.distributed.Store. Parameter names are those of the C++ callers, which pass them by position.

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._in_use:
            self._raise_if_over()
            self._values[key] = data
            self._socket.send(self._codec.encode(StoreSet(scope=self._scope, key=key, value=data)))

    def get(self, key: str) -> bytes:
        return self._ask([key], self._timeout_s)[0]

    def add(self, key: str, amount: int) -> int:
        with self._in_use:
            self._raise_if_over()
            self._values.pop(key, None)
            self._asked.add(key)
            self._socket.send(self._codec.encode(StoreAdd(scope=self._scope, key=key, amount=amount)))
        (total,) = self._ask([key], self._timeout_s)
        self._values.pop(key, None)  # not cached, as other members change a counter
        return int(total)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all `keys` are set, for `timeout` or the store's own timeout, whichever is shorter."""
        limit_s = min(self._timeout_s, timeout.total_seconds()) if timeout is not None else self._timeout_s
        self._ask(keys, limit_s)

    def has_extended_api(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def _ask(self, keys: list[str], timeout_s: float) -> list[bytes]:
        """Return the values of `keys` as soon as all are set."""
        deadline = time.monotonic() + timeout_s
        with self._in_use:
            self._raise_if_over()
            self._request(keys)
            while missing := [key for key in keys if key not in self._values]:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(
                        f"rendezvous {self._scope}: nobody has set {missing[0]} within {timeout_s:.1f} s"
                    )
                self._poller.poll(int(left_s * 1e3) + 1)
                self._receive()
                self._raise_if_over()
            return [self._values[key] for key in keys]

    def _request(self, keys: list[str]) -> None:
        for key in keys:
            if key not in self._values and key not in self._asked:
                self._asked.add(key)
                self._socket.send(self._codec.encode(StoreGet(scope=self._scope, key=key)))

    def _receive(self) -> None:
        """Receive the answers that have arrived."""
        while self._socket.poll(0):
            try:
                answer = self._codec.decode(self._socket.recv_multipart()[-1])
            except PeerError:
                continue  # no valid answer; the deadline still holds
            if answer.cancelled:
                self._cancelled.set()
            elif answer.key in self._asked:
                self._asked.discard(answer.key)
                self._values[answer.key] = answer.value

    def _raise_if_over(self) -> None:
        if self._cancelled.is_set() or self._wake is None:
            raise RendezvousCancelled(f"rendezvous {self._scope} was cancelled")
