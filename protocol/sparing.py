"""Telling of what somebody else may repeat without end: so often at once, then once in a while, and never without the count."""

from __future__ import annotations

from collections import OrderedDict


class Sparing:
    """Lets some through. What it holds back is counted until it lets one through again."""

    def __init__(self, at_once: int, interval_s: float) -> None:
        """`at_once`: so many pass one after the other; then one in `interval_s`, until nothing has come for a while."""
        self._at_once = at_once
        self._interval_s = interval_s
        self._left = float(at_once)
        self._counted_s: float | None = None  # up to when (Unix time) `_left` has been filled up
        self.held_back = 0  # since the last one that passed

    def lets(self, now: float) -> bool:
        """One more has come: does it pass?"""
        passed_s = max(0.0, now - self._counted_s) if self._counted_s is not None else 0.0
        self._left = min(float(self._at_once), self._left + passed_s / self._interval_s)
        self._counted_s = now
        if self._left < 1.0:
            self.held_back += 1
            return False
        self._left -= 1.0
        self.held_back = 0
        return True


class SparingBySubject:
    """The same for many subjects: one line of each at once, then one in a while. Subjects of long ago are forgotten."""

    def __init__(self, interval_s: float = 10.0, subjects: int = 1000) -> None:
        """`subjects`: so many are known at a time."""
        self._interval_s = interval_s
        self._most = subjects
        self._subjects: OrderedDict[str, Sparing] = OrderedDict()

    def worth(self, subject: str, now: float) -> int | None:
        """One more about `subject`: None: it does not pass; else how many have been held back before it."""
        sparing = self._subjects.pop(subject, None) or Sparing(1, self._interval_s)
        self._subjects[subject] = sparing
        if len(self._subjects) > self._most:
            self._subjects.popitem(last=False)
        before = sparing.held_back
        return before if sparing.lets(now) else None
