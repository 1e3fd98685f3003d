"""Checks of a server's network: the way to the controller, the server's key, its address, its name, its ports."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from ...protocol.errors import OperatorError
from ...protocol.principals import Role
from ...runtime.endpoints import split
from ...runtime.keys import KeyFile
from .. import bounded, reach
from .checks import Finding, Register, absent, failure, ok, warning
from .targets import Subject, Target

CHECKS = Register(Subject.SERVER)
LEAST_PORTS, FEW_PORTS = 500, 5000
SLOW_MBIT_PER_S = 1000
REACHED_WITHIN_S = 20.0
ASKED_WITHIN_S = 4.0


def _remote(target: Target) -> bool:
    return target.described.controller.startswith("tcp://")


@CHECKS.check(
    "key",
    "the server's key is missing, open to others, another server's, or there is none and the controller wants one",
    "`elasticctl keys add server:NAME` on the controller's machine; root's, mode 0600; `key_file`",
)
def key(target: Target) -> Finding:
    assert target.daemon is not None
    named = target.daemon.option("key_file")
    name = target.described.name
    make = f"on the controller's machine: `elasticctl keys add server:{name}`; name the file here: `key_file`"
    if named is None:
        if _remote(target):
            return failure(f"{target.described.controller} wants a key, and the configuration names none", make)
        return absent("the controller is on this machine: no key is needed")
    path = Path(named).expanduser()
    if not os.access(path, os.R_OK) and path.exists():
        return absent("root sees this")
    try:
        found = KeyFile.read(path)
    except OperatorError as error:
        return failure(
            str(error), f"root's, mode 0600: `chown root {path}; chmod 600 {path}`" if path.exists() else make
        )
    if found.role is not Role.SERVER or found.name != name:
        return failure(f"{path} is the key of {found.role.value}:{found.name}, and this is server {name}", make)
    return ok(f"server:{name}, in {path}")


@CHECKS.check(
    "controller",
    "its name is unknown, nothing listens, something else does, a firewall is between, the server's key is refused",
    "as the sentence says: each of these has one of its own",
    limit_s=3 * REACHED_WITHIN_S,  # each of several controllers is tried
)
def controller(target: Target) -> Finding:
    assert target.daemon is not None
    address = target.described.controller
    if not address:
        return absent("only root may read the key file, which names the controller")
    named, found = target.daemon.option("key_file"), None
    if named is not None and _remote(target):
        try:
            found = KeyFile.read(Path(named).expanduser())
        except OperatorError:
            pass  # reported by the check `key`
    each = [reach.as_server(one, found) for one in split(address)]
    reached = next((one for one in each if one.there), each[0])
    if not reached.there:
        return failure("; ".join(one.found for one in each), reached.remedy)
    if failed := [one for one in each if not one.there]:
        text = "; ".join([f"{reached.address} is reached", *(f"{one.address}: {one.found}" for one in failed)])
        return warning(text, failed[0].remedy)
    took = reach.short(max(one.connect_s for one in each))
    if _remote(target) and found is None:
        return warning(f"{address} is reached within {took}; without a key no more can be tried", "see the check `key`")
    return ok(f"{address} is reached within {took}" + (", and takes this server's key" if _remote(target) else ""))


def owned(target: Target) -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Yield the interfaces of this machine with their addresses."""
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                yield name, ipaddress.ip_address(each.address.partition("%")[0])


