"""Buddy placement in the topology tree (ElasticFlow 4.3): powers of two in aligned blocks, which avoids fragmentation.

Theory of operation
-------------------

A server is a tree: its GPUs are the leaves, and the block of 2^k leaves at a multiple of 2^k is a node. Leaves are
numbered along the links that the server's agent has reported (`nearness.leaves`), otherwise by the GPUs' own numbers,
which mostly follow the PCIe tree. So the GPUs of a smaller block are linked more closely: by NVLink, a switch, a
socket, the server. A job gets the smallest block with enough idle GPUs. Of several, it gets the block in which it has
most GPUs already. Then the best fit counts: the number of idle GPUs is closest to the need, in the block, in the next
larger block around it, and so on.

With powers of two there is always such a block if jobs may move. Larger jobs are placed first, so every job in the way
of the next one is smaller and finds another block after it. The cheapest jobs move: the fewest jobs, then the fewest
GPUs. A share beyond the largest server takes whole servers and a rest.

The paper leaves four points open:

* *Shares that are no power of two* take a part of a block of the next power of two. If no block has enough idle GPUs,
  not even after smaller jobs have moved, the share is spread over the largest holes, as in `fewest_servers.py`. With
  `packing: network`, and a power of two of GPUs in each server, only manual shares are of this kind.
* *Missing GPUs* (faulty, drained) leave their blocks incomplete, as if another job held them for good.
* *Jobs that stay.* A job with an unchanged share and a block to itself moves only to make room. A job with a worse
  placement is placed again in each decision; if no share changes, the new placement counts only if it improves the
  whole. So a placement that has been carried out asks for no further change.
* *Racks*: the parts of a job on several servers go to the rack where it has GPUs already, if they fit there as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ..arrays import Ints
from ..sets import elements, some
from ..view import Gpus, ServerInView
from .fewest_servers import Placements, wanted_shares
from .recomputed import RecomputedPlacement

Leaves = int  # a set of GPUs of one server: bit i stands for the GPU with index i

Block = tuple[int, Leaves]  # a server, and all leaves of one of its nodes, with and without GPUs


class BuddyParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Buddy placement takes no parameters."""


class Buddy:
    """Each job in the smallest block of the topology tree that it fits into, best fit (ElasticFlow 4.3). Smaller jobs
    move where that is the only way to find one."""

    name = "buddy"
    Parameters = BuddyParameters

    def __init__(self, parameters: BuddyParameters) -> None:
        self.parameters = parameters

    def place(
        self,
        servers: Sequence[ServerInView],
        present: Mapping[int, Gpus],
        shares: Ints | Mapping[int, int],
        first: Mapping[int, Gpus] | None = None,
        stay: Collection[int] = (),
    ) -> Placements:
        """Return a placement for every row with a share; arguments and errors as for `fewest_servers.place`."""
        wanted = wanted_shares(shares)
        forest = _Forest(servers)
        if sum(wanted.values()) > forest.total:
            raise ValueError(f"{sum(wanted.values())} GPUs do not fit into {forest.total}")
        before = {row: forest.leaves(present.get(row, 0)) for row in wanted}
        lead = {row: forest.leaves((first or {}).get(row, 0)) for row in wanted}
        same = all(present.get(row, 0).bit_count() == share for row, share in wanted.items())
        if same and not any(forest.flaws(leaves) for leaves in before.values()):
            return {row: present[row] for row in wanted}
        found = _Arrangement(forest, before, wanted, lead, frozenset(stay)).settle()
        if same and sum(map(forest.flaws, found.values())) >= sum(map(forest.flaws, before.values())):
            return {row: present[row] for row in wanted}
        return {row: forest.gpus(found[row]) for row in wanted}

    def incremental(self, servers: Sequence[ServerInView]) -> RecomputedPlacement:
        """Return the state for consecutive decisions under this rule, with no job on these servers yet."""
        return RecomputedPlacement(self.place, servers)


class _Forest:
    """The trees of all servers, and the numbering of their leaves in the view."""

    def __init__(self, servers: Sequence[ServerInView]) -> None:
        self.indices = [server.leaves or server.gpus for server in servers]
        self.racks = [server.rack for server in servers]
        self.there: list[Leaves] = [sum(1 << index for index in indices) for indices in self.indices]
        self.spans = [_block_size(there.bit_length()) for there in self.there]  # leaves of each server's tree
        self.largest = sorted((len(indices) for indices in self.indices), reverse=True)
        self.total = sum(self.largest)
        self._bits = [(server, index) for server, indices in enumerate(self.indices) for index in indices]
        self._places = {place: bit for bit, place in enumerate(self._bits)}

    def leaves(self, gpus: Gpus) -> dict[int, Leaves]:
        """Split a set of GPUs by server."""
        found: dict[int, Leaves] = {}
        while gpus:
            server, index = self._bits[(gpus & -gpus).bit_length() - 1]
            found[server] = found.get(server, 0) | 1 << index
            gpus &= gpus - 1
        return found

    def gpus(self, leaves: Mapping[int, Leaves]) -> Gpus:
        return sum(1 << self._places[server, index] for server, mask in leaves.items() for index in elements(mask))

    def parts(self, share: int) -> list[int]:
        """Return a share's GPUs on each of the fewest servers: whole servers while there are any, and a rest."""
        parts: list[int] = []
        for size in self.largest:
            parts.append(min(size, share))
            share -= parts[-1]
            if not share:
                break
        return parts

    def flaws(self, leaves: Mapping[int, Leaves]) -> int:
        """Count a job's deviations from an ideal placement: servers beyond the fewest, and parts that are not in a
        smallest block."""
        parts = self.parts(sum(mask.bit_count() for mask in leaves.values()))
        scattered = sum(_smallest_around(mask) > _block_size(mask.bit_count()) for mask in leaves.values())
        return len(leaves) - len(parts) + scattered


