"""State of a transformers.Trainer that travels with its job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import has_length

from ..protocol.errors import UserError

# Of this worker, or only of the leader
LOCAL = ("is_world_process_zero", "is_local_process_zero", "stateful_callbacks")
SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")  # that the host keeps for its logs

MEASURED = ("runtime", "per_second", "preparation_time")


class CarriedState:
    """The host's state, as a value registered with the run: its TrainerState, the states of its callbacks and of its
    scheduler, and its logged values.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._arrived: dict[str, Any] | None = None
        self.scheduler: Any = None
        self.rate: float | None = None  # of the step applied last, as the norm
        self.norm: float | None = None
        self.saved: list[int] = []  # steps at which the host has saved a checkpoint

    def give(self) -> dict[str, Any]:
        """Return the whole state in plain values."""
        trainer = self._trainer
        names = [field.name for field in dataclasses.fields(TrainerState) if field.name not in LOCAL]
        state = {name: getattr(trainer.state, name) for name in names}
        state["log_history"] = [_without_measurements(entry) for entry in state["log_history"]]
        return {
            "state": state,
            "callbacks": [each.state() for each in self._stateful()],
            "scheduler": self.scheduler and self.scheduler.state_dict(),
            "rates": [group["lr"] for group in trainer.optimizer.param_groups],
            "sums": [float(getattr(trainer, name, 0)) for name in SUMS],
            "logged": [self.rate, self.norm, list(self.saved)],
        }

    def take(self, values: dict[str, Any]) -> None:
        """Take a state from other workers, or from a checkpoint."""
        self._arrived = values
        self.scheduler.load_state_dict(values["scheduler"])
        for group, rate in zip(self._trainer.optimizer.param_groups, values["rates"], strict=True):
            group["lr"] = rate  # a scheduler may have changed it since the update
        self.rate, self.norm, self.saved = values["logged"]
        self.restore()

    def restore(self) -> None:
        """Write a received state into the host, if there is one."""
        trainer, values = self._trainer, self._arrived
        if values is None:
            return
        vars(trainer.state).update(values["state"])
        for each, theirs in zip(self._stateful(), values["callbacks"], strict=True):
            known = {**theirs["args"], **theirs["attributes"]}
            vars(each).update({name: value for name, value in known.items() if name in vars(each)})
        for name, value in zip(SUMS, values["sums"], strict=True):
            setattr(trainer, name, value)
        trainer._tr_loss = torch.tensor(values["sums"][0], device=trainer.args.device)
        trainer._globalstep_last_logged = int(trainer._globalstep_last_logged)
        trainer._initial_global_step = 0  # its mean loss is that of the whole job

    def _stateful(self) -> list[Any]:
        trainer = self._trainer
        return [
            each for each in [*trainer.callback_handler.callbacks, trainer.control] if isinstance(each, ExportableState)
        ]


class Passes:
    """Replacement of the host's data loader: each pass over it yields the rest of an epoch, in global steps."""

    def __init__(self, steps: Any, dataset: Any) -> None:
        self._steps, self.dataset = steps, dataset
        self._pass: Iterator[Any] = iter(())
        self.given = 0  # in this pass

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Any]:
        self._pass, self.given = iter(self._steps), 0
        for step in self._pass:
            self.given += 1
            yield step

    def end(self) -> None:
        """End the pass, after the host has counted the epoch's steps, and before the work between epochs.

        Raises UserError if steps are left.
        """
        if next(self._pass, None) is not None:
            raise UserError(
                "should_epoch_stop: an epoch cannot end before all of its data is used; should_training_stop works"
            )


class Follow(TrainerCallback):
    """Callback that corrects the host's counters, which start with the process, to the job's. Called before all other
    callbacks.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.carried.restore()  # the host has just set its sums to zero
        self._trainer.looping = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.is_world_process_zero = state.is_local_process_zero = self._trainer.is_world_process_zero()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if has_length(passes := self._trainer.passes):
            state.epoch = state.global_step / len(passes)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self._trainer
        if trainer.run.finished or not control.should_training_stop or not trainer.passes.given:
            trainer.passes.end()
        if not trainer.passes.given:  # the host takes an epoch without a step for the end of its data
            control.should_training_stop = state.global_step >= state.max_steps


def _without_measurements(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a log entry without times and memory use, which are this worker's alone."""
    return {name: value for name, value in entry.items() if not name.endswith(MEASURED) and "_mem_" not in name}
