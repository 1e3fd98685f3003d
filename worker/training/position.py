"""Position of a job as one of its workers knows it, and this worker's part of the job's state. Pure.

Steps are counted from 0. A joining worker takes over the state of a step in the middle of the job, before its script's
loop has begun. The loop then begins in the epoch of that state.

With indexed data an epoch has a known number of steps. With data that can only be read in sequence, the number is
unknown until the data have been read (`data.partitions`). Each state then gives the epoch of the next step.
"""

from __future__ import annotations

import enum

from ...protocol.errors import InvalidTransition


class Holding(enum.Enum):
    """A worker's part of the job's state."""

    INITIAL = "the script's initial values"
    SPOILED = "nothing of use"
    PARTIAL = "a state without its registered values"
    UNPROVED = "a state, and it has not computed with it what others compute"
    WHOLE = "a state"


class Position:
    """Position of a worker, beginning before its script's loop."""

    def __init__(self) -> None:
        self.holding = Holding.INITIAL
        self._had_own = False  # whether the worker had a whole state before the last arrival
        self.total_steps: int | None = None
        self._steps_per_epoch: int | None = 1
        self._epochs: int | None = None
        self.next_epoch = 0  # of the next step, if epochs have no known number of steps
        self._arriving_epoch: int | None = None  # the next step's epoch in the state that arrives
        self._registers_values = False
        self.epoch = 0  # of the script's loop; before the loop, of the state
        self.in_loop = False  # separate from `Doing`, since a worker waits and receives both before its loop and in it
        self.next_step = 0
        self.step = -1  # the step in progress, or the last applied one

    def arrived(
        self, total_steps: int | None, steps_per_epoch: int | None, registers_values: bool, epochs: int | None
    ) -> None:
        """Take note that the script has come to its loop."""
        self.total_steps, self._steps_per_epoch, self._epochs = total_steps, steps_per_epoch, epochs
        self._registers_values = registers_values

    @property
    def whole(self) -> bool:
        return self.holding is Holding.WHOLE

    @property
    def applied(self) -> int:
        """The last applied step; -1: none."""
        return self.next_step - 1

    @property
    def finished(self) -> bool:
        return self._is_past_end(self.next_step, self.next_epoch)

    @property
    def epoch_ends(self) -> bool:
        """Whether no step is left in the epoch of the script's loop."""
        spe = self._steps_per_epoch
        return self.finished or (self.next_epoch if spe is None else self.next_step // spe) != self.epoch

    @property
    def no_step(self) -> bool:
        """Whether the step in progress does not exist, since the job has no step left."""
        return self._is_past_end(self.step, self._arriving_epoch)

    @property
    def last_step(self) -> bool:
        """Whether the step in progress is known to be the last."""
        return self.total_steps is not None and self.step + 1 >= self.total_steps

    def _is_past_end(self, step: int, epoch: int | None) -> bool:
        """Return whether the job has no such step of `epoch`."""
        if self.total_steps is not None and step >= self.total_steps:
            return True
        return self._steps_per_epoch is None and self._epochs is not None and (epoch or 0) >= self._epochs

    def has_state(self, applied: int, epoch: int, next_epoch: int | None) -> None:
        """Take note that the whole state after `applied` has arrived.

        next_epoch: of the next step, if it does not follow from the number.
        """
        self.holding, self.next_step = Holding.WHOLE, applied + 1
        self.next_epoch = next_epoch or 0
        self.is_in(epoch)

    def is_in(self, epoch: int) -> None:
        """Take note that the job's loop is in `epoch`, where the script's loop begins if it has not begun."""
        if not self.in_loop:
            self.epoch = epoch

    def arrives(self, applied: int, next_epoch: int | None) -> None:
        """Begin the arrival of the state after `applied`, for the next step.

        It overwrites the present state unless that is whole.
        """
        self.step, self._arriving_epoch = applied + 1, next_epoch
        self._had_own = self.holding is Holding.WHOLE
        if not self._had_own:
            self.holding = Holding.SPOILED

    def is_complete(self, proves: bool) -> bool:
        """Take note that the registered values have followed, and return whether this worker counts as a holder now.

        proves: a joining worker counts only after it has computed the same results as the others in the next step. A
        worker that had a state of its own, and has missed a step, counts at once.
        """
        if proves and not self._had_own and not self.finished:
            self.holding = Holding.UNPROVED
            return False
        return True

    def apply(self, step: int, joins: bool, next_epoch: int | None, proof_goes_on: bool = False) -> bool:
        """Take note of an applied step; return whether the state is whole.

        Registered values of a joining worker follow later. proof_goes_on: it has yet to compute the same results in
        further steps.

        Raises InvalidTransition for another step, or without a state.
        """
        if step != self.step or self.holding not in (Holding.WHOLE, Holding.UNPROVED):
            raise InvalidTransition(f"step {step} applied in step {self.step} by one that has {self.holding.value}")
        if joins and self._registers_values:
            self.holding = Holding.PARTIAL
        elif self.holding is Holding.UNPROVED and not proof_goes_on:
            self.holding = Holding.WHOLE
        self.next_step, self.next_epoch = self.step + 1, next_epoch or 0
        return self.holding is Holding.WHOLE

    def ends_at(self, total_steps: int) -> None:
        """Limit the job to this number of steps."""
        self.total_steps = total_steps

    def give_up(self) -> bool:
        """Give up the step in progress; return whether the state is lost with it.

        It is lost if its registered values cannot follow, or if this worker has not proved itself and has to receive
        the state again.
        """
        if self.holding not in (Holding.PARTIAL, Holding.UNPROVED):
            return False
        self.holding = Holding.SPOILED
        return True
