"""State machine of one controller in the leader election. Pure (survival: Term; Elan V-D).

Theory of operation
-------------------
Each controller holds a **lease** in the store, and renews it. The leader has bound the leadership key to its lease, in
the transaction that recorded its **term**, a number that only grows. When the lease ends, the store removes the key;
all other controllers see the removal, and the first of them to write takes the key.

**The margin rule.** The store counts a lease's time from the arrival of a request. The controller counts from when it
*sent* the request, and subtracts a margin. So the controller's count ends first, however late messages are: from
`leads_until_s` on no message may leave this controller. The clocks need not agree; they must only run about equally
fast. An answer that arrives too late does not revive a lease.

The rule alone is not safe, because a process may sleep between reading the clock and sending a message. So each write
is conditional on the leadership key, and each agent remembers the highest term and ignores lower ones. The model
checker verifies the three measures together exhaustively (`verification/leadership.pml`).

**Unknown outcomes.** A campaign without an answer may have been won. Its lease is revoked in any case, and the next
campaign uses another lease.

**Catching up.** The winner of a campaign may not act before it has loaded all records of the earlier reigns. If loading
takes longer than `catch_up_s`, the winner resigns, and other controllers go first.

**A hanging loop.** A separate thread renews the lease, since a large scheduling decision takes seconds. The thread
gives the lease up when the controller's loop has not turned for `stall_s`: a leader that does nothing must not keep
others from leading.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...protocol.errors import InvalidTransition
from ...protocol.times import Leadership
from .events import (
    Action,
    Ask,
    Campaign,
    CampaignLost,
    CampaignWon,
    Closed,
    ElectionTick,
    Event,
    Grant,
    Holder,
    LaterTermReported,
    Lead,
    LeaderObserved,
    LeaseGone,
    LeaseGranted,
    Reign,
    Renew,
    Renewed,
    RequestFailed,
    Resigned,
    Revoke,
    StandBy,
    StateLoaded,
)


class State(enum.Enum):
    """State of a controller in the election."""

    FOLLOWING = "standing by"
    CAMPAIGNING = "trying to lead"
    CATCHING_UP = "about to lead"
    LEADING = "leading"


class Cause(enum.Enum):
    """Cause of a transition between states."""

    VACANT = "nobody leads"
    BEATEN = "another one was faster"
    WON = "the key is ours"
    BUILT = "all that was recorded is known"
    LOST = "the lease or the key is gone, or not needed"


TRANSITIONS: dict[tuple[State, Cause], State] = {
    (State.FOLLOWING, Cause.VACANT): State.CAMPAIGNING,
    (State.FOLLOWING, Cause.LOST): State.FOLLOWING,  # only the lease was lost: this controller did not lead
    (State.CAMPAIGNING, Cause.BEATEN): State.FOLLOWING,
    (State.CAMPAIGNING, Cause.WON): State.CATCHING_UP,
    (State.CAMPAIGNING, Cause.LOST): State.FOLLOWING,
    (State.CATCHING_UP, Cause.BUILT): State.LEADING,
    (State.CATCHING_UP, Cause.LOST): State.FOLLOWING,
    (State.LEADING, Cause.LOST): State.FOLLOWING,
}


@dataclass(frozen=True)
class _Lease:
    """This controller's lease in the store, which is valid by the margin rule until `until_s`."""

    id: int
    sent_s: float
    until_s: float


