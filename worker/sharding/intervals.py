"""Owners of the elements of the flat parameters, and their moves when the workers change. Pure.

Flat tensors are those of the gradient's layout. A cut lies at a multiple of `GRAIN` elements from the beginning of a
parameter, or at its end: a multiple of 64, at which no elementwise optimizer's bits differ. So cuts do not depend on
the number of workers.

A flat tensor is divided into blocks, which are exchanged one after the other. Each block is divided equally among all
workers, so that all of them have equal work in each block. When the workers change, those that stay keep as much as
their new share allows, so that the fewest elements move. The owners therefore depend on earlier changes, and are part
of the state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GRAIN = 1024
BLOCK = 1 << 21


@dataclass(frozen=True, order=True)
class Interval:
    """Elements [begin, end) of a flat tensor."""

    flat: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, order=True)
class Owned:
    """An interval, and the worker that has its state."""

    interval: Interval
    owner: str


@dataclass(frozen=True)
class Move:
    """Elements with state that goes from one worker to another."""

    interval: Interval
    source: str
    target: str


class Grid:
    """The places at which the flat tensors may be cut."""

    def __init__(self, sizes: Sequence[Sequence[int]], grain: int = GRAIN, block: int = BLOCK) -> None:
        """sizes: numbers of elements of the parameters, in order, for each flat tensor."""
        self.grain = grain
        self.begins: list[list[int]] = []  # of the parameters that have elements
        self.ends: list[int] = []
        for members in sizes:
            begins, offset = [], 0
            for size in members:
                if size:
                    begins.append(offset)
                offset += size
            self.begins.append(begins)
            self.ends.append(offset)
        self.blocks = [each for flat in range(len(sizes)) for each in self._blocks_of(flat, block)]

    def cut(self, flat: int, position: int) -> int:
        """Return the last cut up to `position`."""
        if position >= self.ends[flat]:
            return self.ends[flat]
        begin = self.begins[flat][bisect_right(self.begins[flat], position) - 1]
        return begin + (position - begin) // self.grain * self.grain

    def next_cut(self, flat: int, position: int) -> int:
        """Return the first cut behind `position`, which is a cut."""
        begins = self.begins[flat]
        number = bisect_right(begins, position)
        end = begins[number] if number < len(begins) else self.ends[flat]
        return min(end, position + self.grain)

    def _blocks_of(self, flat: int, block: int) -> Iterator[Interval]:
        begin, size = 0, self.ends[flat]
        for number in range(1, -(-size // block) + 1):
            end = self.cut(flat, number * block)
            if end > begin:
                yield Interval(flat, begin, end)
                begin = end

    def parameters_in(self, interval: Interval) -> Iterator[tuple[int, Interval]]:
        """Yield the parts of an interval by parameter: the number of the parameter among those with elements."""
        begins = self.begins[interval.flat]
        number = bisect_right(begins, interval.begin) - 1
        begin = interval.begin
        while begin < interval.end:
            last = begins[number + 1] if number + 1 < len(begins) else self.ends[interval.flat]
            end = min(interval.end, last)
            yield number, Interval(interval.flat, begin, end)
            begin, number = end, number + 1


Owners = tuple[Owned, ...]  # ascending, without gaps


def divide(grid: Grid, workers: Sequence[str]) -> Owners:
    """Return the owners of a state that no worker or every worker has."""
    found: list[Owned] = []
    for block in grid.blocks:
        cuts = [grid.cut(block.flat, block.begin + block.size * i // len(workers)) for i in range(len(workers))]
        for worker, begin, end in zip(workers, cuts, [*cuts[1:], block.end], strict=True):
            _append(found, Interval(block.flat, begin, end), worker)
    return tuple(found)


def divide_again(grid: Grid, owners: Owners, workers: Sequence[str]) -> Owners:
    """Return the owners after a change of the workers, with as little moved as equal shares allow."""
    found: list[Owned] = []
    for block in grid.blocks:
        present = [Owned(part, each.owner) for each in owners if (part := common(each.interval, block)) is not None]
        for each in sorted(_divide_block(grid, block, present, workers)):
            _append(found, each.interval, each.owner)
    return tuple(found)


def _divide_block(grid: Grid, block: Interval, present: Sequence[Owned], workers: Sequence[str]) -> list[Owned]:
    share = -(-block.size // len(workers))
    held = {worker: sum(each.interval.size for each in present if each.owner == worker) for worker in workers}
    # A grain more than a share is kept as it is: a share need not end at a cut, and nothing moves without a change.
    room = {worker: max(share, size if size <= share + grid.grain else 0) for worker, size in held.items()}
    kept: list[Owned] = []
    free: list[Interval] = []
    for each in present:
        begin, end = each.interval.begin, each.interval.end
        cut = grid.cut(block.flat, min(end, begin + max(0, room.get(each.owner, 0))))
        if cut > begin:
            kept.append(Owned(Interval(block.flat, begin, cut), each.owner))
            room[each.owner] -= cut - begin
        if end > cut:
            free.append(Interval(block.flat, max(cut, begin), end))
    for interval in free:
        begin = interval.begin
        while begin < interval.end:
            worker = max(workers, key=lambda each: room[each])  # the first of those with most room
            end = grid.cut(block.flat, min(interval.end, begin + max(0, room[worker])))
            if end <= begin:  # less room than a grain
                end = min(interval.end, grid.next_cut(block.flat, begin))
            kept.append(Owned(Interval(block.flat, begin, end), worker))
            room[worker] -= end - begin
            begin = end
    return kept


def common(one: Interval, other: Interval) -> Interval | None:
    """Return the elements that are in both; None without any."""
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    return Interval(one.flat, begin, end) if one.flat == other.flat and begin < end else None


def _append(found: list[Owned], interval: Interval, owner: str) -> None:
    """Append an interval; one that continues the last one of the same owner makes that longer."""
    if interval.size == 0:
        return
    if found:
        last = found[-1]
        if last.owner == owner and (last.interval.flat, last.interval.end) == (interval.flat, interval.begin):
            found[-1] = Owned(Interval(interval.flat, last.interval.begin, interval.end), owner)
            return
    found.append(Owned(interval, owner))
