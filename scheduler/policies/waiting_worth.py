"""Worth of a second of work on each job: how much total waiting it saves, if no further job comes.

Theory of operation
-------------------

Jobs have remaining work w (seconds on one GPU) and concave speedups s(k); M GPUs are to be divided so that the sum of
the times until the jobs are over, V, is least. Let the order in which they end be given. While a set of n jobs is
present, V falls by n in a second, which is the Hamilton-Jacobi-Bellman equation of the problem:

    max over shares k of  sum_i  worth_i * s_i(k_i)  =  n,        worth_i = dV/dw_i

Only the job that ends next drops out. So the worths follow one after the other, from the job that ends last: given the
worths behind j, worth_j is the number that makes the equation true for j and those behind it. Job j may take the k GPUs
that the others miss least, and delays them by the gain of these GPUs, `rent(k)`. So

    worth_j = min over k of (1 + rent_j(k)) / s_j(k)

where the 1 is the job's own waiting. Where a second counts more for some jobs, each job's *urgency* stands in its
place. The job's GPUs then bring worth_j * (s_j(k) - s_j(k - 1)) each, and the M best of all are kept for the next job.
For s(k) = k^p this gives the optimum of Berg, Vesilo and Harchol-Balter ("heSRPT: Parallel scheduling to minimize mean
slowdown", 2020). For s(k) = k and one GPU it gives the shortest remaining time first, where a job's worth is the number
of jobs that wait for it. The worths depend on the lengths through the order alone.

(1 + rent(k)) / s(k) falls, then grows, as rent is convex and s concave: the first k that is no better than the one
before ends the search. The search is short, because few jobs take many GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from ..arrays import Floats

Curve = Sequence[float]  # throughput with 0, 1, 2 ... GPUs relative to one, concave; ends at the job's maximum

# To save time, jobs that end after each other count as ending together: at most one for each LATER_PER_JOB jobs that
# end later, and one for each GPUS_PER_JOB GPUs. Those of them with the same curve are then worth the same.
LATER_PER_JOB, GPUS_PER_JOB = 32, 8
REMEMBERED = 2**21  # limit of numbers cached from earlier calls: of decisions about 2,048 GPUs by their types, the last
CURVES = 1000  # limit of curves with cached gains per GPU


class _Together(msgspec.Struct, frozen=True):
    """Jobs that count as ending together: their worths, and the gain of each GPU for them and later ones, the least
    first.

    The gains are an array, which the garbage collector passes over: with lists of thousands of numbers it took a third
    of the time of a decision.
    """

    curves: tuple[Curve, ...]
    urgency: tuple[float, ...]
    worths: list[float]
    kept: Floats


class Recursion:
    """Repeated calls of `worths` with a cache.

    Those that end last are mostly the same jobs as before, and a job's worth depends on the jobs behind it alone. So
    for each number of jobs behind, the cache holds the progress of the recursion with its curves, and the recursion
    resumes at the first difference. The result does not depend on earlier calls.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], list[_Together]] = {}  # least recently used first
        self._size = 0  # count of the numbers in `_known`
        self._rises: dict[
            int, tuple[Curve, list[float]]
        ] = {}  # by the identity of a curve: the curve, and its gain by each GPU

    def worths(
        self,
        curves: Sequence[Curve],
        gpus: int,
        behind: int = 0,
        copies: int = 1,
        urgency: Sequence[float] | None = None,
    ) -> list[float]:
        """Return the result of the function `worths`."""
        key = gpus, behind, copies
        last_urgency_first = itertools.repeat(1.0) if urgency is None else reversed(urgency)
        known = self._known.pop(key, None) or []
        self._known[key] = known
        self._size -= gpus * len(known)
        last_first = curves[::-1]
        found: list[float] = []
        steps = 0
        while len(found) < len(curves):
            later = (behind + len(found)) // copies
            together = copies * max(1, min(later // LATER_PER_JOB, gpus // copies // GPUS_PER_JOB))
            ending = tuple(last_first[len(found) : len(found) + together])
            own = tuple(itertools.islice(last_urgency_first, len(ending)))
            if steps == len(known) or known[steps].curves != ending or known[steps].urgency != own:
                del known[steps:]
                known.append(self._together(ending, own, known[-1].kept if known else _of_others(behind, gpus)))
            found += known[steps].worths
            steps += 1
        del known[steps:]
        self._size += gpus * steps
        while self._size > REMEMBERED and len(self._known) > 1:
            oldest = next(iter(self._known))
            self._size -= oldest[0] * len(self._known.pop(oldest))
        found.reverse()
        return found

    def _together(self, curves: tuple[Curve, ...], urgency: tuple[float, ...], kept: Floats) -> _Together:
        """Return the worths of jobs that end together.

        `kept`: the gain of each GPU for jobs that end later, the least first.
        """
        alike: dict[tuple[int, float], tuple[float, list[float]]] = {}
        found, brought = [], []
        least: list[float] = kept[: max(map(len, curves)) - 1].tolist()
        rises = self._rises
        for curve, own in zip(curves, urgency, strict=True):
            same = id(curve), own
            known = alike.get(same)
            if known is None:
                _, each = rises.get(same[0]) or self._remember(curve)
                known = alike[same] = _worth(curve, each, least, own)
            found.append(known[0])
            brought += known[1]
        rest = np.concatenate((kept, brought))
        rest.sort(kind="stable")  # fast where much is in order
        return _Together(curves, urgency, found, rest[len(brought) :])

    def _remember(self, curve: Curve) -> tuple[Curve, list[float]]:
        if len(self._rises) == CURVES:
            self._rises.clear()
        rises = [then - now for now, then in itertools.pairwise([0.0, *curve[1:]])]
        known = self._rises[id(curve)] = curve, rises
        return known


def worths(
    curves: Sequence[Curve], gpus: int, behind: int = 0, copies: int = 1, urgency: Sequence[float] | None = None
) -> list[float]:
    """Return the worths of jobs in the order in which they end, the first one first.

    `behind`: how many more jobs end after them, with one GPU each. `copies`: so many copies of all GPUs and jobs
    represent one, and so many jobs that end after each other end together. `urgency`: how much a second of waiting counts
    for each job, relative to the jobs behind; None: 1. Equal jobs are recognised by sharing one
    curve, the same object.
    """
    return Recursion().worths(curves, gpus, behind, copies, urgency)


def _of_others(behind: int, gpus: int) -> Floats:
    """Return the gain of each GPU for the jobs behind all others, the least first."""
    return np.maximum(behind - np.arange(gpus - 1, -1, -1), 0) / gpus


def _worth(curve: Curve, rises: Sequence[float], kept: Sequence[float], own: float) -> tuple[float, list[float]]:
    """Return min over k of (own + rent(k)) / s(k), where rent(k) is the sum of the first k of `kept`, and the gains of
    the GPUs that this job then takes, each above the least of `kept`.

    `kept`: the least first; those behind one for each GPU that the job can take may be left out. `rises`: the gain of
    the curve by each GPU. Most of a decision's time is spent here, mostly in one or two rounds of each loop.
    """
    least = kept[0]
    cost = own + least
    worth = cost / curve[1]
    share = 2
    for brings in kept[1 : len(curve) - 1]:
        cost += brings
        if cost >= worth * curve[share]:
            break
        worth = cost / curve[share]
        share += 1
    brought = []
    for rise in rises:
        brings = worth * rise
        if brings <= least:
            break
        brought.append(brings)
    return worth, brought


def with_minimum(curve: Curve, least: int) -> Curve:
    """Return the curve of a job that gets `least` GPUs or none, as if each of these brought equally much."""
    if least == 1:
        return curve
    each = curve[least] / least
    return [each * share for share in range(least)] + list(curve[least:])