@CHECKS.check(
    "address",
    "`address` in agent.yaml is none of this machine's, loopback in a cluster of several, or of a slow or dead interface",
    "name this server's IP address in the network of the training; plug the cable in",
)
def address(target: Target) -> Finding:
    assert target.daemon is not None
    given = str(target.daemon.option("address", "127.0.0.1"))
    mend = f"`ip -brief address` shows what there is; correct `address` in {target.daemon.file}"
    try:
        wanted = ipaddress.ip_address(given)
    except ValueError:
        return failure(f"address: {given} is not an IP address", mend)
    interface = next((name for name, each in owned(target) if each == wanted), None)
    if interface is None:
        return failure(f"{given} is the address of no interface of this machine", mend)
    if wanted.is_loopback:
        if _remote(target):
            return failure(f"address: {given} is loopback: workers of other servers cannot reach those here", mend)
        return ok(f"{given} ({interface}): workers of this machine reach each other")
    stats = psutil.net_if_stats().get(interface)
    if stats is not None and not stats.isup:
        return failure(f"{interface}, which has {given}, is down", f"`ip link set {interface} up`; plug the cable in")
    if stats is not None and 0 < stats.speed < SLOW_MBIT_PER_S:
        return warning(
            f"{interface}, which has {given}, runs at {stats.speed} Mbit/s",
            f"look at cable and switch; `ethtool {interface}`",
        )
    speed = f", {stats.speed / 1000:g} Gbit/s" if stats is not None and stats.speed > 0 else ""
    return ok(f"{given} ({interface}{speed})")


@CHECKS.check(
    "host-name",
    "this machine's own name is not known, leads to loopback or to another machine, or its address leads to another name",
    "name it in DNS, or in /etc/hosts of all servers",
    limit_s=2 * ASKED_WITHIN_S + 2,
    once=True,
)
def host_name(target: Target) -> Finding:
    host = target.machine.host
    forward = bounded.one(lambda: reach.resolve(host), ASKED_WITHIN_S)
    if forward.hung:
        return failure(
            f"the name service does not answer within {ASKED_WITHIN_S:.0f} s, asked for {host}",
            "mend /etc/resolv.conf and nsswitch.conf, or name this machine in /etc/hosts",
        )
    if forward.error:
        return failure(
            f"this machine does not know its own name, {host}", f"a line for {host} in /etc/hosts, or in DNS"
        )
    found = [ipaddress.ip_address(each.partition("%")[0]) for each in forward.answer]
    own = {each for _, each in owned(target)}
    addresses = ", ".join(str(each) for each in found)
    if not any(each in own or each.is_loopback for each in found):
        return failure(
            f"{host} leads to {addresses}, which is not this machine", f"correct {host} in DNS or /etc/hosts"
        )
    if all(each.is_loopback for each in found):
        text = f"{host} leads to {addresses}: programs that tell others their host name are not found"
        return warning(text, f"in /etc/hosts give {host} its address in the network")
    address = str(next(each for each in found if not each.is_loopback))
    back = bounded.one(lambda: socket.gethostbyaddr(address)[0], ASKED_WITHIN_S)
    if back.hung:
        return warning(
            f"the name service does not answer, asked for the name of {address}", "mend the reverse zone of DNS"
        )
    if back.error:
        return ok(f"{host} is {address}; no name is known for that address")
    if back.answer.split(".")[0] != host.split(".")[0]:
        return warning(f"{host} is {address}, and that is called {back.answer}", "correct DNS or /etc/hosts")
    return ok(f"{host} is {address}, and back")


@CHECKS.check(
    "ports",
    "there are too few ports for what workers connect from and listen at",
    "`sysctl net.ipv4.ip_local_port_range='32768 60999'`; let these ports through between the servers",
    once=True,
)
def ports(target: Target) -> Finding:
    words = (target.machine.proc / "sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    first, last = int(words[0]), int(words[1])
    count = last - first + 1
    mend = "`sysctl net.ipv4.ip_local_port_range='32768 60999'`, and in /etc/sysctl.d for good"
    if count < LEAST_PORTS:
        return failure(f"workers have only {count} ports to connect from and listen at ({first}-{last})", mend)
    if count < FEW_PORTS:
        return warning(f"workers have only {count} ports to connect from and listen at ({first}-{last})", mend)
    return ok(f"workers listen at ports {first}-{last}: let these through between the servers")
