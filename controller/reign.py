"""State of a controller while it reigns: its turn, the keys of jobs' workers, and the events that it has logged.

A controller with a store of its own reigns from its start to its end. A controller among several reigns only as long as
its lease certainly lasts (`election`). The lease is checked before each message, since a commit or a decision may have
outlasted the lease. A reign that is over stays over. A client that waits for an answer then repeats its request to the
next leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..protocol.model import JobId
from ..runtime.clock import StepMeter
from ..runtime.keys import JobKeys
from .eventlog import EventLog
from .events import ClockSet, Event, Outgoing
from .machine import ControllerMachine
from .store.interface import Deposed
from .turn import Turn

log = logging.getLogger(__name__)

LEASE_OVER = "its lease may be over: the store has not renewed it in time"


class Reign:
    """One reign: from the recovery of the earlier reigns' records until `over`, the reason of its end, is not empty."""

    def __init__(
        self, turn: Turn, job_keys: JobKeys, steps: StepMeter, leads: Callable[[], bool] = lambda: True
    ) -> None:
        """Begin the reign with a recovered turn.

        `steps` must be created right before `turn`: a clock set earlier does not concern the times in this reign.
        `leads` returns whether this controller leads now.
        """
        self.turn = turn
        self.job_keys = job_keys
        self.over = ""
        self.heard = 0  # the later term that an agent has reported, to which this reign gave way; 0: none
        self._steps = steps
        self._leads = leads
        self._events = EventLog(turn.machine.cluster.history.events, generation=self.generation)

    @property
    def machine(self) -> ControllerMachine:
        return self.turn.machine

    @property
    def term(self) -> int:
        return self.turn.machine.term

    def speaks(self) -> bool:
        """Return whether a message may be sent now. Call this before each message."""
        if not self.over and not self._leads():
            self.over = LEASE_OVER
        return not self.over

    def end(self, reason: str) -> None:
        """End the reign, unless it is over already."""
        self.over = self.over or reason

    def look_at_clock(self, now: float) -> None:
        """Handle a setting of the machine's clock, if any. Call this before handling any other event."""
        by_s = self._steps.step()
        if by_s:
            log.warning("the clock of this machine was set by %+.1f s", by_s)
            self.take(now, ClockSet(by_s))

    def take(self, now: float, event: Event) -> None:
        """Handle an event, unless the reign is over."""
        self._kept(lambda: self.turn.take(now, event))

    def told(self) -> list[Outgoing]:
        """Return the messages that may be sent at once (`Turn.told`)."""
        return self._kept(self.turn.told) or []

    def finish_ahead(self, now: float) -> list[Outgoing]:
        """Commit before a long scheduling decision, and return the messages to send (`Turn.finish_ahead`)."""
        return self._kept(lambda: self.turn.finish_ahead(now)) or []

    def finish(self, now: float) -> list[Outgoing]:
        """End the turn, log its events, and return the messages to send (`Turn.finish`)."""
        outgoing = self._kept(lambda: self.turn.finish(now)) or []
        if not self.over and not self.turn.trouble:
            self._events.tell(self.machine.cluster.history.events)
        return outgoing

    def generation(self, job: JobId) -> int | None:
        """Return the newest generation of a job; None: the job is not in memory, or has no generation."""
        known = self.machine.cluster.jobs.get(job)
        return known.record.generation or None if known is not None else None

    def _kept(self, act: Callable[[], list[Outgoing] | None]) -> list[Outgoing] | None:
        """Return the result of `act`; None if the reign is over, or ends during `act`."""
        if self.over:
            return None
        try:
            found = act()
        except Deposed as error:
            self.over = str(error)
            return None
        if (why := self.turn.stands_down) is not None:
            self.over, self.heard = f"server {why.told_by} has heard of term {why.term}", why.term
            return None
        return found
