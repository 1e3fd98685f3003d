"""A cluster with agents on other hosts: the part of `up` and `down` that runs over ssh; `local` has the part on this
machine.

`up` looks at all hosts first, and refuses with every reason if one of them cannot be used; then it records the agents
to start; then it starts them. So an unreachable host leaves no changes anywhere. If a start fails, the agents started
with it are ended again.

A server's key is made at its first start and lies on its host alone. The controller's list has the public half.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from .. import __version__
from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import PROTOCOL_VERSION
from ..runtime.keys import KeyDirectory
from . import hosts as file_of_hosts
from .hosts import Host
from .remote import Look, Seen, Start, Started, Stop
from .ssh import Ssh, Unanswered

CLIENTS_PORT, AGENTS_PORT = 7700, 7701  # default ports; others are chosen if these are in use
MOST_NAMED = 20  # most hosts listed with a reason each


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts of the agents, and the means to reach them."""

    cluster: str  # random; directories of the cluster on its hosts have this name
    hosts: tuple[Host, ...]
    ssh: str
    python: str
    clients: str  # addresses of the controller, for other hosts
    agents: str
    slots: int | None = None  # CPU slots of hosts without a number of their own
    checkpoints: str | None = None  # a directory that all hosts share

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)


def plan(path: Path, ssh: str, python: str, address: str | None, slots: int | None, checkpoints: str | None) -> Fleet:
    """Return the fleet that `up --hosts` starts with these options. Raises UserError."""
    found = file_of_hosts.load(path)
    Ssh(ssh, python)
    if checkpoints is not None and not Path(checkpoints).is_absolute():
        raise UserError(f"--checkpoints {checkpoints}: say an absolute path, the same on all hosts")
    here = address or _address_towards(found[0].address)
    clients, agents = _ports(here)
    return Fleet(
        cluster=secrets.token_hex(6),
        hosts=found,
        ssh=ssh,
        python=python,
        clients=f"tcp://{here}:{clients}",
        agents=f"tcp://{here}:{agents}",
        slots=slots,
        checkpoints=checkpoints,
    )


def look(fleet: Fleet) -> dict[Host, Seen]:
    """Return the state of each host. Raises RequestRefused, naming all hosts that cannot be used."""
    answers = _ssh(fleet).ask_all({host: Look(cluster=fleet.cluster, server=host.name) for host in fleet.hosts})
    seen: dict[Host, Seen] = {}
    bad: dict[Host, str] = {}
    for host, answer in answers.items():
        if isinstance(answer, Unanswered) or not isinstance(answer, Seen):
            bad[host] = str(answer)
        elif (answer.version, answer.protocol) != (__version__, PROTOCOL_VERSION):
            bad[host] = (
                f"has elasticctl {answer.version} (protocol {answer.protocol}), not {__version__} ({PROTOCOL_VERSION})"
            )
        else:
            seen[host] = answer
    if bad:
        raise RequestRefused(f"{len(bad)} of {len(fleet.hosts)} hosts cannot be used:\n{reasons(bad)}")
    return seen


def start(fleet: Fleet, keys: KeyDirectory, seen: Mapping[Host, Seen]) -> list[str]:
    """Start the agents that do not run. Returns the names of these servers.

    Raises RequestRefused if one does not start. Then the caller has to `end` the others.
    """
    requests = {host: _start_of(fleet, host, keys, found) for host, found in seen.items() if not found.runs}
    answers = _ssh(fleet).ask_all(requests)
    bad = {host: str(answer) for host, answer in answers.items() if not isinstance(answer, Started)}
    if bad:
        raise RequestRefused(f"{len(bad)} of {len(fleet.hosts)} hosts do not start their agent:\n{reasons(bad)}")
    return [host.name for host, answer in answers.items() if isinstance(answer, Started) and answer.new]


def end(fleet: Fleet, which: Iterable[Host], keep: bool = False) -> dict[Host, str]:
    """End the agents and workers on these hosts. Returns the hosts where this failed, with the reason."""
    requests = {host: Stop(cluster=fleet.cluster, server=host.name, keep=keep) for host in which}
    answers = _ssh(fleet).ask_all(requests)
    return {host: str(answer) for host, answer in answers.items() if isinstance(answer, Unanswered)}


def silent(fleet: Fleet, present: Collection[str]) -> str:
    """Return why servers other than those `present` have not reached the controller, as far as their hosts report."""
    hosts = [host for host in fleet.hosts if host.name not in present]
    answers = _ssh(fleet).ask_all({host: Look(cluster=fleet.cluster, server=host.name) for host in hosts})
    found = {}
    for host, answer in answers.items():
        if isinstance(answer, Seen):
            state = "its agent runs, and does not reach" if answer.runs else "its agent has ended; it was to reach"
            found[host] = f"{state} {fleet.agents}. Its log ends with: {answer.log or 'nothing'}"
        else:
            found[host] = str(answer)
    return reasons(found)


def _start_of(fleet: Fleet, host: Host, keys: KeyDirectory, seen: Seen) -> Start:
    options: dict[str, str | int | bool] = {"controller": fleet.agents, "address": host.address}
    slots = host.slots or fleet.slots
    if slots is not None:
        options["cpu_slots"] = slots
    if os.getuid() == 0:
        options["allow_root_jobs"] = True  # root has started this cluster, so jobs may run as root
    if fleet.checkpoints is not None:
        options["checkpoint_directory"] = fleet.checkpoints
    return Start(
        cluster=fleet.cluster, server=host.name, options=options, key=_key(fleet, host.name, keys, seen.public)
    )


def _key(fleet: Fleet, server: str, keys: KeyDirectory, public: str) -> str | None:
    """Return the text of a new key file, or None where the host has the valid one."""
    principal = f"server:{server}"
    known = keys.principals().named(principal)
    if known is not None and known.revoked_s is None:
        if known.public == public:
            return None
        keys.revoke(principal)  # the host has lost the key
    out = keys.path / f".given-{secrets.token_hex(4)}"
    try:
        return keys.add(principal, "", out, fleet.agents).text().decode()
    finally:
        with contextlib.suppress(FileNotFoundError):
            out.unlink()


def host_of(address: str) -> str:
    """Return the host in tcp://HOST:PORT."""
    return address.removeprefix("tcp://").rpartition(":")[0]


def _ssh(fleet: Fleet) -> Ssh:
    return Ssh(fleet.ssh, fleet.python)


def reasons(hosts: Mapping[Host, str]) -> str:
    """Return the hosts with their reasons, one line each."""
    lines = [f"  {host.name} ({host.target}): {reason}" for host, reason in list(hosts.items())[:MOST_NAMED]]
    if len(hosts) > MOST_NAMED:
        lines.append(f"  and {len(hosts) - MOST_NAMED} more")
    return "\n".join(lines)


def _address_towards(host: str) -> str:
    """Return this machine's address on the way to `host`; no packet is sent. Raises UserError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise UserError(f"no way to {host} from here ({error.strerror}): say --address") from None
        return str(probe.getsockname()[0])


def _ports(address: str) -> tuple[int, int]:
    """Return the default ports, or free ones. The configuration keeps them for restarts. Raises UserError."""
    with contextlib.ExitStack() as stack:
        found = []
        for wanted in (CLIENTS_PORT, AGENTS_PORT):
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, wanted))
            except OSError:
                try:
                    probe.bind((address, 0))
                except OSError as error:
                    raise UserError(f"--address {address}: {error.strerror}") from None
            found.append(int(probe.getsockname()[1]))
        return found[0], found[1]
