"""Where a job is, as one of its workers knows it, and what this worker has of the job's state. Pure.

Steps are counted from 0. A joiner takes the state of a step over in the middle of the job, before its script's loop has begun.
The loop then begins in the epoch of that state.

Where data has an index, an epoch has a known number of steps. Where it can only be read in sequence, nobody knows how many there
are before they have been read (`data.partitions`). Each state then says to which epoch the step to come belongs.
"""

from __future__ import annotations

import enum

from ...protocol.errors import InvalidTransition


class Holding(enum.Enum):
    """What a worker has of the job's state."""

    INITIAL = "the script's initial values"
    SPOILED = "nothing of use"
    PARTIAL = "a state without its registered values"
    UNPROVED = "a state, and it has not computed with it what others compute"
    WHOLE = "a state"


class Position:
    """That of a worker whose script has not come to its loop yet."""

    def __init__(self) -> None:
        self.holding = Holding.INITIAL
        self._had_own = False  # before the state arrived that arrived last
        self.total_steps: int | None = None
        self._steps_per_epoch: int | None = 1
        self._epochs: int | None = None
        self.next_epoch = 0  # of the step to come, where epochs have no known number of steps
        self._arriving_epoch: int | None = None  # the same, of the state that arrives
        self._registers_values = False
        self.epoch = 0  # of the script's loop; before it has begun, of the state
        self.in_loop = False  # no part of `Doing`: a worker waits and receives before its loop and in it
        self.next_step = 0
        self.step = -1  # in progress, or applied last

    def arrived(
        self, total_steps: int | None, steps_per_epoch: int | None, registers_values: bool, epochs: int | None
    ) -> None:
        """The script has come to its loop."""
        self.total_steps, self._steps_per_epoch, self._epochs = total_steps, steps_per_epoch, epochs
        self._registers_values = registers_values

    @property
    def whole(self) -> bool:
        return self.holding is Holding.WHOLE

    @property
    def applied(self) -> int:
        """The last step whose update has been applied; -1: none."""
        return self.next_step - 1

    @property
    def finished(self) -> bool:
        return self._is_past_end(self.next_step, self.next_epoch)

    @property
    def epoch_ends(self) -> bool:
        """Is there no step left in the epoch of the script's loop?"""
        spe = self._steps_per_epoch
        return self.finished or (self.next_epoch if spe is None else self.next_step // spe) != self.epoch

    @property
    def no_step(self) -> bool:
        """Is the step in progress none, since the job has no step left?"""
        return self._is_past_end(self.step, self._arriving_epoch)

    @property
    def last_step(self) -> bool:
        """Is it known that no step follows the one in progress?"""
        return self.total_steps is not None and self.step + 1 >= self.total_steps

    def _is_past_end(self, step: int, epoch: int | None) -> bool:
        """Is `step`, of `epoch`, none that the job has?"""
        if self.total_steps is not None and step >= self.total_steps:
            return True
        return self._steps_per_epoch is None and self._epochs is not None and (epoch or 0) >= self._epochs

    def has_state(self, applied: int, epoch: int, next_epoch: int | None) -> None:
        """All of the state after `applied` is here. next_epoch: of the step to come, where that does not follow from it."""
        self.holding, self.next_step = Holding.WHOLE, applied + 1
        self.next_epoch = next_epoch or 0
        self.is_in(epoch)

    def is_in(self, epoch: int) -> None:
        """The job's loop is in `epoch`: that is where the script's begins, if it has not begun."""
        if not self.in_loop:
            self.epoch = epoch

    def arrives(self, applied: int, next_epoch: int | None) -> None:
        """The state after `applied` begins to arrive, for the step that follows. It overwrites all but a whole one."""
        self.step, self._arriving_epoch = applied + 1, next_epoch
        self._had_own = self.holding is Holding.WHOLE
        if not self._had_own:
            self.holding = Holding.SPOILED

    def is_complete(self, proves: bool) -> bool:
        """The registered values have followed, so all of the state is here. Whether this worker counts as a holder now.

        proves: a newcomer has to compute in the next step what others compute, and counts only then; unless it had a state of its
        own, and has missed a step."""
        if proves and not self._had_own and not self.finished:
            self.holding = Holding.UNPROVED
            return False
        return True

    def apply(self, step: int, joins: bool, next_epoch: int | None) -> bool:
        """`step` has been applied. Whether all of its state is here: the registered values of one that joins follow later.

        Raises InvalidTransition if that cannot be.
        """
        if step != self.step or self.holding not in (Holding.WHOLE, Holding.UNPROVED):
            raise InvalidTransition(f"step {step} applied in step {self.step} by one that has {self.holding.value}")
        if joins and self._registers_values:
            self.holding = Holding.PARTIAL
        elif self.holding is Holding.UNPROVED:
            self.holding = Holding.WHOLE
        self.next_step, self.next_epoch = self.step + 1, next_epoch or 0
        return self.holding is Holding.WHOLE

    def ends_at(self, total_steps: int) -> None:
        """The job has no more steps than that."""
        self.total_steps = total_steps

    def give_up(self) -> bool:
        """The step in progress is given up. Whether the state is lost with it: its registered values will not follow, or this
        worker has not proved itself, and has to be given the state anew."""
        if self.holding not in (Holding.PARTIAL, Holding.UNPROVED):
            return False
        self.holding = Holding.SPOILED
        return True
