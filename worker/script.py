"""Where a training script is, as far as its two loops tell: the one over epochs, and within it the one over batches. Pure."""

from __future__ import annotations

import enum

from ..protocol.errors import InvalidTransition


class ScriptAt(enum.Enum):
    """Where the script is."""

    BEFORE = "before its loop over epochs"
    BETWEEN = "in its loop over epochs"
    READING = "in its loop over batches"  # or it has left that one in the middle
    LEFT = "where an exception has left its loop over epochs"
    OVER = "behind its loop over epochs"


TRANSITIONS: dict[ScriptAt, frozenset[ScriptAt]] = {
    ScriptAt.BEFORE: frozenset({ScriptAt.BETWEEN, ScriptAt.OVER}),
    ScriptAt.BETWEEN: frozenset({ScriptAt.READING, ScriptAt.LEFT, ScriptAt.OVER}),
    ScriptAt.READING: frozenset({ScriptAt.BETWEEN, ScriptAt.LEFT, ScriptAt.OVER}),
    ScriptAt.LEFT: frozenset({ScriptAt.OVER}),  # the script has caught the exception, and goes on to `save`
    ScriptAt.OVER: frozenset(),
}


class Script:
    """Follows one script."""

    def __init__(self) -> None:
        self.at = ScriptAt.BEFORE
        self.epoch = 0  # of its loop; before that has begun, of the state

    def state_is_of(self, epoch: int) -> None:
        """The state that has come is of this epoch: a script that has still to begin its loop begins there."""
        if self.at is ScriptAt.BEFORE:
            self.epoch = epoch

    def go(self, at: ScriptAt) -> None:
        """It is there now. Raises InvalidTransition if that cannot come next."""
        if at not in TRANSITIONS[self.at]:
            raise InvalidTransition(f"the script is {self.at.value}, and cannot be {at.value} next")
        self.at = at
