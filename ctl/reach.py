"""Diagnosis of a connection to a controller, step by step: name, port, listening program, keys, answer.

Each step that fails has a sentence of its own, with a remedy. No request changes anything.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import socket
import stat
import time
from pathlib import Path

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from ..protocol.errors import ElasticError, NotAllowed, OperatorError
from ..protocol.messages import Ping, Pong, ServerView
from ..runtime import endpoints, transport
from ..runtime.directories import check_way
from ..runtime.keys import KeyFile
from . import bounded
from .client import Client, StandsBy

RESOLVED_WITHIN_S = 4.0
CONNECTED_WITHIN_S = 3.0
GREETED_WITHIN_S = 2.0
ANSWERED_WITHIN_S = 3.0
PINGS = 3
SIGNATURE = (0xFF, 0x7F)  # first and last of the ten bytes with which a ZeroMQ peer begins


class Step(enum.Enum):
    """Steps on the way to a controller."""

    NAME = "name"
    CONNECTION = "connection"
    GREETING = "greeting"
    KEYS = "keys"
    ANSWER = "answer"
    STANDBY = "standby"  # the controller answers, but another one leads
    THERE = "there"


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """The last step tried; any step but `THERE` has failed, for the reason `found`."""

    address: str
    step: Step
    found: str = ""
    remedy: str = ""
    round_trip_s: float = 0.0
    ahead_s: float | None = None  # difference of the controller's clock from this machine's; None: unknown
    pong: Pong | None = None
    servers: tuple[ServerView, ...] = ()
    connect_s: float = 0.0
    others: tuple[Reach, ...] = ()  # outcomes for the other controllers of the cluster

    @property
    def there(self) -> bool:
        return self.step is Step.THERE


def short(seconds: float) -> str:
    """Return a short duration as text for people."""
    return (
        f"{seconds * 1000:.2g} ms"
        if seconds < 0.01
        else f"{seconds * 1000:.0f} ms"
        if seconds < 10
        else f"{seconds:.1f} s"
    )


def split(address: str) -> tuple[str, int]:
    """Return host and port of tcp://HOST:PORT; port 0: any."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), 0 if port == "*" else int(port)


