"""For loops that belong to somebody else: one item for each *global* step, instead of one for each virtual worker.

A host loop (a framework's Trainer) counts steps, calls schedulers, logs and evaluates. All of this is right for any number of
workers if it sees each global step once, and runs its own step for each virtual worker that this worker hosts inside::

    for step in run.steps():
        for batch in step:
            loss = model(**batch).loss
            run.share(loss=loss)
            loss.backward()
        print(step.number, run.shared["loss"].mean)

The inner loop is the host's own step. When it asks for the next batch, the present one's gradient is complete; when it is over,
the update has been applied. Meanwhile `optimizer.step()` does nothing. If the step has to be repeated, since a worker was lost,
the inner loop gets its batches again. It has none where this worker's virtual workers have no sample in a short last step.

After each step, and at an epoch's end, random numbers are seeded anew: what the host draws there, such as in an evaluation, is
the same on every worker. An epoch is over when the host has asked for a step and got none, even if it counts steps itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..protocol.errors import UserError
from .events import RunStep
from .trainer import Trainer


@dataclass(frozen=True)
class Position:
    """Where a job is when a script's loop begins. All steps of `epoch` may have been applied: then its end is still to come, with
    what the script does there."""

    epoch: int  # the number of epochs, if the loop was over
    steps: int  # applied since the job's beginning


class Steps:
    """The global steps that are left of an epoch. One pass over them is the rest of an epoch; the next pass is the next epoch."""

    def __init__(self, trainer: Trainer, counts_epochs: bool) -> None:
        """counts_epochs: no other loop does."""
        self._trainer = trainer
        self._counts_epochs = counts_epochs

    def __len__(self) -> int:
        """Global steps of a whole epoch. TypeError where nobody knows: shards."""
        steps = self._trainer.steps_per_epoch
        if steps is None:
            raise TypeError("an epoch of data that is read in sequence has no length")
        return steps

    def __iter__(self) -> Iterator[Step]:
        trainer = self._trainer
        trainer.steps_begin(self._counts_epochs)
        while (instruction := trainer.next_step()) is not None:
            step = Step(trainer, instruction)
            yield step
            if not step.over:
                raise UserError(
                    f"step {step.number} was not run to its end: iterate over it, it gives the step's batches"
                )
            if step.missed:
                trainer.caught_up()
                break
        trainer.seed_host("epoch", trainer.epoch)


class Step:
    """One global step: the micro-batches of the virtual workers that this worker hosts in it."""

    def __init__(self, trainer: Trainer, instruction: RunStep) -> None:
        self._trainer = trainer
        self._instruction = instruction
        self.over = False
        self.missed = False  # others have applied it, and no step is left in its epoch

    @property
    def number(self) -> int:
        """Counted from 0 since the job's beginning. It may grow while the step is repeated: this worker then has taken over the
        state of others who had applied it."""
        return self._instruction.step

    def __iter__(self) -> Iterator[Any]:
        trainer = self._trainer
        if self.over:
            raise UserError(f"step {self.number} has been applied: its batches are there once")
        while True:
            for batch in trainer.run_step(self._instruction):
                yield batch
                trainer.body_is_done()
            if trainer.applied > self._instruction.step:
                break
            instruction = trainer.next_step()
            if instruction is None:
                self.missed = True
                trainer.catch_up()
                break
            self._instruction = instruction
        self.over = True
        trainer.seed_host("step", trainer.applied)
