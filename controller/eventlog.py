"""Lines in the controller's log for each change of state of a job or a server: the events that `elasticctl events` shows.

Only recorded events are logged, as the reign calls after each commit. The rate is limited by kind of event: first a burst of
AT_ONCE lines, then one per INTERVAL_S, with the number of lines suppressed before it. So a flood of one kind never hides another.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from ..protocol.messages import EventKind, EventView
from ..protocol.model import JobId
from ..protocol.rate_limit import RateLimiter
from ..runtime.logs import about

log = logging.getLogger(__name__)

AT_ONCE = 100  # lines of one kind at once
INTERVAL_S = 0.2  # then at most one line of the kind in this interval


class EventLog:
    """Logger of events, each at most once."""

    def __init__(
        self,
        events: deque[EventView],
        now: Callable[[], float] = time.monotonic,
        generation: Callable[[JobId], int | None] = lambda job: None,
    ) -> None:
        """`events`: earlier events, which are not logged again. `generation`: returns a job's newest ordered generation."""
        self._generation = generation
        self._newest = events[-1].number if events else 0
        self._now = now
        self._limiters: dict[EventKind, RateLimiter] = {}

    def tell(self, events: deque[EventView]) -> None:
        """Log those of `events` that were not logged before, the oldest first."""
        if not events or events[-1].number == self._newest:
            return
        fresh = list(takewhile(lambda event: event.number > self._newest, reversed(events)))
        self._newest = events[-1].number
        now_s = self._now()
        for event in reversed(fresh):
            limiter = self._limiters.setdefault(event.kind, RateLimiter(AT_ONCE, INTERVAL_S))
            before = limiter.suppressed
            if limiter.allow(now_s):
                more = f" (and {before} more of its kind before)" if before else ""
                generation = self._generation(event.job) if event.job is not None else None
                told = about(event=event.kind.value, job=event.job, generation=generation)
                log.info("%s%s", event.text, more, extra=told)
