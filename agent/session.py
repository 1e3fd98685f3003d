"""The agent's session with the controller: who has missed what, and when to say hello again. Pure.

Theory of operation
-------------------
The line between agent and controller loses messages when a connection breaks or a process dies, but keeps their order. What
the agent tells is repeated by its machine. What the *controller* tells is counted by both: a hello makes the controller
answer ``Acknowledged(sent=0)`` and then send everything anew; each heartbeat is answered with the number it has sent since.
An agent that has received fewer has lost something and says hello again. (If it has received more, the start of a session was
lost, and the count is worth nothing: the same cure.)

An acknowledgement with ``sent == 0`` therefore is the start of a session, wherever it appears: since order is kept, whatever was
counted before it belongs to an earlier session. That makes repeated, late and doubled hellos harmless: the last such
acknowledgement on the line starts the count that the last hello's messages add up to. While the agent waits for the one
that answers its hello, other acknowledgements are of an earlier session and say nothing about this one.

A hello has a name, and so has the session that it begins. An agent that has said hello again hears no other acknowledgement and
starts no worker of an earlier session: those may have waited while the agent was stopped. The controller may have given the
server up meanwhile, and may have put another worker on that GPU. A slow controller's answer must come before the next hello, and
its silence between two answers is not its end: how long answers take is measured, also with those that come too late.

States::

                   hello sent           answered
    UNHEARD ----------------------> ASKED ----------> STANDS      silence, a gap, another controller: back to UNHEARD
       ^  <--- no connection stood ---+  \\              ^
       |                                  refused       | answered
       +------- no connection stood ------- REFUSED ----+         says hello again every `REFUSED_RETRY_S`

Where no connection stands, one is looked for again at once, and then less and less often. As soon as one stands, the agent
speaks, as another controller may have taken the place of the one that it knows. A hello that a connection has taken
is not repeated soon: a controller that has just started has a thousand of them to answer, each as large as all that its agent
knows, and repetitions would only make it later. The waits are drawn, so that agents that lost their controller together do not
come together again and again.

One of several controllers leads (`endpoints`). An agent in whose session nothing is wrong but a gap, or another incarnation of
its controller, says hello to the same one again. Who is silent, stands by or loses its connection is left for the next one.

A controller of many servers asks in its acknowledgements for fewer heartbeats than an agent would say by its own configuration:
what all agents say together stays bounded.
"""

from __future__ import annotations

import enum
import random
from collections import deque

from ..protocol.messages import Acknowledged
from ..protocol.times import MOST_HEARTBEAT_INTERVAL_S, REFUSED_RETRY_S, SILENT_INTERVALS
from .endpoints import Endpoints

FIRST_RETRY_S = 0.05  # until a connection is looked for again
LONGEST_WAIT_INTERVALS = 4  # for the answer to a hello; the first time it is one
KEPT_HELLOS = 32  # of which it is known when they were said
MOST_ANSWER_S = 60.0  # a hello whose answer takes longer has been held back, by a cut or a stop
SCATTER = 0.25  # of such a wait, more or less


class Due(enum.Enum):
    """What is to be said to the controller now."""

    NOTHING = "nothing"
    HELLO = "hello"
    HEARTBEAT = "heartbeat"


class Phase(enum.Enum):
    """How far the agent has come with the controller."""

    UNHEARD = "unheard"  # no hello of this session is on its way
    ASKED = "asked"  # a hello has been handed to a standing connection
    REFUSED = "refused"  # the controller has said no
    STANDS = "stands"


class Session:
    """Counts what came, and says when the next hello or heartbeat is due (Unix time, s)."""

    def __init__(self, heartbeat_interval_s: float, rng: random.Random, endpoints: int = 1) -> None:
        """`endpoints`: how many there are to choose from."""
        self._endpoints = Endpoints(endpoints)
        self._own_interval_s = heartbeat_interval_s
        self._interval_s = heartbeat_interval_s  # or what the controller asks for, if that is longer
        self._rng = rng
        self._phase = Phase.UNHEARD
        self._asked_at = 0.0
        self._unanswered: deque[float] = deque(
            maxlen=KEPT_HELLOS
        )  # when hellos were said, the newest last; -inf: answered
        self._took_s = 0.0  # the answer to a hello, the last time
        self._connect_s = min(FIRST_RETRY_S, heartbeat_interval_s)  # the next wait where there is no connection
        self._answer_s = heartbeat_interval_s  # where there is one, and no answer
        self._received = 0
        self._due_at = 0.0
        self._silent_at = 0.0
        self._incarnation: str | None = None
        self._refused_since = False  # the last hello; it is that of `REFUSED`

    @property
    def endpoint(self) -> int:
        """The number of the one that is spoken to."""
        return self._endpoints.present

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def incarnation(self) -> str | None:
        """Of the controller; None until it has answered for the first time."""
        return self._incarnation

    def deadline(self) -> float:
        """When `due` has to be asked again."""
        return min(self._due_at, self._silent_at) if self._phase is Phase.STANDS else self._due_at

    def message_received(self) -> None:
        """A message other than Acknowledged came."""
        self._received += 1

    def heard(self, now: float, hellos_since: int = 0) -> None:
        """The controller lives. What it said belongs to the session of an earlier hello: so many have been said since."""
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
        """An acknowledgement came. Whether it is the answer to the hello: a session begins."""
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
        """The controller has refused a hello. Whether it is news."""
        news = self._phase is not Phase.REFUSED
        self._phase, self._refused_since = Phase.REFUSED, True
        self._due_at = now + REFUSED_RETRY_S
        return news

    def stands_by(self, now: float) -> None:
        """Whoever answers does not lead. It may come to lead, or another one does."""
        if self._phase is not Phase.UNHEARD:
            self._lose(now, keep_round=self._phase is Phase.ASKED)
            self._ask_next(now)

    def say_again(self, now: float) -> None:
        """What a hello says has changed. Where none has been taken yet, or one was refused, the next one says it anyhow."""
        if self._phase in (Phase.STANDS, Phase.ASKED):
            self._lose(now)

    def connected(self, now: float, endpoint: int = 0) -> None:
        """A connection stands, where perhaps another controller answers: what would be said at the next occasion is said now."""
        if endpoint != self._endpoints.present:
            if self._phase is not Phase.UNHEARD:
                return
            self._endpoints.go_to(endpoint)
        if self._phase in (Phase.UNHEARD, Phase.STANDS):
            self._due_at = min(self._due_at, now)

    def disconnected(self, now: float, endpoint: int) -> None:
        """A connection has ended. Where there is no other endpoint, it is made anew, and the session goes on."""
        if endpoint == self._endpoints.present and self._endpoints.several and self._phase is not Phase.UNHEARD:
            self._lose(now, keep_round=self._phase is Phase.ASKED)
            self._ask_next(now)

    def hello_not_sent(self) -> None:
        """The hello that was due found no connection. When answers to earlier ones come says nothing of the controller then."""
        self._phase = Phase.UNHEARD
        self._answer_s = self._interval_s
        self._ask_next(self._asked_at)

    def due(self, now: float) -> Due:
        """What to say now. Counts it as said."""
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
        """The present endpoint has said no, or is not there."""
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
