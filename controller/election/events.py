"""Events and actions of the leader election (`machine`): events are facts, actions are imperatives.

Times are of CLOCK_BOOTTIME, in seconds: this clock runs on while the machine is suspended, and cannot be set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# ------------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Holder:
    """Holder of the leadership key. The revision of the transaction that set the key identifies the reign."""

    name: str
    revision: int


@dataclass(frozen=True)
class Reign:
    """Period in which one controller leads: its term, and the revision of the transaction that began it."""

    term: int
    revision: int


# ------------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class LeaseGranted:
    """The store has granted a lease of `ttl_s` seconds; the request was sent at `asked_s`."""

    lease: int
    ttl_s: float
    asked_s: float


@dataclass(frozen=True)
class Renewed:
    """The store has renewed the lease for `ttl_s` seconds; the request was sent at `asked_s`."""

    lease: int
    ttl_s: float
    asked_s: float


@dataclass(frozen=True)
class LeaseGone:
    """The lease has ended in the store."""

    lease: int


@dataclass(frozen=True)
class LeaderObserved:
    """The controller `holder` leads as of `revision` of the store; None: no controller leads."""

    holder: Holder | None
    revision: int


@dataclass(frozen=True)
class CampaignWon:
    """This controller has won its campaign: the leadership key is bound to its lease, and the term is recorded."""

    lease: int
    reign: Reign


@dataclass(frozen=True)
class CampaignLost:
    """Another controller was faster: the campaign with this lease is lost."""

    lease: int


@dataclass(frozen=True)
class RequestFailed:
    """The store has not answered the request `what`: its outcome is unknown."""

    what: Ask
    reason: str


@dataclass(frozen=True)
class StateLoaded:
    """This controller has loaded all records of the earlier reigns, and begins to act."""

    term: int


@dataclass(frozen=True)
class Resigned:
    """The controller ends its reign with this term, as its writes are refused, or it can do nothing for its cluster.

    The controller does not campaign for `rest_s` seconds, so that other controllers go first.
    """

    term: int
    reason: str
    rest_s: float = 0.0


@dataclass(frozen=True)
class LaterTermReported:
    """An agent has reported a reign with this term."""

    term: int


@dataclass(frozen=True)
class ElectionTick:
    """`next_deadline` has come. The controller's loop, which acts as the leader, last turned at `turned_s`."""

    turned_s: float


@dataclass(frozen=True)
class Closed:
    """The process of this controller ends."""


Event: TypeAlias = (
    LeaseGranted
    | Renewed
    | LeaseGone
    | LeaderObserved
    | CampaignWon
    | CampaignLost
    | RequestFailed
    | StateLoaded
    | Resigned
    | LaterTermReported
    | ElectionTick
    | Closed
)

# ------------------------------------------------------------------------------------------------------------------ actions


@dataclass(frozen=True)
class Grant:
    """Request a lease from the store, and bind the presence record of this controller to the lease."""


@dataclass(frozen=True)
class Renew:
    """Request the renewal of the lease, and read which controller leads."""

    lease: int


@dataclass(frozen=True)
class Campaign:
    """If no controller leads, bind the leadership key to the lease and record a new term, in one transaction.

    The new term is greater than the last recorded one, and greater than `above`.
    """

    lease: int
    above: int


@dataclass(frozen=True)
class Revoke:
    """End the lease, which removes all keys bound to it. If the store does not answer, the lease expires by itself."""

    lease: int


@dataclass(frozen=True)
class Lead:
    """Load all records of the store up to the revision of this reign, then act as the leader."""

    reign: Reign


@dataclass(frozen=True)
class StandBy:
    """Drop the state of the reign and all unsent messages at once, and follow the store again."""

    term: int
    reason: str


Ask: TypeAlias = Grant | Renew | Campaign
Action: TypeAlias = Ask | Revoke | Lead | StandBy
