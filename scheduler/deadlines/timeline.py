"""The GPUs that are left over time, and the least GPU time that ends a job before its deadline.

Theory of operation
-------------------

From `now` on time is divided into pieces in which the number of free GPUs does not change. The last piece has no end.
There are no slots: pieces begin where a job's share changes or where a deadline is.

`Timeline.fill` is ElasticFlow's progressive filling (Algorithm 1, line 11) in continuous time. The job takes its first
level wherever that is free before its deadline; if that is not enough work, its second level, and so on. It takes the
last level only as long as needed, as early as it can; for the rest of the time the level below is enough. ElasticFlow
takes the last level until the job ends, which costs more GPU time wherever a level is wide, as powers of two are.

Where every share that fits is a level (concave curves, any counts or powers of two), no other division of these GPUs
does the same work in less GPU time. Each GPU-second goes where it adds most, since the gain of a GPU only falls from
level to level, and is the same at all times. On a curve with dents that holds as long as no fewer GPUs are free than
the job's highest level.

The cost of changes of a share is counted as work: a pause of a second at a rate of 3 is three seconds' work lost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Floats, Ints
from ..levels import Levels
from ..schedule import Schedule, Segment

TOLERANCE_S = 1e-6  # a deadline that is missed by no more than this is kept
LIKELY_CHANGES = 2  # number of changes of a share that a plan first assumes
_PAUSES = 5  # limit of recounts of a plan's pauses: time for pauses may cause further changes, with pauses of their own


@dataclass(frozen=True, slots=True)
class Want:
    """A job that has to end in time.

    `left_s`: remaining work, in seconds on one GPU. `until_s`: its deadline. `lead_s`: how long it stands still before
    it works on. `pause_s`: how long it stands still at each further change of its share.
    """

    left_s: float
    until_s: float
    levels: Levels
    lead_s: float = 0.0
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Filled:
    """GPUs over time with which a job ends in time.

    `gpus`: its GPUs now, 0 where none are free. `level`: the highest level that it needs, with its minimum satisfactory
    share as count. `finish_s`: when it ends. `gpu_s`: the GPU time that it takes. `more_s`: when it first needs more
    GPUs than now; inf: never. `spare`: whether there is time for a change of its share beside its needs. `schedule`:
    the GPUs that it takes over time; None: they have not been taken.
    """

    gpus: int
    level: int
    finish_s: float
    gpu_s: float
    more_s: float
    spare: bool = True
    schedule: Schedule | None = None


class Timeline:
    """Free GPUs over time. Taking GPUs changes it."""

    def __init__(self, now: float, gpus: int) -> None:
        self.now = now
        self.gpus = gpus
        self._begin: Floats = np.empty(64)
        self._free: Ints = np.empty(64, dtype=np.int64)
        self._begin[0], self._free[0] = now, gpus
        self._pieces = 1
        self._full = 0  # no GPU is free before this piece

    def copy(self) -> Timeline:
        found = Timeline.__new__(Timeline)
        found.now, found.gpus = self.now, self.gpus
        found._pieces, found._full = self._pieces, self._full
        found._begin, found._free = self._begin.copy(), self._free.copy()
        return found

    @property
    def pieces(self) -> list[tuple[float, int]]:
        """The begin of each piece, and how many GPUs are free in it."""
        n = self._pieces
        return list(zip(self._begin[:n].tolist(), self._free[:n].tolist(), strict=True))

    def occupy(self, from_s: float, until_s: float, gpus: int) -> None:
        """Mark so many GPUs as held by others from `from_s` to `until_s`, or all that are left."""
        first, end = self._cut(max(from_s, self.now)), self._cut(max(until_s, self.now))
        self._free[first:end] = np.maximum(self._free[first:end] - gpus, 0)

    def take(self, pieces: Sequence[Segment]) -> bool:
        """Take these GPUs, all at once. Return False, and take nothing, if there are not enough."""
        n = self._pieces
        at = np.array([[from_s, until_s] for from_s, until_s, _ in pieces]).reshape(-1, 2)
        gpus = np.array([count for _, _, count in pieces], dtype=np.int64)
        begin = np.concatenate((self._begin[:n], np.maximum(at[:, 0], self.now), np.maximum(at[:, 1], self.now)))
        change = np.concatenate((np.diff(self._free[:n], prepend=0), -gpus, gpus))
        order = np.argsort(begin, kind="stable")
        begin, free = begin[order], np.cumsum(change[order])
        last = np.append(begin[1:] != begin[:-1], True)  # the last entry of each moment, which includes all changes
        begin, free = begin[last], free[last]
        if (free < 0).any():
            return False
        self._begin, self._free = np.append(begin, np.empty(64)), np.append(free, np.empty(64, dtype=np.int64))
        self._pieces, self._full = len(begin), 0
        return True

    def fill(self, want: Want, commit: bool = True) -> Filled | None:
        """Take the least GPU time that ends the job in time; None, and nothing is taken, if these GPUs are not enough.

        `commit`: take the GPUs; otherwise only return them.
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
        """Fill as `fill`, with `gpus` GPUs, which must be one of the job's levels, from now to the end; None if that is
        not enough."""
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
        """Take as many GPUs as the job can use wherever they are free, until it ends, possibly after its deadline."""
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

    # -- with enough free GPUs at all times

    def _fill_steadily(self, want: Want, k: int, level: int, commit: bool) -> Filled:
        """Take the level for a while and the one below for the rest; or the level to the end, if the pause between them
        costs more."""
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

    # -- around other jobs

    def _fill_around(self, want: Want, k: int, commit: bool) -> Filled | None:
        """Take levels up to the number of free GPUs in each piece."""
        levels = want.levels
        first = self._first_free(k)
        begin, free = self._begin[first : k + 1], self._free[first:k]
        lasts_s = begin[1:] - begin[:-1]
        fits = levels.fits.take(free, mode="clip")  # highest level that fits, by piece
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
        rest_s = float(begin[last + 1]) - until_s  # rest of the piece in which the job leaves the level
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
        """Return the first piece with a free GPU, of the first k. The search skips pieces that are known to be full."""
        free, at = self._free, min(self._full, k - 1)
        while at < k - 1 and not free[at]:
            at += 1
        self._full = max(self._full, at)
        return at

    def _cut(self, at: float) -> int:
        """Return the piece that begins at this time, after splitting an existing piece if necessary."""
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
    """Return the highest level that is needed, for how many seconds, and how many changes are paid for; None if no
    level is enough.

    `at_least_s`: by level, the seconds in which enough GPUs are free for it.
    """
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
    """Return the level in each piece, and the piece and time at which the job leaves the highest level."""
    at_work_s = (lasts_s * (fits >= level)).cumsum()
    last = min(int(at_work_s.searchsorted(seconds)), len(fits) - 1)
    until_s = min(float(begin[last + 1] - (at_work_s[last] - seconds)), float(begin[last + 1]))
    used = np.minimum(fits, level)
    np.minimum(used[last + 1 :], level - 1, out=used[last + 1 :])
    return used, last, until_s


def _changes(used: Ints) -> int:
    """Return how often a share changes, including the end of its highest level; beginnings from nothing count like
    others."""
    return int(np.count_nonzero(used[1:] != used[:-1])) + 1
