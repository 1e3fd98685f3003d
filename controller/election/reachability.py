"""Count of the agents that a controller hears, and the decision to resign to a controller that hears more. Pure.

A leader may be cut off from agents, but not from the store. Such a leader would declare healthy servers lost, although
another controller could lead them. So each controller publishes in the store how many agents it hears: the agents that
have lately sent a message to it. A leader that hears fewer agents than a standby, for a while, resigns before the time
limit after which it would declare these servers lost.

An agent that has a session with the leader sends nothing to the standbys. So a standby hears only the agents that the
leader does not hear. Two controllers that each hear some of the agents do not alternate as leaders: the one that leads
also hears the agents that can reach both.
"""

from __future__ import annotations

from collections import OrderedDict

from ...protocol.model import ServerId


class Reachability:
    """Agents that one controller hears, as a leader or a standby. Times are of a monotonic clock (seconds)."""

    def __init__(self, window_s: float, patience_s: float) -> None:
        """Count an agent for `window_s` after each message.

        Another controller may hear more agents for `patience_s`.
        """
        self._window_s, self._patience_s = window_s, patience_s
        self._spoke: OrderedDict[ServerId, float] = OrderedDict()  # longest silent first
        self._fewer_since_s: float | None = None

    def heard(self, now: float, server: ServerId) -> None:
        """Record that the agent of `server` has sent a message."""
        self._spoke[server] = now
        self._spoke.move_to_end(server)

    def count(self, now: float) -> int:
        """Return the number of agents heard within the window."""
        while self._spoke:
            server, spoke_s = next(iter(self._spoke.items()))
            if now - spoke_s < self._window_s:
                break
            del self._spoke[server]
        return len(self._spoke)

    def others_hear_more(self, now: float, most: int) -> bool:
        """Return whether another controller has heard more agents for `patience_s`, so that this leader should resign.

        `most`: the greatest number of agents that any other controller hears.
        """
        if most <= self.count(now):
            self._fewer_since_s = None
            return False
        if self._fewer_since_s is None:
            self._fewer_since_s = now
        return now - self._fewer_since_s >= self._patience_s

    def begin(self) -> None:
        """Restart the patience, so that a new reign has the full time to be heard."""
        self._fewer_since_s = None
