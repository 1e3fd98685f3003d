"""Rate limits for log lines and other messages that a peer may cause without end: a burst, then one per interval. Suppressed
messages are counted, so that the next one can state how many it stands for.
"""

from __future__ import annotations

from collections import OrderedDict


class RateLimiter:
    """Token bucket: allows a burst, then one message per interval."""

    def __init__(self, at_once: int, interval_s: float) -> None:
        """`at_once`: size of the burst. Afterwards one message is allowed in each `interval_s`; a quiet time fills the bucket
        again.
        """
        self._at_once = at_once
        self._interval_s = interval_s
        self._left = float(at_once)
        self._counted_s: float | None = None  # Unix time up to which `_left` has been refilled
        self.suppressed = 0  # since the last allowed message

    def allow(self, now: float) -> bool:
        """Return whether one more message is allowed now."""
        passed_s = max(0.0, now - self._counted_s) if self._counted_s is not None else 0.0
        self._left = min(float(self._at_once), self._left + passed_s / self._interval_s)
        self._counted_s = now
        if self._left < 1.0:
            self.suppressed += 1
            return False
        self._left -= 1.0
        self.suppressed = 0
        return True


class SubjectRateLimiter:
    """One rate limiter per subject: one message at once, then one per interval. The least recent subjects are forgotten."""

    def __init__(self, interval_s: float = 10.0, subjects: int = 1000) -> None:
        """`subjects`: greatest number of subjects remembered at a time."""
        self._interval_s = interval_s
        self._most = subjects
        self._subjects: OrderedDict[str, RateLimiter] = OrderedDict()

    def admit(self, subject: str, now: float) -> int | None:
        """Return the number of messages about `subject` suppressed before this one if it is allowed, else None."""
        limiter = self._subjects.pop(subject, None) or RateLimiter(1, self._interval_s)
        self._subjects[subject] = limiter
        if len(self._subjects) > self._most:
            self._subjects.popitem(last=False)
        before = limiter.suppressed
        return before if limiter.allow(now) else None
