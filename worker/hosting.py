"""Which worker hosts which virtual workers: a pure function of the hosting workers, so no message is needed (EasyScale
3.2).
"""

from __future__ import annotations

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
    ranges: list[range] = []
    begin = position = 0
    for host in hosts:
        if not host:
            ranges.append(range(0))
            continue
        end = begin + each + (position < larger)
        ranges.append(range(begin, end) if end > begin else range(0))
        begin, position = end, position + 1
    return tuple(ranges)
