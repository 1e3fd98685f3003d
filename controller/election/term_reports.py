"""Rate limit of the elections that one agent can cause by reporting a later reign. Pure.

A leader to which an agent reports a higher term than its own resigns: the leader may have been replaced while its
machine was suspended. The next leader's term is higher than the reported one, so an agent that has reported the truth
follows that leader. A faulty agent that reports ever higher terms would cause one election after another. So a leader
believes the agent of each server only once in a while.

Disbelief is safe. An agent that truly knows a later reign ignores this leader, and this leader's lease and its guard in
the store do not depend on agents (`machine`).
"""

from __future__ import annotations

from ...protocol.model import ServerId


class TermReportLimiter:
    """Record of the reports that one controller has believed, across its reigns. Times: a monotonic clock (seconds)."""

    def __init__(self, again_s: float) -> None:
        """Believe the agent of each server at most once in `again_s` seconds."""
        self._again_s = again_s
        self._believed_s: dict[ServerId, float] = {}

    def allow(self, now: float, server: ServerId) -> bool:
        """Return whether the leader believes the agent of `server`, which reports a later reign, and count that."""
        self._believed_s = {one: then for one, then in self._believed_s.items() if now - then < self._again_s}
        if server in self._believed_s:
            return False
        self._believed_s[server] = now
        return True
