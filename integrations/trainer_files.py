"""Files that only the leader of a transformers.Trainer's job writes: the host's own checkpoints, its logs, its bars."""

from __future__ import annotations

import os
from typing import Any

from transformers import ProgressCallback, Trainer

import elasticd as elastic

from .trainer_state import CarriedState


class LeadersFiles(Trainer):
    """A Trainer that writes files only while it leads. Its decisions from these files are the same on all workers."""

    run: elastic.Run
    carried: CarriedState
    looping: bool  # its callbacks have been notified that training begins
    # The checkpoint that the leader writes now: if the leader is lost, another worker writes it
    unsaved: tuple[Any, ...] | None = None

    def is_world_process_zero(self) -> bool:
        return self.run.leads

    is_local_process_zero = is_world_process_zero

    def lead(self) -> None:
        """Make this worker the leader from now on."""
        self.state.is_world_process_zero = self.state.is_local_process_zero = True
        for callback in self.callback_handler.callbacks if self.looping else ():
            if isinstance(callback, ProgressCallback):
                callback.on_train_begin(self.args, self.state, self.control)
        if self.unsaved is not None:
            super()._save_checkpoint(*self.unsaved)

    def _save_checkpoint(self, *arguments: Any) -> None:
        best = self.state.best_model_checkpoint
        self.unsaved = None if self.is_world_process_zero() else arguments
        super()._save_checkpoint(*arguments)
        self.carried.saved.append(self.state.global_step)
        # Whether or not this worker has seen the checkpoint written
        if self.state.best_global_step in self.carried.saved:
            best = os.path.join(self._get_output_dir(arguments[1]), f"checkpoint-{self.state.best_global_step}")
        self.state.best_model_checkpoint = best

    def _save_rng_state(self, output_dir: str) -> None:
        if self.is_world_process_zero():
            super()._save_rng_state(output_dir)

    def _load_best_model(self) -> None:
        # The latest checkpoint may not be on the disk yet, but its weights are in this worker's memory.
        if self.state.best_global_step != self.state.global_step:
            super()._load_best_model()
