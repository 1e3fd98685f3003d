"""Events that the controller's machine handles (facts, in the past tense) and actions that it returns (imperatives).

The order of actions matters: all `Record` actions of a turn are committed in one transaction before the first message of that
turn is sent (cluster 3: record, then act).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..protocol.messages import Envelope, RefusedJob, Reply, ToAgentFromController, ToControllerFromAgent
from ..protocol.model import ServerId
from ..protocol.principals import LOCAL_OPERATOR, Principal

if TYPE_CHECKING:
    from ..scheduler.scheduler import Scheduler
    from .settings import Settings


@dataclass(frozen=True)
class AgentMessage:
    """A message came from the agent of `server` with the identity `agent`. Both are part of its connection's name."""

    server: ServerId
    message: ToControllerFromAgent
    agent: str = ""


@dataclass(frozen=True)
class ClientRequest:
    """A request came from a client. `client`: the return address; `who`: the authenticated principal."""

    client: bytes
    envelope: Envelope
    who: Principal = LOCAL_OPERATOR

    @property
    def name(self) -> str:
        """The name of the request, unique among all principals: a principal gains nothing by using another's request id."""
        return self.envelope.id if self.who == LOCAL_OPERATOR else f"{self.who}|{self.envelope.id}"


@dataclass(frozen=True)
class ControllerTick:
    """The time of `next_deadline` has come."""


@dataclass(frozen=True)
class ClockSet:
    """The controller's clock was set forward by `by_s` seconds (back: less than 0) since the last event.

    The time that has really passed is not part of `by_s`.
    """

    by_s: float


@dataclass(frozen=True)
class StoreReturned:
    """The store can be written again. It could not be written since `since_s` (Unix time), for this `reason`."""

    since_s: float
    reason: str


@dataclass(frozen=True)
class RecordsRefused:
    """The store holds records that no controller has written, and they are ignored.

    `text` names the new ones, for people; `jobs`: all jobs without a valid submission, and why each is refused.
    """

    text: str
    jobs: tuple[RefusedJob, ...] = ()


@dataclass(frozen=True)
class Fetched:
    """The records for a client's or an agent's request were read (`Fetch`): keys with values; None: there is no record."""

    request: ClientRequest | AgentMessage
    records: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Reconfigured:
    """The configuration was read again: its settings, and the scheduler that decides unless a policy is set at run time."""

    settings: Settings
    configured: Scheduler


@dataclass(frozen=True)
class NoticeDone:
    """The notice with this number was delivered, or given up."""

    number: int


Event = (
    NoticeDone
    | AgentMessage
    | ClientRequest
    | Fetched
    | ControllerTick
    | ClockSet
    | StoreReturned
    | RecordsRefused
    | Reconfigured
)


@dataclass(frozen=True)
class Record:
    """Make these changes durable, all or none, before any later action is carried out."""

    puts: tuple[tuple[str, bytes], ...]
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SendAgent:
    """Send to the agent of `server` that has the identity `agent`, stamped with the term of the reign (`protocol.terms`)."""

    server: ServerId
    message: ToAgentFromController
    agent: str = ""


@dataclass(frozen=True)
class ReplyClient:
    """Answer a client."""

    client: bytes
    reply: Reply


@dataclass(frozen=True)
class Fetch:
    """Read these keys of the store, including all records of the turn so far; `Fetched` follows at once."""

    request: ClientRequest | AgentMessage
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Warn:
    """Warn the operator, in the log, that a peer has done something that no correct peer does."""

    text: str
    server: str = ""  # the server concerned
    job: str = ""  # the job concerned


@dataclass(frozen=True)
class Audit:
    """Write an act of a principal, or its refused attempt, into the audit log."""

    time_s: float  # Unix time
    who: str  # name of the principal
    act: str  # "submit", "cancel", "report", ...
    of: str  # the object of the act: a job, a server or a policy, in the words of the request
    done: bool  # False: the act was refused
    text: str = ""  # the result, or the reason of the refusal, for people
    request: str = ""  # the request's id


@dataclass(frozen=True)
class StandDown:
    """Stop sending: an agent of server `told_by` knows of `term`, which is higher than this controller's own.

    So another controller leads, unless the store shows otherwise. Until that is known, no message is sent.
    """

    term: int
    told_by: ServerId


Action = Record | SendAgent | ReplyClient | Fetch | Warn | Audit | StandDown
Outgoing = SendAgent | ReplyClient | Warn | Audit  # actions that remain after the commit
