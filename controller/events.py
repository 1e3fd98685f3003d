"""What happens to the controller (facts, in the past tense) and what it wants done (imperatives).

The order of effects is a rule, not a habit: all `Record` actions of a loop turn are committed in one transaction before the
first message of that turn is sent (cluster 3: record, then act).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..protocol.messages import Envelope, Reply, ToAgentFromController, ToControllerFromAgent
from ..protocol.model import ServerId
from ..protocol.principals import LOCAL_OPERATOR, Principal

if TYPE_CHECKING:
    from ..scheduler.scheduler import Scheduler
    from .cluster import Settings


@dataclass(frozen=True)
class AgentMessage:
    """A message came from an agent of `server`: the one with the identity `agent`. Both are in its connection's name."""

    server: ServerId
    message: ToControllerFromAgent
    agent: str = ""


@dataclass(frozen=True)
class ClientRequest:
    """A request came from a client; `client` is where the reply goes, `who` what its connection has proved to be."""

    client: bytes
    envelope: Envelope
    who: Principal = LOCAL_OPERATOR

    @property
    def name(self) -> str:
        """Names the request among those of all principals: the id of another's request is of no use to anybody."""
        return self.envelope.id if self.who == LOCAL_OPERATOR else f"{self.who}|{self.envelope.id}"


@dataclass(frozen=True)
class TimePassed:
    """`next_deadline` has come."""


@dataclass(frozen=True)
class ClockSet:
    """The controller's clock was set forward by so much (back: less than 0) since the last event, beside the time that passed."""

    by_s: float


@dataclass(frozen=True)
class StoreReturned:
    """The store can be written again. It could not since then, for this reason."""

    since_s: float
    reason: str


@dataclass(frozen=True)
class RecordsRefused:
    """The store holds records that no controller has written: they are left out. `text` names them, for people."""

    text: str


@dataclass(frozen=True)
class Fetched:
    """What was to be fetched for a request of a client, or of an agent: values by key; None: there is none (any more)."""

    request: ClientRequest | AgentMessage
    records: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Reconfigured:
    """The configuration has been read again: these settings hold, and `configured` decides where nothing is set at run time."""

    settings: Settings
    configured: Scheduler


Event = AgentMessage | ClientRequest | Fetched | TimePassed | ClockSet | StoreReturned | RecordsRefused | Reconfigured


@dataclass(frozen=True)
class Record:
    """Make these changes durable, all or none, before anything that follows is done."""

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
    """Read these keys of the store, with all that has been recorded up to here: `Fetched` follows at once."""

    request: ClientRequest | AgentMessage
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Warn:
    """Tell the operator, in the log: a peer did what no correct peer does."""

    text: str
    server: str = ""  # that it is about
    job: str = ""  # likewise


@dataclass(frozen=True)
class Audit:
    """Write into the audit log who has done what, or has tried to."""

    time_s: float  # Unix time
    who: str  # a principal
    act: str  # "submit", "cancel", "report", ...
    of: str  # the job, the server or the policy concerned, as the principal calls it
    done: bool  # False: it was not allowed
    text: str = ""  # what it has come to, or why not, for people
    request: str = ""  # its id


@dataclass(frozen=True)
class StandDown:
    """An agent of `told_by` has heard of this term, which is higher than the one that this controller was elected for: another
    one reigns, unless the store says otherwise. Nothing more is said until that is known."""

    term: int
    told_by: ServerId


Action = Record | SendAgent | ReplyClient | Fetch | Warn | Audit | StandDown
Outgoing = SendAgent | ReplyClient | Warn | Audit  # what is left to do when all is recorded
