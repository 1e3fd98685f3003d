"""Rate limits for messages that a peer may cause without end: a burst, then one per interval, always with the count of
those dropped.
"""

from __future__ import annotations

from collections import OrderedDict


class Sparing:
    """Token bucket: passes a burst and then one message per interval. The number held back is kept until the next one
    passes.
    """

    def __init__(self, at_once: int, interval_s: float) -> None:
        """`at_once`: size of the burst. Afterwards one message passes in each `interval_s`; a quiet time fills the
        bucket again.
        """
        self._at_once = at_once
        self._interval_s = interval_s
        self._left = float(at_once)
        self._counted_s: float | None = None  # Unix time up to which `_left` has been refilled
        self.held_back = 0  # since the last message that passed

    def lets(self, now: float) -> bool:
        """Return whether one more message passes now."""
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
    """Rate limits by subject: one message of each subject at once, then one per interval. The least recent subjects are
    forgotten.
    """

    def __init__(self, interval_s: float = 10.0, subjects: int = 1000) -> None:
        """`subjects`: greatest number of subjects remembered at a time."""
        self._interval_s = interval_s
        self._most = subjects
        self._subjects: OrderedDict[str, Sparing] = OrderedDict()

    def worth(self, subject: str, now: float) -> int | None:
        """Return the number held back before this message about `subject` if it passes, else None."""
        sparing = self._subjects.pop(subject, None) or Sparing(1, self._interval_s)
        self._subjects[subject] = sparing
        if len(self._subjects) > self._most:
            self._subjects.popitem(last=False)
        before = sparing.held_back
        return before if sparing.lets(now) else None
