"""Assignment of virtual workers to the workers that host them. Pure.

By default a function of the roster alone, so no message is needed (EasyScale 3.2): of the hosting workers, and of the expected
paces of their GPU types. Where some workers are slower than
others (`training.stragglers`), the leader announces other sizes of the ranges, which balance the workers' times (EasyScale 3.4).
No bit of the result depends on either: the reduction adds up virtual workers in one order, wherever they are hosted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def assign(virtual_workers: int, hosts: Sequence[bool]) -> tuple[range, ...]:
    """Return the virtual workers of each rank: contiguous ranges in rank order, with sizes that differ by at most one.

    hosts: by rank, whether it hosts any; the others get an empty range. With more hosts than virtual workers the last
    hosts get empty ranges, too. Raises ValueError without a host.
    """
    hosting = sum(hosts)
    if virtual_workers < 1 or not hosting:
        raise ValueError(f"{virtual_workers} virtual workers cannot be divided among {hosting} hosts")
    each, larger = divmod(virtual_workers, hosting)
    sizes: list[int] = []
    position = 0
    for host in hosts:
        sizes.append(each + (position < larger) if host else 0)
        position += host
    return consecutive(sizes)


def consecutive(sizes: Sequence[int]) -> tuple[range, ...]:
    """Return contiguous ranges of these sizes, one behind the other."""
    ranges: list[range] = []
    begin = 0
    for size in sizes:
        ranges.append(range(begin, begin + size) if size else range(0))
        begin += size
    return tuple(ranges)


def interleaved(virtual_workers: int, workers: int) -> tuple[range, ...]:
    """Return the virtual workers of each rank, where all ranks compute neighbouring ones at the same time
    (`fully_shard`).
    """
    return tuple(range(rank, virtual_workers, workers) for rank in range(workers))


def proportional(virtual_workers: int, hosts: Sequence[bool], paces: Sequence[float]) -> tuple[range, ...]:
    """Return the virtual workers of each rank, as `assign` does, but so that unequal hosts are done soonest.

    paces: by rank, the time that one virtual worker takes there.
    """
    chosen = [pace for pace, host in zip(paces, hosts, strict=True) if host]
    if len(set(chosen)) < 2 or virtual_workers < len(chosen):
        return assign(virtual_workers, hosts)
    sizes = iter(balanced(virtual_workers, chosen))
    return consecutive([next(sizes) if host else 0 for host in hosts])


def balanced(virtual_workers: int, times: Sequence[float], fixed: float = 0.0) -> tuple[int, ...]:
    """Return the numbers of virtual workers by rank with which the slowest worker is done soonest (EasyScale 3.4, equation 1b).

    times: by rank, the time that one virtual worker takes there. fixed: the time that a step takes beside its virtual workers, in
    units of one of them. A worker of rank r with h of them takes times[r] * (fixed + h). Each worker gets at least one: one that
    hosts none would run the loop body all the same (`stepping`). Raises ValueError with fewer virtual workers than ranks.
    """
    if virtual_workers < len(times):
        raise ValueError(f"{virtual_workers} virtual workers are not enough for {len(times)} hosts")
    sizes = [1] * len(times)
    queue = [(time * (fixed + 2), rank) for rank, time in enumerate(times)]  # when it would be done with one more
    heapq.heapify(queue)
    for _ in range(virtual_workers - len(times)):
        _, rank = queue[0]
        sizes[rank] += 1
        heapq.heapreplace(queue, (times[rank] * (fixed + sizes[rank] + 1), rank))
    return tuple(sizes)
