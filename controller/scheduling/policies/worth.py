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

(1 + rent(k)) / s(k) falls, then grows: rent is convex and s concave. So the search for its minimum ends where it grows.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

Curve = Sequence[float]  # throughput with 0, 1, 2 … GPUs over that with one, concave; its end is the job's maximum


def worths(curves: Sequence[Curve], gpus: int, behind: int = 0) -> list[float]:
    """Of jobs in the order in which they end, the first one first. `behind`: how many more end after them, one GPU each."""
    kept = [max(0.0, (behind - gpu) / gpus) for gpu in range(gpus - 1, -1, -1)]  # what each GPU brings, the least first
    found: list[float] = []
    for curve in reversed(curves):
        worth = _worth(curve, kept)
        found.append(worth)
        for share in range(1, min(len(curve) - 1, gpus) + 1):
            brings = worth * (curve[share] - curve[share - 1])
            if brings <= kept[0]:
                break
            insort(kept, brings)
            del kept[0]
    found.reverse()
    return found


def _worth(curve: Curve, kept: Sequence[float]) -> float:
    """min over k of (1 + rent(k)) / s(k)."""
    least, cost = float("inf"), 1.0
    for share in range(1, min(len(curve) - 1, len(kept)) + 1):
        cost += kept[share - 1]
        if cost > least * curve[share]:
            break
        least = cost / curve[share]
    return least


def with_minimum(curve: Curve, least: int) -> list[float]:
    """The curve of a job that gets `least` GPUs or none: as if each of these brought equally much."""
    each = curve[least] / least
    return [each * share for share in range(least)] + list(curve[least:])
