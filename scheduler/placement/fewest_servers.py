"""Which GPUs each job gets, given how many (AFS 4.4).

Aims, in this order: every job on the fewest servers, and at most one job per server that talks to others; as many jobs as
possible keep at least one of their GPUs (one that keeps none migrates); no job moves that needs no change; as many GPUs as
possible stay. So:

* A job whose share does not change and that is placed well keeps its GPUs: it has to move only if another one cannot be
  placed well otherwise, or if more others than it would lose all of theirs instead.
* A job that shrinks keeps GPUs on the fewest servers; its first worker's server is among them if that costs nothing.
* A job that grows takes what is free on its server. Where that is not enough, it goes to another one.

Shares that network packing allows (AFS App. E) are placed perfectly, on servers that are alike; other shares well, not
optimally: it is bin packing. What could not be placed well is tried again with each decision, and moves only if that makes
the whole better; so a placement that has been carried out asks for no further change.

Within a server, a job keeps its GPUs, and what it takes is near them and near each other (`nearness`; ElasticFlow 4.3). A job on
several servers has them in one rack if it can: in that of its own, else in the one that it fits into best (ElasticFlow's fifth
layer). Nobody moves for either: being near makes a placement better, and being moved costs more.

Most jobs need no change, and are looked at once. How many GPUs of which server the others get is decided in `largest_first.py`,
without regard to which these are: those that a job has there, then free ones, then those that others give up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np

from ...protocol.model import GpuAddress
from ..nearness import Near, nearest
from ..sets import elements, some, union
from ..view import Gpus, Ints, ServerInView
from .largest_first import MOVED, TOUCHED, Piece, Resident, fit

Placements = dict[int, Gpus]


def place(
    servers: Sequence[ServerInView],
    present: Mapping[int, Gpus],
    shares: Ints | Mapping[int, int],
    first: Mapping[int, Gpus] | None = None,
) -> Placements:
    """A placement for every row with a share. `present` has the GPUs of each job that still exist.

    `first`: the GPU of each job's first worker, as a set of one; where it is not known, the first of its GPUs is taken for it.
    Raises ValueError if the shares do not fit into the cluster.
    """
    wanted = wanted_shares(shares)
    layout = layout_of(tuple([len(server.gpus) for server in servers]))
    map_ = Map.of(servers)
    if sum(wanted.values()) > layout.total:
        raise ValueError(f"{sum(wanted.values())} GPUs do not fit into {layout.total}")
    attempt = _Attempt(layout, map_, present, wanted, first or {})
    while attempt.restless:
        placed, perfect = attempt.settle()
        if not attempt.changed and layout.flaws(placed) >= layout.flaws({row: present[row] for row in wanted}):
            break
        present = placed
        if perfect:
            break
        attempt = _Attempt(layout, map_, present, wanted, first or {})
    return {row: present[row] for row in wanted}


def addresses(servers: Iterable[ServerInView]) -> tuple[GpuAddress, ...]:
    """What the bits of a set stand for."""
    return tuple(GpuAddress(server=server.server, index=index) for server in servers for index in server.gpus)


def in_order(gpus: Gpus, known: Sequence[GpuAddress], before: Sequence[GpuAddress]) -> tuple[GpuAddress, ...]:
    """The set as a tuple in the order of ranks: those of `before` that stay, in their order, then the others.

    `known`: the `addresses` of the servers that the set is of.
    """
    found = [known[bit] for bit in elements(gpus)]
    there = set(found)
    stay = [gpu for gpu in before if gpu in there]
    old = set(stay)
    return (*stay, *(gpu for gpu in found if gpu not in old))


class Layout:
    """Where the servers' GPUs stand among the bits."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        ends = list(accumulate(sizes, initial=0))
        self.total = ends[-1]
        self.begins = ends[:-1]
        self.masks = [((1 << size) - 1) << end for size, end in zip(sizes, ends, strict=False)]
        self.server = [server for server, size in enumerate(sizes) for _ in range(size)]  # of each bit

    @cached_property
    def largest(self) -> list[int]:
        return sorted(self.sizes, reverse=True)

    @cached_property
    def _room(self) -> list[int]:
        return list(accumulate(self.largest))

    def fewest(self, share: int) -> int:
        """Servers that a job needs at least."""
        return bisect_left(self._room, share) + 1

    def counts(self, gpus: Gpus) -> Mapping[int, int]:
        """GPUs by server."""
        return _counts(self, gpus)

    def flaws(self, placements: Placements) -> int:
        """Servers that jobs use beyond the fewest, and jobs beyond one on a server that talk to others there."""
        flaws = 0
        remote: list[int] = []
        for gpus in placements.values():
            used = self.counts(gpus)
            flaws += len(used) - self.fewest(gpus.bit_count())
            remote += used if len(used) > 1 else ()
        return flaws + len(remote) - len(set(remote))