def resolve(host: str) -> list[str]:
    """Return the addresses of `host`. Raises OSError."""
    return list(dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


def each_as_person(address: str, key: KeyFile | None) -> Reach:
    """Try to reach each controller as `elasticctl` does. Returns the outcome for the leader, or else the first one."""
    found = [as_person(each, key) for each in endpoints.split(address)]
    best = next((each for each in found if each.there), found[0])
    return msgspec.structs.replace(best, others=tuple(each for each in found if each is not best))


def as_person(address: str, key: KeyFile | None) -> Reach:
    """Try to reach a controller as `elasticctl` does."""
    tried = _opened(address)
    if tried.step is not Step.KEYS:
        return tried
    try:
        client = Client(address, key)
    except ElasticError as error:
        return Reach(address=address, step=Step.KEYS, found=str(error), remedy="`elasticctl login FILE` with your key")
    try:
        return _asked(client, tried, key)
    except NotAllowed:
        return _unwanted(address, f"{key.role.value}:{key.name}" if key is not None else "you")
    except StandsBy as error:
        text = "wait for an election to end, or name the address of the controller that leads, too"
        return msgspec.structs.replace(tried, step=Step.STANDBY, found=str(error), remedy=text)
    except ElasticError as error:
        if key is not None and (failed := _shaken(address, key)) is not None:
            return failed
        return Reach(address=address, step=Step.ANSWER, found=str(error), remedy=_hangs(address))
    finally:
        client.close()


def as_server(address: str, key: KeyFile | None) -> Reach:
    """Try to reach a controller as an agent does, without a request."""
    tried = _opened(address)
    if tried.step is not Step.KEYS:
        return tried
    failed = None if key is None else _shaken(address, key)
    return failed or msgspec.structs.replace(tried, step=Step.THERE)


def why_not(address: str) -> str | None:
    """Return why no controller answers at `address`, in a sentence, as far as this can be found before keys are
    exchanged.
    """
    tried = _opened(address, limited=False)
    if tried.step is Step.KEYS:
        return None
    return f"no controller answers at {address}: {tried.found}; {tried.remedy} (`elasticctl doctor` tells more)"


def _asked(client: Client, tried: Reach, key: KeyFile | None) -> Reach:
    best_s, ahead_s, pong = float("inf"), None, None
    for _ in range(PINGS):
        began_s, began = time.time(), time.monotonic()
        pong = client.ask(Ping(), timeout_s=ANSWERED_WITHIN_S)
        took_s = time.monotonic() - began
        if isinstance(pong, Pong) and took_s < best_s:
            best_s = took_s
            ahead_s = pong.time_s - (began_s + took_s / 2) if pong.time_s else None
    if not isinstance(pong, Pong):
        return msgspec.structs.replace(
            tried, step=Step.ANSWER, found=f"answers {type(pong).__name__}", remedy=_hangs(tried.address)
        )
    servers: tuple[ServerView, ...] = ()
    with contextlib.suppress(ElasticError):
        servers = client.servers().servers
    return msgspec.structs.replace(
        tried, step=Step.THERE, round_trip_s=best_s, ahead_s=ahead_s, pong=pong, servers=servers
    )


def _hangs(address: str) -> str:
    return f"look at the controller's log and processor: it holds {address} and does not serve"


# -- connections


def _opened(address: str, limited: bool = True) -> Reach:
    """Look for a ZeroMQ socket; the step is KEYS if there is one. `limited`: names are looked up in a process with a
    limit. That process must not be forked where ZeroMQ has threads.
    """
    try:
        transport.check_form(address)
    except OperatorError as error:
        return Reach(address=address, step=Step.NAME, found=str(error), remedy="mend the address")
    return _local(address) if address.startswith("ipc://") else _remote(address, limited)


def _local(address: str) -> Reach:
    path = Path(address.removeprefix("ipc://"))
    start = "start the controller (`elasticctl up`, or `systemctl start elasticctl-controller`)"
    try:
        check_way(path)
        if not stat.S_ISSOCK(path.stat().st_mode):
            return _failed(
                address, f"{path} is no socket", "name the controller's socket: listen_clients, listen_agents"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECTED_WITHIN_S)
            began = time.monotonic()
            probe.connect(str(path))
            return _greeted(address, probe, time.monotonic() - began)
    except OperatorError as error:
        if not os.path.lexists(path):
            return _failed(
                address, f"there is no socket {path}: no controller runs here, or it listens elsewhere", start
            )
        return _failed(address, str(error), "take the others' right to write away (chmod), or choose another directory")
    except FileNotFoundError:
        return _failed(address, f"there is no socket {path}: no controller runs here, or it listens elsewhere", start)
    except PermissionError:
        who = f"user {os.geteuid()}"
        return _failed(
            address,
            f"{who} may not enter {path.parent}, or connect to {path}",
            "connect over TCP with a key, or let its directory be entered (chmod o+x)",
        )
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return _failed(address, f"nobody listens at {path}: the controller has ended", start)
        return _failed(address, f"{path}: {error.strerror or error}", start)


def _remote(address: str, limited: bool) -> Reach:
    host, port = split(address)
    found = bounded.one(lambda: resolve(host), RESOLVED_WITHIN_S) if limited else bounded.here(lambda: resolve(host))
    look_up = (
        f"`getent hosts {host}` tells what this machine knows; name it in DNS or /etc/hosts, or use its IP address"
    )
    if found.hung:
        text = f"the name service does not answer within {RESOLVED_WITHIN_S:.0f} s, asked for {host}"
        return Reach(address=address, step=Step.NAME, found=text, remedy="mend /etc/resolv.conf and nsswitch.conf")
    if found.error:
        text = f"{host}, where the controller is to be, is no name that this machine knows"
        return Reach(address=address, step=Step.NAME, found=text, remedy=look_up)
    failed = Reach(address=address, step=Step.NAME, found=f"{host} has no address", remedy=look_up)
    for each in found.answer[:2]:
        family = socket.AF_INET6 if ":" in each else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECTED_WITHIN_S)
            began = time.monotonic()
            try:
                probe.connect((each, port))
            except OSError as error:
                failed = _not_connected(address, host, each, port, error)
                continue
            return _greeted(address, probe, time.monotonic() - began)
    return failed


