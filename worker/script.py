"""Position of a training script in its two loops: the one over epochs, and within it the one over batches. Pure."""

from __future__ import annotations

import enum

from ..protocol.errors import InvalidTransition


class ScriptAt(enum.Enum):
    """Position of the script."""

    BEFORE = "before its loop over epochs"
    BETWEEN = "in its loop over epochs"
    READING = "in its loop over batches"  # or it has left that loop in the middle
    LEFT = "where an exception has left its loop over epochs"
    OVER = "behind its loop over epochs"


TRANSITIONS: dict[ScriptAt, frozenset[ScriptAt]] = {
    ScriptAt.BEFORE: frozenset({ScriptAt.BETWEEN, ScriptAt.OVER}),
    ScriptAt.BETWEEN: frozenset({ScriptAt.READING, ScriptAt.LEFT, ScriptAt.OVER}),
    ScriptAt.READING: frozenset({ScriptAt.BETWEEN, ScriptAt.LEFT, ScriptAt.OVER}),
    ScriptAt.LEFT: frozenset({ScriptAt.OVER}),  # the script has caught the exception, and continues to `save`
    ScriptAt.OVER: frozenset(),
}


class Script:
    """Position and epoch of one script."""

    def __init__(self) -> None:
        self.at = ScriptAt.BEFORE
        self.epoch = 0  # of its loop; before the loop, of the state

    def state_is_of(self, epoch: int) -> None:
        """Take note of the epoch of a received state, in which a script that has not begun its loop begins it."""
        if self.at is ScriptAt.BEFORE:
            self.epoch = epoch

    def go(self, at: ScriptAt) -> None:
        """Move the script to a position. Raises InvalidTransition if that cannot come next."""
        if at not in TRANSITIONS[self.at]:
            raise InvalidTransition(f"the script is {self.at.value}, and cannot be {at.value} next")
        self.at = at
