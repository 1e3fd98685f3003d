"""A server's wiring as a tree, and the links between its GPUs: their levels and speeds. For people and programs.

Theory of operation
-------------------
Each GPU and each network card lists the PCI devices above it (`model.GpuWiring`): the host bridge, the root port, then
two for each PCIe switch, its upper end and the lower one that leads on. So devices that share an upper end hang on the
same switch. Unknown parts are left out: a GPU with an unknown place hangs on the server itself.

    rack         between its servers, and to others: the network          L4
    server       between its sockets                                      L3
    socket       a NUMA node: between its host bridges
    host bridge  between the devices plugged into it                      L2
    PCIe switch  between the devices plugged into it                      L1
    GPU, network card

The levels are Elan's (`topology`), NVLink comes before them. A speed is that of the slowest part of known speed, in one
direction. No interface reports the speed of the link between two sockets.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .model import Gpu, GpuAddress, GpuWiring, Nic, Server
from .topology import Link, Spot, link

LABELS = {Link.NVLINK: "NV", Link.SWITCH: "L1", Link.BRIDGE: "L2", Link.SOCKET: "L3", Link.NETWORK: "L4"}


class Kind(enum.Enum):
    """Kind of a part of the tree."""

    SERVER = "server"
    SOCKET = "socket"
    BRIDGE = "host bridge"
    SWITCH = "PCIe switch"
    GPU = "GPU"
    NIC = "network card"


@dataclass
class Part:
    """A part of a server, and the parts that hang on it."""

    kind: Kind
    name: str  # "local-1", "0", "0000:00", "0000:03:00.0"; of a GPU its index, of a card its interface
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class GpuLink:
    """Link between two GPUs of a server. `known` is false where their places are unknown."""

    level: Link
    bytes_per_s: float  # in one direction; 0: unknown
    nvlinks: int = 0
    known: bool = True
    one_gpu: bool = False  # both are MIG instances of one GPU

    @property
    def label(self) -> str:
        """Return "NV2", "L1", "MIG", or "?" for an unknown link."""
        if self.one_gpu:
            return "MIG"
        if not self.known:
            return "?"
        return f"{LABELS[self.level]}{self.nvlinks or ''}"


def tree(server: Server) -> Part:
    """Return the server with all parts known to hang on it."""
    top = Part(Kind.SERVER, server.server)
    wired = {wiring.index: wiring for wiring in server.wiring.gpus}
    leaves = [
        (_containers(wired.get(gpu.index, GpuWiring(index=gpu.index))), Part(Kind.GPU, str(gpu.index)))
        for gpu in server.gpus
    ]
    leaves += [(_containers(nic), Part(Kind.NIC, nic.name)) for nic in server.wiring.nics]
    for containers, leaf in leaves:
        at = top
        for kind, name in containers:
            found = next((part for part in at.parts if part.kind is kind and part.name == name), None)
            if found is None:
                found = Part(kind, name)
                at.parts.append(found)
            at = found
        at.parts.append(leaf)
    return top


def _containers(device: GpuWiring | Nic) -> Iterable[tuple[Kind, str]]:
    if device.node is not None:
        yield Kind.SOCKET, str(device.node)
    if device.above:
        yield Kind.BRIDGE, device.above[0].removeprefix("pci")
        for upper_end in device.above[2::2]:
            yield Kind.SWITCH, upper_end


def between(server: Server, a: Gpu, b: Gpu) -> GpuLink:
    """Return the link between two GPUs of `server`."""
    level = link(_spot(server, a), _spot(server, b))
    first, second = wiring_of(server, a.index), wiring_of(server, b.index)
    if first.parent and first.parent == second.parent:
        return GpuLink(level, 0.0, one_gpu=True)
    if level is Link.NVLINK:
        ways = (_nvlinks(first, second.index), _nvlinks(second, first.index))
        told = [way for way in ways if way[0]]
        return GpuLink(level, _slowest(speed for _, speed in told), min((count for count, _ in told), default=0))
    if level is Link.SOCKET:
        return GpuLink(level, 0.0, known=a.place.socket is not None and b.place.socket is not None)
    return GpuLink(level, _slowest((first.pcie_bytes_per_s, second.pcie_bytes_per_s)))


def _nvlinks(wiring: GpuWiring, peer: int) -> tuple[int, float]:
    """Return number and total speed (bytes/s) of the NVLinks to GPU `peer`: the direct ones, else those through
    NVSwitches.
    """
    direct = [links for links in wiring.nvlinks if links.peer == peer]
    found = direct or [links for links in wiring.nvlinks if links.peer is None]
    return sum(links.count for links in found), sum(links.bytes_per_s for links in found)


def near(server: Server, gpu: int) -> tuple[Nic, ...]:
    """Return the network cards nearest to a GPU; none where the distances are unknown."""
    wiring = wiring_of(server, gpu)
    distances = {nic.name: _distance(wiring, nic) for nic in server.wiring.nics}
    known = [distance for distance in distances.values() if distance is not None]
    return tuple(nic for nic in server.wiring.nics if known and distances[nic.name] == min(known))


def _distance(gpu: GpuWiring, nic: Nic) -> Link | None:
    """Return the level of the link between the two, or None if it is unknown."""
    if gpu.above and nic.above:
        most = min(len(gpu.above), len(nic.above))
        same = next((at for at in range(most) if gpu.above[at] != nic.above[at]), most)
        if same >= 3:
            return Link.SWITCH
        if same:
            return Link.BRIDGE
    if gpu.node is None or nic.node is None:
        return None
    return Link.BRIDGE if gpu.node == nic.node else Link.SOCKET


def to_network(server: Server, gpu: int) -> float:
    """Return the speed (bytes/s) at which a GPU reaches other servers by the fastest of its nearest cards; 0: unknown."""
    cards = [nic.bytes_per_s for nic in near(server, gpu) if nic.bytes_per_s]
    return _slowest((max(cards), wiring_of(server, gpu).pcie_bytes_per_s)) if cards else 0.0


def wiring_of(server: Server, gpu: int) -> GpuWiring:
    """Return the wiring of a GPU, an empty one where it is unknown."""
    return next((wiring for wiring in server.wiring.gpus if wiring.index == gpu), GpuWiring(index=gpu))


def pairs(server: Server) -> Sequence[tuple[Gpu, Gpu, GpuLink]]:
    """Return all pairs of a server's GPUs with a known wiring, the smaller index first."""
    wired = {wiring.index for wiring in server.wiring.gpus}
    gpus = [gpu for gpu in server.gpus if gpu.uuid and gpu.index in wired]
    return [(a, b, between(server, a, b)) for at, a in enumerate(gpus) for b in gpus[at + 1 :]]


def speeds(server: Server) -> dict[Link, tuple[float, float]]:
    """Return the slowest and the fastest link (bytes/s) of each level present in the server; (0, 0): unknown."""
    found: dict[Link, list[float]] = {}
    for _, _, way in pairs(server):
        if way.known and not way.one_gpu:
            found.setdefault(way.level, []).append(way.bytes_per_s)
    if server.wiring.gpus and server.wiring.nics:
        found[Link.NETWORK] = [to_network(server, wiring.index) for wiring in server.wiring.gpus]
    return {level: (_of(min, each), _of(max, each)) for level, each in sorted(found.items())}


def _of(choose: Callable[[Iterable[float]], float], values: Iterable[float]) -> float:
    told = [value for value in values if value]
    return choose(told) if told else 0.0


def _slowest(values: Iterable[float]) -> float:
    return _of(min, values)


def _spot(server: Server, gpu: Gpu) -> Spot:
    return Spot(GpuAddress(server=server.server, index=gpu.index), gpu.place)
