"""Choice of the controller that an agent talks to, and of the next one to try. Pure.

One of several controllers leads, and the agent has to find out which one. So it asks one after the other, in rounds.
Within a round the agent asks the next controller at once if the present one refuses or cannot be reached. After a round
in which none has accepted, the agent waits a while (`session`), since an election takes a moment.
"""

from __future__ import annotations


class Endpoints:
    """Endpoints of controllers, numbered from 0 in the order of the configuration."""

    def __init__(self, count: int) -> None:
        assert count > 0
        self._count = count
        self._present = 0
        self._left = count - 1

    @property
    def present(self) -> int:
        """The endpoint in use. Messages from the others are ignored."""
        return self._present

    @property
    def several(self) -> bool:
        return self._count > 1

    @property
    def is_last(self) -> bool:
        """Return whether the other endpoints of this round have been asked."""
        return self._left == 0

    def begin_round(self) -> None:
        """Start a round: earlier answers of the other endpoints no longer count."""
        self._left = self._count - 1

    def go_on(self) -> bool:
        """Go to the next endpoint, since the present one does not help. Return whether it still belongs to this round."""
        self._present = (self._present + 1) % self._count
        if self._left > 0:
            self._left -= 1
            return True
        self.begin_round()
        return False

    def go_to(self, endpoint: int) -> None:
        """Use the endpoint that has become reachable."""
        self._present = endpoint
        self.begin_round()
