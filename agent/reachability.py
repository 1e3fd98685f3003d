"""Log messages about the controller's reachability: one when it stops answering, then less and less often, and one when
it answers again.

Pure. An agent without its controller goes on by itself and retries all the time; a line for each attempt would flood
the log.
"""

from __future__ import annotations

from ..protocol.times import SILENT_INTERVALS

FIRST_AFTER_S = 15.0  # of silence, or after some heartbeats where those are rare
AGAIN_AFTER_S = 60.0  # and then twice as long each time,
AT_LEAST_EVERY_S = 3600.0  # up to this
AWAY_S = 5.0  # an agent that looks so much too late was itself stopped, so messages may have come unnoticed


class ControllerReachability:
    """Decides which events are worth a line in the log. Times are Unix times in seconds."""

    def __init__(self, address: str, heartbeat_interval_s: float, now: float) -> None:
        self._address = address
        self._first_s = max(FIRST_AFTER_S, SILENT_INTERVALS * heartbeat_interval_s)
        self._heard_s = now
        self._wait_s = AGAIN_AFTER_S
        self._tell_s = now + self._first_s
        self._told = False
        self._standby = ""  # the last report of a standby

    @property
    def deadline(self) -> float:
        """Return when to `look`, if no message comes until then."""
        return self._tell_s

    def heard(self, now: float) -> str | None:
        """Record a message of the controller. Return a line for the log, or None."""
        silent_s, told = now - self._heard_s, self._told
        self._heard_s = now
        self._tell_s, self._wait_s, self._told, self._standby = now + self._first_s, AGAIN_AFTER_S, False, ""
        return f"the controller at {self._address} answers again, after {silent_s:.0f} s" if told else None

    def stands_by(self, address: str, leader: str) -> None:
        """Record that the controller at `address` does not lead, and its report of the leader."""
        self._standby = (
            f"the one at {address} stands by, and says that {f'{leader} leads' if leader else 'nobody leads'}"
        )

    def look(self, now: float) -> str | None:
        """Return a line about a controller that does not answer, if one is due at this time."""
        if now < self._tell_s:
            return None
        if now > self._tell_s + AWAY_S:
            self._tell_s = now + self._first_s
            return None
        self._tell_s, self._told = now + self._wait_s, True
        self._wait_s = min(AT_LEAST_EVERY_S, 2 * self._wait_s)
        if self._standby:
            return (
                f"no controller that leads answers for {now - self._heard_s:.0f} s, of those at {self._address}: "
                f"{self._standby}. Workers go on, and it is tried again all the time"
            )
        return (
            f"nobody answers at {self._address}, the controller's address, for {now - self._heard_s:.0f} s: "
            "does it run, and is it reached from here? Workers go on, and it is tried again all the time"
        )
