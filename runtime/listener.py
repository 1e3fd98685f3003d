"""Listening sockets of a daemon: authentication of each peer, and limits on connections, messages and bytes of each.

Theory of operation
-------------------
The sender of each message is identified by the proof of its connection. On TCP that is the public key that ZAP admitted (the
frame's ``User-Id``). On a Unix socket it is the Unix user (the frame's ``Peer-Address``, from ``SO_PEERCRED``). This process sets
both properties, never the peer. A peer could claim a ``User-Id`` where no ZAP runs, so TCP and Unix connections never share a
socket.

The routing id that a connection has at a ROUTER may be chosen by the peer, and proves nothing. Peers of this project choose none;
a connection that has chosen one is cut at its first message. ZeroMQ aborts the process if a peer has chosen the very id that
ZeroMQ is about to assign to another connection. ZeroMQ assigns 32-bit numbers in sequence, starting from rand(), which has the
same default seed in every process. So rand() is seeded with a secret (`transport`), and connections per second are limited:
guessing an id takes weeks.

ZAP requests are answered in the daemon's own loop, for Unix sockets too. The ZAP handler lives exactly as long as the daemon, and
without a handler ZeroMQ admits no connection.

A revoked key is unknown at once, and its connections are cut: a frame names the descriptor of its connection, which is shut down.
The descriptor number may have been reused by another connection, so each descriptor is identified together with the inode of its
socket.

Every resource is bounded: connections of each principal and of all principals, silent connections, handshakes, messages and bytes
per second of each principal, bytes of a frame, answers that the peer does not read, log lines, and messages waiting to be
handled. A connection over which its principal exceeds a rate is cut, because further messages would wait in memory (`transport`
explains why ZeroMQ's receive queue has no limit). For a second the principal cannot connect again. A connection that does not
read the answers it has requested is cut, too.

All received messages are moved into the inbox (`inbox`) before any is handled. So the rate limits apply to what a peer sends, not
to what the daemon has time to process: otherwise a daemon starved of processor time would admit everything that arrives while it
does not run.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import socket as socketlib
import struct
import termios
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq
import zmq.utils.z85 as z85
from zmq.utils.monitor import parse_monitor_message

from ..protocol.errors import OperatorError
from ..protocol.principals import LOCAL_OPERATOR, Principal, Role
from ..protocol.rate_limit import SubjectRateLimiter
from . import transport
from .floods import Floods
from .inbox import Inbox, Room, Shed
from .keys import Pair, Principals
from .loop import MAX_TAKEN_IN_PER_TURN, Loop
from .self_heartbeat import SelfHeartbeat

log = logging.getLogger(__name__)

Peer = bytes  # the index of the socket (one byte), then the connection's routing id there

ROUTING_ID_BYTES = 5  # of an id assigned by ZeroMQ: a zero byte, then a 32-bit counter of connections
HANDSHAKES_PER_S, HANDSHAKE_BURST = 5.0, 200.0  # of one principal
LOOKS_PER_S, LOOK_BURST = 5.0, 20.0  # reloads of the list of keys because an unknown peer connects
NETWORK_THREAD, LOCAL_THREAD = 1, 2  # of ZeroMQ's threads, as bits, where there are two
REST_S = 10.0  # pause in accepting on the socket of a Unix user who connects too often
CUT_REST_S = 1.0  # after a connection was cut for flooding, during which its principal cannot connect again
MOST_GONE = 4096  # remembered connections that were cut and closed; messages of theirs may still arrive
SILENT_S = 30.0  # a connection that has sent nothing for so long is cut
DESCRIPTORS_KEPT = 256  # reserved for files and the daemon's own sockets


@dataclass(frozen=True)
class Bounds:
    """Limits on one principal."""

    connections: int = 256
    messages_per_s: float = 2000.0
    messages_burst: float = 10_000.0
    bytes_per_s: float = 32e6
    bytes_burst: float = 128e6
    unread_bytes: int = 64 << 20  # of answers sent, before the kernel's send queues are checked for unread data


@dataclass(frozen=True)
class EndpointConfig:
    """Settings of one kind of listening socket: the roles that may connect, and the limits of each connection."""

    name: str
    remote: tuple[Role, ...]  # over TCP
    local: tuple[Role, ...]  # over a socket of the file system
    frame_bytes: int
    waiting_out: int  # messages to one connection
    visitors: bool = False  # a local socket is open to every user who may enter its directory
    owner: int | None = None  # or it belongs to this Unix user, and no other user may connect
    names: bool = False  # connections may choose their routing ids: all belong to one principal
    repeated: Callable[[list[bytes]], bool] = lambda frames: False  # does the peer resend this message if it is lost?


Handler = Callable[[Peer, Principal, list[bytes]], None]


@dataclass
class Bucket:
    """Token bucket: a sustained rate, and a burst."""

    per_s: float
    burst: float
    left: float = -1.0
    at: float = 0.0

    def take(self, now: float, much: float = 1.0) -> bool:
        """Take `much` tokens. Returns False, and takes none, if fewer are left. now: monotonic time (s)."""
        self.left = self.burst if self.left < 0 else min(self.burst, self.left + self.per_s * (now - self.at))
        self.at = now
        if self.left < much:
            return False
        self.left -= much
        return True


@dataclass
class _Endpoint:
    config: EndpointConfig
    socket: transport.Socket
    local: bool
    handler: Handler
    monitor: transport.Socket
    prefix: bytes  # of a `Peer`
    address: str = ""
    heartbeat: SelfHeartbeat | None = None  # of a socket to which other users of this machine may connect
    accepted: Bucket = field(default_factory=lambda: Bucket(HANDSHAKES_PER_S, HANDSHAKE_BURST))
    rests_until: float | None = None  # does not listen until then (monotonic, s)


@dataclass
class _Connection:
    """A connection that has sent a message."""

    who: Principal
    proof: str  # a public key, or a Unix user id
    descriptor: int
    inode: int | None
    usage: _Usage
    cut: bool = False  # was shut down: messages that still arrive were sent before, and are dropped


@dataclass
class _Usage:
    """The token buckets and connections of one principal that has sent a message."""

    messages: Bucket
    bytes_: Bucket
    owed: int = 0  # bytes of answers sent since the last check that the principal reads them
    cut_at: float | None = None  # time of the last cut of a connection for flooding (monotonic, s)
    connections: dict[Peer, None] = field(default_factory=dict)


class Listener:
    """The listening sockets of one daemon, used from its loop's thread."""

    def __init__(
        self,
        context: zmq.Context[transport.Socket],
        loop: Loop,
        pair: Pair | None,
        principals: Principals,
        bounds: Bounds,
        clock: Callable[[], float] = time.monotonic,
        most: int | None = None,
        look: Callable[[], None] = lambda: None,
        floods: Floods | None = None,
    ) -> None:
        """pair: the daemon's own key pair; without one the daemon cannot listen on TCP. most: limit on all connections, where
        it is below the limit of open files. look: called when an unknown peer connects, as its key may just have been added; it
        may call `update`. floods: counters of dropped messages and cut connections, shared where several listeners count
        together."""
        self._context = context
        self._loop = loop
        self._pair = pair
        self._principals = principals
        self._bounds = bounds
        self._clock = clock
        self._endpoints: list[_Endpoint] = []
        self._connections: dict[Peer, _Connection] = {}
        self._at: dict[int, Peer] = {}  # by descriptor
        self._usages: dict[Principal, _Usage] = {}
        self._handshakes: dict[Principal, Bucket] = {}
        self._look = look
        self._looks = Bucket(LOOKS_PER_S, LOOK_BURST)
        self._silent: OrderedDict[int, tuple[int | None, float]] = OrderedDict()  # inode and time, by descriptor
        self._rate_limiter = SubjectRateLimiter()
        self._most = max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_KEPT)
        self._most = min(self._most, most or self._most)
        self._gone: OrderedDict[Peer, Principal] = OrderedDict()  # principals of connections that were cut and closed
        self.floods = floods or Floods()
        self._inbox: Inbox[Principal, Peer, _Message] = Inbox(Room(messages=int(bounds.messages_burst)))
        self._waiting = lambda: self._inbox.messages
        loop.add_backlog(self._waiting, self._handle)
        self._zap: transport.Socket = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.sndhwm = self._zap.rcvhwm = 0
        self._zap.bind(transport.ZAP_ADDRESS)
        loop.add_socket(self._zap, self._on_zap)

    def listen(self, config: EndpointConfig, addresses: Sequence[str], handler: Handler) -> list[str]:
        """Serve these addresses. Returns the addresses that peers connect to. Raises OperatorError if one cannot be bound."""
        return [self._listen(config, address, handler) for address in addresses]

    def _listen(self, config: EndpointConfig, address: str, handler: Handler) -> str:
        local = address.startswith("ipc://")
        pair = None if local else self._pair
        socket = transport.router(self._context, pair)
        socket.sndhwm = config.waiting_out
        socket.maxmsgsize = config.frame_bytes
        if (
            self._context.get(zmq.IO_THREADS) > 1
        ):  # so that a peer that blocks the I/O thread of local sockets does not block the network's
            socket.setsockopt(zmq.AFFINITY, LOCAL_THREAD if local else NETWORK_THREAD)
        number = len(self._endpoints)
        socket.zap_domain = str(number).encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        events = f"inproc://listener-{id(self)}-{number}"
        socket.monitor(events, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        monitor: transport.Socket = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        monitor.rcvhwm = 0  # with a limit ZeroMQ's I/O thread would block on a full queue
        monitor.connect(events)
        endpoint = _Endpoint(config, socket, local, handler, monitor, bytes((number,)))
        self._endpoints.append(endpoint)
        try:
            endpoint.address = bound = self._bind(endpoint, address)
            if local and config.visitors:
                endpoint.heartbeat = SelfHeartbeat(bound)
        except OperatorError:
            self._endpoints.remove(endpoint)
            _close(endpoint)
            raise
        self._loop.add_socket(monitor, lambda frames: self._on_event(endpoint, frames), MAX_TAKEN_IN_PER_TURN)
        self._loop.add_frames(socket, lambda frames: self._on_message(endpoint, frames))
        return bound

    def _bind(self, endpoint: _Endpoint, address: str) -> str:
        config = endpoint.config
        bound = transport.bind(endpoint.socket, address, None if endpoint.local else self._pair)
        if endpoint.local and config.visitors:
            transport.open_to_visitors(bound)
        elif endpoint.local and config.owner is not None:
            transport.give_to(bound, config.owner)
        return bound

    def _rest(self, endpoint: _Endpoint, now: float) -> None:
        """Stop accepting on this socket for REST_S: connections arrive faster than they can be cut."""
        endpoint.rests_until = now + REST_S
        with contextlib.suppress(zmq.ZMQError):
            endpoint.socket.unbind(endpoint.address)
        self._warn(
            f"{endpoint.config.name} rest", f"{endpoint.config.name} connect too often: not heard for {REST_S:.0f} s"
        )

    def _listen_again(self, endpoint: _Endpoint, now: float) -> None:
        try:
            self._bind(endpoint, endpoint.address)
            endpoint.rests_until = None
        except OperatorError as error:
            endpoint.rests_until = now + REST_S
            self._warn(f"{endpoint.config.name} rest", f"{endpoint.config.name} cannot be heard again: {error}")

    def send(self, peer: Peer, *frames: bytes) -> bool:
        """Send a message to a peer. Returns False if the peer is gone or does not read."""
        connection = self._connections.get(peer)
        if connection is not None and not self._reads(connection, sum(map(len, frames))):
            return False
        return transport.send(self._endpoints[peer[0]].socket, peer[1:], *frames)

    def _reads(self, connection: _Connection, size: int) -> bool:
        """Return whether the principal of this connection reads its answers. Cuts those of its connections that do not."""
        usage = self._usages[connection.who]
        usage.owed += size
        if usage.owed > self._bounds.unread_bytes:
            usage.owed = 0
            full = [
                each
                for peer in usage.connections
                if not (each := self._connections[peer]).cut and _unsent(each.descriptor)
            ]
            for each in full:
                self._cut_connection(each)
            if full:
                self._warn(
                    f"{connection.who} reads",
                    f"{connection.who} does not read its answers: {len(full)} connections are cut",
                )
        return not connection.cut

    def update(self, principals: Principals) -> None:
        """Replace the list of principals, and cut the connections of those that are no longer known."""
        self._principals = principals
        self._handshakes.clear()
        still = {each.public for each in principals.known if each.revoked_s is None}
        log.info("%d principals have keys", len(still))
        for peer, connection in list(self._connections.items()):
            endpoint = self._endpoints[peer[0]]
            if self._known(endpoint, connection.proof) != connection.who:
                log.info("cut a connection of %s", connection.who)
                self._cut(connection.descriptor, connection.inode)
                self._forget(peer)
        self._usages = {who: usage for who, usage in self._usages.items() if usage.connections}

    def pass_time(self) -> None:
        """Cut silent connections, resume listening where a pause is over, and send the heartbeats. Called about once a second."""
        now = self._clock()
        for endpoint in self._endpoints:
            if endpoint.heartbeat is not None:
                endpoint.heartbeat.send(now)
            if endpoint.rests_until is not None and now >= endpoint.rests_until:
                self._listen_again(endpoint, now)
        while self._silent:
            descriptor, (inode, since) = next(iter(self._silent.items()))
            if now - since < SILENT_S:
                return
            del self._silent[descriptor]
            self._cut(descriptor, inode)

    def is_receiving(self) -> bool:
        """Return whether messages of local peers still arrive. If not, a peer blocks ZeroMQ's I/O thread."""
        now = self._clock()
        return all(endpoint.heartbeat.is_alive(now) for endpoint in self._endpoints if endpoint.heartbeat is not None)

    def close(self) -> None:
        for endpoint in self._endpoints:
            self._loop.remove_socket(endpoint.monitor)
            self._loop.remove_socket(endpoint.socket)
            _close(endpoint)
        self._loop.remove_backlog(self._waiting)
        self._loop.remove_socket(self._zap)
        self._zap.close()

    @property
    def waiting(self) -> int:
        """Number of received messages that are not handled yet."""
        return self._inbox.messages

    # -- handshakes

    def _on_zap(self, frames: list[bytes]) -> None:
        asked = _zap_request(frames)
        if asked is not None:
            transport.send(self._zap, *asked.envelope, b"1.0", asked.request, *self._judge(asked), b"")

    def _judge(self, asked: _Asked) -> tuple[bytes, bytes, bytes]:
        """Return the status of a ZAP answer, its text, and the user id."""
        endpoint = self._endpoints[int(asked.domain)]  # the domain is the index, set in `_listen`
        config, address = endpoint.config, asked.address
        if endpoint.local:
            proof = _uid(address)
        elif asked.mechanism == b"CURVE" and len(asked.credentials) == 1 and len(asked.credentials[0]) == 32:
            proof = z85.encode(asked.credentials[0]).decode()
        else:
            return b"400", b"only keys are let in", b""
        who = self._known(endpoint, proof)
        if who is None and self._looks.take(self._clock()):
            self._look()
            who = self._known(endpoint, proof)
        if who is None:
            what = f"user {proof}" if endpoint.local else "a key that is unknown, revoked or of another role"
            self._warn(f"{address} {config.name}", f"refused {what}, from {address}, on the socket for {config.name}")
            return b"400", b"not known here", b""
        if not (endpoint.local and who.role is Role.OPERATOR):  # a local operator could kill this process anyway
            bucket = self._handshakes.setdefault(who, Bucket(HANDSHAKES_PER_S, HANDSHAKE_BURST))
            usage, now = self._usages.get(who), self._clock()
            rests = usage is not None and usage.cut_at is not None and now - usage.cut_at < CUT_REST_S
            if not bucket.take(now) or rests:
                self._warn(f"{who} handshakes", f"{who} connects too often")
                return b"300", b"too many connections, try again", b""
        return b"200", b"OK", proof.encode()

    # -- connections

    def _on_event(self, endpoint: _Endpoint, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        descriptor = int(event["value"])
        inode = _inode(descriptor)
        if event["event"] == zmq.EVENT_ACCEPTED:
            owner, now = endpoint.config.owner, self._clock()
            if owner not in (None, os.getuid()) and not endpoint.accepted.take(now) and endpoint.rests_until is None:
                self._rest(endpoint, now)
            spoken = self._connection_at(descriptor)
            if inode is None or (spoken is not None and spoken.inode == inode):
                return  # the connection is closed again, or has sent a message already
            if len(self._silent) + len(self._connections) >= self._most:
                oldest, (its_inode, _) = self._silent.popitem(last=False) if self._silent else (descriptor, (inode, 0))
                self._warn("connections", f"there are {self._most} connections: one that says nothing is cut")
                self._cut(oldest, its_inode)
                if oldest == descriptor:
                    return
            self._silent.pop(descriptor, None)
            self._silent[descriptor] = (inode, now)
            return
        waiting = self._silent.get(descriptor)
        if waiting is not None and waiting[0] != inode:
            del self._silent[descriptor]
        spoken = self._connection_at(descriptor)
        if spoken is not None and spoken.inode != inode:
            self._forget(self._at[descriptor])

    def _connection_at(self, descriptor: int) -> _Connection | None:
        peer = self._at.get(descriptor)
        return None if peer is None else self._connections.get(peer)

    def _new_connection(self, peer: Peer, who: Principal, proof: str, descriptor: int) -> _Connection | None:
        """Register a connection. Returns None, and cuts it, if its principal has too many connections."""
        self._forget(peer)
        if (before := self._at.get(descriptor)) is not None:
            self._forget(before)
        inode = _inode(descriptor)
        self._silent.pop(descriptor, None)
        usage = self._usages.get(who)
        if usage is None:
            bounds = self._bounds
            usage = self._usages[who] = _Usage(
                Bucket(bounds.messages_per_s, bounds.messages_burst), Bucket(bounds.bytes_per_s, bounds.bytes_burst)
            )
        if len(usage.connections) >= self._bounds.connections:
            self._warn(f"{who} connections", f"{who} has {len(usage.connections)} connections: another one is cut")
            self._cut(descriptor, inode)
            return None
        connection = self._connections[peer] = _Connection(who, proof, descriptor, inode, usage)
        self._at[descriptor] = peer
        usage.connections[peer] = None
        return connection

    def _forget(self, peer: Peer) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            if self._at.get(connection.descriptor) == peer:
                del self._at[connection.descriptor]
            self._usages[connection.who].connections.pop(peer, None)
            if (
                connection.cut and not self._endpoints[peer[0]].config.names
            ):  # ZeroMQ does not reuse an id that it assigned
                self._gone[peer] = connection.who
                if len(self._gone) > MOST_GONE:
                    self._gone.popitem(last=False)

    # -- messages

    def _on_message(self, endpoint: _Endpoint, frames: list[zmq.Frame]) -> None:
        """Identify the sender of a message, then put the message into the inbox or drop it."""
        last, routing = frames[-1], frames[0].bytes
        peer = endpoint.prefix + routing
        connection = self._connections.get(peer)
        late = (
            self._gone.get(peer)
            if connection is None
            else connection.who
            if connection.cut and not endpoint.config.names
            else None
        )
        if late is not None:
            self.floods.dropped[late.role.value] += 1
            return
        proof, descriptor = _proof(endpoint, last), _descriptor(last)
        known = (
            connection is not None and connection.proof == proof and connection.descriptor == descriptor
        )  # see `update`
        if (
            known and connection is not None and connection.cut and endpoint.config.names
        ):  # a new connection may have the same name
            known = connection.inode == _inode(descriptor)
        if not known:
            connection = self._introduced(endpoint, routing, proof, descriptor)
        if connection is None:
            return
        if connection.cut:
            self.floods.dropped[connection.who.role.value] += 1
            return
        if (
            endpoint.heartbeat is not None
            and connection.who == LOCAL_OPERATOR
            and endpoint.heartbeat.receive(last.bytes)
        ):
            return
        size = sum(map(len, frames))
        if not self._may_say(connection, size):
            self.floods.dropped[connection.who.role.value] += 1
            self._cut_flooding(connection)
            return
        said = [frame.bytes for frame in frames[1:]]
        for shed in self._inbox.put(
            connection.who, peer, (endpoint, proof, said), size, endpoint.config.repeated(said)
        ):
            self._shed(shed)

    def _shed(self, shed: Shed[Principal, Peer]) -> None:
        """Count and log messages that the inbox dropped for lack of room."""
        self.floods.dropped[shed.who.role.value] += shed.messages
        if shed.cut is None:
            text = f"{shed.who} says more than is handled: what it repeats anyway is dropped, but the newest"
            self._warn(f"{shed.who} repeated", text)
            return
        self._warn(
            f"{shed.who} waiting",
            f"{shed.who} says more than is handled: a connection is cut, with {shed.messages} messages that waited",
        )
        connection = self._connections.get(shed.cut)
        if connection is not None:
            self._cut_flooding(connection)

    def _handle(self) -> None:
        """Handle the next waiting message, unless its sender's key was revoked or reassigned since it arrived."""
        who, peer, (endpoint, proof, frames) = self._inbox.take()
        if self._known(endpoint, proof) == who:
            endpoint.handler(peer, who, frames)

    def _introduced(self, endpoint: _Endpoint, routing: bytes, proof: str, descriptor: int) -> _Connection | None:
        """Register a connection at its first message. Returns None, and cuts it, if the connection is not admitted."""
        who = self._known(endpoint, proof)
        given = len(routing) == ROUTING_ID_BYTES and routing[0] == 0
        if who is None or not (given or endpoint.config.names):
            what = "somebody unknown" if who is None else f"{who}, who gives its connection a name"
            self._warn(
                f"{what} {endpoint.config.name}",
                f"dropped a message of {what}, on the socket for {endpoint.config.name}",
            )
            self._cut(descriptor, _inode(descriptor))
            return None
        return self._new_connection(endpoint.prefix + routing, who, proof, descriptor)

    def _may_say(self, connection: _Connection, size: int) -> bool:
        usage, bounds, now = connection.usage, self._bounds, self._clock()
        if not usage.messages.take(now):
            much = f"{bounds.messages_per_s:.0f} messages"
        elif not usage.bytes_.take(now, size):
            much = f"{bounds.bytes_per_s / 1e6:.0f} MB"
        else:
            return True
        who = connection.who
        self._warn(f"{who} messages", f"{who} says more than {much} a second: a connection is cut")
        return False

    def _cut_flooding(self, connection: _Connection) -> None:
        self.floods.cut[connection.who.role.value] += 1
        connection.usage.cut_at = self._clock()
        self._cut_connection(connection)

    def _cut_connection(self, connection: _Connection) -> None:
        connection.cut = True
        self._cut(connection.descriptor, connection.inode)

    def _known(self, endpoint: _Endpoint, proof: str) -> Principal | None:
        """Return the principal with this proof, if its role may use this endpoint."""
        if endpoint.local:
            who = self._principals.of_uid(int(proof)) if proof else None
            return who if who is not None and who.role in endpoint.config.local else None
        who = self._principals.of_key(proof)
        return who if who is not None and who.role in endpoint.config.remote else None

    def _cut(self, descriptor: int, inode: int | None) -> None:
        if inode is None:
            return
        with contextlib.suppress(OSError), socketlib.socket(fileno=os.dup(descriptor)) as connection:
            if _inode(connection.fileno()) == inode:  # checked on the duplicate, which no other thread can close
                connection.shutdown(socketlib.SHUT_RDWR)  # ZeroMQ's I/O thread reads end-of-file, and closes it

    def _warn(self, subject: str, text: str) -> None:
        since = self._rate_limiter.admit(subject, self._clock())
        if since is not None:
            log.warning("%s%s", text, f" ({since} times more before)" if since else "")


_Message = tuple[
    _Endpoint, str, list[bytes]
]  # the endpoint, the proof of the connection, the frames without the routing id


def _close(endpoint: _Endpoint) -> None:
    if endpoint.heartbeat is not None:
        endpoint.heartbeat.close()
    endpoint.socket.disable_monitor()
    endpoint.monitor.close()
    endpoint.socket.close()


def _proof(endpoint: _Endpoint, frame: zmq.Frame) -> str:
    """Return the public key or Unix user id that a frame's connection has proved; "" if none."""
    try:
        if not endpoint.local:
            return str(frame.get("User-Id"))
        return _uid(str(frame.get("Peer-Address")))
    except zmq.ZMQError:
        return ""


def _uid(address: str) -> str:
    """Return the UID of localhost:UID:GID:PID; "" for another form."""
    parts = address.split(":")
    return parts[1] if len(parts) == 4 and parts[1].isdecimal() else ""


def _inode(descriptor: int) -> int | None:
    """Return the inode of a descriptor's socket, which is unique among open sockets; None for a closed descriptor."""
    try:
        return os.fstat(descriptor).st_ino if descriptor >= 0 else None
    except OSError:
        return None


def _unsent(descriptor: int) -> int:
    """Return the bytes in the kernel's send queue: more than 0 where the peer does not read, or is slow to acknowledge."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


class JobKeyAuthenticator:
    """ZAP handler of a context that admits only peers with the same key pair: the workers of one job."""

    def __init__(self, context: zmq.Context[transport.Socket], loop: Loop, pair: Pair) -> None:
        self._public = z85.decode(pair.public)
        self._zap: transport.Socket = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.bind(transport.ZAP_ADDRESS)
        loop.add_socket(self._zap, self._on_zap)

    def _on_zap(self, frames: list[bytes]) -> None:
        asked = _zap_request(frames)
        if asked is not None:
            fellow = asked.mechanism == b"CURVE" and asked.credentials == [self._public]
            status = (b"200", b"OK", b"fellow") if fellow else (b"400", b"not of this job", b"")
            transport.send(self._zap, *asked.envelope, b"1.0", asked.request, *status, b"")


@dataclass(frozen=True)
class _Asked:
    """A ZAP request (ZeroMQ's RFC 27): may this key connect?"""

    envelope: list[bytes]
    request: bytes
    domain: str
    address: str
    mechanism: bytes
    credentials: list[bytes]


def _zap_request(frames: list[bytes]) -> _Asked | None:
    try:
        start = frames.index(b"") + 1
        _, request, domain, address, _, mechanism, *credentials = frames[start:]
    except ValueError:
        return None
    return _Asked(frames[:start], request, domain.decode(), address.decode(), mechanism, credentials)
