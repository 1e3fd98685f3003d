"""Schedule of comparisons: the part of a state that is compared in each step. Pure.

The state is laid out on one line: each tensor is as long as the time to digest it. The line is cut into equal *looks*,
as few as keep each of them worth its cost. The looks are spread evenly over a *round* of `every` steps, so each element
is compared in one step out of `every`, and no step has much to do. All workers compute the schedule themselves, without
a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LOOK = 8 * 2**20  # least length of a look, so that reading dominates its fixed cost
TENSOR = 32 * 2**10  # fixed cost of a tensor, in bytes
ENUMERATED = 16 * 2**10  # cost per tensor of the state of listing the tensors, in bytes, once for each look
DEVICE_FACTOR = 32  # bytes that an accelerator reads while a CPU reads one


@dataclass(frozen=True)
class Piece:
    """The elements [begin, end) of the tensor at `position`, counted in its logical order."""

    position: int
    begin: int
    end: int


def length(size_bytes: int, on_device: bool) -> int:
    """Return the length of a tensor on the line."""
    return TENSOR + (size_bytes // DEVICE_FACTOR if on_device else size_bytes)


def count_looks(every: int, lengths: Sequence[int]) -> int:
    """Return the number of looks in a round, at most one per step."""
    least = LOOK + ENUMERATED * len(lengths)
    return max(1, min(every, sum(lengths) // least))


def look_of(step: int, every: int, looks: int) -> int | None:
    """Return the number of the look that is due in this step; None: none."""
    turn = step % every
    look = turn * looks // every
    return look if -(-look * every // looks) == turn else None


def pieces(look: int, looks: int, lengths: Sequence[int], elements: Sequence[int], aligned: int) -> Iterator[Piece]:
    """Yield the elements of each tensor in a look. aligned: a piece begins at a multiple of this number of elements."""
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
    """Return the first element after `place`, a point of a tensor of length `long` with `count` elements."""
    return count if place == long else place * count // long // aligned * aligned
