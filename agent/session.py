"""The agent's session with the controller: detection of lost messages, and the time of the next hello. Pure.

Theory of operation
-------------------
The connection between agent and controller loses messages when it breaks or a process dies, but keeps their order. The
agent's machine repeats its own messages. Both sides count the *controller's*: a hello makes the controller answer
``Acknowledged(sent=0)`` and then send everything again; each heartbeat is answered with the number it has sent since.
An agent that has received fewer has lost something and says hello again. (If it has received more, the start of a
session was lost, and the count is invalid: the same cure.)

An acknowledgement with ``sent == 0`` therefore is the start of a session, wherever it appears: since order is kept, all
messages counted before it belong to an earlier session. That makes repeated, late and doubled hellos harmless: the last
such acknowledgement on the connection starts the count of the last hello's messages. While the agent waits for the one
that answers its hello, other acknowledgements belong to an earlier session and say nothing about this one.

A hello has a name, and so has the session that it begins. An agent that has said hello again ignores other
acknowledgements and starts no worker of an earlier session: those messages may have waited while the agent was stopped.
The controller may have given the server up meanwhile, and may have put another worker on that GPU. A slow controller's
answer must come before the next hello, and its silence between two answers is not its end: the agent measures how long
answers take, late ones included.

States::

                   hello sent           answered
    UNHEARD ----------------------> ASKED ----------> STANDS      silence, a gap, another controller: back to UNHEARD
       ^  <--- no connection stood ---+  \\              ^
       |                                  refused       | answered
       +------- no connection stood ------- REFUSED ----+         says hello again every `REFUSED_RETRY_S`

Where no connection stands, the agent looks for one again at once, and then less and less often. As soon as one stands,
the agent says hello, as another controller may have taken the place of the known one. A hello that a connection has
taken is not repeated soon: a controller that has just started has a thousand of them to answer, each with all knowledge
of its agent, and repetitions would only delay it. The waits are random, so that agents that lost their controller
together do not come together again and again.

One of several controllers leads (`endpoints`). An agent whose session has only a gap, or finds another incarnation of
its controller, says hello to the same endpoint again. It leaves an endpoint that is silent, stands by or loses its
connection for the next one.

A controller of many servers asks in its acknowledgements for fewer heartbeats than an agent's own configuration has:
the load of all agents together stays bounded.
"""

from __future__ import annotations

import enum
import random
from collections import deque

from ..protocol.messages import Acknowledged
from ..protocol.times import MOST_HEARTBEAT_INTERVAL_S, REFUSED_RETRY_S, SILENT_INTERVALS
from .endpoints import Endpoints

FIRST_RETRY_S = 0.05  # until a connection is looked for again
LONGEST_WAIT_INTERVALS = 4  # for the answer to a hello; one interval the first time
KEPT_HELLOS = 32  # hellos with known times
MOST_ANSWER_S = 60.0  # a hello with a later answer has been held back, by a cut or a stop
SCATTER = 0.25  # of such a wait, more or less


class Due(enum.Enum):
    """The message that is due to the controller."""

    NOTHING = "nothing"
    HELLO = "hello"
    HEARTBEAT = "heartbeat"


class Phase(enum.Enum):
    """State of the session with the controller."""

    UNHEARD = "unheard"  # no hello of this session is on its way
    ASKED = "asked"  # a hello has been handed to a standing connection
    REFUSED = "refused"  # the controller has refused the agent
    STANDS = "stands"


