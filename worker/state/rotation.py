"""Which part of a state is looked at in which step. Pure.

The state is put on one line: each tensor as long as it takes to digest it. The line is cut into equal *looks*, as few as give
each of them something to do. They are spread evenly over a *round* of `every` steps, so each element is looked at in one step out
of `every`, and no step has much to do. All workers know when, without a word about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LOOK = 8 * 2**20  # least length of a look: what it costs is then that, and not to begin with it
TENSOR = 32 * 2**10  # what a tensor costs, besides its bytes
ENUMERATED = 16 * 2**10  # what it costs, per tensor of the state, to find out which there are: once for each look
DEVICE_FACTOR = 32  # an accelerator reads so many bytes while a CPU reads one


@dataclass(frozen=True)
class Piece:
    """The elements [begin, end) of the tensor at `position`, counted in its logical order."""

    position: int
    begin: int
    end: int


def length(size_bytes: int, on_device: bool) -> int:
    """How much of the line a tensor takes."""
    return TENSOR + (size_bytes // DEVICE_FACTOR if on_device else size_bytes)


def count_looks(every: int, lengths: Sequence[int]) -> int:
    """How many looks a round has, at most one in each step."""
    least = LOOK + ENUMERATED * len(lengths)
    return max(1, min(every, sum(lengths) // least))


def look_of(step: int, every: int, looks: int) -> int | None:
    """Which look is due in this step; None: none."""
    turn = step % every
    look = turn * looks // every
    return look if -(-look * every // looks) == turn else None


def pieces(look: int, looks: int, lengths: Sequence[int], elements: Sequence[int], aligned: int) -> Iterator[Piece]:
    """What a look sees of each tensor. aligned: a piece begins at a multiple of so many elements."""
    total = sum(lengths)
    begin, end = total * look // looks, total * (look + 1) // looks
    offset = 0
    for position, (long, count) in enumerate(zip(lengths, elements, strict=True)):
        low, high = max(begin - offset, 0), min(end - offset, long)
        offset += long
        if low < high:
            first, last = _element(low, long, count, aligned), _element(high, long, count, aligned)
            if first < last:
                yield Piece(position, first, last)


def _element(place: int, long: int, count: int, aligned: int) -> int:
    """The first element that lies behind `place`, a point of a tensor that is so long."""
    return count if place == long else place * count // long // aligned * aligned
