"""The words of `membership`: facts that go into its machine, actions that come out."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.messages import Commit, Order, Prepare, Prepared, Ready
from ...protocol.model import Roster, WorkerId

# ------------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class OrderReceived:
    """An order came from the agent."""

    order: Order


@dataclass(frozen=True)
class PeerSaid:
    """A message of a fellow worker came."""

    message: Ready | Prepare | Prepared | Commit


@dataclass(frozen=True)
class GroupBuilt:
    """A communicator that `BuildGroup` asked for stands."""

    generation: int
    attempt: int


@dataclass(frozen=True)
class GroupFailed:
    """A communicator that `BuildGroup` asked for could not be built."""

    generation: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Arrived:
    """The training thread has reached its loop: model, optimizer and data are there."""


@dataclass(frozen=True)
class StepStarted:
    """The training thread begins a step. No commit is proposed in the last one: nobody would be there to follow it."""

    last: bool


@dataclass(frozen=True)
class WordRead:
    """The control word of the present step came back: the greatest generation that anyone proposed, or 0."""

    generation: int


@dataclass(frozen=True)
class StepApplied:
    """The optimizer has applied `step`; the worker now holds the state of that step."""

    step: int
    settled: int = 0  # decisions taken together since then, which come with the state


@dataclass(frozen=True)
class Settled:
    """The script's workers have taken a decision together since the last applied step, and this worker knows it."""


@dataclass(frozen=True)
class StateLost:
    """What this worker holds is not the whole state of any step (any more)."""


@dataclass(frozen=True)
class BoundaryReached:
    """The training thread is between two steps."""


@dataclass(frozen=True)
class CollectiveFailed:
    """The communicator in use failed or was abandoned; the training thread stands still."""

    reason: str


@dataclass(frozen=True)
class LoopEnded:
    """The training loop is over."""


@dataclass(frozen=True)
class TimePassed:
    """`next_deadline` has come."""


Event = (
    OrderReceived
    | PeerSaid
    | GroupBuilt
    | GroupFailed
    | Arrived
    | StepStarted
    | WordRead
    | StepApplied
    | Settled
    | StateLost
    | BoundaryReached
    | CollectiveFailed
    | LoopEnded
    | TimePassed
)


# ------------------------------------------------------------------------------------------------------------------ actions


@dataclass(frozen=True)
class SendLeader:
    """Send to the leader at `address`."""

    address: str
    message: Ready | Prepared


@dataclass(frozen=True)
class SendFollower:
    """Send to a worker that has spoken to us before."""

    worker: WorkerId
    message: Prepare | Commit


@dataclass(frozen=True)
class BuildGroup:
    """Build the communicator of `roster` in the background; supersedes an earlier attempt at the same generation."""

    roster: Roster
    attempt: int
    leader_address: str


@dataclass(frozen=True)
class DropGroups:
    """Communicators of these generations, built or being built, will not be used (any more)."""

    generations: tuple[int, ...]


@dataclass(frozen=True)
class Abandon:
    """Make the training thread come out of the communicator in use."""

    generation: int


@dataclass(frozen=True)
class Propose:
    """Contribute this number to the step's control word."""

    generation: int


@dataclass(frozen=True)
class Proceed:
    """Go on to the next step in the same generation."""


@dataclass(frozen=True)
class Switch:
    """Train in `roster` from the next step on. `recovery`: the switch did not ride a step (start of a job, or a loss)."""

    roster: Roster
    attempt: int
    holders: tuple[WorkerId, ...]
    recovery: bool


@dataclass(frozen=True)
class Stall:
    """Stand still until a `Switch`: the communicator in use is abandoned."""


@dataclass(frozen=True)
class Leave:
    """This worker is no longer in the roster, and everybody knows: end."""


@dataclass(frozen=True)
class Report:
    """Something that the controller should know at once has changed."""


Action = (
    SendLeader | SendFollower | BuildGroup | DropGroups | Abandon | Propose | Proceed | Switch | Stall | Leave | Report
)
