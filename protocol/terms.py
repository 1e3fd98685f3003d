"""The term of a controller's leadership, and its stamp on the controller's messages to agents.

A term is a number that only grows, and each leadership has a term of its own: a controller with its own store takes the
number of its start, one of several controllers takes the number that its election has made. An agent obeys no term
below the highest that it has received. So messages of a controller that was paused, and has a successor, change
nothing. A lock alone is unsafe, since its holder may sleep: the receiver has to check a fencing token (Kleppmann, "How
to do distributed locking", 2016).

On the wire a message to an agent has two parts: the term in ASCII digits, and the message. Agents of version 1 read the
last part alone. A controller of version 1 sends one part, which counts as term 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import PeerError

NO_TERM = 0  # of a controller of version 1, and of a standby that has received no term yet
MOST_TERM = 2**62
# Terms by which an agent may be ahead of a controller with an old store; a greater term is not genuine
MOST_AHEAD = 10**6
_MOST_DIGITS = len(str(MOST_TERM))


def stamped(term: int, message: bytes) -> tuple[bytes, bytes]:
    """Return the parts of a message that a controller sends to an agent."""
    return b"%d" % term, message


def unstamped(parts: Sequence[bytes]) -> tuple[int, bytes]:
    """Return term and message of `parts` from a controller. Raises PeerError if they fit neither this version nor
    version 1.
    """
    if len(parts) == 1:
        return NO_TERM, parts[0]
    if len(parts) != 2:
        raise PeerError(f"{len(parts)} parts, not a term and a message")
    digits = parts[0]
    if not (0 < len(digits) <= _MOST_DIGITS and digits.isdigit() and int(digits) <= MOST_TERM):
        raise PeerError(f"{digits[:80]!r} is not a term")
    return int(digits), parts[1]
