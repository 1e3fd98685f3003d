"""The term of a controller's reign, and how it is stamped on what the controller says to agents.

A term is a number that only grows, and each reign of a controller has one of its own: a controller with a store of its own takes
the number of its start, one of several takes the number that its election has made. An agent obeys no term that is lower than the
highest it has heard. So what a controller says that was stopped, and whose successor reigns, changes nothing. A lock alone is
unsafe, since its holder may sleep: a fence has to be checked by who is told (Kleppmann, "How to do distributed locking", 2016).

On the wire a message to an agent has two parts: the term in ASCII digits, and the message. Agents of version 1 read the last part
alone. A controller of version 1 sends one part, which counts as term 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import PeerError

NO_TERM = 0  # of a controller of version 1, and of one that stands by and has heard of none
MOST_TERM = 2**62
MOST_AHEAD = 10**6  # terms by which an agent may be ahead of a controller whose store is old; more is nobody's
_MOST_DIGITS = len(str(MOST_TERM))


def stamped(term: int, message: bytes) -> tuple[bytes, bytes]:
    """The parts of a message that a controller sends to an agent."""
    return b"%d" % term, message


def unstamped(parts: Sequence[bytes]) -> tuple[int, bytes]:
    """Term and message of what came from a controller. Raises PeerError if it is neither of this version nor of version 1."""
    if len(parts) == 1:
        return NO_TERM, parts[0]
    if len(parts) != 2:
        raise PeerError(f"{len(parts)} parts, not a term and a message")
    digits = parts[0]
    if not (0 < len(digits) <= _MOST_DIGITS and digits.isdigit() and int(digits) <= MOST_TERM):
        raise PeerError(f"{digits[:80]!r} is not a term")
    return int(digits), parts[1]
