"""ZeroMQ sockets with the options that all processes share: bounded queues, heartbeats, no linger, and CURVE on every TCP socket.

TCP without keys is refused, on loopback too, because any user of the machine can connect there. Unix sockets (``ipc://``) need no
keys: the kernel identifies the peer, and the mode of the directory decides which users may connect. `listener` handles the
sockets of a daemon with many peers that are not trusted alike.

Why a listening socket has no receive limit and sends no heartbeats
-------------------------------------------------------------------
ZeroMQ (up to 4.3.5) aborts its process by an assertion when a peer has filled its receive queue at a socket and disconnects, and
the socket then sends it a message on its own: a heartbeat, or the answer to one (libzmq issues 3937, 4364 and 4841). So any
peer could end a daemon. Therefore the receive queues of a listening socket have no limit, so that they are never full. Heartbeats
are sent by the connecting side, which states with each how long it may stay silent. The listening process bounds each peer by
moving messages at once into a bounded inbox (`inbox`), and by cutting peers that exceed their rate.
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
MAX_PATH_BYTES = 100  # of a Unix socket; the kernel's limit is 107
SO_PASSRIGHTS = 83  # of Linux 6.16; Python has no name for it yet
TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[^\s/:]+):(\d{1,5}|\*)")

Socket = zmq.Socket[bytes]
BACKLOG = 4096  # connections that wait to be accepted: all agents connect at once when a controller starts
ZERO_COPY_RECV = 10  # an option of contexts, for which pyzmq has no name
MORE_FOLLOWS = zmq.DONTWAIT | zmq.SNDMORE


def context(io_threads: int = 1) -> zmq.Context[Socket]:
    """Return a context for listening sockets, in which a waiting message takes little more memory than its bytes.

    By default ZeroMQ lets each message above 33 bytes point into the buffer that it was read into. Messages that arrive one by
    one then take 18 kB each, however small they are.
    """
    made: zmq.Context[Socket] = zmq.Context(io_threads=io_threads)
    with contextlib.suppress(zmq.ZMQError):  # a ZeroMQ version without the option
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
    """Return a ROUTER that raises EHOSTUNREACH for an unknown peer. With keys, its context needs a ZAP handler.

    A peer that connects with the routing id of another one takes that id over.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4)))  # so that routing ids cannot be guessed: see `listener`
    socket: Socket = context.socket(zmq.ROUTER)
    _common(socket)
    socket.rcvhwm = 0  # no limit: see the module's docstring
    socket.backlog = BACKLOG
    socket.router_mandatory = True
    socket.router_handover = True  # `listener` explains why
    if pair is not None:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a ZAP handler every connection is refused
    return socket


def dealer(
    context: zmq.Context[Socket],
    address: str,
    identity: bytes = b"",
    pair: Pair | None = None,
    server: bytes = b"",
    heartbeat_s: float = CONNECTION_HEARTBEAT_S,
) -> Socket:
    """Return a DEALER connected to `address`; it reconnects automatically. server: the public key of the listening process.

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
    """Return a `dealer`, and a socket that receives `events` of its connection (`REFUSALS`, `HANDSHAKES`).

    The monitor is attached before the connection starts: ZeroMQ does not report earlier events, and does not retry a handshake
    that was refused.
    """
    socket = _unconnected(context, address, b"", pair, server, heartbeat_s)
    where = f"inproc://events-{os.urandom(8).hex()}"
    socket.monitor(where, events)
    told: Socket = context.socket(zmq.PAIR)
    told.linger = 0
    told.rcvhwm = 0  # with a limit ZeroMQ's I/O thread would block on a full queue
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
    """Return an agent's DEALER to the controller with this public key, and the socket that receives its handshake events.

    Raises OperatorError as `dealer` does.
    """
    return watched_dealer(context, address, HANDSHAKES, pair, controller, CONTROLLER_CONNECTION_HEARTBEAT_S)


def fellow(context: zmq.Context[Socket], address: str, identity: bytes, pair: Pair | None) -> Socket:
    """Return a DEALER to a process with the same key pair: the leader of the worker's job."""
    return dealer(context, address, identity, pair, b"" if pair is None else pair.public)


