"""Topology of a server's GPUs, and the choice of GPUs that are close to each other. Pure.

Theory of operation
-------------------

A server is a tree: GPUs that NVLink connects, all with all; PCIe switches; sockets; the server (ElasticFlow 4.3 and
Figure 5; Elan IV-2 and Figure 9, with levels L1 to L3 above NVLink). Each level divides the GPUs into nodes, and a node
of one level lies in one node of the next. NVLink counts as a level only where it connects all GPUs of a node with all
others there: an NVSwitch does, and so does a bridge between two GPUs. In the cube of a DGX-1 each GPU reaches four of
seven others: there the switches and sockets decide. If nothing is known, or all GPUs are equally close, the tree is
empty and any GPUs are as good as others.

GPUs are chosen as in buddy allocation: in the smallest node with enough free ones. Of several nodes, the best fit is
taken: the fewest GPUs stay free in the node, then in the next larger one around it, and so on. So large holes are kept
for large jobs.

Sets are small integers here: bit i is the GPU at position i of its server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..protocol.model import GpuPlace

Near = tuple[tuple[int, ...], ...]  # by level, the closest first: nodes with several GPUs, without the whole server


def tree(indices: Sequence[int], places: Sequence[GpuPlace]) -> Near:
    """Return the levels of a server with these GPU numbers and places."""
    count = len(indices)
    positions = range(count)
    at = {index: position for position, index in enumerate(indices)}
    wired = [0] * count
    for position, place in enumerate(places):
        for other in place.nvlinks:
            if other in at and at[other] != position:
                wired[position] |= 1 << at[other]
                wired[at[other]] |= 1 << position
    nodes = [1 << position for position in positions]
    levels: list[tuple[int, ...]] = []
    cliques = [own | 1 << position for position, own in enumerate(wired)]
    whole = [all(cliques[other] == cliques[p] for other in positions if cliques[p] >> other & 1) for p in positions]
    switches = [place.switch for place in places]
    sockets = [place.socket for place in places]

    def same(known: Sequence[int | None]) -> Callable[[int, int], bool]:
        return lambda a, b: known[a] is not None and known[a] == known[b]

    for near in (lambda a, b: whole[a] and bool(cliques[a] >> b & 1), same(switches), same(sockets)):
        nodes = _joined(nodes, near)
        level = tuple(node for node in dict.fromkeys(nodes) if node.bit_count() > 1 and node.bit_count() < count)
        if level and level not in levels:
            levels.append(level)
    return tuple(levels)


def _joined(nodes: Sequence[int], near: Callable[[int, int], bool]) -> list[int]:
    """Return the node of each position, after joining nodes with GPUs that are close to each other."""
    found = list(nodes)
    for a in range(len(found)):
        for b in range(a):
            if not found[a] >> b & 1 and near(a, b):
                both = found[a] | found[b]
                found = [both if node & both else node for node in found]
    return found


def cut(near: Near, kept: Sequence[int]) -> Near:
    """Return the levels of the tree (`Near`) that is left if a server has only the GPUs at these positions."""

    def shrunk(node: int) -> int:
        return sum(1 << new for new, old in enumerate(kept) if node >> old & 1)

    levels = (tuple(small for node in level if 1 < (small := shrunk(node)).bit_count() < len(kept)) for level in near)
    return tuple(dict.fromkeys(level for level in levels if level))


def leaves(near: Near, count: int) -> tuple[int, ...]:
    """Return a number for each GPU such that each node is an aligned block of a power of two, as buddy allocation
    requires."""
    found = [0] * count
    _lay(_levels(near, count), len(near) + 1, (1 << count) - 1, 0, found)
    return tuple(found)


def _lay(levels: Sequence[Sequence[int]], level: int, node: int, begin: int, found: list[int]) -> int:
    """Number the GPUs of `node` from `begin` on. Return how many numbers that takes: a power of two."""
    if level == 0:
        found[node.bit_length() - 1] = begin
        return 1
    at = begin
    spans = [(_span(levels, level - 1, child), child) for child in levels[level - 1] if child & node]
    for span, child in sorted(spans, key=lambda one: (-one[0], one[1] & -one[1])):
        _lay(levels, level - 1, child, at, found)
        at += span
    return 1 << (at - begin - 1).bit_length()


def _span(levels: Sequence[Sequence[int]], level: int, node: int) -> int:
    if level == 0:
        return 1
    inner = sum(_span(levels, level - 1, child) for child in levels[level - 1] if child & node)
    return 1 << (inner - 1).bit_length()


def _levels(near: Near, count: int) -> list[list[int]]:
    """Return all levels, from single GPUs to the whole server; each has all GPUs."""
    singles = [1 << position for position in range(count)]
    found = [singles]
    for level in near:
        rest = [node for node in found[-1] if not any(node & larger for larger in level)]
        found.append(sorted([*level, *rest], key=lambda node: node & -node))
    return [*found, [(1 << count) - 1]]


def nearest(near: Near, size: int, count: int, free: int, own: int = 0) -> tuple[int, int]:
    """Return the distance and set of `count` GPUs of `free` that are close to each other and to those of `own`.

    The distance is a level from 0 on. `size`: GPUs of the server. Raises ValueError if too few GPUs are free.
    """
    levels = _levels(near, size)
    for distance, level in enumerate(levels):
        fitting = [node for node in level if not own & ~node and (free & node).bit_count() >= count]
        if fitting:
            node = min(fitting, key=lambda node: _holes(levels, distance, node, free))
            return distance, _filled(levels, distance, node, count, free, own)
    raise ValueError(f"{count} GPUs are wanted of {free.bit_count()}")


def _holes(levels: Sequence[Sequence[int]], distance: int, node: int, free: int) -> tuple[int, ...]:
    """Return the number of free GPUs in a node, in the next larger node, and so on; the last entry breaks ties."""
    around = (next(larger for larger in level if larger & node) for level in levels[distance:])
    return *((free & larger).bit_count() for larger in around), node & -node


def _filled(levels: Sequence[Sequence[int]], distance: int, node: int, count: int, free: int, own: int) -> int:
    """Return `count` of the free GPUs of `node`: preferably beside the own ones, then in few nodes of the level below,
    best fit."""
    here = free & node
    if here.bit_count() == count or distance == 0:
        return here
    taken, need = 0, count
    parts = [child for child in levels[distance - 1] if child & here]
    while need:
        room = {child: (child & here & ~taken).bit_count() for child in parts if child & here & ~taken}
        enough = [child for child in room if room[child] >= need]
        if enough:
            child = min(enough, key=lambda one: (not one & own, room[one], one & -one))
        else:
            child = min(room, key=lambda one: (not one & own, -room[one], one & -one))
        part = min(need, room[child])
        taken |= _filled(levels, distance - 1, child, part, free & ~taken, own)
        need -= part
    return taken
