"""The GPUs that a plan gives a job over time, and whether they are still enough at present.

A plan in which all deadlines hold stays a proof as time goes on. A job that has had at least the GPUs of its schedule,
and has paid for no more changes than the schedule counts, ends in time by the rest of the schedule. So a decision need
not find a new plan: the rest of the last one is enough (`promises.continued`). `Schedule.ends_s` checks that against
the work that is really left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise

import numpy as np

from .arrays import Floats, Ints
from .levels import Levels

ROUNDING_S = 1e-6  # a schedule that leaves less work than this, at its last rate, ends the job

Segment = tuple[float, float, int]  # begin and end (Unix time), and number of GPUs, which is not 0


class Schedule:
    """The GPUs of one job over time. Immutable; computed from a plan's arrays only on demand, which is seldom.

    `on`: the GPU type (`pools.Pool.name`); "": the plan was made without types.
    """

    on = ""

    def __init__(self, begin_s: Floats | tuple[float, ...], gpus: Ints | tuple[int, ...]) -> None:
        """From `begin_s[k]` until `begin_s[k + 1]` the job has `gpus[k]` GPUs; the last entry of `begin_s` is the end."""
        self._begin_s = begin_s
        self._gpus = gpus

    @classmethod
    def of(cls, pieces: Sequence[Segment]) -> Schedule:
        """Build a schedule of these pieces, which must be in order."""
        found = cls((), ())
        found.__dict__["pieces"] = tuple(pieces)
        return found

    def on_type(self, name: str) -> Schedule:
        """Return the same schedule, on GPUs of a type."""
        found = copy(self)
        found.on = name
        return found

    @cached_property
    def pieces(self) -> tuple[Segment, ...]:
        """Pieces in order; neighbours have different numbers of GPUs, or a time without any between them."""
        begin_s, gpus = np.asarray(self._begin_s), np.asarray(self._gpus)
        at = np.flatnonzero(gpus[1:] != gpus[:-1]) + 1
        bounds = [*begin_s[:1].tolist(), *begin_s[at].tolist(), *begin_s[-1:].tolist()]
        counts = [*gpus[:1].tolist(), *gpus[at].tolist()]
        return tuple(
            (from_s, until_s, count)
            for (from_s, until_s), count in zip(pairwise(bounds), counts, strict=True)
            if count and until_s > from_s
        )

    def rest(self, now: float, levels: Levels) -> Iterator[Segment]:
        """Yield the pieces from `now` on, in shares that the job may have at present: the next lower one where the
        planned one is not allowed."""
        for from_s, until_s, count in self.pieces:
            if until_s > now and (can := levels.counts[levels.at_most(count)]):
                yield max(from_s, now), until_s, can

    def ends_s(self, now: float, left_s: float, levels: Levels, share: int, lead_s: float, change_s: float) -> float:
        """Return when the job ends by the rest of the schedule (Unix time); inf if work is left at the schedule's end.

        `left_s`: remaining work, in seconds on one GPU. `share`: its GPUs at present. `lead_s`: how long it stands
        still before it works on with these, or before it works with its first ones. `change_s`: how long it stands
        still at each change of its share.
        """
        works_from_s = now + lead_s if share else now
        pause_s = change_s if share else lead_s
        rate, end_s = 0.0, now
        for from_s, until_s, count in self.rest(now, levels):
            if from_s > end_s:
                share = 0
            if count != share:
                works_from_s = max(works_from_s, from_s + pause_s)
                share, pause_s = count, change_s
            rate, end_s = levels.rates[levels.at_most(count)], until_s
            begin_s = max(from_s, works_from_s)
            if (done := rate * (until_s - begin_s)) >= left_s:
                return begin_s + left_s / rate
            left_s -= max(done, 0.0)
        return end_s if left_s <= ROUNDING_S * rate else math.inf
