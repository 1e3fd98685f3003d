"""What a controller has while it reigns: its turn, the keys of jobs' workers, and what the log has told of its events.

With a store of its own a controller reigns from its start to its end. One of several does so only as long as its lease certainly
lasts (`leading`): that is asked before each message, since a commit that was waited for, or a decision, may have taken longer.
A reign that is over stays over. Whoever waits for an answer then asks the next one who reigns, with the same request.
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
    """From the recovery from what the reigns before have recorded, until `over` says why it has ended."""

    def __init__(
        self, turn: Turn, job_keys: JobKeys, steps: StepMeter, leads: Callable[[], bool] = lambda: True
    ) -> None:
        """`steps`: of the clock, since `turn` was made with it: what was set before, another reign's records do not follow.
        `leads`: is what this controller says now a leader's word?"""
        self.turn = turn
        self.job_keys = job_keys
        self.over = ""
        self.heard = 0  # the term of the reign that this one has given way to, as far as it was told
        self._steps = steps
        self._leads = leads
        self._events = EventLog(turn.machine.cluster.events, generation=self.generation)

    @property
    def machine(self) -> ControllerMachine:
        return self.turn.machine

    @property
    def term(self) -> int:
        return self.turn.machine.term

    def speaks(self) -> bool:
        """May something be sent now? To be asked before each message."""
        if not self.over and not self._leads():
            self.over = LEASE_OVER
        return not self.over

    def look_at_clock(self, now: float) -> None:
        """Take in by how much the machine's clock was set, if it was. To be called before anything else is taken in."""
        by_s = self._steps.step()
        if by_s:
            log.warning("the clock of this machine was set by %+.1f s", by_s)
            self.take(now, ClockSet(by_s))

    def take(self, now: float, event: Event) -> None:
        """Take in something that has happened."""
        self._kept(lambda: self.turn.take(now, event))

    def told(self) -> list[Outgoing]:
        """What can be sent at once (`Turn.told`)."""
        return self._kept(self.turn.told) or []

    def finish_ahead(self, now: float) -> list[Outgoing]:
        """What can be sent before a long decision (`Turn.finish_ahead`)."""
        return self._kept(lambda: self.turn.finish_ahead(now)) or []

    def finish(self, now: float) -> list[Outgoing]:
        """End the turn; what is to be sent (`Turn.finish`)."""
        outgoing = self._kept(lambda: self.turn.finish(now)) or []
        if not self.over and not self.turn.trouble:
            self._events.tell(self.machine.cluster.events)
        return outgoing

    def generation(self, job: JobId) -> int | None:
        """The newest that a job has been ordered; None: it is not in memory, or has none."""
        known = self.machine.cluster.jobs.get(job)
        return known.record.generation or None if known is not None else None

    def _kept(self, act: Callable[[], list[Outgoing] | None]) -> list[Outgoing] | None:
        """What `act` returns, unless the reign is over before or by it."""
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
