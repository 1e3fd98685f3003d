"""Thread of a controller in the leader election: `machine` decides, and the thread sends the requests.

The election has its own thread because the controller's loop may take seconds for one turn, and the lease must be
renewed meanwhile. Orders to the loop, to lead or to stand by, wait in a queue. The end of the leadership takes effect
before the loop reads that queue: the loop calls `leads` before each message.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

from ...protocol.times import Leadership
from .events import (
    Action,
    Campaign,
    Closed,
    ElectionTick,
    Event,
    Grant,
    Holder,
    Lead,
    Reign,
    Renew,
    RequestFailed,
    Revoke,
    StandBy,
)
from .machine import Election, State
from .store_requests import ElectionRequests, since_boot

log = logging.getLogger(__name__)

CLOSED_WITHIN_S = 5.0


class Elector:
    """Participation of one controller in the election. All public methods are for other threads."""

    def __init__(self, asking: ElectionRequests, times: Leadership, wake: Callable[[], None]) -> None:
        """Prepare the thread, which begins with `start`.

        The thread calls `wake` when `notice` has an order, and when the thread fails.
        """
        self._requests = asking
        self._election = Election(times, since_boot())
        self._wake = wake
        self._turned_s = since_boot()
        self._until_s: float | None = None
        self._told: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._notices: deque[Lead | StandBy] = deque()
        self._trouble = ""
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="elector", daemon=True)

    def start(self) -> None:
        """Start the thread, which requests a lease first."""
        self._thread.start()

    def leads(self) -> bool:
        """Return whether this controller leads now, by the margin rule (`machine`)."""
        until_s = self._until_s
        return until_s is not None and since_boot() < until_s

    @property
    def state(self) -> State:
        """State of this controller in the election."""
        return self._election.state

    @property
    def reign(self) -> Reign | None:
        """The reign of this controller; None if this controller does not lead."""
        return self._election.reign

    @property
    def holder(self) -> Holder | None:
        """The controller that was last seen to lead; None: no controller, or none seen yet."""
        return self._election.holder

    def turned(self) -> None:
        """Record that the controller's loop has turned.

        Raises the exception that has ended the elector's thread, if any: without the thread, the lease is not renewed.
        """
        self._turned_s = since_boot()
        if self._failed is not None:
            raise self._failed

    def tell(self, event: Event) -> None:
        """Queue an event for the election."""
        self._told.put(event)

    def notice(self) -> Lead | StandBy | None:
        """Return the next order to the controller's loop; None: no order is queued."""
        return self._notices.popleft() if self._notices else None

    def close(self) -> None:
        """Leave the election, and revoke the lease with all keys bound to it.

        Waits for up to `CLOSED_WITHIN_S`. If the store does not answer, the lease expires.
        """
        if self._thread.is_alive():
            self.tell(Closed())
            self._thread.join(CLOSED_WITHIN_S)

    def _run(self) -> None:
        try:
            waiting: deque[Event] = deque()
            while True:
                event = waiting.popleft() if waiting else self._next()
                actions = self._election.handle(since_boot(), event)
                self._until_s = self._election.leads_until_s
                waiting += self._carry_out(actions)
                if isinstance(event, Closed):
                    return
        except BaseException as error:  # raised again in the controller's loop, by `turned`
            self._until_s = None
            self._failed = error
            self._wake()

    def _next(self) -> Event:
        deadline_s = self._election.next_deadline()
        wait_s = max(0.0, deadline_s - since_boot()) if deadline_s is not None else None
        try:
            return self._told.get(timeout=wait_s)
        except queue.Empty:
            return ElectionTick(self._turned_s)

    def _carry_out(self, actions: list[Action]) -> list[Event]:
        for action in actions:  # before any request to the store, which may take a while
            if isinstance(action, Lead | StandBy):
                self._notices.append(action)
                self._wake()
        found: list[Event] = []
        for action in actions:
            match action:
                case Grant() | Renew() | Campaign():
                    found += self._requests.carry_out(action)
                case Revoke(lease):
                    self._requests.revoke(lease)
                case Lead() | StandBy():
                    pass
        self._tell_trouble(found)
        return found

    def _tell_trouble(self, found: list[Event]) -> None:
        """Log once that the store has stopped answering, and once that it answers again."""
        failed = next((event for event in found if isinstance(event, RequestFailed)), None)
        if failed is not None and not self._trouble:
            log.warning("the store does not answer: %s", failed.reason)
            self._trouble = failed.reason
        elif found and failed is None and self._trouble:
            log.info("the store answers again")
            self._trouble = ""
