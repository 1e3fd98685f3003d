"""Links between two GPUs, and the link directions that two transfers would share (Elan IV-2, its levels L1 to L4).

Theory of operation
-------------------
Elan distinguishes four levels of links: L1 traverses only PCIe switches, L2 a PCIe host bridge, L3 the link between two
sockets, L4 the network. The bandwidth falls in that order (its Figure 8: peer to peer, then shared memory, then
network). NVLink, which its servers did not have, comes before L1. Beyond L4 there is the way from one rack to another,
which has less bandwidth than that between servers of one rack (ElasticFlow 3.2). The levels nest, so a GPU's place
needs no table of distances: the place names the socket and the switch of the GPU, and `link` compares two places.

A place may be unknown, wholly or in part: older agents do not report it, and a driver need not answer. Then two GPUs of
a server count as being as far apart as a server allows, and no sharing between their transfers is assumed.

A transfer occupies *lanes*, each in one direction, since all these links carry both directions at full speed:

* the slots of its two GPUs, out of the one and into the other, where these slots are known (a CPU slot has none), unless the
  transfer goes over NVLink, which has wires of its own;
* over L3 the link from the one socket to the other;
* over L4 the network interface of each server. (A crossing of sockets on the way to the interface is not modelled.)

Two transfers with a lane in common would halve each other's speed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .model import GpuAddress, GpuPlace, ServerId


class Link(enum.IntEnum):
    """Level of the link that a transfer between two GPUs traverses. Nearer levels are smaller."""

    NVLINK = 0
    SWITCH = 1  # L1
    BRIDGE = 2  # L2
    SOCKET = 3  # L3, or an unknown link within one server
    NETWORK = 4  # L4
    RACKS = 5  # L4 as well, from one rack to another


@dataclass(frozen=True)
class Spot:
    """A GPU of the cluster and its position."""

    gpu: GpuAddress
    place: GpuPlace


class LaneKind(enum.Enum):
    """Kind of a lane, which carries a transfer in one direction."""

    OUT_OF_GPU = "out of GPU"
    INTO_GPU = "into GPU"
    BETWEEN_SOCKETS = "between sockets"
    OUT_OF_SERVER = "out of server"
    INTO_SERVER = "into server"


@dataclass(frozen=True)
class Lane:
    """One direction of a link that transfers may share."""

    kind: LaneKind
    server: ServerId
    origin: int = 0  # the GPU or socket where the lane begins
    end: int = 0  # the socket where the lane ends


def link(a: Spot, b: Spot) -> Link:
    """Return the level of the link between two different GPUs; the same in both directions."""
    if a.gpu.server != b.gpu.server:
        apart = a.place.rack and b.place.rack and a.place.rack != b.place.rack
        return Link.RACKS if apart else Link.NETWORK
    if b.gpu.index in a.place.nvlinks or a.gpu.index in b.place.nvlinks:
        return Link.NVLINK
    if a.place.switch is not None and a.place.switch == b.place.switch:
        return Link.SWITCH
    if a.place.socket is not None and a.place.socket == b.place.socket:
        return Link.BRIDGE
    return Link.SOCKET


def lanes(source: Spot, target: Spot) -> tuple[Lane, ...]:
    """Return the lanes that a transfer from `source` to `target` occupies."""
    level = link(source, target)
    if level is Link.NVLINK:
        return ()
    found: list[Lane] = []
    if source.place.switch is not None:
        found.append(Lane(LaneKind.OUT_OF_GPU, source.gpu.server, source.gpu.index))
    if target.place.switch is not None:
        found.append(Lane(LaneKind.INTO_GPU, target.gpu.server, target.gpu.index))
    if level >= Link.NETWORK:
        found.append(Lane(LaneKind.OUT_OF_SERVER, source.gpu.server))
        found.append(Lane(LaneKind.INTO_SERVER, target.gpu.server))
    elif level is Link.SOCKET and source.place.socket is not None and target.place.socket is not None:
        found.append(Lane(LaneKind.BETWEEN_SOCKETS, source.gpu.server, source.place.socket, target.place.socket))
    return tuple(found)
