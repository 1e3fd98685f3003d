"""The words of an election: what happens to a controller that would lead (facts), and what it wants done (imperatives).

Times are of CLOCK_BOOTTIME, in seconds: it runs on while the machine sleeps, and nobody sets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# ------------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Holder:
    """Who holds the leadership key: `revision` is that of the transaction that has set it, and no other reign has the same."""

    name: str
    revision: int


@dataclass(frozen=True)
class Reign:
    """The time for which one controller leads: its term, and the revision of the transaction that has begun it."""

    term: int
    revision: int


# ------------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class LeaseGranted:
    """The store has granted a lease of `ttl_s` to the request that was sent at `asked_s`."""

    lease: int
    ttl_s: float
    asked_s: float


@dataclass(frozen=True)
class Renewed:
    """The store has renewed the lease for `ttl_s`; that was asked for at `asked_s`."""

    lease: int
    ttl_s: float
    asked_s: float


@dataclass(frozen=True)
class LeaseGone:
    """The store does not know the lease any more."""

    lease: int


@dataclass(frozen=True)
class Seen:
    """As of `revision` of the store this controller leads; None: none does."""

    holder: Holder | None
    revision: int


@dataclass(frozen=True)
class Won:
    """The leadership key is bound to our lease, and the term is recorded."""

    lease: int
    reign: Reign


@dataclass(frozen=True)
class Beaten:
    """Somebody else was faster."""

    lease: int


@dataclass(frozen=True)
class Failed:
    """What was asked of the store may or may not have been done: it has not answered."""

    what: Ask
    reason: str


@dataclass(frozen=True)
class Built:
    """This controller knows all that the reigns before its own have recorded, and begins to act."""

    term: int


@dataclass(frozen=True)
class Resigned:
    """The reign with this term is to end: its writes are refused, or it can do nothing for its cluster. Others go first for
    `rest_s`."""

    term: int
    reason: str
    rest_s: float = 0.0


@dataclass(frozen=True)
class Heard:
    """Somebody knows of a reign with this term."""

    term: int


@dataclass(frozen=True)
class TimePassed:
    """`next_deadline` has come. The loop that would act as a leader has last turned at `turned_s`."""

    turned_s: float


@dataclass(frozen=True)
class Closed:
    """This process ends."""


Event: TypeAlias = (
    LeaseGranted | Renewed | LeaseGone | Seen | Won | Beaten | Failed | Built | Resigned | Heard | TimePassed | Closed
)

# ------------------------------------------------------------------------------------------------------------------ actions


@dataclass(frozen=True)
class Grant:
    """Ask the store for a lease, and bind to it that this controller is there."""


@dataclass(frozen=True)
class Renew:
    """Ask the store to renew the lease, and look who leads."""

    lease: int


@dataclass(frozen=True)
class Campaign:
    """In one transaction, if nobody leads: bind the leadership key to the lease, and record a term that is greater than the last
    one, and than `above`."""

    lease: int
    above: int


@dataclass(frozen=True)
class Revoke:
    """Tell the store that the lease is not needed any more; all that is bound to it goes at once. No answer is waited for."""

    lease: int


@dataclass(frozen=True)
class Lead:
    """Catch up with the store up to the revision of this reign, then act."""

    reign: Reign


@dataclass(frozen=True)
class StandBy:
    """Drop what is known and what was to be sent, at once, and follow the store again."""

    term: int
    reason: str


Ask: TypeAlias = Grant | Renew | Campaign
Action: TypeAlias = Ask | Revoke | Lead | StandBy
