"""Checks of the controller's machine: its addresses and its keys, and those that other daemons share."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import psutil

from ...protocol.errors import OperatorError
from ...runtime.keys import KeyDirectory
from .. import bounded, reach
from . import files, limits, network, services
from .checks import Finding, Register, absent, failure, ok, worst
from .targets import Subject, Target

CHECKS = Register(Subject.CONTROLLER)
ALSO_HERE = ("configuration", "daemon", "unit", "state", "log", "open-files", "clock-source", "host-name")
RESOLVED_WITHIN_S = 4.0

for _register in (services.CHECKS, files.CHECKS, limits.CHECKS, network.CHECKS):
    for _each in _register.checks:
        if _each.name in ALSO_HERE:
            CHECKS.check(_each.name, _each.finds, _each.remedy, _each.limit_s, _each.once)(_each.look)


@CHECKS.check(
    "listening",
    "an address where the controller is to listen is none of this machine's, or another program holds its port",
    "correct `listen_clients` and `listen_agents`; end the other program, or choose another port",
    limit_s=3 * RESOLVED_WITHIN_S,
)
def listening(target: Target) -> Finding:
    described = target.described
    wrong, told = [], []
    for address in dict.fromkeys((*described.clients, *described.agents)):
        found = _listens(target, address)
        told.append(found.found)
        wrong.append(found)
    return worst(wrong, ok("; ".join(told)))


def _listens(target: Target, address: str) -> Finding:
    assert target.daemon is not None
    pid = target.daemon.pid
    if address.startswith("ipc://"):
        if pid is None:
            return ok(f"{address} is free")
        tried = reach.as_server(address, None)
        return (
            ok(address)
            if tried.there
            else failure(tried.found, "`systemctl restart elasticctl-controller`: jobs go on")
        )
    host, port = reach.split(address)
    if host != "*":
        names = bounded.one(lambda: reach.resolve(host), RESOLVED_WITHIN_S)
        if names.hung or names.error:
            return failure(
                f"{address}: {host} is no name that this machine knows", "use its IP address, or mend /etc/hosts"
            )
        own = {each for _, each in network.owned(target)}
        if not any(ipaddress.ip_address(each.partition("%")[0]) in own for each in names.answer):
            return failure(
                f"{address}: {host} is not an address of this machine", "`ip -brief address` shows what there is"
            )
    holder = _holder(port)
    if holder is None:
        if pid is None:
            return ok(f"{address} is free")
        return failure(
            f"the controller runs (process {pid}) and does not listen at {address}",
            "its configuration has changed since: restart it; jobs go on",
        )
    if holder == pid:
        return ok(f"{address}, held by the controller")
    who = f"process {holder} ({psutil.Process(holder).name()})" if holder else "a process of another account"
    if not holder and pid is not None:
        return ok(f"{address} is held; root sees by whom")
    return failure(
        f"port {port} of {address} is held by {who}", "end that, or choose another port in the configuration"
    )


def _holder(port: int) -> int | None:
    """Return the process that listens at a TCP port; 0: an invisible one; None: none."""
    for each in psutil.net_connections(kind="tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port:
            return each.pid or 0
    return None


@CHECKS.check(
    "keys",
    "the controller listens on TCP and has no keys, or its directory of keys is open to others or spoiled",
    "`elasticctl keys init`; `chmod 700`; `elasticctl keys list`",
)
def keys(target: Target) -> Finding:
    described = target.described
    directory = KeyDirectory(Path(described.keys))
    remote = [address for address in (*described.clients, *described.agents) if address.startswith("tcp://")]
    if not directory.path.exists() and not remote:
        return absent("no address of the controller needs keys")
    try:
        directory.pair()
        known = directory.principals().known
    except OperatorError as error:
        if "ermission denied" in str(error):
            return absent("root sees this")
        return failure(str(error), f"`elasticctl keys init --keys {directory.path}`, or as it says")
    valid = [each for each in known if each.revoked_s is None]
    by_role = {
        role: sum(each.principal.startswith(f"{role}:") for each in valid) for role in ("user", "operator", "server")
    }
    counts = ", ".join(f"{count} {role}{'s' if count != 1 else ''}" for role, count in by_role.items())
    unset = (
        []
        if by_role["server"] or not any(a.startswith("tcp://") for a in described.agents)
        else [
            failure(
                "no server has a key, so none can join over TCP", "`elasticctl keys add server:NAME --address ADDRESS`"
            )
        ]
    )
    return worst(unset, ok(f"{directory.path}: {counts}; {len(known) - len(valid)} revoked"))
