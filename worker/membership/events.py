"""Events and actions of the state machine in `membership`."""

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
    """A message of another worker came."""

    message: Ready | Prepare | Prepared | Commit


@dataclass(frozen=True)
class GroupBuilt:
    """A communicator requested by `BuildGroup` is built."""

    generation: int
    attempt: int


@dataclass(frozen=True)
class GroupFailed:
    """A communicator requested by `BuildGroup` could not be built."""

    generation: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Arrived:
    """The training thread has reached its loop: model, optimizer and data exist."""


@dataclass(frozen=True)
class StepStarted:
    """The training thread begins a step. The last step carries no proposal, since no step would follow a commit."""

    last: bool


@dataclass(frozen=True)
class WordRead:
    """The control word of the present step came back: the greatest generation that any member proposed, or 0."""

    generation: int


@dataclass(frozen=True)
class StepApplied:
    """The optimizer has applied `step`; the worker now holds the state of that step."""

    step: int
    settled: int = 0  # decisions of the script since that step, which come with the state


@dataclass(frozen=True)
class Settled:
    """The workers have agreed on a decision of the script since the last applied step, and this worker knows it."""


@dataclass(frozen=True)
class StateLost:
    """This worker does not hold the whole state of one step (any more)."""


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
class WorkerTick:
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
    | WorkerTick
)


# ------------------------------------------------------------------------------------------------------------------ actions


@dataclass(frozen=True)
class SendLeader:
    """Send a message to the leader at `address`."""

    address: str
    message: Ready | Prepared


@dataclass(frozen=True)
class SendFollower:
    """Send a message to a worker that has connected to this leader before."""

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
    """Drop the communicators of these generations, built or being built."""

    generations: tuple[int, ...]


@dataclass(frozen=True)
class Abandon:
    """Make the training thread leave the communicator in use."""

    generation: int


@dataclass(frozen=True)
class Propose:
    """Contribute this number to the step's control word."""

    generation: int
    workers: tuple[WorkerId, ...] = ()  # of that generation


@dataclass(frozen=True)
class Proceed:
    """Continue with the next step in the same generation."""


@dataclass(frozen=True)
class Switch:
    """Train in `roster` from the next step on. `recovery`: the commit came by message (start of a job, or a loss)."""

    roster: Roster
    attempt: int
    holders: tuple[WorkerId, ...]
    recovery: bool


@dataclass(frozen=True)
class Stall:
    """Stand still until a `Switch`: the communicator in use is abandoned."""


@dataclass(frozen=True)
class Leave:
    """End: this worker is no longer in the roster, and all members know."""


@dataclass(frozen=True)
class Report:
    """Report to the controller at once: the status has changed."""


Action = (
    SendLeader | SendFollower | BuildGroup | DropGroups | Abandon | Propose | Proceed | Switch | Stall | Leave | Report
)
