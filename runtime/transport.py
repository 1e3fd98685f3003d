"""ZeroMQ sockets as all processes use them: bounded queues, heartbeats, no lingering, and CURVE on every TCP socket.

TCP without keys is refused, on loopback too: any user of the machine reaches it. Sockets of a file system (``ipc://``) need no
keys: the kernel says who is at the other end, and the directory says who may come. What a daemon does with many peers whom it
does not trust alike is in `door`.

What a listening socket must not do
-----------------------------------
ZeroMQ (4.3.5, and before) ends its process by an assertion when a peer has filled its queue at a socket, goes away, and the
socket then has something to say to it by itself: a heartbeat, or the answer to one (libzmq's issues 3937, 4364 and 4841). So any
peer could end a daemon. Therefore a listening socket's queues for what comes in have no limit, so that they are never full, and
the heartbeats are those of the connecting side: it says with each how long it may be silent. Whoever listens bounds what each
peer says, by reading at once into a room that has a limit (`inbox`), and cutting off who says too much.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket as socketlib
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from ..protocol.errors import OperatorError
from ..protocol.times import CONNECTION_HEARTBEAT_S, CONNECTION_TIMEOUT_S, CONTROLLER_CONNECTION_HEARTBEAT_S
from .directories import OTHERS_WRITE, check_way

if TYPE_CHECKING:
    from .keys import Pair

QUEUE_MESSAGES = 10_000  # per peer; beyond that ZeroMQ drops at a ROUTER and blocks at a DEALER
MAX_FRAME_BYTES = 32 << 20
ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"elasticd"
MAX_PATH_BYTES = 100  # of an ipc socket; the kernel takes 107
SO_PASSRIGHTS = 83  # of Linux 6.16; Python has no name for it yet
TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[^\s/:]+):(\d{1,5}|\*)")

Socket = zmq.Socket[bytes]
BACKLOG = 4096  # connections that wait to be accepted: all agents connect at once when a controller starts
ZERO_COPY_RECV = 10  # an option of contexts, for which pyzmq has no name
MORE_FOLLOWS = zmq.DONTWAIT | zmq.SNDMORE


def context(io_threads: int = 1) -> zmq.Context[Socket]:
    """A context for sockets that listen: a message that waits takes as much memory as it has bytes, and a little more.

    By itself ZeroMQ lets each message of more than 33 bytes point into the buffer that it was read into. Peers that send messages
    one by one then cost 18 kB for each, however small it is.
    """
    made: zmq.Context[Socket] = zmq.Context(io_threads=io_threads)
    with contextlib.suppress(zmq.ZMQError):  # of a version that does not know the option
        made.set(ZERO_COPY_RECV, 0)
    return made


def _common(socket: Socket) -> None:
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = QUEUE_MESSAGES
    socket.handshake_ivl = 5000
    socket.reconnect_ivl = 20
    socket.reconnect_ivl_max = 500
    socket.maxmsgsize = MAX_FRAME_BYTES


def router(context: zmq.Context[Socket], pair: Pair | None = None) -> Socket:
    """A ROUTER that tells when a peer is unknown (EHOSTUNREACH). With keys, it needs a ZAP handler in its context.

    A peer that comes with the name of another one takes it over.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4)))  # nobody is to guess how connections are called: see `door`
    socket: Socket = context.socket(zmq.ROUTER)
    _common(socket)
    socket.rcvhwm = 0  # not a bound on bytes anyway; see above
    socket.backlog = BACKLOG
    socket.router_mandatory = True
    socket.router_handover = True  # `door` tells why
    if pair is not None:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler nobody comes in
    return socket


def dealer(
    context: zmq.Context[Socket],
    address: str,
    identity: bytes = b"",
    pair: Pair | None = None,
    server: bytes = b"",
    heartbeat_s: float = CONNECTION_HEARTBEAT_S,
) -> Socket:
    """A DEALER connected to `address`; it reconnects by itself. `server`: the public key of who listens there.

    Raises OperatorError if the address is TCP and there are no keys.
    """
    socket = _unconnected(context, address, identity, pair, server, heartbeat_s)
    socket.connect(address)
    return socket


