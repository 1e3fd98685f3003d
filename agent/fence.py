"""Fencing of controllers: the agent obeys none whose leadership is over (`protocol.terms`). Pure.

A controller may have been stopped, or cut off, while another one was elected. When it resumes it does not know that,
and its messages, new ones and delayed ones, bear the term of its own leadership. The agent remembers, across its
restarts, the highest term that it has received, and refuses lower ones.

A controller of version 1 sends no term. An operator who downgrades the controller to that version wants it obeyed.
"""

from __future__ import annotations

import enum

from ..protocol.rate_limit import RateLimiter
from ..protocol.terms import NO_TERM

REFUSALS_AT_ONCE, REFUSAL_INTERVAL_S = 1, 600.0  # refusals logged at once, then one per interval


class TermCheck(enum.Enum):
    """Result of comparing the term of a controller's message with the highest known term."""

    OBEYED = "obeyed"
    HIGHER = "higher"  # obeyed, and its term is to be remembered
    REFUSED = "refused"


class Fence:
    """Comparison of messages' terms with the highest one. Times are Unix times in seconds."""

    def __init__(self, term: int) -> None:
        """`term`: the highest remembered one."""
        self._term = term
        self._without_term = False
        self._reports = RateLimiter(REFUSALS_AT_ONCE, REFUSAL_INTERVAL_S)
        self.refused = 0  # messages, since the agent's start

    @property
    def term(self) -> int:
        """The highest term received."""
        return self._term

    def check(self, term: int) -> TermCheck:
        """Compare the term of a message with the highest known term, and count refusals."""
        if term > self._term:
            self._term = term
            return TermCheck.HIGHER
        if NO_TERM < term < self._term:
            self.refused += 1
            return TermCheck.REFUSED
        return TermCheck.OBEYED

    def news(self, now: float, term: int) -> str:
        """Return a line for the log about such a message, after `check`; empty: nothing to report."""
        without_before, self._without_term = self._without_term, term == NO_TERM
        if self._without_term and not without_before and self._term > NO_TERM:
            return (
                f"the controller is of a version that knows no terms, and this agent has heard of term {self._term}: "
                "it is obeyed, as after a downgrade"
            )
        if NO_TERM < term < self._term and self._reports.allow(now):
            return (
                f"refused what a controller says whose reign is over: it speaks in term {term}, and term {self._term} has begun "
                f"({self.refused} such messages since this agent's start)"
            )
        return ""