@dataclass(eq=False)
class _Part:
    """The GPUs that a job should get on one server, if possible."""

    number: int
    row: int
    gpus: int
    own: Mapping[int, Leaves]  # present GPUs of the job, by server
    lead: Mapping[int, Leaves]
    got: dict[int, Leaves] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Key of the placing order, ascending: large parts first, then those of jobs that have GPUs."""
        return -self.gpus, not self.own, self.row


class _Arrangement:
    """Assignment of parts to blocks. Jobs that need not move are in place from the beginning."""

    def __init__(
        self,
        forest: _Forest,
        before: Mapping[int, Mapping[int, Leaves]],
        wanted: Mapping[int, int],
        lead: Mapping[int, Mapping[int, Leaves]],
        stay: frozenset[int],
    ) -> None:
        self._forest = forest
        self._free = list(forest.there)
        self._claimed = [0] * len(forest.there)  # by server: present GPUs of jobs that are not placed yet
        self._here: list[list[_Part]] = [[] for _ in forest.there]  # by server: the parts placed on it
        self._parts: list[_Part] = []
        self._parts_of: dict[int, list[_Part]] = {}  # by row
        self._waiting: list[tuple[tuple[int, bool, int], int]] = []  # a heap; parts by number
        self._stay = stay
        for row, share in wanted.items():
            own = before[row]
            same = sum(mask.bit_count() for mask in own.values()) == share
            stays = same and (row in stay or not forest.flaws(own))
            if stays:
                for server, mask in own.items():
                    self._put(self._part(row, mask.bit_count(), own, lead[row]), server, mask)
                continue
            for server, mask in own.items():
                self._claimed[server] |= mask
            for gpus in forest.parts(share):
                self._wait(self._part(row, gpus, own, lead[row]))

    def settle(self) -> dict[int, dict[int, Leaves]]:
        """Place all parts. Return each job's leaves, by row and server."""
        while self._waiting:
            part = self._parts[heapq.heappop(self._waiting)[1]]
            block = self._best(part) or self._make_room(part)
            if block is not None:
                self._settle_in(part, *block)
            else:
                self._spread(part)
        found: dict[int, dict[int, Leaves]] = {}
        for part in self._parts:
            leaves = found.setdefault(part.row, {})
            for server, mask in part.got.items():
                leaves[server] = leaves.get(server, 0) | mask
        return found

    def _part(self, row: int, gpus: int, own: Mapping[int, Leaves], lead: Mapping[int, Leaves]) -> _Part:
        self._parts.append(_Part(len(self._parts), row, gpus, own, lead))
        self._parts_of.setdefault(row, []).append(self._parts[-1])
        return self._parts[-1]

    def _wait(self, part: _Part) -> None:
        heapq.heappush(self._waiting, (part.rank, part.number))

    def _put(self, part: _Part, server: int, mask: Leaves) -> None:
        self._free[server] &= ~mask
        self._claimed[server] &= ~mask
        self._here[server].append(part)
        part.got[server] = part.got.get(server, 0) | mask

    def _settle_in(self, part: _Part, server: int, block: Leaves) -> None:
        free = self._free[server] & block
        own, lead = part.own.get(server, 0), part.lead.get(server, 0)
        self._put(part, server, some(part.gpus, free & lead, free & own, free & ~self._claimed[server], free))

    # -- finding a block

    def _best(self, part: _Part) -> Block | None:
        """Return the smallest block with enough idle GPUs; of several, the one with most GPUs of the job, then the best
        fit.

        A share that is a power of two accepts only a block of its own size: `_make_room` clears one if needed.
        """
        size = _block_size(part.gpus)
        while size <= max(self._forest.spans):
            found = self._best_of_size(part, size)
            if found is not None:
                return found
            if size == part.gpus:
                return None
            size *= 2
        return None

    def _best_of_size(self, part: _Part, size: int) -> Block | None:
        best: tuple[tuple[int, ...], Block] | None = None
        known: dict[tuple[int, ...], tuple[tuple[int, ...], Leaves] | None] = {}
        racks = self._racks_of(part.row)
        for server, free in enumerate(self._free):
            if free.bit_count() < part.gpus:
                continue
            own, lead = part.own.get(server, 0), part.lead.get(server, 0)
            kind = (self._forest.spans[server], free, own, lead, self._claimed[server] & ~own)
            if kind not in known:
                known[kind] = _best_block(size, part.gpus, *kind)
            found = known[kind]
            if found is None:
                continue
            away = bool(racks) and self._forest.racks[server] not in racks
            cost = (found[0][0], away, *found[0][1:])
            if best is None or cost < best[0]:
                best = cost, (server, found[1])
        return best[1] if best is not None else None

    def _racks_of(self, row: int) -> set[str]:
        """Return the racks of a job's placed parts, if it has several."""
        return {self._forest.racks[server] for part in self._parts_of[row] for server in part.got}

    # -- without a free block

    def _make_room(self, part: _Part) -> Block | None:
        """Clear a smallest block of the smaller parts in the way and return it; None if no block can be cleared."""
        size = _block_size(part.gpus)
        best: tuple[tuple[int, int, int], Block, list[_Part]] | None = None
        for server, there in enumerate(self._forest.there):
            if there.bit_count() < part.gpus:
                continue
            for block in _blocks(self._forest.spans[server], size):
                leaving = self._in_the_way(part, server, block)
                if leaving is None:
                    continue
                moved = sum(one.gpus for one in leaving)
                cost = len(leaving), moved, -(part.own.get(server, 0) & block).bit_count()
                if best is None or cost < best[0]:
                    best = cost, (server, block), leaving
        if best is None:
            return None
        for one in best[2]:
            self._take_away(one)
        return best[1]

    def _in_the_way(self, part: _Part, server: int, block: Leaves) -> list[_Part] | None:
        """Return the smaller parts that have to leave a block, the smallest first; None if that is not enough."""
        idle = (self._free[server] & block).bit_count()
        leaving: list[_Part] = []
        able = (one for one in self._here[server] if one.row not in self._stay)
        smaller = (one for one in able if one.gpus < part.gpus and one.got[server] & block)
        for one in sorted(smaller, key=lambda one: one.rank, reverse=True):
            if idle >= part.gpus:
                break
            idle += (one.got[server] & block).bit_count()
            leaving.append(one)
        return leaving if idle >= part.gpus else None

    def _take_away(self, part: _Part) -> None:
        for server, mask in part.got.items():
            self._free[server] |= mask
            self._claimed[server] |= mask & part.own.get(server, 0)
            self._here[server].remove(part)
        part.got.clear()
        self._wait(part)

    def _spread(self, part: _Part) -> None:
        """Spread a part over the largest holes; of equal ones, those on servers where its job has GPUs."""
        need = part.gpus
        while need:
            room = [min(free.bit_count(), need) for free in self._free]
            server = max(range(len(room)), key=lambda s: (room[s], s in part.own, -s))
            free, own = self._free[server], part.own.get(server, 0)
            self._put(part, server, some(room[server], free & own, free & ~self._claimed[server], free))
            need -= room[server]


