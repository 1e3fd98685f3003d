"""Sets as integers: bit i stands for element i (`view.Gpus`). Operations of placing and planning on them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_


def union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def some(count: int, *sets: int) -> int:
    """Return `count` elements, or all if there are fewer: the lowest of the first set, then of the next, and so on."""
    taken = 0
    for each in sets:
        left = each & ~taken
        need = count - taken.bit_count()
        if left.bit_count() <= need:
            taken |= left
            continue
        for _ in range(need):
            taken |= left & -left
            left &= left - 1
        break
    return taken


def elements(chosen: int) -> list[int]:
    """Return the elements in ascending order."""
    found = []
    while chosen:
        found.append((chosen & -chosen).bit_length() - 1)
        chosen &= chosen - 1
    return found
