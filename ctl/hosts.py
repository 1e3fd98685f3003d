"""The file of hosts: ``elasticctl up --hosts FILE``.

A line for each host: its name as ssh knows it, perhaps with a user, then options that differ from the defaults::

    # host             name: of the server; slots: CPU slots in place of its GPUs; address: where the other hosts reach it
    gpu1
    alice@gpu2         name=two  address=10.0.7.2
    10.0.7.3           name=three  slots=4  python=/opt/elasticctl/bin/python
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..protocol.errors import UserError

MOST_HOSTS = 1000
MOST_SLOTS = 1024
OPTIONS = ("name", "slots", "address", "python")

_TARGET = re.compile(
    r"(?:(?P<user>[A-Za-z_][A-Za-z0-9_.-]{0,63})@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.:_-]{0,252})", re.ASCII
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One host that runs an agent."""

    target: str  # argument for ssh: HOST or USER@HOST
    name: str  # name of the server
    address: str  # IPv4 address at which the other hosts reach it
    slots: int | None = None  # CPU slots; None: its GPUs
    python: str | None = None  # the host's interpreter with elasticctl; None: the same path as on the others


def resolved(host: str) -> str:
    """Return the IPv4 address of `host`, or "" if this machine knows none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    addresses = [str(entry[4][0]) for entry in found]
    return next((address for address in addresses if ":" not in address), "")


def load(path: Path, resolve: Callable[[str], str] = resolved) -> tuple[Host, ...]:
    """Return the hosts in `path`. Raises UserError, naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found: list[Host] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host = _host(words, resolve)
            if host.name in lines:
                raise UserError(f"line {lines[host.name]} is called {host.name} too: give one of them another name=")
        except UserError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        lines[host.name] = number
        found.append(host)
    if not found:
        raise UserError(f"{path}: names no host")
    if len(found) > MOST_HOSTS:
        raise UserError(f"{path}: names {len(found)} hosts; at most {MOST_HOSTS} are started over ssh")
    loopback = [host for host in found if ipaddress.IPv4Address(host.address).is_loopback]
    if loopback and len(loopback) < len(found):
        host = loopback[0]
        raise UserError(
            f"{path}: line {lines[host.name]}: {host.target} is {host.address} here, where no other host reaches it: say address="
        )
    return tuple(found)


def _host(words: list[str], resolve: Callable[[str], str]) -> Host:
    """Return the host of one line. Raises UserError."""
    target, *options = words
    match = _TARGET.fullmatch(target)
    if match is None:
        raise UserError(f"{target[:80]!r} is not HOST or USER@HOST")
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if key not in OPTIONS or not equals or not value:
            raise UserError(f"{option[:80]!r} is not one of {', '.join(f'{each}=' for each in OPTIONS)} with a value")
        if key in given:
            raise UserError(f"{key}= stands there twice")
        given[key] = value
    name = given.get("name", match["host"])
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:80]!r} is not a server's name (letters, digits, '.', '_', '-'): say name=")
    return Host(
        target=target,
        name=name,
        address=_address(given.get("address"), match["host"], resolve),
        slots=_slots(given.get("slots")),
        python=given.get("python"),
    )


def _address(given: str | None, host: str, resolve: Callable[[str], str]) -> str:
    address = given or resolve(host)
    if not address:
        raise UserError(f"{host} has no IPv4 address that is known here: say address=")
    try:
        parsed = ipaddress.IPv4Address(address)
    except ValueError:
        raise UserError(f"address={address[:80]} is not an IPv4 address") from None
    if parsed.is_unspecified or parsed.is_multicast:
        raise UserError(f"address={address} is not the address of a host")
    return str(parsed)


def _slots(given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 1 <= int(given) <= MOST_SLOTS):
        raise UserError(f"slots={given[:80]} is not a number from 1 to {MOST_SLOTS}")
    return int(given)