def check_address(address: str, pair: Pair | None) -> str:
    """Return `address` if it may be bound or connected to. Raises OperatorError: TCP needs keys, on every interface."""
    check_form(address)
    if address.startswith("tcp://") and pair is None:
        raise OperatorError(f"address {address!r} needs keys, as every TCP address does; ipc:///PATH needs none")
    return address


def check_form(address: str) -> None:
    """Raise OperatorError if `address` is neither tcp://HOST:PORT nor ipc:///PATH."""
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
    """Bind to `address` (port ``*``: any free one) and return the address that peers connect to.

    Raises OperatorError if the address is not allowed or in use.
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
    """Refuse file descriptors (SCM_RIGHTS) on this Unix socket and those it accepts. Has no effect before Linux 6.16.

    Closing the last copy of a received descriptor may block, for an hour or for good: a TCP socket may linger for its peer.
    """
    with contextlib.suppress(OSError):
        socket.setsockopt(socketlib.SOL_SOCKET, SO_PASSRIGHTS, 0)


def _refuse_descriptors(path: str) -> None:
    """Do `take_no_descriptors` for ZeroMQ's socket bound to `path`. ZeroMQ does not reveal its descriptor, so search for it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socketlib.socket(fileno=os.dup(int(name))) as found:
                    if found.family == socketlib.AF_UNIX and found.getsockname() == path:
                        take_no_descriptors(found)


def give_to(address: str, user: int) -> None:
    """Let only this Unix user, and root, connect to a Unix socket. Raises OperatorError."""
    path = Path(address.removeprefix("ipc://"))
    try:
        path.chmod(0o600)
        if user != os.getuid():
            os.chown(path, user, -1)
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from None


def open_to_visitors(address: str) -> None:
    """Let every user who may enter its directory connect to a Unix socket: the directory's mode is the permission.

    Raises OperatorError if others than its owner may write to the directory, and so replace the socket by their own.
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
    """Return whether a process accepts connections at this Unix socket."""
    with socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_STREAM | socketlib.SOCK_NONBLOCK) as probe:
        try:
            probe.connect("\0" + path[1:] if path.startswith("@") else path)
        except BlockingIOError:
            return True  # its accept queue is full
        except OSError:
            return False
    return True


def send(socket: Socket, *frames: bytes) -> bool:
    """Send without blocking. Returns False if the peer is gone or its queue is full; callers resend later."""
    try:
        for frame in frames[:-1]:  # as `send_multipart` does, in half the time
            socket.send(frame, MORE_FOLLOWS)
        socket.send(frames[-1], zmq.DONTWAIT)
        return True
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise


# -- handshake events of a connecting socket

REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
HANDSHAKES = REFUSALS | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED  # results of handshakes, and disconnects


def stands(frames: list[bytes]) -> bool:
    """Return whether an event of `HANDSHAKES` says that the connection is established."""
    return _event(frames) == zmq.EVENT_HANDSHAKE_SUCCEEDED


def has_ended(frames: list[bytes]) -> bool:
    """Return whether an event of `HANDSHAKES` says that a connection has ended, established or not."""
    return _event(frames) == zmq.EVENT_DISCONNECTED


def is_final(frames: list[bytes]) -> bool:
    """Return whether such an event says that the listening side rejects this key. ZeroMQ then does not reconnect."""
    return _event(frames) == zmq.EVENT_HANDSHAKE_FAILED_AUTH


def _event(frames: list[bytes]) -> int:
    from zmq.utils.monitor import parse_monitor_message  # imports asyncio, which most processes do not need

    return int(parse_monitor_message(frames)["event"])


def connect_again(socket: Socket, address: str) -> None:
    """Connect again after a refusal that was final."""
    try:
        socket.disconnect(address)
    except zmq.ZMQError:
        pass  # ZeroMQ has dropped the connection already
    socket.connect(address)


def short_socket_directory(state_directory: Path, base: Path, user: int) -> Path:
    """Return a directory for Unix sockets, short enough for the kernel's 107 bytes and unique to `state_directory`."""
    tag = zlib.crc32(str(state_directory.resolve()).encode())
    return base / f"elasticctl-{user}" / f"{tag:08x}"