class Election:
    """State machine of one controller in the election, with at most one outstanding request to the store."""

    def __init__(self, times: Leadership, now: float) -> None:
        """Begin as a follower without a lease. `now` and all later times are of CLOCK_BOOTTIME (seconds)."""
        self._times = times
        self._state = State.FOLLOWING
        self._lease: _Lease | None = None
        self._requests: Ask | None = None
        self._ask_s = now  # when to request or renew the lease
        self._seen: LeaderObserved | None = None
        self._reign: Reign | None = None
        self._won_s = now
        self._above = 0  # the highest term reported to this controller
        self._rest_until_s = now
        self._turned_s = now
        self._closed = False

    @property
    def state(self) -> State:
        """State of this controller in the election."""
        return self._state

    @property
    def reign(self) -> Reign | None:
        """This controller's reign; None: it does not lead."""
        return self._reign

    @property
    def holder(self) -> Holder | None:
        """The last known leader; None: no leader, or none seen yet."""
        return self._seen.holder if self._seen is not None else None

    @property
    def leads_until_s(self) -> float | None:
        """Time until which this controller may send as the leader (CLOCK_BOOTTIME, seconds); None: it does not lead."""
        if self._reign is None or self._lease is None:
            return None
        return self._lease.until_s

    def next_deadline(self) -> float | None:
        """Return when `ElectionTick` is due if no event comes before (CLOCK_BOOTTIME, seconds); None: no deadline."""
        if self._closed:
            return None
        found = [self._lease.until_s] if self._lease is not None else []
        if self._requests is None:
            found.append(self._ask_s)
        if self._reign is not None:
            found.append(self._turned_s + self._times.stall_s)
        if self._state is State.CATCHING_UP:
            found.append(self._won_s + self._times.catch_up_s)
        return min(found, default=None)

    def handle(self, now: float, event: Event) -> list[Action]:
        """Handle one event, and return the actions to carry out, in order.

        Raises InvalidTransition if the event does not fit the state, which only a bug can cause.
        """
        if self._closed:
            return []
        actions: list[Action] = []
        if self._lease is not None and now >= self._lease.until_s:
            self._lose(now, actions, "its lease may be over: the store has not renewed it in time")
        match event:
            case LeaseGranted(lease, ttl_s, asked_s):
                self._answered(Grant)
                self._hold(now, lease, ttl_s, asked_s)
            case Renewed(lease, ttl_s, asked_s):
                self._answered(Renew)
                if self._lease is not None and self._lease.id == lease:
                    self._hold(now, lease, ttl_s, asked_s)
            case LeaseGone(lease):
                self._answered(Renew)
                if self._lease is not None and self._lease.id == lease:
                    self._lose(now, actions, "the store has ended its lease", revoke=False)
            case LeaderObserved():
                self._see(now, actions, event)
            case CampaignWon(lease, reign):
                self._answered(Campaign)
                self._win(now, actions, lease, reign)
            case CampaignLost(lease):
                self._answered(Campaign)
                if self._state is State.CAMPAIGNING and self._lease is not None and self._lease.id == lease:
                    self._move(Cause.BEATEN)
                    self._seen = None  # the new leader is not known yet
            case RequestFailed(what):
                self._answered(type(what))
                self._fail(now, actions, what)
            case StateLoaded(term):
                if self._reign is not None and self._reign.term == term:
                    self._move(Cause.BUILT)
            case Resigned(term, reason, rest_s):
                if self._reign is not None and self._reign.term == term:
                    self._lose(now, actions, reason)
                    self._rest_until_s = now + rest_s
            case LaterTermReported(term):
                self._above = max(self._above, term)
                if self._reign is not None and term > self._reign.term:
                    self._lose(now, actions, f"there is a leader with term {term}")
            case ElectionTick(turned_s):
                self._turned_s = turned_s
                self._look_at_times(now, actions)
            case Closed():
                self._lose(now, actions, "this controller ends")
                self._closed = True
                return actions
        self._go_on(now, actions)
        return actions

    # -- events

    def _answered(self, kind: type[Ask]) -> None:
        if isinstance(self._requests, kind):
            self._requests = None

    def _hold(self, now: float, lease: int, ttl_s: float, asked_s: float) -> None:
        until_s = asked_s + ttl_s - self._times.margin_s
        if until_s <= now:  # the answer came too late; the lease ends by itself
            self._ask_s = now
            return
        self._lease = _Lease(lease, asked_s, until_s)
        self._ask_s = asked_s + self._times.renew_s

    def _see(self, now: float, actions: list[Action], seen: LeaderObserved) -> None:
        if self._seen is not None and seen.revision < self._seen.revision:
            return
        self._seen = seen
        reign = self._reign
        if reign is None or seen.revision < reign.revision:
            return  # the store was read before this controller won
        if seen.holder is None or seen.holder.revision != reign.revision:
            who = (
                f"{seen.holder.name} leads" if seen.holder is not None else "its leadership was removed from the store"
            )
            self._lose(now, actions, who)

    def _win(self, now: float, actions: list[Action], lease: int, reign: Reign) -> None:
        if self._state is not State.CAMPAIGNING or self._lease is None or self._lease.id != lease:
            actions.append(Revoke(lease))  # the answer came too late
            return
        self._move(Cause.WON)
        self._reign, self._won_s = reign, now
        actions.append(Lead(reign))

    def _fail(self, now: float, actions: list[Action], what: Ask) -> None:
        self._ask_s = now + self._times.retry_s
        if isinstance(what, Campaign) and self._lease is not None and self._lease.id == what.lease:
            self._lose(now, actions, "its campaign was not answered")

    def _look_at_times(self, now: float, actions: list[Action]) -> None:
        if self._reign is None:
            return
        silent_s = now - self._turned_s
        if silent_s >= self._times.stall_s:
            self._lose(now, actions, f"its loop has not turned for {silent_s:.0f} s")
        elif self._state is State.CATCHING_UP and now >= self._won_s + self._times.catch_up_s:
            self._lose(now, actions, f"it has not caught up with the store within {self._times.catch_up_s:.0f} s")
            self._rest_until_s = now + self._times.rest_s

    def _lose(self, now: float, actions: list[Action], reason: str, revoke: bool = True) -> None:
        """Become a standby without a lease. The next lease is a new one."""
        if self._reign is not None:
            actions.append(StandBy(self._reign.term, reason))
        if self._lease is not None:
            if revoke:
                actions.append(Revoke(self._lease.id))
            self._move(Cause.LOST)
            self._ask_s = min(self._ask_s, now)
        self._lease = self._reign = self._seen = None

    # -- next request

    def _go_on(self, now: float, actions: list[Action]) -> None:
        if self._requests is not None:
            return
        if self._lease is None:
            ask: Ask | None = Grant() if now >= self._ask_s else None
        elif self._may_campaign(now):
            self._move(Cause.VACANT)
            ask = Campaign(self._lease.id, self._above)
        else:
            ask = Renew(self._lease.id) if now >= self._ask_s else None
        if ask is not None:
            self._requests = ask
            actions.append(ask)

    def _may_campaign(self, now: float) -> bool:
        vacant = self._state is State.FOLLOWING and self._seen is not None and self._seen.holder is None
        turns = now - self._turned_s < self._times.stall_s
        return vacant and turns and now >= self._rest_until_s and now < self._ask_s

    def _move(self, cause: Cause) -> None:
        try:
            self._state = TRANSITIONS[self._state, cause]
        except KeyError:
            raise InvalidTransition(f"{cause.value}, while a controller is {self._state.value}") from None
