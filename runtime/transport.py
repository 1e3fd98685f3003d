"""ZeroMQ sockets as all processes use them: bounded queues, heartbeats, no lingering, CURVE where keys are given.

Until a cluster has keys, sockets may listen on loopback or ipc only (cluster 5: the default is closed); `check_address`
refuses everything else. The functions take the keys as a parameter, so nothing moves when keys come.
"""

from __future__ import annotations

import ipaddress
import socket as socketlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import zmq

from ..protocol.errors import OperatorError
from ..protocol.times import CONNECTION_HEARTBEAT_S, CONNECTION_TIMEOUT_S

QUEUE_MESSAGES = 10_000  # per peer; beyond that ZeroMQ drops at a ROUTER and blocks at a DEALER


@dataclass(frozen=True)
class Keys:
    """CURVE keys of one process, Z85: its own pair, and for a client side the server's public key."""

    public: bytes
    secret: bytes
    server: bytes = b""


def _common(socket: zmq.Socket[bytes]) -> None:
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = QUEUE_MESSAGES
    socket.heartbeat_ivl = int(CONNECTION_HEARTBEAT_S * 1000)
    socket.heartbeat_timeout = int(CONNECTION_TIMEOUT_S * 1000)
    socket.reconnect_ivl = 20
    socket.reconnect_ivl_max = 500
    socket.maxmsgsize = 32 << 20


def router(context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None = None) -> zmq.Socket[bytes]:
    """A ROUTER that tells when a peer is unknown (EHOSTUNREACH) and lets a reconnecting peer take its name over."""
    socket = context.socket(zmq.ROUTER)
    _common(socket)
    socket.router_mandatory = True
    socket.router_handover = True
    if keys is not None:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
        socket.zap_domain = b"elasticd"
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return socket


def dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, identity: bytes = b"", keys: Keys | None = None
) -> zmq.Socket[bytes]:
    """A DEALER connected to `address`; it reconnects by itself."""
    socket = context.socket(zmq.DEALER)
    _common(socket)
    if identity:
        socket.identity = identity
    if keys is not None:
        socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
        socket.curve_serverkey = keys.server
    socket.connect(address)
    return socket


def check_address(address: str, keys: Keys | None) -> str:
    """`address` if it may be listened on. Raises OperatorError: without keys only loopback and ipc are allowed."""
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if len(path.encode()) > 100:
            raise OperatorError(f"socket path {path} is too long: {len(path.encode())} bytes, at most 100")
        return address
    if not address.startswith("tcp://"):
        raise OperatorError(f"address {address!r} is neither tcp:// nor ipc://")
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and keys is None:
        raise OperatorError(f"address {address!r} is not on loopback: listening there needs keys")
    return address


def bind(socket: zmq.Socket[bytes], address: str, keys: Keys | None = None) -> str:
    """Listen on `address` (port ``*``: any free one) and return the address that peers connect to.

    Raises OperatorError if the address is not allowed or taken.
    """
    check_address(address, keys)
    if address.startswith("ipc://") and _listens(address.removeprefix("ipc://")):
        raise OperatorError(f"cannot listen on {address}: another process listens there")  # bind() would take it over
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise OperatorError(f"cannot listen on {address}: {error.strerror}") from None
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


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


def send(socket: zmq.Socket[bytes], *frames: bytes) -> bool:
    """Send without blocking. False: the peer is not there or its queue is full; the caller's repetition heals it."""
    try:
        socket.send_multipart(frames, zmq.DONTWAIT)
        return True
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise


def short_socket_directory(state_directory: Path, base: Path, user: int) -> Path:
    """A directory for ipc sockets, short enough for the kernel's 107 bytes, told apart by `state_directory`."""
    tag = zlib.crc32(str(state_directory.resolve()).encode())
    return base / f"elasticctl-{user}" / f"{tag:08x}"