def _best_block(
    size: int, gpus: int, span: int, free: Leaves, own: Leaves, lead: Leaves, claimed: Leaves
) -> tuple[tuple[int, ...], Leaves] | None:
    """Return a server's best block with enough free leaves, and its cost; None if there is none.

    All sets are of one server.

    The cost compares, in this order: the job's own leaves in the block (more is better); whether the first worker's GPU
    is among them; leaves that other jobs would have to give up; idle leaves in the block, then in the larger blocks
    around it.
    """
    best: tuple[tuple[int, ...], Leaves] | None = None
    for block in _blocks(span, size):
        idle = free & block
        if idle.bit_count() < gpus:
            continue
        kept = min((idle & own).bit_count(), gpus)
        taken = max(0, gpus - kept - (idle & ~own & ~claimed).bit_count())
        cost = (-kept, not idle & lead, taken, *((free & around).bit_count() for around in _around(block, size, span)))
        if best is None or cost < best[0]:
            best = cost, block
    return best


def _blocks(span: int, size: int) -> Iterator[Leaves]:
    """Yield all nodes with `size` leaves."""
    for begin in range(0, span, size):
        yield ((1 << size) - 1) << begin


def _around(block: Leaves, size: int, span: int) -> Iterator[Leaves]:
    """Yield the block itself, the next larger block around it, and so on up to the whole tree."""
    begin = (block & -block).bit_length() - 1
    while size <= span:
        yield ((1 << size) - 1) << begin // size * size
        size *= 2


def _smallest_around(leaves: Leaves) -> int:
    """Return the number of leaves of the smallest node around these leaves (at least one)."""
    first, last = (leaves & -leaves).bit_length() - 1, leaves.bit_length() - 1
    return 1 << (first ^ last).bit_length()


def _block_size(gpus: int) -> int:
    """Return the smallest power of two that is at least `gpus`."""
    return 1 << max(0, gpus - 1).bit_length()
