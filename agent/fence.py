"""Which controller an agent obeys: none whose reign is over (`protocol.terms`). Pure.

A controller may have been stopped, or cut off, while another one was elected. When it goes on it does not know that, and what it
sends, or what has waited on the way, is stamped with the term of its own reign. The agent remembers the highest term that it has
heard of, beyond its own end, and refuses what is lower.

A controller of version 1 stamps nothing. Whoever puts that version back in its place, where a newer one has run, wants it obeyed.
"""

from __future__ import annotations

import enum

from ..protocol.sparing import Sparing
from ..protocol.terms import NO_TERM

REFUSALS_AT_ONCE, REFUSAL_INTERVAL_S = 1, 600.0  # so many are told at once, then one in so long


class Verdict(enum.Enum):
    """On a message of a controller."""

    OBEYED = "obeyed"
    HIGHER = "higher"  # likewise, and its term is to be remembered
    REFUSED = "refused"


class Fence:
    """Weighs the terms of messages. Times are Unix times in seconds."""

    def __init__(self, term: int) -> None:
        """`term`: the highest that is remembered."""
        self._term = term
        self._without_term = False
        self._told = Sparing(REFUSALS_AT_ONCE, REFUSAL_INTERVAL_S)
        self.refused = 0  # messages, since the agent's start

    @property
    def term(self) -> int:
        """The highest that has been heard of."""
        return self._term

    def weigh(self, term: int) -> Verdict:
        """What is to be done with a message that bears this term. Counts it."""
        if term > self._term:
            self._term = term
            return Verdict.HIGHER
        if NO_TERM < term < self._term:
            self.refused += 1
            return Verdict.REFUSED
        return Verdict.OBEYED

    def news(self, now: float, term: int) -> str:
        """What is worth a line in the log about such a message, after it was weighed; empty: nothing."""
        without_before, self._without_term = self._without_term, term == NO_TERM
        if self._without_term and not without_before and self._term > NO_TERM:
            return (
                f"the controller is of a version that knows no terms, and this agent has heard of term {self._term}: "
                "it is obeyed, as after a downgrade"
            )
        if NO_TERM < term < self._term and self._told.lets(now):
            return (
                f"refused what a controller says whose reign is over: it speaks in term {term}, and term {self._term} has begun "
                f"({self.refused} such messages since this agent's start)"
            )
        return ""
