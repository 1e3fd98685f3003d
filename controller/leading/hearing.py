"""Which agents a controller hears, and whether another one would hear more of them. Pure.

A leader may be cut off from agents, and not from the store. Then it gives up servers that are well, and another controller could
lead them. So all controllers tell each other, in the store, how many agents have lately said something to them; and a leader that
hears fewer than a standby, for a while, gives its leadership back before it would take these servers for lost.

An agent that has a session with the leader says nothing to others. So a standby hears those alone that the leader does not. Two
controllers that each hear some agents do not take turns: whoever leads hears those that can reach both, too.
"""

from __future__ import annotations

from collections import OrderedDict

from ...protocol.model import ServerId


class Hearing:
    """Of one controller, in either role. Times: of one clock that only runs forward (s)."""

    def __init__(self, window_s: float, patience_s: float) -> None:
        """An agent counts that has spoken within `window_s`. Others may hear more for `patience_s`."""
        self._window_s, self._patience_s = window_s, patience_s
        self._spoke: OrderedDict[ServerId, float] = OrderedDict()  # the one that has been silent for longest first
        self._fewer_since_s: float | None = None

    def heard(self, now: float, server: ServerId) -> None:
        """The agent of `server` has spoken."""
        self._spoke[server] = now
        self._spoke.move_to_end(server)

    def count(self, now: float) -> int:
        """How many agents are heard."""
        while self._spoke:
            server, spoke_s = next(iter(self._spoke.items()))
            if now - spoke_s < self._window_s:
                break
            del self._spoke[server]
        return len(self._spoke)

    def others_hear_more(self, now: float, most: int) -> bool:
        """Has another controller heard more for so long that it should lead? most: what the best of the others hears."""
        if most <= self.count(now):
            self._fewer_since_s = None
            return False
        if self._fewer_since_s is None:
            self._fewer_since_s = now
        return now - self._fewer_since_s >= self._patience_s

    def begin(self) -> None:
        """A reign begins: it has its own time to be heard."""
        self._fewer_since_s = None