@dataclass(frozen=True)
class Map:
    """How far GPUs are from each other, by server; empty and None where all are alike."""

    near: Mapping[int, Near]
    racks: Sequence[int] | None  # numbers of racks

    @classmethod
    def of(cls, servers: Sequence[ServerInView]) -> Map:
        near = {number: server.near for number, server in enumerate(servers) if server.near}
        names = [server.rack for server in servers]
        if names.count(names[0] if names else "") == len(names):
            return cls(near, None)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return cls(near, [numbers[name] for name in names])


@lru_cache(maxsize=16)
def layout_of(sizes: tuple[int, ...]) -> Layout:
    """The same for every decision on the same servers."""
    return Layout(sizes)


@lru_cache(maxsize=2**16)
def _counts(layout: Layout, gpus: Gpus) -> Mapping[int, int]:
    """GPUs by server; most jobs keep theirs from one decision to the next."""
    found = {}
    while gpus:
        server = layout.server[(gpus & -gpus).bit_length() - 1]
        found[server] = (gpus & layout.masks[server]).bit_count()
        gpus &= ~layout.masks[server]
    return found


class _Attempt:
    """Who stays without question (`settled`), and who does not (`restless`).

    `changed`: some job has not as many GPUs as it is to have; else there are only some that are not placed well.
    """

    def __init__(
        self,
        layout: Layout,
        map_: Map,
        present: Mapping[int, Gpus],
        wanted: Mapping[int, int],
        first: Mapping[int, Gpus],
    ) -> None:
        self.changed = False
        self.restless: list[int] = []
        self._settled: Placements = {}
        self._spread: dict[int, Mapping[int, int]] = {}  # of these those on several servers: GPUs by server
        self._layout, self._map, self._present, self._wanted, self._first = layout, map_, present, wanted, first
        self._holes = layout.sizes.copy()
        self._remote: set[int] = set()
        holes, settled, masks, server_of = self._holes, self._settled, layout.masks, layout.server
        for row, share in wanted.items():
            has = present.get(row, 0)
            if has.bit_count() != share:
                self.changed = True
                self.restless.append(row)
                continue
            server = server_of[has.bit_length() - 1]
            if not has & ~masks[server]:
                holes[server] -= share
                settled[row] = has
                continue
            used = layout.counts(has)
            if len(used) > layout.fewest(share) or self._remote & used.keys():
                self.restless.append(row)
                continue
            self._remote.update(used)
            for server, gpus in used.items():
                holes[server] -= gpus
            settled[row], self._spread[row] = has, used

    def _has(self, row: int) -> Mapping[int, int]:
        return self._layout.counts(self._present.get(row, 0))

    def settle(self) -> tuple[Placements, bool]:
        """Everybody's placement, and whether all are on the fewest servers and nobody is in another's way."""
        remote = frozenset(self._remote)
        pieces = [piece for row in self.restless for piece in self._pieces(row)]
        fitted = fit(self._holes, pieces, self._residents, self._has, remote, self._map.racks)
        placed = self._settled.copy()
        for row in fitted.amounts:
            placed.pop(row, None)
        self._choose(fitted.amounts, placed)
        return placed, fitted.perfect

    def _pieces(self, row: int) -> list[Piece]:
        """The pieces of a job, and where they would stay."""
        layout, share, own = self._layout, self._wanted[row], self._has(row)
        if not own and share <= layout.largest[0]:
            return [Piece(row, share, own)]
        has = self._present.get(row, 0)
        lead = self._first.get(row, 0) or has & -has
        homes = sorted(own, key=lambda s: (-min(own[s], share), not lead & layout.masks[s], s))
        whole = share <= layout.largest[0]
        pieces = []
        for gpus in [share] if whole else self._parts(share, own, homes):
            home = next((s for s in homes if layout.sizes[s] >= gpus and (whole or s not in self._remote)), None)
            if home is not None:
                homes.remove(home)
            if home is not None and not whole:
                self._remote.add(home)
            pieces.append(Piece(row, gpus, own, home, spread=not whole))
        return pieces

    def _parts(self, share: int, own: Mapping[int, int], homes: Sequence[int]) -> list[int]:
        """A share too large for any server, in parts: as on its own servers where these are enough, else as large as can be."""
        layout = self._layout
        here = homes[: layout.fewest(share)]
        grown = [self._holes[server] for server in here]  # its own GPUs and free ones
        if len(here) < layout.fewest(share) or sum(grown) < share:
            return _cut(share, layout.largest)
        parts = []
        for server in here:
            parts.append(min(own[server], share))
            share -= parts[-1]
        for part, most in enumerate(grown):
            more = min(share, most - parts[part])
            parts[part] += more
            share -= more
        return [part for part in parts if part]

    def _residents(self) -> list[list[Resident]]:
        """The settled jobs on each server."""
        residents: list[list[Resident]] = [[] for _ in self._layout.sizes]
        wanted, spread, server_of = self._wanted, self._spread, self._layout.server
        for row, has in self._settled.items():
            if row in spread:
                for server, gpus in spread[row].items():
                    residents[server].append((TOUCHED + gpus, row, gpus, True))
            else:
                share = wanted[row]
                residents[server_of[has.bit_length() - 1]].append((MOVED + TOUCHED + share, row, share, False))
        return residents

    def _choose(self, amounts: Mapping[int, Mapping[int, int]], placed: Placements) -> None:
        """The GPUs themselves. Adds them to `placed`."""
        masks, near = self._layout.masks, self._map.near
        free = ((1 << self._layout.total) - 1) & ~union(placed.values())
        for row, amount in amounts.items():
            has, lead = self._present.get(row, 0), self._first.get(row, 0)
            placed[row] = 0
            for server, gpus in amount.items():
                own = has & masks[server]
                if server in near and own.bit_count() > gpus:
                    placed[row] |= self._kept(server, gpus, own, own & lead)
                else:
                    placed[row] |= some(gpus, own & lead, own)
            free &= ~placed[row]
        idle = free & ~union(self._present.values())
        missing = [
            (row, server, count)
            for row, amount in amounts.items()
            for server, gpus in amount.items()
            if (count := gpus - (placed[row] & masks[server]).bit_count())
        ]
        if near:  # who needs most chooses first among near ones
            missing.sort(key=lambda one: -one[2] if one[1] in near else 0)
        for row, server, count in missing:
            mask = masks[server]
            if server in near:
                more = self._nearest(server, count, idle & mask, free & mask, placed[row] & mask)
            else:
                more = some(count, idle & mask, free & mask)
            placed[row] |= more
            free &= ~more
            idle &= ~more

    def _kept(self, server: int, count: int, own: Gpus, lead: Gpus) -> Gpus:
        """So many of its own GPUs, near each other; that of its first worker is among them if it is there."""
        near, begin = self._map.near[server], self._layout.begins[server]
        rest = count - lead.bit_count()
        if not rest:
            return lead
        chosen = nearest(near, self._layout.sizes[server], rest, (own & ~lead) >> begin, lead >> begin)[1]
        return lead | chosen << begin

    def _nearest(self, server: int, count: int, idle: Gpus, free: Gpus, own: Gpus) -> Gpus:
        """So many near GPUs: idle ones, unless those that others give up are nearer."""
        near, begin, size = self._map.near[server], self._layout.begins[server], self._layout.sizes[server]
        distance, chosen = nearest(near, size, count, free >> begin, own >> begin)
        if idle.bit_count() >= count:
            without, unused = nearest(near, size, count, idle >> begin, own >> begin)
            if without <= distance:
                chosen = unused
        return chosen << begin


def wanted_shares(shares: Ints | Mapping[int, int]) -> dict[int, int]:
    """By row, without those that are 0."""
    if isinstance(shares, np.ndarray):
        rows = np.flatnonzero(shares != 0)
        return dict(zip(rows.tolist(), shares[rows].tolist(), strict=True))
    return {row: share for row, share in sorted(shares.items()) if share}


def _cut(share: int, sizes: Iterable[int]) -> list[int]:
    """A share in pieces as large as the servers, the largest first."""
    pieces = []
    for size in sizes:
        pieces.append(min(size, share))
        share -= pieces[-1]
        if not share:
            break
    return pieces
