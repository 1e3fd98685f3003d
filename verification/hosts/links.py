"""Links between the hosts of a lab: intact, cut, or slow and lossy, each in one direction.

Theory of operation
-------------------
A link is one direction between two hosts on one network. Each host has a static neighbour entry for each
other host, so no ARP request is ever sent. The entry of an intact link holds the other host's MAC address. That of a cut link
holds an unused address: frames leave and are lost without notice, as with a broken cable. That of a slow link holds an address
of the relay (`relay`), which delays frames and drops some. So one direction can be cut while the other is intact, and the
workers' network while the controller's is intact. No firewall is needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .lab import NETWORKS, Lab

RELAY = Path(__file__).with_name("relay.py")


@dataclass(frozen=True, order=True)
class Link:
    network: int
    source: str
    target: str


@dataclass(frozen=True)
class Condition:
    """Fault of a link. `cut`: no frame passes."""

    cut: bool = False
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0  # fraction of lost frames


CUT = Condition(cut=True)


class Links:
    """All links of a lab; a context manager, used inside the lab's. Call `booted` when a host has booted."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._names = list(lab.hosts)
        self._typing: dict[str, subprocess.Popen[bytes]] = {}  # a running `ip -batch` in each host
        self._relay: subprocess.Popen[bytes] | None = None
        self._conditions: dict[
            Link, list[Condition]
        ] = {}  # several faults may affect one link: the last of each kind applies

    def __enter__(self) -> Links:
        self._relay = self._lab.on_switch_keep(sys.executable, "-I", "-S", str(RELAY), *self._cards())
        assert self._relay.stdout is not None
        self._relay.stdout.readline()  # wait until it listens
        for name in self._names:
            self.booted(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._typing.values(), *([self._relay] if self._relay is not None else [])]:
            process.kill()
            process.wait()

    def booted(self, name: str) -> None:
        """Restore the links of a host that has booted again."""
        if (old := self._typing.pop(name, None)) is not None:
            old.kill()
            old.wait()
        host = self._lab[name]
        self._typing[name] = subprocess.Popen(
            [*host.entering(), "ip", "-force", "-batch", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=host.environment("root"),
        )  # fmt: skip
        for network in range(len(NETWORKS)):
            for other in self._names:
                if other != name:
                    self._apply(Link(network, name, other))

    def between(
        self,
        some: Iterable[str],
        others: Iterable[str],
        networks: Iterable[int] = range(len(NETWORKS)),
        back: bool = True,
    ) -> list[Link]:
        """Return all links from `some` hosts to `others`; with `back`, also those in the other direction."""
        pairs = [(a, b) for a in some for b in others if a != b]
        return [
            Link(network, *pair)
            for network in networks
            for each in pairs
            for pair in ([each, each[::-1]] if back else [each])
        ]

    def spoil(self, links: Iterable[Link], condition: Condition) -> None:
        for link in links:
            self._conditions.setdefault(link, []).append(condition)
            self._apply(link)

    def mend(self, links: Iterable[Link], condition: Condition) -> None:
        """Undo a `spoil` with the same condition; other conditions of these links remain."""
        for link in links:
            left = self._conditions.get(link, [])
            if condition in left:
                left.remove(condition)
            self._apply(link)

    def mend_all(self) -> None:
        spoiled = list(self._conditions)
        self._conditions.clear()
        for link in spoiled:
            self._apply(link)

    def _apply(self, link: Link) -> None:
        number, other = self._names.index(link.source) + 1, self._names.index(link.target) + 1
        conditions = self._conditions.get(link, [])
        if any(condition.cut for condition in conditions):
            card = f"06:77:{link.network:02x}:00:{number:02x}:{other:02x}"
        elif conditions:
            worst = conditions[-1]
            rule = {"link": [link.network, number, other], "delay_ms": worst.delay_ms, "jitter_ms": worst.jitter_ms}
            self._tell_relay({**rule, "loss": worst.loss})
            card = f"06:77:{link.network:02x}:01:{number:02x}:{other:02x}"
        else:
            card = f"02:77:00:00:{link.network:02x}:{other:02x}"
        address = self._lab.address(link.target, link.network)
        self._type(link.source, f"neigh replace {address} lladdr {card} dev eth{link.network} nud permanent")

    def _type(self, name: str, line: str) -> None:
        process = self._typing.get(name)
        if process is None or process.stdin is None:
            return
        try:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
        except OSError:  # the host is off: `booted` restores its links later
            pass

    def _tell_relay(self, rule: dict[str, object]) -> None:
        assert self._relay is not None
        assert self._relay.stdin is not None
        self._relay.stdin.write(json.dumps(rule).encode() + b"\n")
        self._relay.stdin.flush()

    def _cards(self) -> Iterator[str]:
        """Create the relay's card on each network. The bridge must not learn from it, as it sends with other hosts' addresses."""
        for network in range(len(NETWORKS)):
            card, port = f"relay{network}", f"torelay{network}"
            self._lab.on_switch("ip", "link", "add", card, "type", "veth", "peer", "name", port)
            self._lab.on_switch("ip", "link", "set", port, "master", f"br{network}")
            self._lab.on_switch("ip", "link", "set", port, "type", "bridge_slave", "learning", "off")
            for each in (card, port):
                self._lab.on_switch("ip", "link", "set", each, "up")
            yield card
