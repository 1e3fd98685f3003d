"""Candidacy of one controller, for its loop: standby until the controller is elected, and again after its reign.

`turn` never blocks for longer than one call to the store: separate threads follow the store and renew the lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...protocol.messages import Refused, Standby
from ...protocol.model import ServerId
from ...protocol.times import BELIEVED_AGAIN_S, Leadership
from ..records import LeaderRecord
from ..store.interface import Deposed, If, SharedStore, StoreUnavailable
from .elector import Elector
from .events import LaterTermReported, Lead, LeaderObserved, Reign, Resigned, StandBy, StateLoaded
from .follower import Follower
from .machine import State
from .reachability import Reachability
from .records import LEADING_KEY, PresenceRecord
from .store_requests import ElectionRequests, since_boot
from .term_reports import TermReportLimiter

log = logging.getLogger(__name__)

AGAIN_S = 0.25  # between two attempts to begin a reign


@dataclass(frozen=True)
class Begin:
    """Order to begin to lead with this term, from these keys and values of the store."""

    term: int
    records: Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class End:
    """Order to end the reign and to stand by."""

    reason: str


Step: TypeAlias = Begin | End


class Candidacy:
    """Candidacy of one controller for leadership. All methods are for the thread of the controller's loop."""

    def __init__(
        self,
        store: SharedStore,
        elections: SharedStore,
        presence: PresenceRecord,
        times: Leadership,
        hearing: Reachability,
        wake: Callable[[], None],
    ) -> None:
        """Prepare the candidacy, which begins with `start`.

        `elections` is a second connection to the same store, with a time limit of `times.answer_s` for each call;
        `close` closes this connection. `wake` makes the controller's loop turn, and may be called from any thread.
        """
        self._times = times
        self._reachability = hearing
        self._term_reports = TermReportLimiter(BELIEVED_AGAIN_S)
        self._count_s = 0.0
        self._store = store
        self._wake = wake
        self._elections = elections
        self._requests = ElectionRequests(elections, presence, times.lease_s)
        self._elector = Elector(self._requests, times, wake)
        self._follower: Follower | None = None
        self._last: LeaderRecord | None = None
        self._won: Reign | None = None  # a reign that was won and has not begun yet
        self._handing_over = False
        self._again_s = 0.0

    def start(self) -> None:
        """Start to follow the store, and to take part in the election."""
        self._follower = self._following()
        self._elector.start()

    @property
    def name(self) -> str:
        """Name of this controller."""
        return self._requests.presence.name

    @property
    def state(self) -> State:
        """State of this controller in the election."""
        return self._elector.state

    @property
    def term(self) -> int:
        """Highest term known to be recorded in the store; 0: none."""
        last = self._leader()
        return last.term if last is not None else 0

    @property
    def present(self) -> tuple[PresenceRecord, ...]:
        """All running controllers, this one included, by name."""
        return self._requests.present

    @property
    def trouble(self) -> str:
        """Why the store does not answer; empty if the store answers."""
        return self._requests.trouble

    def leads(self) -> bool:
        """Return whether this controller leads now. Call this right before each message that only a leader may send."""
        return self._elector.leads()

    def turn(self) -> Step | None:
        """Record that the controller's loop has turned, and return the loop's next step; None: nothing to do."""
        self._elector.turned()
        if self._follower is not None:
            self._follower.check()
        match self._elector.notice():
            case StandBy(_, reason):
                self._won = None
                self._follow_anew()
                self._wake()  # more notices may be queued
                return End(reason)
            case Lead(reign):
                self._won, self._handing_over, self._again_s = reign, False, 0.0
                log.info("elected for term %d", reign.term)
        if self._won is not None:
            return self._begin(self._won)
        self._compare_reachability()
        return None

    def heard_from(self, server: ServerId) -> None:
        """Record that the agent of `server` has sent a message, whether this controller leads or stands by."""
        self._reachability.heard(since_boot(), server)

    def _compare_reachability(self) -> None:
        """Publish the number of agents heard, and resign if another controller hears more (`reachability`)."""
        now = since_boot()
        if now < self._count_s:
            return
        self._count_s = now + self._times.renew_s
        asking = self._requests
        asking.hears(self._reachability.count(now))
        others = [one for one in asking.present if one.name != self.name]
        most = max((one.agents_heard for one in others), default=0)
        reign = self._elector.reign
        if self.state is not State.LEADING or reign is None:
            self._reachability.begin()
        elif self._reachability.others_hear_more(now, most):
            heard = asking.presence.agents_heard
            best = next(one.name for one in others if one.agents_heard == most)
            self._reachability.begin()
            self.resign(reign.term, f"it hears {heard} agents, and {best} hears {most}", self._times.rest_s)

    def next_deadline(self) -> float | None:
        """Return the seconds until `turn` must be called; None: only after the next `wake`."""
        waits = self._won is not None and not self._handing_over
        return max(0.0, self._again_s - since_boot()) if waits else None

    def state_loaded(self, term: int) -> None:
        """Report that the records of `Begin` are loaded."""
        self._elector.tell(StateLoaded(term))

    def resign(self, term: int, reason: str, rest_s: float = 0.0) -> None:
        """Report that the reign with this term cannot go on; other controllers go first for `rest_s` seconds."""
        self._elector.tell(Resigned(term, reason, rest_s))

    def believes(self, server: ServerId) -> bool:
        """Return whether this leader believes the agent of `server`, which reports a later reign (`term_reports`)."""
        return self._term_reports.allow(since_boot(), server)

    def heard(self, term: int) -> None:
        """Report that an agent knows of a reign with this term."""
        self._elector.tell(LaterTermReported(term))

    def standby(self) -> Standby:
        """Return the answer of a standby to an agent, with the addresses of the leader."""
        last = self._leader()
        return Standby(leader=", ".join(last.agents_at) if last is not None and self.held else "")

    def refusal(self) -> Refused:
        """Return the answer of a standby to a client: the refusal of the request, with the leader to ask instead."""
        last, held = self._leader(), self.held
        text = f"the leader is {held}" if held else "no controller leads at present"
        if self.trouble:
            text = f"the store does not answer ({self.trouble}); training goes on"
        leader = ", ".join(last.clients_at) if last is not None and held else ""
        return Refused(reason=f"stands by; {text}", standby=True, leader=leader)

    def close(self) -> None:
        """Leave the election.

        Another controller may then lead: at once if the store answers, else after the lease has expired.
        """
        self._elector.close()
        self._elections.close()
        if self._follower is not None:
            self._follower.close()

    @property
    def held(self) -> str:
        """Name of the other controller that is known to lead; empty if there is none, or this controller leads."""
        holder = self._elector.holder
        return holder.name if holder is not None and holder.name != self.name else ""

    def _leader(self) -> LeaderRecord | None:
        if self._follower is not None and self._follower.last is not None:
            self._last = self._follower.last
        return self._last

    def _begin(self, reign: Reign) -> Step | None:
        """Bind the writes of the reign to the leadership key, then take over all earlier records from the follower.

        Returns None if the reign cannot begin yet, or ends at once because another controller leads.
        """
        if self._follower is None or not self._elector.leads():
            return None
        if not self._handing_over and since_boot() >= self._again_s:
            try:
                revision = self._store.begin(If(LEADING_KEY, reign.revision))
            except StoreUnavailable as error:
                log.warning("the reign cannot begin yet: %s", error)
                self._again_s = since_boot() + AGAIN_S
                return None
            except Deposed as error:
                self._won = None
                self.resign(reign.term, str(error))
                return None
            self._follower.hand_over(revision)
            self._handing_over = True
        followed = self._follower.followed
        if not self._handing_over or followed is None:
            return None
        self._leader()
        self._follower.close()
        self._follower, self._won = None, None
        log.info(
            "takes %d records over, %s", len(followed.records), "listed anew" if followed.listed else "as followed"
        )
        return Begin(reign.term, followed.records)

    def _following(self) -> Follower:
        return Follower(self._store, self._see, self._wake)

    def _see(self, seen: LeaderObserved) -> None:
        self._elector.tell(seen)

    def _follow_anew(self) -> None:
        if self._follower is not None:
            self._follower.close()
        self._follower = self._following()
