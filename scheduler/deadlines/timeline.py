"""The GPUs that are left over time, and the least GPU time that ends a job before its deadline.

Theory of operation
-------------------
From `now` on time is divided into pieces in which the number of free GPUs does not change. The last piece has no end. There are
no slots: pieces begin where a job's share changes or where a deadline is.

`Timeline.fill` is ElasticFlow's progressive filling (Algorithm 1, line 11) in continuous time. The job takes its first level
wherever that is free before its deadline; if that is not enough work, its second level, and so on. The last level that it needs
it takes only as long as it needs it, as early as it can; for the rest of the time the level below is enough. ElasticFlow takes
the last level until the job ends, which costs more GPU time wherever a level is wide, as powers of two are.

No other division of these GPUs does the same work in less GPU time, where every share that fits is a level (concave curves, any
counts or powers of two): each GPU-second goes where it adds most, since what a GPU adds only falls from level to level, and is
the same at all times. On a curve with dents that holds as long as no fewer GPUs are free than the job's highest level.

What changes of a share cost is counted as work: a pause of a second at a rate of 3 is three seconds' work lost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..view import Floats, Ints
from .levels import Levels
from .schedule import Piece, Schedule

TOLERANCE_S = 1e-6  # a deadline is kept that is missed by no more than this
LIKELY_CHANGES = 2  # changes of a share that a plan is first taken to have
_PAUSES = 5  # so often the pauses of a plan are counted anew, since those that are counted may add some


@dataclass(frozen=True, slots=True)
class Want:
    """A job that is to end in time.

    `left_s`: work left, s on one GPU; `until_s`: its deadline; `lead_s`: it stands still so long before it works on;
    `pause_s`: and so long at each further change of its share.
    """

    left_s: float
    until_s: float
    levels: Levels
    lead_s: float = 0.0
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Filled:
    """How a job comes to its end in time.

    `gpus`: how many it has now, 0 where none are free; `level`: the highest level that it needs, whose count is its minimum
    satisfactory share; `finish_s`: when it ends; `gpu_s`: the GPU time that it takes; `more_s`: from then on it
    needs more than now; inf: never. `spare`: there is time for a change of its share beside what it needs. `schedule`: the GPUs
    that it takes over time; None: they have not been taken.
    """

    gpus: int
    level: int
    finish_s: float
    gpu_s: float
    more_s: float
    spare: bool = True
    schedule: Schedule | None = None


class Timeline:
    """Free GPUs over time. It is changed by what is taken."""

    def __init__(self, now: float, gpus: int) -> None:
        self.now = now
        self.gpus = gpus
        self._begin: Floats = np.empty(64)
        self._free: Ints = np.empty(64, dtype=np.int64)
        self._begin[0], self._free[0] = now, gpus
        self._pieces = 1
        self._full = 0  # before this piece no GPU is free

    def copy(self) -> Timeline:
        found = Timeline.__new__(Timeline)
        found.now, found.gpus = self.now, self.gpus
        found._pieces, found._full = self._pieces, self._full
        found._begin, found._free = self._begin.copy(), self._free.copy()
        return found

    @property
    def pieces(self) -> list[tuple[float, int]]:
        """When each begins, and how many GPUs are free in it."""
        n = self._pieces
        return list(zip(self._begin[:n].tolist(), self._free[:n].tolist(), strict=True))

    def occupy(self, from_s: float, until_s: float, gpus: int) -> None:
        """Somebody else has so many GPUs then, or all that are left."""
        first, end = self._cut(max(from_s, self.now)), self._cut(max(until_s, self.now))
        self._free[first:end] = np.maximum(self._free[first:end] - gpus, 0)

    def take(self, pieces: Sequence[Piece]) -> bool:
        """Take these GPUs, all at once. False, and nothing is taken: there are not so many."""
        n = self._pieces
        at = np.array([[from_s, until_s] for from_s, until_s, _ in pieces]).reshape(-1, 2)
        gpus = np.array([count for _, _, count in pieces], dtype=np.int64)
        begin = np.concatenate((self._begin[:n], np.maximum(at[:, 0], self.now), np.maximum(at[:, 1], self.now)))
        change = np.concatenate((np.diff(self._free[:n], prepend=0), -gpus, gpus))
        order = np.argsort(begin, kind="stable")
        begin, free = begin[order], np.cumsum(change[order])
        last = np.append(begin[1:] != begin[:-1], True)  # of each moment, when all has been counted
        begin, free = begin[last], free[last]
        if (free < 0).any():
            return False
        self._begin, self._free = np.append(begin, np.empty(64)), np.append(free, np.empty(64, dtype=np.int64))
        self._pieces, self._full = len(begin), 0
        return True

    def fill(self, want: Want, commit: bool = True) -> Filled | None:
        """Take the least GPU time that ends the job in time; None: there is no way with these GPUs, and nothing is taken.

        `commit`: take it, else only say what would be taken.
        """
        levels = want.levels
        works_s = want.until_s - self.now - want.lead_s
        if works_s + TOLERANCE_S < want.left_s / (levels.fastest or 1e-9) or want.until_s <= self.now:
            return None
        k = self._cut(want.until_s)
        if works_s > 0 and not self._full:
            level = max(1, bisect_left(levels.rates, want.left_s / works_s))
            if level < len(levels.counts) and levels.counts[level] <= int(self._free[:k].min()):
                return self._fill_steadily(want, k, level, commit)
        return self._fill_around(want, k, commit)

    def keep(self, want: Want, gpus: int) -> Filled | None:
        """As `fill`, with so many GPUs, which are one of the job's levels, from now on to the end; None: that does not do."""
        level = want.levels.at_most(gpus)
        if not level or want.levels.counts[level] != gpus:
            return None
        finish_s = self.now + want.lead_s + want.left_s / want.levels.rates[level]
        finish_s = max(finish_s, math.nextafter(self.now, math.inf))
        if finish_s > want.until_s + TOLERANCE_S:
            return None
        k = self._cut(finish_s)
        if int(self._free[:k].min()) < gpus:
            return None
        self._free[:k] -= gpus
        schedule = Schedule((self.now, finish_s), (gpus,))
        return Filled(gpus, level, finish_s, gpus * (finish_s - self.now), math.inf, schedule=schedule)

    def rush(self, want: Want) -> Filled:
        """As many GPUs as the job can use wherever they are free, until it ends, which may be after its deadline."""
        levels = want.levels
        begin = self._begin[: self._pieces]
        fits = levels.fits.take(self._free[: self._pieces], mode="clip")
        rates = np.array(levels.rates)[fits]
        done = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(begin))])
        need = want.left_s + want.lead_s * levels.fastest
        last = int(np.searchsorted(done, need)) - 1
        finish_s = float(begin[last] + (need - done[last]) / rates[last]) if rates[last] else math.inf
        taken = levels.array[fits]
        gpu_s = float(taken[:last] @ np.diff(begin)[:last]) + int(taken[last]) * (finish_s - float(begin[last]))
        more = np.flatnonzero(taken[: last + 1] > taken[0])
        more_s = float(begin[more[0]]) if len(more) else math.inf
        found = Filled(int(taken[0]), max(1, int(fits[last])), finish_s, gpu_s, more_s)
        end = self._cut(max(finish_s, math.nextafter(self.now, math.inf))) if finish_s < math.inf else self._pieces
        self._free[:end] -= taken[:end]
        return found

    # -- nobody is in the way

    def _fill_steadily(self, want: Want, k: int, level: int, commit: bool) -> Filled:
        """The level for a while and the one below for the rest; or to the end, where the pause between them is worth more."""
        counts, rates = want.levels.counts, want.levels.rates
        total_s = want.until_s - self.now
        pauses_s = want.lead_s + (want.pause_s if level > 1 else 0.0)
        need = want.left_s + pauses_s * rates[level]
        seconds, low = (need - rates[level - 1] * total_s) / (rates[level] - rates[level - 1]), counts[level - 1]
        if seconds > total_s:
            seconds, low = want.lead_s + want.left_s / rates[level], 0
        until_s = min(max(self.now + seconds, math.nextafter(self.now, math.inf)), want.until_s)
        finish_s = want.until_s if low else until_s
        high = counts[level]
        schedule = None
        if commit:
            schedule = Schedule((self.now, until_s, finish_s), (high, low))
            at = self._cut(until_s)
            end = k + 1 if until_s < want.until_s else k
            self._free[:at] -= high
            if low:
                self._free[at:end] -= low
        gpu_s = high * (until_s - self.now) + low * (finish_s - until_s)
        return Filled(high, level, finish_s, gpu_s, math.inf, schedule=schedule)

    # -- others are

    def _fill_around(self, want: Want, k: int, commit: bool) -> Filled | None:
        """Levels up to what is free in each piece."""
        levels = want.levels
        first = self._first_free(k)
        begin, free = self._begin[first : k + 1], self._free[first:k]
        lasts_s = begin[1:] - begin[:-1]
        fits = levels.fits.take(free, mode="clip")  # the highest level that fits, by piece
        by_level = np.bincount(fits, lasts_s, len(levels.counts))
        at_least_s: list[float] = by_level[::-1].cumsum()[::-1].tolist()
        changes = LIKELY_CHANGES if want.pause_s else 0
        for _ in range(_PAUSES):
            chosen = _chosen(want, at_least_s, changes) or (
                _chosen(want, at_least_s, 0) if changes == LIKELY_CHANGES else None
            )
            if chosen is None:
                return None
            used, last, until_s = _used(fits, lasts_s, begin, *chosen)
            counted = chosen[2]
            changes = _changes(used) if want.pause_s else 0
            if changes <= counted:
                break
        else:
            return None
        level, seconds, _ = chosen
        counts, now_level = levels.counts, int(used[0]) if not first else 0
        step = counts[level] - counts[level - 1]
        rest_s = float(begin[last + 1]) - until_s  # of the piece in which the level is given up
        more_s = math.inf
        if now_level < level and len(more := np.flatnonzero(used > now_level)):
            more_s = float(begin[more[0]])
        finish_s = until_s
        if level > 1:
            finish_s = float(begin[1 + (len(used) - 1 if used[-1] else int(np.flatnonzero(used)[-1]))])
        gpu_s = step * seconds + sum([(counts[at] - counts[at - 1]) * at_least_s[at] for at in range(1, level)])
        schedule = None
        if commit:
            taken = levels.array.take(used)
            free -= taken
            at = last + 1
            schedule = Schedule(
                np.concatenate((begin[:at], (until_s,), begin[at:])),
                np.concatenate((taken[:at], (counts[level - 1],), taken[at:])),
            )
            if rest_s > 0:
                at = self._cut(until_s)
                if at == first + last + 1:
                    self._free[at] += step
        return Filled(counts[now_level], level, finish_s, gpu_s, more_s, schedule=schedule)

    def _first_free(self, k: int) -> int:
        """The first piece with a free GPU, of the first k; those before are left out of account."""
        free, at = self._free, min(self._full, k - 1)
        while at < k - 1 and not free[at]:
            at += 1
        self._full = max(self._full, at)
        return at

    def _cut(self, at: float) -> int:
        """The piece that begins then; there is one from now on."""
        n = self._pieces
        found = n if at > self._begin[n - 1] else int(self._begin[:n].searchsorted(at))
        if found < n and self._begin[found] == at:
            return found
        if n == len(self._begin):
            self._begin = np.concatenate([self._begin, np.empty(n)])
            self._free = np.concatenate([self._free, np.empty(n, dtype=np.int64)])
        self._begin[found + 1 : n + 1] = self._begin[found:n]
        self._free[found + 1 : n + 1] = self._free[found:n]
        self._begin[found] = at
        self._free[found] = self._free[found - 1]
        self._pieces = n + 1
        self._full += found <= self._full
        return found