def _not_connected(address: str, host: str, ip: str, port: int, error: OSError) -> Reach:
    where = f"{host} ({ip}), port {port}" if host != ip else f"{ip}, port {port}"
    if isinstance(error, TimeoutError):
        return _failed(
            address,
            f"no answer from {where} within {CONNECTED_WITHIN_S:.0f} s: it is off, or a firewall drops what is sent there",
            f"`ping {host}`; let TCP port {port} through",
        )
    if error.errno == errno.ECONNREFUSED:
        return _failed(
            address,
            f"nothing listens at {where}: the connection is refused",
            "start the controller there (`systemctl start elasticctl-controller`), or correct the port",
        )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN):
        return _failed(
            address, f"there is no way to {where}: {error.strerror}", f"`ip route get {ip}`; mend network or VPN"
        )
    return _failed(address, f"{where}: {error.strerror or error}", f"`ip route get {ip}`")


def _greeted(address: str, probe: socket.socket, connect_s: float) -> Reach:
    """Read the greeting that every ZeroMQ peer sends at once."""
    probe.settimeout(GREETED_WITHIN_S)
    data = b""
    try:
        while len(data) < 10 and (piece := probe.recv(10 - len(data))):
            data += piece
    except TimeoutError:
        return Reach(
            address=address,
            step=Step.GREETING,
            found=f"whoever listens at {address} says nothing: a controller that hangs, or another program",
            remedy="on that host `ss -lptn` names the process; if it is the controller, its log tells more",
        )
    except OSError:
        pass
    if len(data) < 10 or (data[0], data[9]) != SIGNATURE:
        return Reach(
            address=address,
            step=Step.GREETING,
            found=f"what listens at {address} is no controller, but another program",
            remedy="correct the address; on that host `ss -lptn` names the process",
        )
    return Reach(address=address, step=Step.KEYS, connect_s=connect_s)


def _failed(address: str, found: str, remedy: str) -> Reach:
    return Reach(address=address, step=Step.CONNECTION, found=found, remedy=remedy)


# -- keys

_EVENTS = transport.REFUSALS | zmq.EVENT_HANDSHAKE_SUCCEEDED


def _shaken(address: str, key: KeyFile) -> Reach | None:
    """Return the fault of the keys; None: there is none."""
    who = f"{key.role.value}:{key.name}"
    if not address.startswith("tcp://"):
        return None
    context: zmq.Context[transport.Socket] = zmq.Context()
    dealer, monitor = transport.watched_dealer(context, address, _EVENTS, key.pair, key.controller_public)
    try:
        if monitor.poll(int(ANSWERED_WITHIN_S * 1000)):
            event = int(parse_monitor_message(monitor.recv_multipart())["event"])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return None
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return _unwanted(address, who)
            return Reach(
                address=address,
                step=Step.KEYS,
                found=f"the controller at {address} has another key than the key file of {who} says",
                remedy=f"it was set up anew: an operator makes a new key (`elasticctl keys add {who}`)",
            )
    finally:
        dealer.disable_monitor()
        monitor.close()
        dealer.close()
        context.term()
    return Reach(
        address=address,
        step=Step.KEYS,
        found=f"no keys are exchanged with {address} within {ANSWERED_WITHIN_S:.0f} s",
        remedy=_hangs(address),
    )


def _unwanted(address: str, who: str) -> Reach:
    return Reach(
        address=address,
        step=Step.KEYS,
        found=f"the controller at {address} does not let {who} in: the key is unknown there, or revoked",
        remedy=f"`elasticctl keys list` on its machine; `elasticctl keys add {who}` makes a new one (users: port of "
        "listen_clients, servers: of listen_agents)",
    )