def watched_dealer(
    context: zmq.Context[Socket],
    address: str,
    events: int,
    pair: Pair | None = None,
    server: bytes = b"",
    heartbeat_s: float = CONNECTION_HEARTBEAT_S,
) -> tuple[Socket, Socket]:
    """A `dealer`, and a socket on which `events` of its connection are told (`REFUSALS`, `HANDSHAKES`).

    They are told from the first on: ZeroMQ tells nothing that has happened before somebody listened, and a handshake that was
    refused is not tried again.
    """
    socket = _unconnected(context, address, b"", pair, server, heartbeat_s)
    where = f"inproc://events-{os.urandom(8).hex()}"
    socket.monitor(where, events)
    told: Socket = context.socket(zmq.PAIR)
    told.linger = 0
    told.rcvhwm = 0  # ZeroMQ's own thread would wait for room
    told.connect(where)
    socket.connect(address)
    return socket, told


def _unconnected(
    context: zmq.Context[Socket], address: str, identity: bytes, pair: Pair | None, server: bytes, heartbeat_s: float
) -> Socket:
    check_address(address, pair)
    socket: Socket = context.socket(zmq.DEALER)
    _common(socket)
    socket.heartbeat_ivl = int(heartbeat_s * 1000)
    socket.heartbeat_timeout = socket.heartbeat_ttl = int(CONNECTION_TIMEOUT_S * 1000)
    if identity:
        socket.identity = identity
    if address.startswith("tcp://"):
        assert pair is not None
        socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = pair.public, pair.secret, server
        socket.ipv6 = "[" in address
    return socket


def to_controller(
    context: zmq.Context[Socket], address: str, pair: Pair | None, controller: bytes
) -> tuple[Socket, Socket]:
    """An agent's DEALER to its controller, which has this public key, and the socket on which its handshakes are told. Raises
    OperatorError as `dealer` does."""
    return watched_dealer(context, address, HANDSHAKES, pair, controller, CONTROLLER_CONNECTION_HEARTBEAT_S)


def fellow(context: zmq.Context[Socket], address: str, identity: bytes, pair: Pair | None) -> Socket:
    """A DEALER to somebody who has the same keys: the leader of one's job."""
    return dealer(context, address, identity, pair, b"" if pair is None else pair.public)


def check_address(address: str, pair: Pair | None) -> str:
    """`address` if it may be listened on, or connected to. Raises OperatorError: TCP needs keys, wherever it leads."""
    check_form(address)
    if address.startswith("tcp://") and pair is None:
        raise OperatorError(f"address {address!r} needs keys, as every TCP address does; ipc:///PATH needs none")
    return address


def check_form(address: str) -> None:
    """Raises OperatorError if `address` is none."""
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if len(path.encode()) > MAX_PATH_BYTES:
            raise OperatorError(f"socket path {path} is too long: {len(path.encode())} bytes, at most {MAX_PATH_BYTES}")
        if not path.startswith("/"):
            raise OperatorError(f"address {address!r} is no path from the root: ipc:///PATH")
        return
    match = TCP.fullmatch(address)
    if match is None or (match[2] != "*" and not 0 < int(match[2]) < 65536):
        raise OperatorError(f"address {address!r} is neither tcp://HOST:PORT nor ipc:///PATH")


def bind(socket: Socket, address: str, pair: Pair | None = None) -> str:
    """Listen on `address` (port ``*``: any free one) and return the address that peers connect to.

    Raises OperatorError if the address is not allowed or taken.
    """
    check_address(address, pair)
    if address.startswith("ipc://") and _listens(address.removeprefix("ipc://")):
        raise OperatorError(f"cannot listen on {address}: another process listens there")  # bind() would take it over
    try:
        socket.ipv6 = "[" in address
        socket.bind(address)
    except zmq.ZMQError as error:
        raise OperatorError(f"cannot listen on {address}: {error.strerror}") from None
    if address.startswith("ipc:///"):
        _refuse_descriptors(address.removeprefix("ipc://"))
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def take_no_descriptors(socket: socketlib.socket) -> None:
    """Let nobody send open files over this Unix socket, or over those that it accepts. Before Linux 6.16 that cannot be had.

    Whoever lets go of one of them last may have to wait: for the peer of a TCP socket that lingers, for an hour or for good.
    """
    with contextlib.suppress(OSError):
        socket.setsockopt(socketlib.SOL_SOCKET, SO_PASSRIGHTS, 0)


