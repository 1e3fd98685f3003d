"""How many GPUs a plan gives a job over time, and whether that is still enough as things are now.

A plan in which all deadlines hold stays a proof as time goes on. Whoever had at least the GPUs of the schedule until now, and
has paid for no more changes than the schedule counts, ends by the rest of the schedule in time. So a decision need not find a new
plan: the rest of the last one does (`promises.continued`). `Schedule.ends_s` looks at that from the work that is really left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..view import Floats, Ints
from .levels import Levels

ROUNDING_S = 1e-6  # a schedule that leaves less work than this, at its last rate, ends the job

Piece = tuple[float, float, int]  # from when until when (Unix time), and how many GPUs; none are left out


class Schedule:
    """The GPUs of one job over time. Immutable; worked out of a plan's arrays only if it is asked for, which is seldom."""

    def __init__(self, begin_s: Floats | tuple[float, ...], gpus: Ints | tuple[int, ...]) -> None:
        """From `begin_s[k]` until `begin_s[k + 1]` the job has `gpus[k]` GPUs; `begin_s` has one entry more, the end."""
        self._begin_s = begin_s
        self._gpus = gpus

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Schedule:
        """These pieces, in order."""
        found = cls((), ())
        found.__dict__["pieces"] = tuple(pieces)
        return found

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """In order; neighbours have different numbers of GPUs, or a time without any between them."""
        begin_s, gpus = np.asarray(self._begin_s), np.asarray(self._gpus)
        at = np.flatnonzero(gpus[1:] != gpus[:-1]) + 1
        bounds = [*begin_s[:1].tolist(), *begin_s[at].tolist(), *begin_s[-1:].tolist()]
        counts = [*gpus[:1].tolist(), *gpus[at].tolist()]
        return tuple(
            (from_s, until_s, count)
            for (from_s, until_s), count in zip(pairwise(bounds), counts, strict=True)
            if count and until_s > from_s
        )

    def rest(self, now: float, levels: Levels) -> Iterator[Piece]:
        """From `now` on, in shares that the job may have at present: the next lower one where it may not have the planned one."""
        for from_s, until_s, count in self.pieces:
            if until_s > now and (can := levels.counts[levels.at_most(count)]):
                yield max(from_s, now), until_s, can

    def ends_s(self, now: float, left_s: float, levels: Levels, share: int, lead_s: float, change_s: float) -> float:
        """When the job ends by the rest of the schedule (Unix time); inf: work is left at its end.

        `left_s`: work left, s on one GPU; `share`: GPUs that it has now; `lead_s`: it stands still so long before it works on
        with these, or before it works with its first ones; `change_s`: and so long at each change of its share.
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
