"""Iteration for loops of frameworks: one item for each *global* step, instead of one for each virtual worker.

A host loop (a framework's Trainer) counts steps, calls schedulers, logs and evaluates. All of this is right for any
number of workers if the loop sees each global step once, and runs its own step for each virtual worker that this worker
hosts inside::

    for step in run.steps():
        for batch in step:
            loss = model(**batch).loss
            run.share(loss=loss)
            loss.backward()
        print(step.number, run.shared["loss"].mean)

The inner loop is the host's own step. When it requests the next batch, the present batch's gradient is complete; when
it ends, the update has been applied. Meanwhile `optimizer.step()` does nothing. If a step has to be repeated after the
loss of a worker, the inner loop gets its batches again. It gets no batch if this worker's virtual workers have no
sample in a short last step.

After each step, and at an epoch's end, random generators are reseeded. Random numbers that the host draws there, such
as in an evaluation, are therefore the same on every worker. An epoch is over when the host has requested a step and got
none, even if the host counts steps itself.
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
    """Position of a job when a script's loop begins.

    All steps of `epoch` may have been applied; then the epoch's end, with the script's work there, is still to come.
    """

    epoch: int  # equal to the number of epochs if the loop was over
    steps: int  # global steps applied since the job's beginning


class Steps:
    """The remaining global steps of an epoch. One pass is the rest of an epoch; the next pass is the next epoch."""

    def __init__(self, trainer: Trainer, counts_epochs: bool) -> None:
        """counts_epochs: True if no loop over `epochs` counts the epochs."""
        self._trainer = trainer
        self._counts_epochs = counts_epochs

    def __len__(self) -> int:
        """Return the number of global steps in a whole epoch. Raises TypeError for shards, which have no known length."""
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
                trainer.held.batches_begin()
                break
        trainer.seed_host("epoch", trainer.script.epoch)


class Step:
    """One global step: the micro-batches of the virtual workers that this worker hosts in it."""

    def __init__(self, trainer: Trainer, instruction: RunStep) -> None:
        self._trainer = trainer
        self._instruction = instruction
        self.over = False
        self.missed = False  # other workers have applied it, and no step is left in its epoch

    @property
    def number(self) -> int:
        """Number of the step, counted from 0 since the job's beginning.

        It may grow while the step is repeated, if this worker takes over the state of workers that had applied the
        step.
        """
        return self._instruction.step

    def __iter__(self) -> Iterator[Any]:
        trainer = self._trainer
        if self.over:
            raise UserError(f"step {self.number} has been applied: its batches are there once")
        while True:
            for batch in trainer.run_step(self._instruction):
                yield batch
                trainer.body_is_done()
            if trainer.held.next_step > self._instruction.step:
                break
            instruction = trainer.next_step()
            if instruction is None:
                self.missed = True
                trainer.held.catch_up()
                break
            self._instruction = instruction
        self.over = True
        trainer.seed_host("step", trainer.held.next_step)
