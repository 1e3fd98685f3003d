"""A Lightning training that sends its state or receives one; a module of its own, as importing Lightning takes seconds."""

from __future__ import annotations

import copy
from typing import Any

import lightning.pytorch as pl
import torch

from elasticd.integrations.lightning_state import HostState

STEPS = 4  # of an epoch


class Model(pl.LightningModule):
    """Sends its state after `gives` steps, or receives `taken` in place of its own after the first."""

    def __init__(self, gives: int = 0, taken: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.gives, self.taken = gives, taken
        self.given: dict[str, Any] = {}
        self.last: list[bool] = []  # whether each batch was the last of its epoch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.last.append(self.trainer.is_last_batch)
        return self.layer(batch).sum()


class Steps:
    """Steps of the training, between which states are sent and received."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Any:
        done = 0
        while done < STEPS:
            if done and done == self.model.gives:
                self.model.given = copy.deepcopy(self.model.state.give())
            if done == 1 and self.model.taken is not None:
                self.model.state.take(self.model.taken)
                done, self.model.taken = self.model.trainer.fit_loop.epoch_loop.batch_progress.current.completed, None
            yield torch.ones(2, 1)
            done += 1


def trained(model: Model) -> Model:
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    model.state = HostState(trainer)
    model.state.begin(0)
    trainer.fit(model, Steps(model))
    return model
