"""Network packing: shares that can be placed so that no two jobs share a server's network (AFS 4.4, App. E).

With 2^k GPUs per server a share becomes 0, a power of two below 2^k, or a multiple of 2^k. Every job gets at least
``x``, the largest such share that does not exceed the wanted one (Proposition 2). The GPUs that this leaves are given
to some jobs in steps, from one allowed share to the next. All steps of one job but the first change its distance from
the wanted share by their own size. So once the sum is fixed, the sum of the distances is least where the raised jobs
together had lost most to rounding: a knapsack that must be filled exactly. Its sizes are powers of two, hence it is
filled from the smallest on (`_by_halves`). Where the sum has an odd number of a size, the best item of that size is in.
The other items go on in pairs, as one of the next size.

Guarantees
----------

* The paper's case, where all GPUs of the servers are given away and no maximum is in the way: the sum stays the same.
* In general the sum is the largest that allowed shares between ``x`` and the maximums can have without exceeding the
  wanted sum. It is never exceeded: GPUs that a policy leaves idle stay idle.
* Of all such shares these are the nearest to the wanted ones, by the sum of the differences. Of equally near ones the
  jobs that were submitted first are preferred for rounding up. With very many jobs not every possibility is examined
  (`LOOKED_AT`). Only then, and if moreover maximums or a sum of no whole servers are in the way, the sum may be smaller
  and the shares further away.
* A job with a minimum above its ``x`` keeps the wanted share: the job could not use a smaller one,
  and a larger one belongs to others.

Other servers than the paper's
-----------------------------

Where a server has not 2^k GPUs, each allowed share below a whole server divides the next larger one (6 GPUs: 1, 3, 6;
halves as long as possible), so that Proposition 1 still holds. The sum can then fall short where no steps have its
size. Servers of different sizes are treated like the most frequent size (of several the largest): a broken GPU must not
change all shares. The propositions do not hold then in any case, so GPUs that regulation leaves over are given back to
the jobs that lost them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arrays import Ints

LOOKED_AT = 4096  # limit of the steps of all jobs together for which alternatives are tried

# Jobs whose shares are raised together: minus their loss to rounding, the first of the jobs, and all of them.
_Item = tuple[int, int, tuple[int, ...]]


def pack(gpus: Ints, servers: Sequence[int], min_gpus: Ints, max_gpus: Ints) -> Ints:
    """Return the regulated shares. Shares of 0 stay 0.

    All arguments are by row, except the number of GPUs of each server.
    """
    rows = np.flatnonzero(gpus)
    kinds = {size for size in servers if size}
    size = server_size(servers)
    parts = _parts(size)
    wanted, most = gpus[rows], max_gpus[rows]
    floor = _rounded_down(wanted, parts)
    kept = floor < min_gpus[rows]
    floor[kept] = wanted[kept]
    lost = wanted - floor
    left = int(lost.sum())
    if not left:
        return gpus
    given = floor.copy()
    able = np.flatnonzero((floor < most) & ~kept)
    known: dict[tuple[int, int], list[int]] = {}
    candidates, steps = [], []
    ends = zip(floor[able].tolist(), np.minimum(most, floor + left)[able].tolist(), strict=True)
    for row, (at, to) in zip(able.tolist(), ends, strict=True):
        if (at, to) not in known:
            known[at, to] = _steps(at, to, parts)
        if known[at, to]:
            candidates.append(row)
            steps.append(known[at, to])
    if candidates:
        given[candidates] += _raised(left, size, steps, lost[candidates].tolist())
    if len(kinds) > 1:
        _give_back(wanted, given)
    packed = np.zeros_like(gpus)
    packed[rows] = given
    return packed


def server_size(servers: Sequence[int]) -> int:
    """Return the number of GPUs that a server counts as having: the most frequent one, of several the largest."""
    kinds = {size for size in servers if size}
    return max(kinds, key=lambda size: (servers.count(size), size), default=1)


def rounded_down(gpus: Ints, size: int) -> Ints:
    """Return the largest allowed shares that do not exceed these, which are not 0: ``x`` of Proposition 2."""
    return _rounded_down(gpus, _parts(size))


def _rounded_down(gpus: Ints, parts: list[int]) -> Ints:
    below = np.array(parts)[np.searchsorted(parts, gpus, side="right") - 1]
    return np.where(gpus > parts[-1], gpus // parts[-1] * parts[-1], below)


def _parts(size: int) -> list[int]:
    """Return the allowed shares up to a whole server, the smallest first."""
    parts = [size]
    while parts[-1] > 1:
        whole = parts[-1]
        parts.append(whole // next(factor for factor in range(2, whole + 1) if whole % factor == 0))
    return parts[::-1]


def _steps(at: int, most: int, parts: list[int]) -> list[int]:
    """Return the steps up from the allowed share `at` to the largest that does not exceed `most`."""
    size = parts[-1]
    steps = []
    for part in parts:
        if at < part <= most:
            steps.append(part - at)
            at = part
    return steps + [size] * ((most - at) // size if at >= size else 0)


def _raised(left: int, size: int, steps: list[list[int]], lost: list[int]) -> list[int]:
    """Return by how many GPUs each candidate is raised.

    The sum is `left` if possible, and the raised jobs are those with the greatest loss to rounding.
    """
    halves = size & (size - 1) == 0
    count = _by_halves(left, size.bit_length() - 1, steps, lost) if halves else None
    if count is None:
        count = _by_trying(left, steps, lost)
    return [sum(own[:taken]) if taken else 0 for own, taken in zip(steps, count, strict=True)]


def _by_halves(left: int, top: int, steps: list[list[int]], lost: list[int]) -> list[int] | None:
    """Return how many steps each job takes, of sizes that are powers of two up to 2^top; None: not filled, or not
    surely optimal.

    A job that has taken a step can take the next one, of twice the size, which counts nothing; jobs that are raised
    together are raised together then, too. An odd item at the end of its size is dropped. If it counts nothing, the
    outcome is as good as with steps of all sizes available to fill gaps, so it is optimal.
    """
    waiting: list[list[_Item]] = [[] for _ in range(top + 1)]
    for job, own in enumerate(steps):
        if own:
            waiting[own[0].bit_length() - 1].append((-lost[job], job, (job,)))
    taken = [0] * len(steps)
    paired: list[_Item] = []
    for level in range(top):
        items = sorted(paired + waiting[level])
        if left >> level & 1:
            if not items:
                return None
            _, first, jobs = items.pop(0)
            for job in jobs:
                taken[job] += 1
            if all(taken[job] < len(steps[job]) for job in jobs):
                waiting[level + 1].append((0, first, jobs))
        if len(items) % 2 and items[-1][0]:
            return None
        paired = [(a[0] + b[0], min(a[1], b[1]), a[2] + b[2]) for a, b in zip(items[::2], items[1::2], strict=False)]
    items = sorted(paired + waiting[top])
    need = left >> top
    if need > len(items):
        return None
    for _, _, jobs in items[:need]:
        for job in jobs:
            taken[job] += 1
    return taken


def _by_trying(left: int, steps: list[list[int]], lost: list[int]) -> list[int]:
    """Return how many steps each job takes, by dynamic programming over the number of GPUs by which the first jobs are
    raised."""
    most = max(1, LOOKED_AT // len(steps))
    best = np.full(left + 1, -(2**40))
    best[0] = 0
    tables = [best]
    for own, value in zip(steps, lost, strict=True):
        best = best.copy()
        raised = 0
        for step in own[:most]:
            raised += step
            if raised > left:
                break
            np.maximum(best[raised:], tables[-1][:-raised] + value, out=best[raised:])
        tables.append(best)
    at = int(np.flatnonzero(best >= 0)[-1])
    taken = [0] * len(steps)
    for job in reversed(range(len(steps))):
        value, raised = int(tables[job + 1][at]), 0
        if tables[job][at] == value:
            continue
        for count, step in enumerate(steps[job], 1):
            raised += step
            if raised > at:
                break
            if tables[job][at - raised] + lost[job] == value:
                taken[job] = count
                at -= raised
                break
    return taken


def _give_back(wanted: Ints, given: Ints) -> None:
    """Give the rest to the jobs that have lost most, up to their wanted shares. Changes `given`."""
    left = int(wanted.sum() - given.sum())
    for row in np.argsort(given - wanted, kind="stable").tolist():
        more = min(left, max(0, int(wanted[row] - given[row])))
        given[row] += more
        left -= more
