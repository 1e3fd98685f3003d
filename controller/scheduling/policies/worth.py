"""What a second of work on each job is worth: how much total waiting it saves, if no job comes any more.

Theory of operation
-------------------
Jobs have remaining work w (seconds on one GPU) and concave speedups s(k); M GPUs are to be divided so that the sum of the
times until the jobs are over, V, is least. Let the order in which they end be given. While a set of n jobs is there, V falls
by n in a second, which is the Hamilton-Jacobi-Bellman equation of the problem:

    max over shares k of  sum_i  worth_i * s_i(k_i)  =  n,        worth_i = dV/dw_i

Only the job that ends next drops out, so the worths follow one after the other, from the job that ends last: with those
behind j known, worth_j is the number that makes the equation true for j and those behind it. Job j may take the k GPUs that
the others miss least, and delays them by what these GPUs bring, `rent(k)`. So

    worth_j = min over k of (1 + rent_j(k)) / s_j(k)

where the 1 is the job's own waiting. Its GPUs then bring worth_j * (s_j(k) - s_j(k - 1)) each, and the M best of all are kept
for the next one. For s(k) = k^p this gives the optimum of Berg, Vesilo and Harchol-Balter ("heSRPT: Parallel scheduling to
minimize mean slowdown", 2020), for s(k) = k and one GPU the shortest remaining time first, where a job's worth is the number of
jobs that wait for it. The worths depend on the lengths through the order alone.

(1 + rent(k)) / s(k) falls, then grows, as rent is convex and s concave. So its minimum is found by halving.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice

Curve = Sequence[float]  # throughput with 0, 1, 2 … GPUs over that with one, concave; its end is the job's maximum

GROUPS, GPUS_PER_JOB = (
    64,
    64,
)  # of more jobs on many GPUs, some that end after each other count as ending together, to save time


def worths(curves: Sequence[Curve], gpus: int, behind: int = 0) -> list[float]:
    """Of jobs in the order in which they end, the first one first. `behind`: how many more end after them, one GPU each."""
    kept = [max(0.0, (behind - gpu) / gpus) for gpu in range(gpus - 1, -1, -1)]  # what each GPU brings, the least first
    found: list[float] = []
    together = max(1, min(len(curves) // GROUPS, gpus // GPUS_PER_JOB))
    for end in range(len(curves), 0, -together):
        group = curves[max(0, end - together) : end]
        rents = [0.0, *accumulate(islice(kept, max(map(len, group)) - 1))]
        brought: list[float] = []
        for curve in reversed(group):
            worth = _worth(curve, rents)
            found.append(worth)
            brought.extend(_brings(curve, worth, kept[0]))
        kept = sorted(kept + brought)[-gpus:]
    found.reverse()
    return found


def _worth(curve: Curve, rents: Sequence[float]) -> float:
    """min over k of (1 + rent(k)) / s(k)."""
    low, high = 1, min(len(curve), len(rents)) - 1
    while low < high:
        share = (low + high) // 2
        if (1.0 + rents[share + 1]) * curve[share] < (1.0 + rents[share]) * curve[share + 1]:  # it still falls
            low = share + 1
        else:
            high = share
    return (1.0 + rents[low]) / curve[low]


def _brings(curve: Curve, worth: float, more_than: float) -> list[float]:
    """What each GPU of a job brings, as long as it is more."""
    least, found, before = more_than / worth, [], 0.0
    for speedup in islice(curve, 1, None):
        if speedup - before <= least:
            break
        found.append(worth * (speedup - before))
        before = speedup
    return found


def with_minimum(curve: Curve, least: int) -> list[float]:
    """The curve of a job that gets `least` GPUs or none: as if each of these brought equally much."""
    each = curve[least] / least
    return [each * share for share in range(least)] + list(curve[least:])
