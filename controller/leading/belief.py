"""Whether a leader believes an agent that has heard of a later reign. Pure.

A leader that hears of a higher term than its own gives its leadership back: it may have been replaced while it slept. The next
leader reigns above the term that was told, so an agent that has told the truth is content then. An agent that tells of a higher
term again and again would bring one election after the other. So each server is believed once in a while only.

Not to believe is safe: an agent that has truly heard of a later reign ignores this leader, whose lease and whose guard in the
store hold whatever agents say (`machine`).
"""

from __future__ import annotations

from ...protocol.model import ServerId


class Belief:
    """Of one controller, through all of its reigns. Times: of one clock that only runs forward (s)."""

    def __init__(self, again_s: float) -> None:
        """again_s: between two times that the same server is believed."""
        self._again_s = again_s
        self._believed_s: dict[ServerId, float] = {}

    def believes(self, now: float, server: ServerId) -> bool:
        """`server` tells a leader of a later reign. True: it is believed, this time."""
        self._believed_s = {one: then for one, then in self._believed_s.items() if now - then < self._again_s}
        if server in self._believed_s:
            return False
        self._believed_s[server] = now
        return True
