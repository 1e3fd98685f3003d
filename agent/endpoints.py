"""Which of its cluster's controllers an agent speaks to, and who comes next. Pure.

One of several controllers leads, and nobody tells an agent which. So it asks one after the other, in rounds. Within a round the
next one is asked at once, as far as the one before has said no, or is not there. After a round in which nobody has said yes the
agent waits a while (`session`), since an election takes a moment.
"""

from __future__ import annotations


class Endpoints:
    """Numbered from 0, in the order of the configuration."""

    def __init__(self, count: int) -> None:
        assert count > 0
        self._count = count
        self._present = 0
        self._left = count - 1

    @property
    def present(self) -> int:
        """The one that is spoken to. What the others say is not heard."""
        return self._present

    @property
    def several(self) -> bool:
        return self._count > 1

    @property
    def is_last(self) -> bool:
        """Have the others of this round been asked?"""
        return self._left == 0

    def begin_round(self) -> None:
        """Whatever the others said before counts no more."""
        self._left = self._count - 1

    def go_on(self) -> bool:
        """The present one does not help: the next one is to be asked. Whether it is one that this round has left."""
        self._present = (self._present + 1) % self._count
        if self._left > 0:
            self._left -= 1
            return True
        self.begin_round()
        return False

    def go_to(self, endpoint: int) -> None:
        """This one is there now."""
        self._present = endpoint
        self.begin_round()