class Session:
    """Counts received messages, and decides when the next hello or heartbeat is due (Unix time, s)."""

    def __init__(self, heartbeat_interval_s: float, rng: random.Random, endpoints: int = 1) -> None:
        """`endpoints`: number of endpoints to choose from."""
        self._endpoints = Endpoints(endpoints)
        self._own_interval_s = heartbeat_interval_s
        self._interval_s = heartbeat_interval_s  # the controller's wish, if that is longer
        self._rng = rng
        self._phase = Phase.UNHEARD
        self._asked_at = 0.0
        self._unanswered: deque[float] = deque(
            maxlen=KEPT_HELLOS
        )  # when hellos were said, the newest last; -inf: answered
        self._took_s = 0.0  # duration of the last answer to a hello
        self._connect_s = min(FIRST_RETRY_S, heartbeat_interval_s)  # the next wait where there is no connection
        self._answer_s = heartbeat_interval_s  # where there is one, and no answer
        self._received = 0
        self._due_at = 0.0
        self._silent_at = 0.0
        self._incarnation: str | None = None
        self._refused_since = False  # the last hello; it is that of `REFUSED`

    @property
    def endpoint(self) -> int:
        """Return the number of the endpoint in use."""
        return self._endpoints.present

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def incarnation(self) -> str | None:
        """Incarnation of the controller; None until it has answered for the first time."""
        return self._incarnation

    def deadline(self) -> float:
        """Return when `due` has to be asked again."""
        return min(self._due_at, self._silent_at) if self._phase is Phase.STANDS else self._due_at

    def message_received(self) -> None:
        """Count a message other than Acknowledged."""
        self._received += 1

    def heard(self, now: float, hellos_since: int = 0) -> None:
        """Record that the controller lives. Its message belongs to an earlier hello, after which `hellos_since` more
        were said.
        """
        if 0 <= hellos_since < len(self._unanswered):
            took_s = now - self._unanswered[-1 - hellos_since]
            self._unanswered[-1 - hellos_since] = float("-inf")
            if 0 <= took_s <= MOST_ANSWER_S:
                self._took_s = took_s
        longest_s = max(SILENT_INTERVALS * self._interval_s, self._interval_s + 2 * self._took_s)
        self._silent_at = now + longest_s
        if self._phase is Phase.ASKED:
            self._due_at = max(self._due_at, self._asked_at + 2 * self._took_s)

    def acknowledged(self, now: float, message: Acknowledged) -> bool:
        """Take an acknowledgement. Return whether it answers the hello, so that a session begins."""
        self._interval_s = max(self._own_interval_s, min(message.heartbeat_interval_s, MOST_HEARTBEAT_INTERVAL_S))
        self.heard(now)
        if message.sent == 0:
            self._received = 0
        match self._phase:
            case Phase.ASKED | Phase.REFUSED if message.sent == 0:
                self._phase = Phase.STANDS
                self._endpoints.begin_round()
                self._incarnation = message.incarnation
                self._due_at = now + self._interval_s
                return True
            case Phase.STANDS if message.incarnation != self._incarnation or self._received != message.sent:
                self._lose(now)
        return False

    def refused(self, now: float) -> bool:
        """Record that the controller has refused a hello. Return whether this is new."""
        news = self._phase is not Phase.REFUSED
        self._phase, self._refused_since = Phase.REFUSED, True
        self._due_at = now + REFUSED_RETRY_S
        return news

    def stands_by(self, now: float) -> None:
        """Record that the endpoint in use does not lead. It may come to lead, or another one does."""
        if self._phase is not Phase.UNHEARD:
            self._lose(now, keep_round=self._phase is Phase.ASKED)
            self._ask_next(now)

    def say_again(self, now: float) -> None:
        """Say hello again, since its contents have changed. If none was taken yet, or one was refused, the next one has
        them anyhow.
        """
        if self._phase in (Phase.STANDS, Phase.ASKED):
            self._lose(now)

    def connected(self, now: float, endpoint: int = 0) -> None:
        """Record a new connection, perhaps to another controller: the next message is due now."""
        if endpoint != self._endpoints.present:
            if self._phase is not Phase.UNHEARD:
                return
            self._endpoints.go_to(endpoint)
        if self._phase in (Phase.UNHEARD, Phase.STANDS):
            self._due_at = min(self._due_at, now)

    def disconnected(self, now: float, endpoint: int) -> None:
        """Record the end of a connection. If there is no other endpoint, it is made again, and the session goes on."""
        if endpoint == self._endpoints.present and self._endpoints.several and self._phase is not Phase.UNHEARD:
            self._lose(now, keep_round=self._phase is Phase.ASKED)
            self._ask_next(now)

    def hello_not_sent(self) -> None:
        """Record that the due hello found no connection. The times of answers to earlier hellos then say nothing about
        the controller.
        """
        self._phase = Phase.UNHEARD
        self._answer_s = self._interval_s
        self._ask_next(self._asked_at)

    def due(self, now: float) -> Due:
        """Return the message due now, and count it as sent."""
        if self._phase is Phase.STANDS and now >= self._silent_at:
            self._lose(now)
            self._endpoints.go_on()
        if now < self._due_at:
            return Due.NOTHING
        match self._phase:
            case Phase.STANDS:
                self._due_at = now + self._interval_s
                return Due.HEARTBEAT
            case Phase.REFUSED:
                if not self._refused_since:
                    self._endpoints.go_on()
                self._refused_since = False
                self._due_at = now + REFUSED_RETRY_S
            case Phase.UNHEARD | Phase.ASKED:
                if self._phase is Phase.ASKED:
                    self._endpoints.go_on()
                self._phase = Phase.ASKED
                self._asked_at = now
                self._unanswered.append(now)
                wait_s = max(self._answer_s, 2 * self._took_s)
                self._due_at = now + wait_s * self._rng.uniform(1 - SCATTER, 1 + SCATTER)
                if self._endpoints.is_last:
                    self._answer_s = min(2 * self._answer_s, LONGEST_WAIT_INTERVALS * self._interval_s)
        return Due.HELLO

    def _ask_next(self, now: float) -> None:
        """Go on after the present endpoint has refused, or is unreachable."""
        self._unanswered.clear()
        if self._endpoints.go_on():
            self._due_at = now
        else:
            self._due_at = now + self._connect_s
            self._connect_s = min(2 * self._connect_s, self._interval_s)

    def _lose(self, now: float, keep_round: bool = False) -> None:
        self._phase = Phase.UNHEARD
        if keep_round:
            return
        self._endpoints.begin_round()
        self._connect_s, self._answer_s = min(FIRST_RETRY_S, self._interval_s), self._interval_s
        self._due_at = now
