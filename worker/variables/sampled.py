"""The parts of large values that `reachable` reads."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

# items that are read of a list longer than `WHOLE_ITEMS`: so many at both ends, and so many between
SAMPLED_ITEMS = 512
SAMPLED_ELEMENTS = 1 << 15
MARSHAL = 2  # a version that records neither references nor interned strings


def sampled(items: list[Any], whole: int) -> list[Any]:
    """Return all items, or few enough to cost little: both ends, and some between at places that follow from the
    length.
    """
    if len(items) <= whole:
        return items
    ends = SAMPLED_ITEMS // 2
    middle = items[ends:-ends]
    return [*items[:ends], *middle[:: -(-len(middle) // SAMPLED_ITEMS)], *items[-ends:]]


def strides(shape: Sequence[int]) -> tuple[slice, ...]:
    """Return slices that select about `SAMPLED_ELEMENTS` elements at most, spread over a large tensor."""
    count = 1
    for size in shape:
        count *= size
    steps = [1] * len(shape)
    for place in sorted(range(len(shape)), key=lambda place: -shape[place]):
        if count > SAMPLED_ELEMENTS:
            steps[place] = min(shape[place], -(-count // SAMPLED_ELEMENTS) | 1)
            count = count // shape[place] * -(-shape[place] // steps[place])
    return tuple(slice(None, None, step) for step in steps)


def flattened(state: Any) -> Iterator[bytes]:
    """Yield the bytes of a generator's state, which consists of plain values and arrays."""
    if isinstance(state, dict):
        for key in sorted(state):
            yield key.encode()
            yield from flattened(state[key])
    elif isinstance(state, numpy.ndarray | numpy.generic):
        yield state.tobytes()
    else:
        yield marshal.dumps(state, MARSHAL)