def _refuse_descriptors(path: str) -> None:
    """As `take_no_descriptors`, of the socket that ZeroMQ listens on at `path`. It does not say which one that is."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socketlib.socket(fileno=os.dup(int(name))) as found:
                    if found.family == socketlib.AF_UNIX and found.getsockname() == path:
                        take_no_descriptors(found)


def give_to(address: str, user: int) -> None:
    """Let this Unix user alone connect to an ipc socket, and root. Raises OperatorError."""
    path = Path(address.removeprefix("ipc://"))
    try:
        path.chmod(0o600)
        if user != os.getuid():
            os.chown(path, user, -1)
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from None


def open_to_visitors(address: str) -> None:
    """Let everybody connect to an ipc socket who may enter its directory: the directory's mode is the permission.

    Raises OperatorError if others than its owner may write to the directory: they could put a socket of theirs in its place.
    """
    path = Path(address.removeprefix("ipc://"))
    try:
        mode = path.parent.stat().st_mode
        if mode & OTHERS_WRITE:
            raise OperatorError(
                f"{path.parent}: others may write to it, and put a socket of their own in place of {path}"
            )
        check_way(path)
        enters = (mode & stat.S_IXGRP, mode & stat.S_IXOTH)
        path.chmod(0o600 | (0o060 if enters[0] else 0) | (0o006 if enters[1] else 0))
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from None


def _listens(path: str) -> bool:
    """Does a process accept connections at this Unix socket?"""
    with socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_STREAM | socketlib.SOCK_NONBLOCK) as probe:
        try:
            probe.connect("\0" + path[1:] if path.startswith("@") else path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def send(socket: Socket, *frames: bytes) -> bool:
    """Send without blocking. False: the peer is not there or its queue is full; the caller's repetition heals it."""
    try:
        for frame in frames[:-1]:  # as `send_multipart` does, in half the time
            socket.send(frame, MORE_FOLLOWS)
        socket.send(frames[-1], zmq.DONTWAIT)
        return True
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise


# -- what a connecting side learns of its handshakes

REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
HANDSHAKES = REFUSALS | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED  # how each ends, and each connection


def stands(frames: list[bytes]) -> bool:
    """Of an event of `HANDSHAKES`: does the connection stand now?"""
    return _event(frames) == zmq.EVENT_HANDSHAKE_SUCCEEDED


def has_ended(frames: list[bytes]) -> bool:
    """Likewise: has a connection ended, whether it stood or not?"""
    return _event(frames) == zmq.EVENT_DISCONNECTED


def is_final(frames: list[bytes]) -> bool:
    """Of such a message: has the other side said that it does not want this key? ZeroMQ then does not try again."""
    return _event(frames) == zmq.EVENT_HANDSHAKE_FAILED_AUTH


def _event(frames: list[bytes]) -> int:
    from zmq.utils.monitor import parse_monitor_message  # it brings asyncio along, which most calls do not need

    return int(parse_monitor_message(frames)["event"])


def connect_again(socket: Socket, address: str) -> None:
    """Try once more after a refusal that was final."""
    try:
        socket.disconnect(address)
    except zmq.ZMQError:
        pass  # ZeroMQ has forgotten the connection already
    socket.connect(address)


def short_socket_directory(state_directory: Path, base: Path, user: int) -> Path:
    """A directory for ipc sockets, short enough for the kernel's 107 bytes, told apart by `state_directory`."""
    tag = zlib.crc32(str(state_directory.resolve()).encode())
    return base / f"elasticctl-{user}" / f"{tag:08x}"
