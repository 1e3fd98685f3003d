"""The door of a daemon: the sockets that many peers connect to, who each of them is, and how much each may ask.

Theory of operation
-------------------
Who speaks is found out anew for each message, from what its connection has proved: on TCP the public key that ZAP let in (the
frame's ``User-Id``), on a socket of the file system the Unix user (the frame's ``Peer-Address``, from ``SO_PEERCRED``). Both are
set by our own side of the connection. A peer could claim a ``User-Id`` where no ZAP runs, so the two kinds never share a socket.

The name that a connection has at a ROUTER (the routing id) is chosen by the peer if it likes, and proves nothing. Peers here
choose none. One that does is cut off when it speaks. ZeroMQ ends the process if a peer has chosen the very name that it is about
to give to another connection. It gives 32-bit numbers in turn, beginning with what rand() says, which begins the same in every
process. So rand() is begun with a secret (`transport`), and connections by second are bounded: guessing takes weeks.

ZAP is answered in the daemon's own loop, for sockets of the file system too: as long as the daemon lives, so does the handler,
and without one ZeroMQ lets nobody in.

A key that is revoked is unknown from then on. Its connections are cut: a frame tells the descriptor of its connection, which is
shut down. The descriptor may be another connection's by then, so it is known with the inode of its socket.

Everything is bounded: connections of each principal and of all together, connections that say nothing, handshakes, messages and
bytes by second of each principal, bytes of a frame, answers that nobody reads, lines in the log, and what waits to be handled. A
connection over which its principal says too much is cut, as what it goes on saying would wait in memory (`transport` tells why
that queue has no limit of its own), and for a second the principal makes no new one. So is one that does not read what it has
asked for.

What comes in is taken in before anything is handled (`inbox`), however much it is. So the limits count what a peer *says*, and
not what the daemon gets round to: one that is starved of processor would let all pass that arrives while it does not run.
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
from ..protocol.sparing import SparingBySubject
from . import transport
from .floods import Floods
from .inbox import Inbox, Room, Shed
from .keys import Pair, Principals
from .loop import MAX_TAKEN_IN_PER_TURN, Loop
from .pulse import Pulse

log = logging.getLogger(__name__)

Peer = bytes  # which socket (one byte), and the connection's name there

ROUTING_ID_BYTES = 5  # of one that ZeroMQ has chosen: a zero, and a number that counts connections
HANDSHAKES_PER_S, HANDSHAKE_BURST = 5.0, 200.0  # of one principal
LOOKS_PER_S, LOOK_BURST = 5.0, 20.0  # at the list of keys, since somebody unknown has knocked
NETWORK_THREAD, LOCAL_THREAD = 1, 2  # of ZeroMQ's threads, as bits, where there are two
REST_S = 10.0  # for which nothing is accepted on the socket of a user who connects too often
CUT_REST_S = 1.0  # after a connection of a principal was cut for saying too much, it makes no other one
MOST_GONE = 4096  # connections that were cut and are gone, of which something may still come
SILENT_S = 30.0  # a connection that has said nothing for so long is cut
DESCRIPTORS_KEPT = 256  # for files and the daemon's own sockets


@dataclass(frozen=True)
class Bounds:
    """How much one principal may do."""

    connections: int = 256
    messages_per_s: float = 2000.0
    messages_burst: float = 10_000.0
    bytes_per_s: float = 32e6
    bytes_burst: float = 128e6
    unread_bytes: int = 64 << 20  # of answers, before it is looked whether they are read


@dataclass(frozen=True)
class Gate:
    """One kind of socket: who may come, and how much may wait for each connection."""

    name: str
    remote: tuple[Role, ...]  # over TCP
    local: tuple[Role, ...]  # over a socket of the file system
    frame_bytes: int
    waiting_out: int  # messages to one connection
    visitors: bool = False  # a local socket is open to whoever may enter its directory
    owner: int | None = None  # or it belongs to this Unix user, and no other one may connect
    names: bool = False  # connections may have names of their own: they are all of one principal
    repeated: Callable[[list[bytes]], bool] = lambda frames: False  # is this message said again if it is lost?


Handler = Callable[[Peer, Principal, list[bytes]], None]


@dataclass
class Bucket:
    """So many a second, and so many at once."""

    per_s: float
    burst: float
    left: float = -1.0
    at: float = 0.0

    def take(self, now: float, much: float = 1.0) -> bool:
        """So much more. False: it is too much. now: monotonic, s."""
        self.left = self.burst if self.left < 0 else min(self.burst, self.left + self.per_s * (now - self.at))
        self.at = now
        if self.left < much:
            return False
        self.left -= much
        return True


@dataclass
class _Listener:
    gate: Gate
    socket: transport.Socket
    local: bool
    handler: Handler
    monitor: transport.Socket
    prefix: bytes  # of a `Peer`
    address: str = ""
    pulse: Pulse | None = None  # where others of this machine may connect
    accepted: Bucket = field(default_factory=lambda: Bucket(HANDSHAKES_PER_S, HANDSHAKE_BURST))
    rests_until: float | None = None  # it does not listen until then


@dataclass
class _Line:
    """A connection that has spoken."""

    who: Principal
    proof: str  # a public key, or the number of a Unix user
    descriptor: int
    inode: int | None
    guest: _Guest
    cut: bool = False  # what still comes over it was said before, and is dropped


@dataclass
class _Guest:
    """A principal that has spoken."""

    messages: Bucket
    bytes_: Bucket
    owed: int = 0  # bytes of answers since it was last seen that they are read
    cut_at: float | None = None  # when a connection was cut last since it said too much
    lines: dict[Peer, None] = field(default_factory=dict)


class Door:
    """The sockets of one daemon, in its loop's thread."""

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
        """pair: the daemon's own; without one it cannot listen on TCP. most: connections of all, if that is less than there may
        be open files. look: called when somebody unknown knocks, who may just have become known: it may call `update`. floods:
        counts of what is done about them, where several doors count together."""
        self._context = context
        self._loop = loop
        self._pair = pair
        self._principals = principals
        self._bounds = bounds
        self._clock = clock
        self._listeners: list[_Listener] = []
        self._lines: dict[Peer, _Line] = {}
        self._at: dict[int, Peer] = {}  # by descriptor
        self._guests: dict[Principal, _Guest] = {}
        self._handshakes: dict[Principal, Bucket] = {}
        self._look = look
        self._looks = Bucket(LOOKS_PER_S, LOOK_BURST)
        self._silent: OrderedDict[int, tuple[int | None, float]] = OrderedDict()  # inode and time, by descriptor
        self._sparing = SparingBySubject()
        self._most = max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_KEPT)
        self._most = min(self._most, most or self._most)
        self._gone: OrderedDict[Peer, Principal] = OrderedDict()  # whose connections were cut, and are closed
        self.floods = floods or Floods()
        self._inbox: Inbox[Principal, Peer, _Message] = Inbox(Room(messages=int(bounds.messages_burst)))
        self._waiting = lambda: self._inbox.messages
        loop.add_backlog(self._waiting, self._handle)
        self._zap: transport.Socket = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.sndhwm = self._zap.rcvhwm = 0
        self._zap.bind(transport.ZAP_ADDRESS)
        loop.add_socket(self._zap, self._on_zap)

    def listen(self, gate: Gate, addresses: Sequence[str], handler: Handler) -> list[str]:
        """Serve these addresses. Returns them as peers connect to them. Raises OperatorError."""
        return [self._listen(gate, address, handler) for address in addresses]

    def _listen(self, gate: Gate, address: str, handler: Handler) -> str:
        local = address.startswith("ipc://")
        pair = None if local else self._pair
        socket = transport.router(self._context, pair)
        socket.sndhwm = gate.waiting_out
        socket.maxmsgsize = gate.frame_bytes
        if (
            self._context.get(zmq.IO_THREADS) > 1
        ):  # who holds up the thread of local sockets does not hold up the network's
            socket.setsockopt(zmq.AFFINITY, LOCAL_THREAD if local else NETWORK_THREAD)
        number = len(self._listeners)
        socket.zap_domain = str(number).encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        told = f"inproc://door-{id(self)}-{number}"
        socket.monitor(told, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        monitor: transport.Socket = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        monitor.rcvhwm = 0  # ZeroMQ's own thread would wait for room
        monitor.connect(told)
        listener = _Listener(gate, socket, local, handler, monitor, bytes((number,)))
        self._listeners.append(listener)
        try:
            listener.address = bound = self._bind(listener, address)
            if local and gate.visitors:
                listener.pulse = Pulse(bound)
        except OperatorError:
            self._listeners.remove(listener)
            _close(listener)
            raise
        self._loop.add_socket(monitor, lambda frames: self._on_event(listener, frames), MAX_TAKEN_IN_PER_TURN)
        self._loop.add_frames(socket, lambda frames: self._on_message(listener, frames))
        return bound

    def _bind(self, listener: _Listener, address: str) -> str:
        gate = listener.gate
        bound = transport.bind(listener.socket, address, None if listener.local else self._pair)
        if listener.local and gate.visitors:
            transport.open_to_visitors(bound)
        elif listener.local and gate.owner is not None:
            transport.give_to(bound, gate.owner)
        return bound

    def _rest(self, listener: _Listener, now: float) -> None:
        """Whoever may connect to this socket does so faster than connections can be cut."""
        listener.rests_until = now + REST_S
        with contextlib.suppress(zmq.ZMQError):
            listener.socket.unbind(listener.address)
        self._warn(
            f"{listener.gate.name} rest", f"{listener.gate.name} connect too often: not heard for {REST_S:.0f} s"
        )

    def _listen_again(self, listener: _Listener, now: float) -> None:
        try:
            self._bind(listener, listener.address)
            listener.rests_until = None
        except OperatorError as error:
            listener.rests_until = now + REST_S
            self._warn(f"{listener.gate.name} rest", f"{listener.gate.name} cannot be heard again: {error}")

    def send(self, peer: Peer, *frames: bytes) -> bool:
        """False: the peer is not there any more, or does not read."""
        line = self._lines.get(peer)
        if line is not None and not self._reads(line, sum(map(len, frames))):
            return False
        return transport.send(self._listeners[peer[0]].socket, peer[1:], *frames)

    def _reads(self, line: _Line, size: int) -> bool:
        """Does the principal at this connection read what it is sent? Connections of it that do not are cut."""
        guest = self._guests[line.who]
        guest.owed += size
        if guest.owed > self._bounds.unread_bytes:
            guest.owed = 0
            full = [each for peer in guest.lines if not (each := self._lines[peer]).cut and _unsent(each.descriptor)]
            for each in full:
                self._cut_line(each)
            if full:
                self._warn(
                    f"{line.who} reads", f"{line.who} does not read its answers: {len(full)} connections are cut"
                )
        return not line.cut

    def update(self, principals: Principals) -> None:
        """Who is known has changed: whoever is not any more is cut off."""
        self._principals = principals
        self._handshakes.clear()
        still = {each.public for each in principals.known if each.revoked_s is None}
        log.info("%d principals have keys", len(still))
        for peer, line in list(self._lines.items()):
            listener = self._listeners[peer[0]]
            if self._known(listener, line.proof) != line.who:
                log.info("cut a connection of %s", line.who)
                self._cut(line.descriptor, line.inode)
                self._forget(peer)
        self._guests = {who: guest for who, guest in self._guests.items() if guest.lines}

    def pass_time(self) -> None:
        """Cut the connections that say nothing, listen again where that was enough for a while, and see whether we are heard.
        About once a second."""
        now = self._clock()
        for listener in self._listeners:
            if listener.pulse is not None:
                listener.pulse.beat(now)
            if listener.rests_until is not None and now >= listener.rests_until:
                self._listen_again(listener, now)
        while self._silent:
            descriptor, (inode, since) = next(iter(self._silent.items()))
            if now - since < SILENT_S:
                return
            del self._silent[descriptor]
            self._cut(descriptor, inode)

    def hears(self) -> bool:
        """Is what local peers say heard? If not, a peer holds up ZeroMQ's thread."""
        now = self._clock()
        return all(listener.pulse.stands(now) for listener in self._listeners if listener.pulse is not None)

    def close(self) -> None:
        for listener in self._listeners:
            self._loop.remove_socket(listener.monitor)
            self._loop.remove_socket(listener.socket)
            _close(listener)
        self._loop.remove_backlog(self._waiting)
        self._loop.remove_socket(self._zap)
        self._zap.close()

    @property
    def waiting(self) -> int:
        """Messages that are not handled yet."""
        return self._inbox.messages

    # -- handshakes

    def _on_zap(self, frames: list[bytes]) -> None:
        asked = _zap_request(frames)
        if asked is not None:
            transport.send(self._zap, *asked.envelope, b"1.0", asked.request, *self._judge(asked), b"")

    def _judge(self, asked: _Asked) -> tuple[bytes, bytes, bytes]:
        """Status, its text, and who it is."""
        listener = self._listeners[int(asked.domain)]  # as we have called it
        gate, address = listener.gate, asked.address
        if listener.local:
            proof = _uid(address)
        elif asked.mechanism == b"CURVE" and len(asked.credentials) == 1 and len(asked.credentials[0]) == 32:
            proof = z85.encode(asked.credentials[0]).decode()
        else:
            return b"400", b"only keys are let in", b""
        who = self._known(listener, proof)
        if who is None and self._looks.take(self._clock()):
            self._look()
            who = self._known(listener, proof)
        if who is None:
            what = f"user {proof}" if listener.local else "a key that is unknown, revoked or of another role"
            self._warn(f"{address} {gate.name}", f"refused {what}, from {address}, at the door for {gate.name}")
            return b"400", b"not known here", b""
        if not (listener.local and who.role is Role.OPERATOR):  # who could end this process anyway
            bucket = self._handshakes.setdefault(who, Bucket(HANDSHAKES_PER_S, HANDSHAKE_BURST))
            guest, now = self._guests.get(who), self._clock()
            rests = guest is not None and guest.cut_at is not None and now - guest.cut_at < CUT_REST_S
            if not bucket.take(now) or rests:
                self._warn(f"{who} handshakes", f"{who} connects too often")
                return b"300", b"too many connections, try again", b""
        return b"200", b"OK", proof.encode()

    # -- connections

    def _on_event(self, listener: _Listener, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        descriptor = int(event["value"])
        inode = _inode(descriptor)
        if event["event"] == zmq.EVENT_ACCEPTED:
            owner, now = listener.gate.owner, self._clock()
            if owner not in (None, os.getuid()) and not listener.accepted.take(now) and listener.rests_until is None:
                self._rest(listener, now)
            spoken = self._line_at(descriptor)
            if inode is None or (spoken is not None and spoken.inode == inode):
                return  # it has gone again, or has spoken already
            if len(self._silent) + len(self._lines) >= self._most:
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
        spoken = self._line_at(descriptor)
        if spoken is not None and spoken.inode != inode:
            self._forget(self._at[descriptor])

    def _line_at(self, descriptor: int) -> _Line | None:
        peer = self._at.get(descriptor)
        return None if peer is None else self._lines.get(peer)

    def _new_line(self, peer: Peer, who: Principal, proof: str, descriptor: int) -> _Line | None:
        """None: its principal has too many connections."""
        self._forget(peer)
        if (before := self._at.get(descriptor)) is not None:
            self._forget(before)
        inode = _inode(descriptor)
        self._silent.pop(descriptor, None)
        guest = self._guests.get(who)
        if guest is None:
            bounds = self._bounds
            guest = self._guests[who] = _Guest(
                Bucket(bounds.messages_per_s, bounds.messages_burst), Bucket(bounds.bytes_per_s, bounds.bytes_burst)
            )
        if len(guest.lines) >= self._bounds.connections:
            self._warn(f"{who} connections", f"{who} has {len(guest.lines)} connections: another one is cut")
            self._cut(descriptor, inode)
            return None
        line = self._lines[peer] = _Line(who, proof, descriptor, inode, guest)
        self._at[descriptor] = peer
        guest.lines[peer] = None
        return line

    def _forget(self, peer: Peer) -> None:
        line = self._lines.pop(peer, None)
        if line is not None:
            if self._at.get(line.descriptor) == peer:
                del self._at[line.descriptor]
            self._guests[line.who].lines.pop(peer, None)
            if line.cut and not self._listeners[peer[0]].gate.names:  # ZeroMQ gives no number twice
                self._gone[peer] = line.who
                if len(self._gone) > MOST_GONE:
                    self._gone.popitem(last=False)

    # -- messages

    def _on_message(self, listener: _Listener, frames: list[zmq.Frame]) -> None:
        """Take it in, or drop it."""
        last, routing = frames[-1], frames[0].bytes
        peer = listener.prefix + routing
        line = self._lines.get(peer)
        late = self._gone.get(peer) if line is None else line.who if line.cut and not listener.gate.names else None
        if late is not None:
            self.floods.dropped[late.role.value] += 1
            return
        proof, descriptor = _proof(listener, last), _descriptor(last)
        known = line is not None and line.proof == proof and line.descriptor == descriptor  # see `update`
        if known and line is not None and line.cut and listener.gate.names:  # it may be another one of that name
            known = line.inode == _inode(descriptor)
        if not known:
            line = self._introduced(listener, routing, proof, descriptor)
        if line is None:
            return
        if line.cut:
            self.floods.dropped[line.who.role.value] += 1
            return
        if listener.pulse is not None and line.who == LOCAL_OPERATOR and listener.pulse.heard(last.bytes):
            return
        size = sum(map(len, frames))
        if not self._may_say(line, size):
            self.floods.dropped[line.who.role.value] += 1
            self._cut_flooding(line)
            return
        said = [frame.bytes for frame in frames[1:]]
        for shed in self._inbox.put(line.who, peer, (listener, proof, said), size, listener.gate.repeated(said)):
            self._shed(shed)

    def _shed(self, shed: Shed[Principal, Peer]) -> None:
        """Something had to go for which there was no room."""
        self.floods.dropped[shed.who.role.value] += shed.messages
        if shed.cut is None:
            text = f"{shed.who} says more than is handled: what it repeats anyway is dropped, but the newest"
            self._warn(f"{shed.who} repeated", text)
            return
        self._warn(
            f"{shed.who} waiting",
            f"{shed.who} says more than is handled: a connection is cut, with {shed.messages} messages that waited",
        )
        line = self._lines.get(shed.cut)
        if line is not None:
            self._cut_flooding(line)

    def _handle(self) -> None:
        """The next of those that wait, if whoever has said it is still who he was."""
        who, peer, (listener, proof, frames) = self._inbox.take()
        if self._known(listener, proof) == who:
            listener.handler(peer, who, frames)

    def _introduced(self, listener: _Listener, routing: bytes, proof: str, descriptor: int) -> _Line | None:
        """A connection speaks for the first time. None: it is not heard."""
        who = self._known(listener, proof)
        given = len(routing) == ROUTING_ID_BYTES and routing[0] == 0
        if who is None or not (given or listener.gate.names):
            what = "somebody unknown" if who is None else f"{who}, who gives its connection a name"
            self._warn(
                f"{what} {listener.gate.name}", f"dropped a message of {what}, at the door for {listener.gate.name}"
            )
            self._cut(descriptor, _inode(descriptor))
            return None
        return self._new_line(listener.prefix + routing, who, proof, descriptor)

    def _may_say(self, line: _Line, size: int) -> bool:
        guest, bounds, now = line.guest, self._bounds, self._clock()
        if not guest.messages.take(now):
            much = f"{bounds.messages_per_s:.0f} messages"
        elif not guest.bytes_.take(now, size):
            much = f"{bounds.bytes_per_s / 1e6:.0f} MB"
        else:
            return True
        who = line.who
        self._warn(f"{who} messages", f"{who} says more than {much} a second: a connection is cut")
        return False

    def _cut_flooding(self, line: _Line) -> None:
        self.floods.cut[line.who.role.value] += 1
        line.guest.cut_at = self._clock()
        self._cut_line(line)

    def _cut_line(self, line: _Line) -> None:
        line.cut = True
        self._cut(line.descriptor, line.inode)

    def _known(self, listener: _Listener, proof: str) -> Principal | None:
        """Who has proved this, if it may come in here."""
        if listener.local:
            who = self._principals.of_uid(int(proof)) if proof else None
            return who if who is not None and who.role in listener.gate.local else None
        who = self._principals.of_key(proof)
        return who if who is not None and who.role in listener.gate.remote else None

    def _cut(self, descriptor: int, inode: int | None) -> None:
        if inode is None:
            return
        with contextlib.suppress(OSError), socketlib.socket(fileno=os.dup(descriptor)) as connection:
            if _inode(connection.fileno()) == inode:  # asked of the copy, which nobody else can close
                connection.shutdown(socketlib.SHUT_RDWR)  # ZeroMQ's thread finds its end, and closes it

    def _warn(self, subject: str, text: str) -> None:
        since = self._sparing.worth(subject, self._clock())
        if since is not None:
            log.warning("%s%s", text, f" ({since} times more before)" if since else "")


_Message = tuple[
    _Listener, str, list[bytes]
]  # where it came, what its connection has proved, its frames without its name


def _close(listener: _Listener) -> None:
    if listener.pulse is not None:
        listener.pulse.close()
    listener.socket.disable_monitor()
    listener.monitor.close()
    listener.socket.close()


def _proof(listener: _Listener, frame: zmq.Frame) -> str:
    """What the connection of a frame has proved; empty: nothing."""
    try:
        if not listener.local:
            return str(frame.get("User-Id"))
        return _uid(str(frame.get("Peer-Address")))
    except zmq.ZMQError:
        return ""


def _uid(address: str) -> str:
    """Of localhost:UID:GID:PID; empty: it is something else."""
    parts = address.split(":")
    return parts[1] if len(parts) == 4 and parts[1].isdecimal() else ""


def _inode(descriptor: int) -> int | None:
    """Of a descriptor's socket: no other open one has it."""
    try:
        return os.fstat(descriptor).st_ino if descriptor >= 0 else None
    except OSError:
        return None


def _unsent(descriptor: int) -> int:
    """Bytes that the kernel has not got rid of yet: its peer does not read, or is far away."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


class FellowDoor:
    """ZAP for a context whose sockets are for those alone who hold the same key: the workers of one job."""

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
    """A request of ZAP (ZeroMQ's RFC 27): may this key come in?"""

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