def _chosen(want: Want, at_least_s: list[float], changes: int) -> tuple[int, float, int] | None:
    """The highest level that is needed, for how long, and how many changes are paid for. `at_least_s`: by level, how long as many
    GPUs are free."""
    rates, done = want.levels.rates, 0.0
    stands_s = want.lead_s + changes * want.pause_s
    for level in range(1, len(rates)):
        step = rates[level] - rates[level - 1]
        gain = step * at_least_s[level]
        missing = want.left_s + stands_s * rates[level] - done
        if gain >= missing - TOLERANCE_S * rates[level]:
            return level, min(missing / step, at_least_s[level]), changes
        done += gain
    return None


def _used(
    fits: Ints, lasts_s: Floats, begin: Floats, level: int, seconds: float, changes: int
) -> tuple[Ints, int, float]:
    """The level in each piece, the piece in which the highest one is given up for that below, and when."""
    at_work_s = (lasts_s * (fits >= level)).cumsum()
    last = min(int(at_work_s.searchsorted(seconds)), len(fits) - 1)
    until_s = min(float(begin[last + 1] - (at_work_s[last] - seconds)), float(begin[last + 1]))
    used = np.minimum(fits, level)
    np.minimum(used[last + 1 :], level - 1, out=used[last + 1 :])
    return used, last, until_s


def _changes(used: Ints) -> int:
    """How often a share changes, the end of its highest level included; beginnings from nothing count like others."""
    return int(np.count_nonzero(used[1:] != used[:-1])) + 1
